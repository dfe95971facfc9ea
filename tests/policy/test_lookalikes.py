"""How a word looks to a person, whatever characters it consists of."""

from __future__ import annotations

import pytest

from gateway.policy.lookalikes import looks_latin, read_as_latin, read_letters, read_plain, spell_letters


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("contrase\u00f1a", "contrasena"), ("contrasen\u0303a", "contrasena"), ("p\u200ba\u2060ss", "pass"), ("pa\u00adss", "pass"),
        ("\uff50\uff49\uff4e", "pin"), ("\U0001d429\U0001d422\U0001d427", "pin"), ("\U0001f17f\U0001f178\U0001f17d", "pin"),
        ("\u24df\u24d8\u24dd", "pin"), ("p&#105;n &amp; x", "pin & x"), ("Has\u0142o", "Haslo"),
        ("\u0643\u0640\u0644\u0645\u0629", "\u0643\u0644\u0645\u0647"),
        ("\u092a\u0938\u094d\u0935", "\u092a\u0938\u094d\u0935"), ("\ube44\ubc00", "\ube44\ubc00"), ("PIN\nTAN", "PIN\nTAN"),
    ],
)  # fmt: skip
def test_reading_drops_invisible_characters_and_keeps_letters(text: str, plain: str) -> None:
    assert read_plain(text) == plain


@pytest.mark.parametrize(
    ("word", "latin"),
    [
        ("p\u0430ssw\u043erd", "password"), ("\u0420\u0410\u0405\u0405", "PASS"), ("\u03c1\u03b9\u03b7", "pin"),
        ("\u1d18\u026a\u0274", "pin"),
        ("PlN", "PIN"), ("paroIa", "parola"), ("PLN", "PLN"), ("\u13e2in", "Pin"),
    ],
)  # fmt: skip
def test_letters_that_look_latin_are_read_as_latin(word: str, latin: str) -> None:
    assert read_as_latin(word) == latin


@pytest.mark.parametrize(
    ("word", "spellings"),
    [
        ("p4ssw0rd", ("pasword",)), ("pa$$word", ("pasword",)), ("p1n", ("pin", "pln")), ("passsword", ("pasword",)),
        ("passvvord", ("pasword",)),
        ("rnodern", ("modem",)), ("cvv", ("cvv",)), ("42", ("42",)),
    ],
)  # fmt: skip
def test_digits_signs_and_doubled_letters_are_read_as_letters(word: str, spellings: tuple[str, ...]) -> None:
    assert spell_letters(word) == spellings


def test_mix_of_digits_and_letters_is_read_in_letters() -> None:
    assert read_letters("4P1") == "aPi"


@pytest.mark.parametrize("name", ["p\u0430ypal", "\u0430\u0440\u0440\u04cf\u0435", "g\u03bf\u03bfgle"])
def test_names_that_imitate_latin_ones_are_found(name: str) -> None:
    assert looks_latin(name)


@pytest.mark.parametrize(
    "name",
    ["paypal", "b\u00fccher", "\u043c\u043e\u0441\u043a\u0432\u0430", "\u4f8b\u3048", "\u03b5\u03bb\u03bb\u03b1\u03b4\u03b1", "caf\u00e9"],
)
def test_names_of_other_alphabets_are_not_imitations(name: str) -> None:
    assert not looks_latin(name)
