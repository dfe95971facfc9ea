"""Detects secrets by their form: a password in a URL, `?token=…`, `api_key=…`, `Authorization: Bearer …`. `SecretMask` uses it.

The patterns are used for errors, logs and spans of other software, because the gateway does not know this software's secrets. Each pattern
begins with a fixed word, so that searching a long text takes linear time. A text that only names a field (`missing token`, `password: too
short`) is not changed.
"""

from __future__ import annotations

import re
from functools import cache

MASK = "[secret]"
"""Text that replaces a secret."""

_NAMES = (
    r"passwords?|passwd|passphrase|pwd(?==[^/])|secret(?:[_-]?(?:access[_-]?)?key)?|client[_-]?secret|(?:api|access|private|account)[_-]?key"
    r"|(?:access|refresh|id|auth|session|bearer|api)[_-]?token"
)
_WORD = r"(?!(?:none|null|nil|undefined|true|false|missing|required|invalid|expired|empty|unset|redacted|string|str)\b)"
"""First part of the patterns of a secret's value: prevents a match at words such as `missing`, which error texts have in its place."""
_BARE = rf"{_WORD}[^\s&;,'\"<>()\[\]{{}}|\\*$%#][^\s&;,'\"<>()\[\]{{}}|\\#]*"
_QUOTED = r"\\?[\"'][^\s\"'\\\[<{$*][^\"'\\\n]{0,511}(?=[\"'\\])"
_FORMS = (
    # `postgres://user:password@host`; a password may contain `@`. `http://host:80/a@b` has a `/` before the `@`.
    r"(?P<url>://[^\s/?#@:'\"<>]*:)(?P<a>[^\s/?#'\"<>]+)(?=@)",
    # `password=…`, `DB_PASSWORD=…`, `api_key='…'`
    rf"(?<![a-z0-9])(?P<name>(?:{_NAMES})=)(?:(?P<b>{_BARE})|(?P<c>{_QUOTED}))",
    # `?token=…`, `&sig=…`
    rf"(?P<query>[?&](?:token|auth|sig|signature|x-amz-(?:signature|security-token))=)(?P<d>{_BARE})",
    # `GITHUB_TOKEN=…`
    rf"(?P<variable>(?-i:(?<=[A-Z0-9]_)TOKEN=))(?P<e>{_BARE})",
    # `"password": "…"`
    rf"(?P<field>[\"'](?:{_NAMES}|token)\\?[\"']\s?:\s?\\?[\"'])(?P<f>{_WORD}[^\s\"'\\\[<{{$*][^\s\"'\\]*)(?=\\?[\"'])",
    # `X-Api-Key: …`
    rf"(?P<header>(?<![a-z0-9])(?:x-)?api-key: )(?P<g>{_BARE})",
    # `Authorization: Bearer …`, and `Bearer …` followed by something that is not a word
    rf"(?P<authorization>authorization\\?[\"']?\s?[:=]\s?\\?[\"']?(?:bearer|basic|token)\s)(?P<h>(?!header|token|auth|scheme){_BARE})",
    r"(?P<bearer>\bbearer\s)(?P<i>(?=[a-z._~+/=-]{0,512}[0-9])[a-z0-9._~+/=-]{16,})",
)
_VALUES = "abcdefghi"
_SIGNS = ("=", "://", ":", "earer")
"""Each form of a secret contains at least one of these strings, so a text without any of them is not searched."""


@cache
def _secret() -> re.Pattern[str]:
    """Return the pattern that matches all forms of secrets. It is compiled on first use, because this takes milliseconds."""
    return re.compile("|".join(_FORMS), re.IGNORECASE)


def mask_forms(text: str) -> str:
    """Replace all text that has the form of a secret by `MASK`, and return the result."""
    if not any(sign in text for sign in _SIGNS):
        return text
    return _secret().sub(_masked, text)


def _masked(found: re.Match[str]) -> str:
    name = next(name for name in _VALUES if found[name] is not None)
    opened = found[name][: len(found[name]) - len(found[name].lstrip("\\\"'"))] if name == "c" else ""
    return f"{found[0][: found.start(name) - found.start()]}{opened}{MASK}"
