"""Responses of `http1_client`, and their heads as `HeaderCache` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.wire.message_sizes import Claim
from gateway.wire.sse import EventStream

_FIXED_FIELDS = frozenset(
    {b"content-type", b"connection", b"keep-alive", b"proxy-connection", b"upgrade", b"trailer", b"transfer-encoding"}
)
"""Fields that decide how a response is read."""


@dataclass(slots=True)
class Response:
    """The response to one request."""

    status: int
    headers: Mapping[bytes, bytes]
    """Values by lower-case name; values of a repeated field are joined by commas."""
    parts: list[bytes]
    """The body as it arrived, not decompressed."""
    stream: EventStream | None = None
    """The body of an event stream, which has a message or has ended. The caller reads it to the end, or calls `leave` or `close`."""
    claim: Claim | None = None
    """The claim of a large body, which the caller releases."""

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Cached head of a response with status 200 and a body of known length, after which the connection stays open."""

    fields: Mapping[bytes, bytes]
    length: int
    is_single: bool = True

    def with_values(self, values: Mapping[bytes, bytes], length: int) -> ResponseHead:
        """As `ParsedHead.with_values`."""
        return ResponseHead({**self.fields, **values}, length)


def varies(name: bytes) -> bool:
    """Return whether a field may differ between responses with the same cached head."""
    return name not in _FIXED_FIELDS
