"""`RequestHead`: the head of an HTTP request, as `http1_server` gives it to applications and to the fast path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from gateway.wire.header_cache import LENGTH

if TYPE_CHECKING:
    from starlette.types import Scope

MAX_DIGITS = 11
"""Maximum digits of a `Content-Length`; a longer number counts as unknown."""


class RequestHead:
    """The head of one request, or of several requests of one connection that differ only in the values of some fields (`HeaderCache`)."""

    __slots__ = ("_facts", "fields", "is_single", "length", "method", "path")

    def __init__(self, facts: Scope) -> None:
        """`facts` is the ASGI scope of the request, which is not modified; `scope` returns a copy."""
        headers: list[tuple[bytes, bytes]] = facts["headers"]
        self._facts = facts
        self.method: str = facts["method"]
        self.path: str = facts["path"]
        self.fields: Mapping[bytes, bytes] = dict(headers)
        """Values by lower-case name. Of repeated fields only the last is included."""
        self.is_single = len(self.fields) == len(headers)
        """Whether no field is repeated."""
        length = self.fields.get(LENGTH, b"")
        self.length = int(length) if length.isdigit() and len(length) <= MAX_DIGITS else -1
        """Bytes of the body; -1 if the head does not say."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream that only the client ends."""
        return self.method == "GET" and b"text/event-stream" in self.fields.get(b"accept", b"")

    @property
    def version(self) -> str:
        """HTTP version, such as `1.1`."""
        return self._facts["http_version"]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All fields in their order, as a new list."""
        return [*self.fields.items()] if self.is_single else [*self._facts["headers"]]

    def scope(self) -> Scope:
        """Return a new ASGI scope for one request."""
        return {**self._facts, "headers": self.headers, "state": self._facts["state"].copy()}

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> Self:
        """Return a copy with other values of these fields and another length. Requires `is_single`."""
        other = object.__new__(type(self))
        other._facts, other.method, other.path, other.is_single = self._facts, self.method, self.path, True
        other.fields, other.length = {**self.fields, **values}, length
        return other
