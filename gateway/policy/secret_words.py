"""Words by which a form field says that it wants a secret, in the languages most servers are written in.

A field is judged by its name and title only. Languages that write words apart are matched word by word, and by long stems inside
compound words (`Benutzerpasswort`); those that do not, by what the text contains. Asked by `inputs`.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

_WORDS = frozenset({
    "passwd", "passphrase", "passcode", "pwd", "secret", "token", "credential", "credentials", "apikey", "cvv", "cvc", "otp",
    "geheimnis", "zugangscode", "geheimzahl",  # German
    "mdp", "jeton",  # French
    "clave", "secreto", "contrasenia",  # Spanish
    "senha", "segredo",  # Portuguese
    "segreto", "gettone",  # Italian
    "geheim", "toegangscode",  # Dutch
    "haslo", "hasło", "heslo", "jelszo", "parola", "lozinka",  # Polish, Czech, Hungarian, Romanian and Turkish, Croatian
    "sifre", "kodeord", "passord", "sekret", "hemlighet", "tunnusluku",  # Turkish, Danish, Norwegian, Swedish, Finnish
    "секрет", "токен", "пин", "пинкод",  # Russian
    "συνθηματικο", "κωδικος",  # Greek
})  # fmt: skip
"""Whole words, without accents."""

NEVER_NUMBERS = frozenset({"token", "secret", "credential", "credentials", "clave", "jeton", "gettone", "токен", "секрет"})
"""Words that in a number's name mean something else, mostly a count."""

_STEMS = (
    "password", "passwort", "kennwort", "wachtwoord", "losenord", "contrasena", "adgangskode", "salasana", "парол", "palavrapasse",
)  # fmt: skip
"""Parts of words, without accents."""

_PAIRS = frozenset({
    ("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("pass", "word"), ("pass", "phrase"), ("pass", "code"),
    ("pin", "code"), ("pin", "number"), ("code", "pin"), ("codigo", "pin"), ("codice", "pin"), ("mot", "passe"), ("palavra", "passe"),
    ("код", "доступа"), ("parola", "ordine"), ("cle", "api"), ("cle", "privee"), ("cle", "secrete"),
})  # fmt: skip
"""Neighbouring words; small words between them are left out first."""

_HARMLESS_PAIRS = frozenset({("palabra", "clave"), ("palabras", "clave"), ("parola", "chiave"), ("parole", "chiave")})
"""Keywords."""

_SMALL = frozenset({"de", "d", "du", "l", "la", "le", "da", "do", "of"})

_CONTAINED = (
    "密码", "密碼", "口令", "密钥", "密鑰", "令牌", "私钥", "私鑰", "通行码",  # Chinese
    "パスワード", "暗証番号", "パスコード", "トークン", "合言葉", "秘密鍵", "シークレット",  # Japanese
    "비밀번호", "암호", "패스워드", "토큰", "핀번호", "비밀키",  # Korean
)  # fmt: skip
"""In scripts without spaces; looked for anywhere."""

_WORD = re.compile(r"[^\W\d_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def reads_secret(text: str, spared: frozenset[str] = frozenset()) -> bool:
    """Whether `text` names a secret; `spared` words do not count."""
    composed = unicodedata.normalize("NFKC", text[:500])
    if not composed.isascii() and any(part in composed for part in _CONTAINED):
        return True
    words = [word for word in _words(composed) if word not in _SMALL]
    pairs = set(pairwise(words))
    if not _PAIRS.isdisjoint(pairs) or (words and words[-1] == "pin"):
        return True
    if not _HARMLESS_PAIRS.isdisjoint(pairs):
        return False
    return any((word in _WORDS and word not in spared) or any(stem in word for stem in _STEMS) for word in words)


def _words(text: str) -> list[str]:
    """The words of a name or title in lower case; `camelCase` is taken apart."""
    plain = text if text.isascii() else _without_accents(text)
    return [part.lower() for word in _WORD.findall(plain) for part in (_PART.findall(word) if word.isascii() else [word])]


def _without_accents(text: str) -> str:
    """Letters without their accents, so that a missing one changes nothing."""
    apart = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFC", "".join(c for c in apart if unicodedata.category(c) != "Mn"))
