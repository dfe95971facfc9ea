"""Forms of servers: which ask for a secret, whatever the language, the place and the disguise, and which are ordinary.

`forms/ordinary.jsonl` and `forms/secret.jsonl` hold one form a line, written for these tests after real servers of many kinds.
`forms/wordings.json` holds usual wordings of each kind of secret in the largest languages.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.form_judging import MAX_FORM_CHARS, MAX_FORM_PARTS, judge_form

FORMS = Path(__file__).parent / "forms"

LARGEST_LANGUAGES = {"en", "zh", "hi", "es", "fr", "ar", "bn", "pt", "ru", "ur"}

KNOWN_TO_PASS = {
    "Without your password the sync cannot go on.",  # "continue without your password?" is an ordinary question
    "Leave empty to keep the current password",  # the field's name reveals that the field is secret
    "Authorization: Bearer ...",  # such a header is documented as often as it is requested
}
"""Texts that ask for a secret and are not refused, with the reason."""


def forms(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FORMS / f"{name}.jsonl").read_text().splitlines()]


def params(form: dict[str, Any]) -> dict[str, Any]:
    return {key: form[key] for key in ("message", "requestedSchema")}


def texts(form: dict[str, Any]) -> str:
    return json.dumps(params(form), ensure_ascii=False)


def field(**schema: Any) -> dict[str, Any]:
    return {"message": "Please answer.", "requestedSchema": {"type": "object", "properties": {"value": {"type": "string", **schema}}}}


def asking(message: str) -> dict[str, Any]:
    return {**field(), "message": message}


def rule(form: dict[str, Any]) -> str | None:
    problem = judge_form(form)
    return problem.rule if problem is not None else None


def test_ordinary_forms_are_never_refused() -> None:
    ordinary = forms("ordinary")
    refused = [(problem.reason, texts(form)) for form in ordinary if (problem := judge_form(params(form))) is not None]
    assert refused == []
    assert len(ordinary) >= 300
    assert {form["language"] for form in ordinary} >= LARGEST_LANGUAGES


@pytest.mark.attack(17)
def test_forms_that_ask_for_secrets_are_refused() -> None:
    secret = forms("secret")
    passed = [form for form in secret if judge_form(params(form)) is None]
    assert [texts(form) for form in passed if not any(known in texts(form) for known in KNOWN_TO_PASS)] == []
    assert len(passed) <= 0.02 * len(secret)
    assert len(secret) >= 400
    assert {form["language"] for form in secret} >= LARGEST_LANGUAGES
    assert len({form["disguise"] for form in secret}) > 20
    assert len({form["place"] for form in secret}) > 10


WORDINGS: dict[str, dict[str, list[str]]] = json.loads((FORMS / "wordings.json").read_text())


@pytest.mark.attack(17)
def test_every_kind_of_secret_is_recognised_in_the_largest_languages() -> None:
    assert WORDINGS.keys() >= LARGEST_LANGUAGES
    assert all(len(wordings) >= 3 for kinds in WORDINGS.values() for wordings in kinds.values())
    assert len({frozenset(kinds) for kinds in WORDINGS.values()}) == 1
    wordings = [wording for kinds in WORDINGS.values() for known in kinds.values() for wording in known]
    assert [wording for wording in wordings if rule(asking(wording)) is None] == []
    assert [wording for wording in wordings if rule(field(title=wording)) is None] == []


@pytest.mark.attack(17)
@pytest.mark.parametrize("choice", ["Password", "Your seed phrase", "Credit card number", "Votre code confidentiel", "2FA code"])
@pytest.mark.parametrize("others", [[], ["Skip"]], ids=["only choice", "one of two"])
def test_choice_beside_free_text_may_not_name_a_secret(choice: str, others: list[str]) -> None:
    titled = [{"const": str(number), "title": title} for number, title in enumerate([choice, *others])]
    free = field()["requestedSchema"]["properties"]
    for offered in ({"enum": [choice, *others]}, {"oneOf": titled}, {"type": "array", "items": {"anyOf": titled}}):
        kind = {"kind": {"type": "string", **offered}}
        assert rule({"message": "Fill in the value.", "requestedSchema": {"properties": {**kind, **free}}}) == "elicitation.secret"
        assert rule({"message": "Which kind?", "requestedSchema": {"properties": kind}}) is None


@pytest.mark.parametrize("other", [{"title": "Comment"}, {"title": "Header name"}, {"type": "boolean"}], ids=str)
def test_choice_of_sign_in_methods_beside_other_fields_is_allowed(other: dict[str, Any]) -> None:
    method = {"type": "string", "enum": ["Password", "API key", "SSO"], "title": "Sign-in method"}
    schema = {"properties": {"method": method, "other": {"type": "string", **other}}}
    assert rule({"message": "How do users sign in?", "requestedSchema": schema}) is None


@pytest.mark.attack(17)
def test_field_named_after_a_secret_header_is_refused() -> None:
    assert rule({"message": "Continue", "requestedSchema": {"properties": {"Authorization": {"type": "string"}}}}) == "elicitation.secret"
    assert rule({"message": "Continue", "requestedSchema": {"properties": {"authorization_scheme": {"type": "string"}}}}) is None


def test_pin_that_is_a_verb_is_ordinary() -> None:
    assert rule(asking("Emoji to pin")) is None
    assert rule(asking("Reply to PIN")) == "elicitation.secret"


def test_tax_number_passes_only_for_a_company() -> None:
    assert rule(asking("Tax ID")) == "elicitation.secret"
    assert rule(asking("Tax ID of the company")) is None
    assert rule(asking("Your tax ID, for the company")) == "elicitation.secret"


@pytest.mark.parametrize("disguise", ["fullwidth", "mathematical", "decomposed", "title case", "soft hyphens"])
def test_unusual_writing_of_ordinary_forms_is_not_refused(disguise: str) -> None:
    def write(text: str) -> str:
        match disguise:
            case "fullwidth":
                return "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalpha() else c for c in text)
            case "mathematical":
                return "".join(chr(ord(c) - ord("a") + 0x1D41A) if "a" <= c <= "z" else c for c in text)
            case "decomposed":
                return unicodedata.normalize("NFD", text)
            case "title case":
                return text.title()
            case _:
                return " ".join(f"{word[:3]}\u00ad{word[3:]}" for word in text.split(" "))

    def rewritten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: value[key] if key in ("type", "format", "pattern") else rewritten(value[key]) for key in value}  # pyright: ignore[reportUnknownVariableType]  # JSON
        if isinstance(value, list):
            return [rewritten(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # JSON
        return write(value) if isinstance(value, str) else value

    refused = [texts(form) for form in forms("ordinary") if form["language"] == "en" and judge_form(rewritten(params(form))) is not None]
    assert refused == []


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "Seed phrase"}, {"title": "2FA code"}, {"title": "Card number"}, {"title": "National ID number"},
        {"description": "Enter your password"}, {"placeholder": "Your password"}, {"x-help": "Paste your API key"},
        {"ui": {"placeholder": "Enter your PIN"}}, {"examples": ["your-password"]}, {"examples": ["your password (required)"]},
        {"default": "Enter your password here"},
        {"type": "array", "items": {"type": "string", "title": "Recovery codes"}}, {"type": ["string", "null"], "title": "Password"},
        {"type": "integer", "title": "PIN"}, {"anyOf": [{"type": "string", "title": "Password"}, {"type": "null"}]},
        {"title": "Pa&#115;sword"}, {"title": "pass**word**"}, {"title": "p\u0430ssw\u043erd"}, {"title": "P I N"}, {"title": "p4ssw0rd"},
        {"title": "pa ss wo rd"}, {"title": "\U0001d429\U0001d41a\U0001d42c\U0001d42c\U0001d430\U0001d428\U0001d42b\U0001d41d"},
        {"title": "code", "pattern": "^[0-9]{6}$"}, {"title": "Code", "maxLength": 4}, {"pattern": "^\\d{3}-\\d{2}-\\d{4}$"},
        {"pattern": "^(\\d{4} ?){3}\\d{4}$"}, {"examples": ["4111 1111 1111 1111"]}, {"placeholder": "ghp_xxxxxxxxxxxx"},
        {"format": "password"}, {"writeOnly": True}, {"ui:widget": "password"},
        {"enum": list("0123456789"), "title": "First digit of your PIN"},
        {"enum": ["a", "b"], "enumNames": ["Type your password below", "Skip"]},
        {"oneOf": [{"const": "a", "title": "Enter your card number in the comment"}, {"const": "b", "title": "Skip"}]},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.attack(17)
def test_no_text_of_a_field_may_ask_for_a_secret(schema: dict[str, Any]) -> None:
    assert rule(field(**schema)) == "elicitation.secret"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"group": {"type": "object", "properties": {"pw": {"type": "string", "title": "Password"}}}}},
        {"properties": {}, "$defs": {"a": {"properties": {"password": {"type": "string"}}}}},
        {"properties": {"a": {"type": "string"}}, "required": ["password"]},
        {"properties": {"a": {"type": "string"}}, "title": "Enter your password"},
        {"properties": {"a": {"type": "string"}}, "description": "Your PIN, please."},
        {"properties": {"a": {"type": "string"}}, "allOf": [{"properties": {"api_key": {"type": "string"}}}]},
        {"type": "array", "items": [{"properties": {"token": {"type": "string"}}}]},
        "Enter your password",
    ],
    ids=str,
)
@pytest.mark.attack(17)
def test_no_part_of_a_schema_may_ask_for_a_secret(schema: Any) -> None:
    assert rule({"message": "Please answer.", "requestedSchema": schema}) == "elicitation.secret"


@pytest.mark.attack(17)
def test_further_parameters_may_not_ask_for_a_secret() -> None:
    assert rule({**field(), "title": "Enter your password"}) == "elicitation.secret"
    assert rule({**field(), "_meta": {"note": "password"}}) is None


@pytest.mark.attack(17)
@pytest.mark.parametrize(("key", "value"), [("x-widget", "secret"), ("ui:widget", "PasswordInput "), ("inputType", "password-input")])
def test_extension_that_masks_input_like_a_password_is_rejected(key: str, value: str) -> None:
    assert rule(field(**{key: value})) == "elicitation.secret"
    assert rule(field(**{key: "text"})) is None
    assert rule(field(default=value)) is None


def test_reason_names_the_text_that_asks() -> None:
    for form, where in ((asking("Enter your PIN"), "The message asks"), ({**field(), "note": "Enter your PIN"}, "The text 'note' asks")):
        problem = judge_form(form)
        assert problem is not None and problem.reason.startswith(where)


@pytest.mark.parametrize(
    "message",
    [
        "We will never ask for your password.", "Do not enter your PIN here. What can we help you with?", "The password policy document",
        "Reset the password of Alice?", "How do I enter my password? asks a customer.", "Should users enter their password again?",
        "Which page token comes next?", "Enter a name for the API key", "Enter the ID of the token to revoke",
        "Enter the subject of the password reset e-mail", "The operator can confirm password",
    ],
)  # fmt: skip
def test_mentioning_a_secret_is_not_asking_for_it(message: str) -> None:
    assert rule(asking(message)) is None


@pytest.mark.parametrize(
    "message",
    [
        "Do not forget to enter your password.", "We never share it. Your password?", "Your password expired. Type it below.",
        "Nobody will see it, just type your password", "Enter the digits of your PIN", "Reset done. Now enter your new password",
        "Please type the value of the token", "You have got a code by SMS. What is it?",
    ],
)  # fmt: skip
@pytest.mark.attack(17)
def test_indirect_request_for_a_secret_is_recognised(message: str) -> None:
    assert rule(asking(message)) == "elicitation.secret"


def test_required_secret_is_a_request_only_beside_free_text() -> None:
    yes_or_no = {"ok": {"type": "boolean"}}
    for question in ("Meeting PIN needed?", "Kennwort erforderlich?", "Mot de passe requis ?"):
        assert rule({"message": question, "requestedSchema": {"properties": yes_or_no}}) is None
        assert rule(asking(question)) == "elicitation.secret"


@pytest.mark.attack(17)
@pytest.mark.parametrize("message", ["Password required in the chat", "The password is required. Post it in the chat, then confirm."])
def test_form_without_free_text_may_not_request_a_secret_elsewhere(message: str) -> None:
    assert rule({"message": message, "requestedSchema": {"properties": {"ok": {"type": "boolean"}}}}) == "elicitation.secret"


@pytest.mark.attack(17)
def test_checkbox_may_not_name_the_secret_for_a_field_beside_it() -> None:
    checkbox = {"ok": {"type": "boolean", "title": "Password required"}}
    for title, expected in (("Value", "elicitation.secret"), ("Required", "elicitation.secret"), ("Comment", None)):
        schema = {"properties": {**checkbox, "free": {"type": "string", "title": title}}}
        assert rule({"message": "Continue", "requestedSchema": schema}) == expected


@pytest.mark.parametrize(
    ("named", "requested"),
    [
        ("Which kubeconfig should be used?", "Share your kubeconfig"),
        ("Your .env file has three lines. Which one is wrong?", "Your .env file was not found. Paste it here."),
        ("Path of ~/.netrc", "Content of ~/.netrc"),
        ("Paste the contents of .env.example", "Paste the contents of .env"),
        ("Provide the path to your .pgpass", "Provide your .pgpass"),
    ],
)  # fmt: skip
@pytest.mark.attack(17)
def test_secret_file_may_be_named_but_its_contents_not_requested(named: str, requested: str) -> None:
    assert rule(asking(named)) is None
    assert rule(asking(requested)) == "elicitation.secret"


def test_field_may_be_named_after_a_secret_file() -> None:
    for description, expected in (("Path of the file", None), ("Paste the contents of your kubeconfig", "elicitation.secret")):
        schema = {"properties": {"kubeconfig": {"type": "string", "description": description}}}
        assert rule({"message": "Which cluster?", "requestedSchema": schema}) == expected
    assert rule(field(description="Kubeconfig of the cluster")) is None


@pytest.mark.parametrize(
    ("ordinary", "secret"),
    [
        ("Enter the discount code we sent you", "Enter the code we sent you"),
        ("Entrez le code promo que nous vous avons envoyé", "Entrez le code que nous vous avons envoyé"),
        ("Digite o código promocional que enviamos", "Digite o código que enviamos"),
        ("Introduce el código del pedido que te enviamos", "Introduce el código que te enviamos"),
        ("Which number texted you?", "Type the number we just texted you"),
        ("Enter the six digits of the order number", "Enter the six digits we sent you"),
        ("List your API tokens by age", "List your wallet words"),
        ("List the words of the glossary", "List the words of your wallet"),
        ("Tell us about your first pet", "Tell us the name of your first pet"),
    ],
)  # fmt: skip
@pytest.mark.attack(17)
def test_similar_requests_are_distinguished(ordinary: str, secret: str) -> None:
    assert rule(asking(ordinary)) is None
    assert rule(asking(secret)) == "elicitation.secret"


@pytest.mark.parametrize(
    ("message", "expected"), [("Clave del producto", None), ("Clave de sol", None), ("Clave de la cuenta", "elicitation.secret")]
)
def test_message_explains_an_ambiguous_field_name(message: str, expected: str | None) -> None:
    for schema in ({"type": "string"}, {"type": "string", "title": "Clave"}):
        assert rule({"message": message, "requestedSchema": {"properties": {"clave": schema}}}) == expected
    assert rule({"message": message, "requestedSchema": {"properties": {"secreto": {"type": "string"}}}}) == "elicitation.secret"


def test_postal_pin_code_passes_only_beside_an_address() -> None:
    address = {"city": {"type": "string"}, "state": {"type": "string"}}
    pin = {"pincode": {"type": "string", "title": "PIN code"}}
    form = field()["requestedSchema"]
    assert rule({"message": "Delivery", "requestedSchema": {**form, "properties": {**address, **pin}}}) is None
    assert rule({"message": "Delivery", "requestedSchema": {**form, "properties": pin}}) == "elicitation.secret"
    assert rule({"message": "Your card", "requestedSchema": {**form, "properties": {**address, **pin}}}) == "elicitation.secret"


TOO_LARGE: dict[str, dict[str, Any]] = {
    "message": asking("x" * (MAX_FORM_CHARS + 1)),
    "letters that unfold": asking("\ufdfa" * 2_000),
    "choices": field(enum=[str(number) for number in range(MAX_FORM_PARTS + 1)]),
    "one megabyte": field(description="x" * 1_000_000),
    "names": {"message": "?", "requestedSchema": {"properties": {"n" * 50 + str(number): None for number in range(1_000)}}},
}


@pytest.mark.parametrize("form", TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.attack(21)
def test_form_too_large_to_judge_is_refused(form: dict[str, Any]) -> None:
    assert rule(form) == "elicitation.size"


def test_reason_names_the_field_and_the_alternative() -> None:
    problem = judge_form({**field(), "requestedSchema": {"properties": {"db_password": {"type": "string"}}}})
    assert problem is not None
    assert "'db_password' asks for a secret (password)" in problem.reason
    assert "mode `url`" in problem.reason


WORDS = st.sampled_from([
    "password", "enter", "your", "PIN", "code", "policy", "of", "never", "?", ".", ",", "\n", "\"", "(", "密码", "输入", "パスワード",
    "비밀번호", "пароль", "введите", "كلمة", "المرور", "पासवर्ड", "p4ss", "w0rd", "a", "1", "$", "@", "_", "-", "\u200b", "\u0430",
    "camelCase", "\u0950",
])  # fmt: skip
TEXTS = st.one_of(st.lists(WORDS, max_size=30).map(" ".join), st.lists(WORDS, max_size=30).map("".join), st.text(max_size=60))
SCHEMAS = st.recursive(
    st.one_of(TEXTS, st.none(), st.booleans(), st.integers()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["properties", "title", "description", "enum", "type", "items", "oneOf", "const", "required", "pattern", "x"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(message=TEXTS, schema=SCHEMAS)
def test_every_form_is_judged_whatever_its_shape(message: str, schema: Any) -> None:
    problem = judge_form({"message": message, "requestedSchema": schema})
    assert problem is None or problem.rule in ("elicitation.secret", "elicitation.size")


@settings(max_examples=80)
@given(before=TEXTS, after=TEXTS)
@pytest.mark.attack(17)
def test_password_field_is_refused_whatever_the_surrounding_text(before: str, after: str) -> None:
    form = {"message": before, "requestedSchema": {"description": after, "properties": {"password": {"type": "string"}}}}
    assert rule(form) == "elicitation.secret"
