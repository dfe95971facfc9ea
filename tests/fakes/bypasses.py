"""Known bypasses of rules for paths, URLs and mail addresses: values that a rule for the folder `docs`, the host `api.example.com` or
the domain `example.com` must reject. Used by tests of rule keywords, of examples in the documentation, and by attack tests.
"""

from __future__ import annotations

import ntpath
import posixpath
import re
import unicodedata
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import ada_url
import httpx2

PATHS = [
    # outside
    "", ".", "..", "/", "src/a", "docsx/a", "DOCS/a", "Docs", "/docs/a", "../docs/a", "docs/../a", "docs/..", "docs/sub/../../a",
    "docs/a/..",
    "docs/../docs/a", "./../docs", "docs/.../a", "docs/..;/a", "docs/..#/a", "docs/..a",
    # other separators and roots
    "docs\\a", "docs\\..\\a", "docs/..\\a", "\\docs\\a", "\\\\host\\share", "//host/share", "///docs/a", "C:\\docs\\a", "C:/docs/a",
    "C:docs",
    "docs/C:/x", "file:docs/a", "file:///docs/a", "FILE:/docs/a", "http://docs/a", "docs/a:stream", "docs/a::$DATA",
    "docs::$INDEX_ALLOCATION/a",
    # expansions
    "~", "~/docs/a", "~root/docs", "./~/a", "$HOME/docs", "${HOME}/docs", "%APPDATA%/docs", "-rf", "--output=docs/a", "docs/*", "docs/.?/a",
    "docs/{..,a}/b", "docs/`id`", "docs/a|b", "docs/a<b", "docs/a>b", 'docs/"../"/b', "docs/'..'/b", "docs/.[.]/b", "docs/.'.'/b",
    "docs/[.][.]/b",
    "docs/.[!a]/b", "docs/$'..'/b", "docs/@(..)/b", "docs/.!(a)/b", "docs/.$@./b",
    # encodings
    "docs/%2e%2e/a", "docs/%2E%2E/a", "docs/..%2fa", "docs/..%5ca", "docs/%252e%252e/a", "docs/%25252e/a", "docs/%u002e%u002e/a",
    "docs/%c0%ae/a",
    "docs/%00", "docs/a%20b", "%64ocs/a",
    # control and invisible characters
    "docs/a\0", "docs/a\0.txt", "docs/a\n", "docs/\ta", "docs/\x7f", "docs/\x85a", "docs/\u200b../a", "docs/.\u200c./a", "docs/a\u202egnp",
    "docs/\ufeffa", "docs/a\u2028", "docs/\ud800", "docs/\ue000", "docs/\u00ada",
    # look-alike characters
    "docs/\uff0e\uff0e/a", "docs/\u2024\u2024/a", "docs/\ufe52\ufe52/a", "docs/\u2025/a", "docs/\u2026/a", "docs/..\u2215a",
    "docs/..\u2044a",
    "docs/..\uff0fa", "docs/..\u29f8a", "docs/..\uff3ca", "docs/a\u2216b", "docs/a\ufe68b", "docs/a\u00a5..\u00a5b", "docs/a\u20a9b",
    "docs/a\uff1ab",
    "docs/\ua4f8\ua4f8/a", "docs/\u3002\u3002/a", "docs/\uff61\uff61/a",
    "docs/.\ufe0f./a", "docs/\uff05\uff12\uff45/a", "\uff44ocs/a", "docs\uff0fa", "docs/\uff23\uff2f\uff2e",
    "docs/a\uff5e1",
    # what Windows strips, shortens or opens as a device
    "docs/.. /a", "docs/.. .", "docs/a.", "docs/a. ", "docs/a ", "docs/ a", " docs/a", "docs/a /b", "docs /a", "docs./a",
    "docs/\u00a0a", "docs/a\u3000",
    "docs/A~1", "DOCS~1/a", "docs/LONGNA~1.TXT", "docs/a~12", "docs/nul", "docs/NUL", "docs/con.txt", "docs/Com1", "docs/lpt9.a.b",
    "docs/aux .txt",
    "docs/CONIN$", "docs/com\u00b9",
    # size
    "docs/" + "a" * 4_096,
]  # fmt: skip
"""For `within: "docs/"`."""

URLS = [
    # other hosts
    "https://evil.example/", "https://api.example.com.evil.example/", "https://evil.example/api.example.com", "https://xapi.example.com/",
    "https://example.com/", "https://api.example.com.", "https://api.example.com./", "https://.api.example.com/",
    "https://api.example.com:8443/",
    "https://api.example.com:80/", "https://api..example.com/", "https://apixexample.com/", "https://localhost/", "https://127.0.0.1/",
    # other schemes
    "http://api.example.com/", "ftp://api.example.com/", "file://api.example.com/etc/passwd", "javascript://api.example.com/%0aalert(1)",
    "data:text/html,api.example.com", "gopher://api.example.com/", "//api.example.com/", "api.example.com", "/api.example.com", "",
    "https:api.example.com/", "https:/api.example.com/", "https:///api.example.com/", "https:\\\\api.example.com/",
    "ht\ttps://api.example.com/",
    "view-source:https://api.example.com/", "https://https://api.example.com/",
    # users, and what some parsers take for one
    "https://user@api.example.com/", "https://user:pw@api.example.com/", "https://@api.example.com/",
    "https://api.example.com@evil.example/",
    "https://api.example.com:443@evil.example/", "https://evil.example\\@api.example.com/", "https://api.example.com\\@evil.example/",
    "https://evil.example#@api.example.com/", "https://evil.example?@api.example.com/", "https://api.example.com#@evil.example/",
    "https://api.example.com?@evil.example/", "https://api.example.com;@evil.example/", "https://api.example.com&@evil.example/",
    "https://api.example.com%40evil.example/", "https://api.example.com%2f@evil.example/", "https://a@b@api.example.com/",
    # control characters, spaces, backslashes
    " https://api.example.com/", "https://api.example.com/ ", "https://api.example.com/\n",
    "https://api.example.com/\r\nHost: evil.example",
    "https://api.example.com\t/", "https://api.exam\nple.com/", "https://api.example.com\\.evil.example/",
    "https://api.example.com/\\evil.example",
    "https://api.example.com\0.evil.example/", "https://api.example.com .evil.example/", "https://api.example.com/\u200b",
    "https://api.example.com/\x7f",
    "https://api.example.com/\u3000x",
    # encoded and look-alike hosts
    "https://api%2eexample.com/", "https://%61pi.example.com/", "https://api\u3002example.com/", "https://api\uff0eexample.com/",
    "https://\uff41pi.example.com/", "https://\u0430pi.example.com/", "https://api.example.com\u2100evil.example/",
    "https://api.example.com\uff0fx/",
    "https://api.example.co\u217f/", "https://api.ex\u00adample.com/", "https://api.example.com\uff20evil.example/",
    "https://xn--pi-8cc.example.com/",
    # addresses in odd spellings
    "https://2130706433/", "https://0x7f000001/", "https://017700000001/", "https://127.1/", "https://0x7f.1/", "https://0177.0.0.1/",
    "https://127.0.0.1./", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[fe80::1%25eth0]/",
    "https://[v1.api.example.com]/", "https://api.example.com.1/", "https://api.example.com.0x7f/", "https://[api.example.com]/",
    # ports
    "https://api.example.com:/", "https://api.example.com:0443/", "https://api.example.com:4430/", "https://api.example.com:443x/",
    "https://api.example.com:99999/", "https://api.example.com:443:443/", "https://api.example.com:+443/",
    "https://api.example.com:\uff14\uff14\uff13/",
    # size
    "https://api.example.com/" + "a" * 8_192,
]  # fmt: skip
"""For `oneOfHosts: ["api.example.com"]`."""

RECIPIENTS = [
    "", "ann", "ann@", "@example.com", "ann@evil.example", "ann@example.com.evil.example", "ann@xexample.com", "ann@sub.example.com",
    "ann@example.com.", "ann@.example.com", "ann@example..com", "ann@example.com,eve@evil.example", "ann@example.com;eve@evil.example",
    "ann@example.com eve@evil.example", "eve@evil.example,ann@example.com", "ann@example.com\nBcc: eve@evil.example", "ann@example.com\r\n",
    "ann@example.com ", " ann@example.com", "Ann <ann@example.com>", "<ann@example.com>", "eve@evil.example <ann@example.com>",
    "ann@example.com <eve@evil.example>", "ann@example.com (eve@evil.example)", '"eve@evil.example"@example.com', '"ann"@example.com',
    "eve%evil.example@example.com", "evil.example!eve@example.com", "@evil.example:ann@example.com", "ann@eve@example.com",
    "ann@example.com@evil.example", "ann@[127.0.0.1]", "ann@127.0.0.1", "ann@127.1", "-Xann@example.com", ".ann@example.com",
    "ann.@example.com",
    "a..b@example.com", "ann@ex\u00e4mple.com", "ann@example\u3002com", "ann\uff20example.com", "\u00e4nn@example.com", "ann@example.com\0",
    "mailto:ann@example.com", "ann@example.com?bcc=eve@evil.example", "a" * 250 + "@example.com",
]  # fmt: skip
"""For `oneOfRecipients: ["example.com"]`."""

OTHER_TYPES: list[Any] = [
    5, 1.5, True, None, {}, [], ["/etc/passwd"], {"path": "/etc/passwd"}, [["docs/a"]], [{"path": "docs/a"}],
    ["docs/a", "/etc/passwd"],
]  # fmt: skip
"""What is not a text; a tool whose argument is one text has to be sent none of them."""

# -- independent models ----------------------------------------------------------------------------------------------

ROOT = "/srv/root"
"""The folder that relative paths start from."""


def is_inside(place: str, folder: str) -> bool:
    """Whether an absolute path lies in `folder`, which is absolute or relative to `ROOT`."""
    inside = posixpath.normpath(posixpath.join(ROOT, folder))
    return place == inside or place.startswith(f"{inside.rstrip('/')}/")


def _decoded(value: str) -> Iterator[str]:
    once = unquote(value, errors="replace")
    for text in (value, once, unquote(once, errors="replace")):
        for form in (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)):
            yield from (form, form.strip(), form.partition("\0")[0], form.translate(_BEST_FIT), "".join(c for c in form if c.isprintable()))


_BEST_FIT = str.maketrans({
    **dict.fromkeys("\u2215\u2044\uff0f\u29f8", "/"), **dict.fromkeys("\uff3c\u2216\ufe68\u00a5\u20a9", "\\"),
    **dict.fromkeys("\u200b\u200d\u202e\ufeff\ufe0f", ""), "\uff0e": ".", "\u2024": ".",
})  # fmt: skip
"""What code pages of Windows make of characters they do not have."""


def places_of(value: str) -> Iterator[str]:
    """Absolute paths with '/' to which some server whose folder is `ROOT` may resolve the value."""
    for text in dict.fromkeys(_decoded(value)):
        if text.startswith("file://"):
            text = text[7:]
        yield posixpath.normpath(posixpath.join(ROOT, text))
        yield posixpath.normpath(posixpath.join(ROOT, re.sub(r"\A(?:\./+)*[~$%][^/]*", "/home/ann", text)))
        stripped = "\\".join(part if part in (".", "..") else part.rstrip(". ") for part in text.replace("/", "\\").split("\\"))
        for form in (text, stripped):
            yield ntpath.normpath(ntpath.join(ROOT, form)).replace("\\", "/")


def hosts_of(value: str) -> dict[str, str | None]:
    """The host that each parser reads, in lower case and without brackets; parsers that refuse the URL are left out."""
    found: dict[str, str | None] = {}
    with suppress(ValueError):
        found["WHATWG"] = ada_url.URL(value).hostname
    with suppress(ValueError):
        found["urllib"] = urllib.parse.urlsplit(value).hostname
    with suppress(httpx2.InvalidURL):
        found["httpx2"] = httpx2.URL(value).host
    by_rfc_3986 = re.match(r"^(?:[^:/?#]+:)?(?://([^/?#]*))?", value)
    found["RFC 3986"] = (by_rfc_3986.group(1) if by_rfc_3986 else None) or ""
    found["RFC 3986"] = re.sub(r":[0-9]*\Z", "", found["RFC 3986"].rpartition("@")[2])
    before_slash = value.partition("://")[2].partition("/")[0]
    found["until the last @"] = re.sub(r":[0-9]*\Z", "", before_slash.rpartition("@")[2])
    return {name: host.lower().strip("[]") if host else host for name, host in found.items()}
