"""`Head`: the method, path and header fields of an HTTP request, with facts derived from them.

A connection reuses the object for its next request with the same head, so each fact is derived once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.wire.header_cache import LENGTH

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.auth.api_keys import KeyInfo
    from gateway.server.envelopes import Introduced


MAX_DIGITS = 11
"""Maximum digits of a `Content-Length`; a longer number counts as unknown."""

VARYING = frozenset({LENGTH, b"mcp-name", b"traceparent", b"tracestate", b"baggage", b"x-request-id"})
"""Fields on which no cached fact depends, except `length` and `named`."""


class Head:
    """The head of one request, or of several equal requests on one connection."""

    __slots__ = ("_facts", "fields", "has_place", "introduced", "is_plain", "is_single", "key", "length", "method", "named", "path")

    def __init__(self, facts: Scope) -> None:
        """`facts` is the ASGI scope of the request, which is not modified; `scope` returns a copy."""
        headers: list[tuple[bytes, bytes]] = facts["headers"]
        self._facts = facts
        self.method: str = facts["method"]
        self.path: str = facts["path"]
        self.fields = dict(headers)
        """Header fields by name. Of repeated fields only the last is included."""
        self.is_single = len(self.fields) == len(headers)
        """Whether no field is repeated."""
        length = self.fields.get(LENGTH, b"")
        self.length = int(length) if length.isdigit() and len(length) <= MAX_DIGITS else -1
        """Length of the body; -1 if it is unknown."""
        self.has_place = False
        """Whether Host and Origin were accepted and the framing is unambiguous (`KeyGate`)."""
        self.key: KeyInfo | None = None
        """The API key of the credentials. `KeyStore.holds` says whether it is still valid."""
        self.is_plain: bool | None = None
        """Whether the fast path may take the request; `None` if not derived yet."""
        self.introduced: Introduced | None = None
        """Client facts of the last body that agreed with this head."""
        self.named: str | None = None
        """Tool that the last such body named; `None` if `mcp-name` may name another one."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is an unlimited stream: the listening GET of 2025, or `subscriptions/listen` of 2026."""
        fields = self.fields
        if fields.get(b"mcp-method") == b"subscriptions/listen":
            return True
        return self.method == "GET" and b"text/event-stream" in fields.get(b"accept", b"")

    @property
    def version(self) -> str:
        """HTTP version, such as `1.1`."""
        return self._facts["http_version"]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All fields in their order, as a new list."""
        return [*self.fields.items()] if self.is_single else [*self._facts["headers"]]

    def scope(self) -> Scope:
        """Return a new ASGI scope."""
        return {**self._facts, "headers": self.headers, "state": self._facts["state"].copy()}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Head:
        """Return a copy with other values of `VARYING` fields and another length. Requires `is_single`."""
        other = object.__new__(Head)
        other._facts, other.method, other.path, other.is_single = self._facts, self.method, self.path, True
        other.fields, other.length = {**self.fields, **values}, length
        other.has_place, other.key, other.is_plain = self.has_place, self.key, self.is_plain
        other.introduced, other.named = self.introduced, None
        return other
