"""Writes HTTP/1.1 requests to one URL: `RequestHeads` builds and caches their heads. Used by the HTTP carriers, with `http1_client`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

MAX_CACHED_HEADS = 1024
"""Heads cached by their fields: one for each tool, and one for each argument that is mirrored into a header."""

_FRAMING = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive", "proxy-connection"}
)
"""Fields that would change the framing of a request."""

_TARGET = re.compile(r"/[A-Za-z0-9\-._~!$&'()*+,;=:@%/?]*")
_HOST = re.compile(r"[A-Za-z0-9\-._:]+")
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
"""Field values that can be sent unchanged; above all, none with a line break."""


class RequestHeads:
    """The heads of POST requests to one URL, without `content-length` and the last line break."""

    def __init__(self, url: str, fields: Mapping[str, str]) -> None:
        """`fields`, by lower-case name, are in every head.

        Raises:
            ValueError: The URL or a field cannot be sent unchanged, or a field would change the framing.
        """
        parts = urlsplit(url)
        self.is_tls = parts.scheme == "https"
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if self.is_tls else 80)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        is_plain = parts.scheme in ("http", "https") and "@" not in parts.netloc and not parts.fragment
        if not (is_plain and _HOST.fullmatch(self.host) and _TARGET.fullmatch(target)) or _FRAMING & fields.keys():
            raise ValueError("URL or framing")
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields.items()):
            raise ValueError("field")
        shown = f"[{self.host}]" if ":" in self.host else self.host
        shown += "" if parts.port is None else f":{parts.port}"
        self._start = "\r\n".join(
            [f"POST {target} HTTP/1.1", f"host: {shown}", *(f"{name}: {value}" for name, value in fields.items())]
        )
        self._heads: dict[tuple[tuple[str, str], ...], bytes] = {}

    def head(self, fields: tuple[tuple[str, str], ...]) -> bytes | None:
        """Return the head with further fields, from a cache; `None` if a value cannot be sent unchanged."""
        head = self._heads.get(fields)
        if head is None and all(_VALUE.fullmatch(value) for _, value in fields):
            head = (self._start + "".join(f"\r\n{name}: {value}" for name, value in fields)).encode()
            if len(self._heads) >= MAX_CACHED_HEADS:
                self._heads.clear()
            self._heads[fields] = head
        return head


def post_request(head: bytes, body: bytes) -> bytes:
    """Return a whole POST request."""
    return b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def get_request(head: bytes) -> bytes:
    """Return a GET request with the fields of a POST's head."""
    return b"GET%b\r\n\r\n" % head.removeprefix(b"POST")
