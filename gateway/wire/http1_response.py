"""`Response`: what `http1_client` returns for a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.wire.message_sizes import Claim
from gateway.wire.sse import EventStream


@dataclass(slots=True)
class Response:
    """The response to one request."""

    status: int
    headers: Mapping[bytes, bytes]
    """Values by lower-case name; values of a repeated field are joined by commas."""
    parts: list[bytes]
    """The body as it arrived, not decompressed."""
    stream: EventStream | None = None
    """The messages of an event stream, once it has a message or has ended. The caller reads it to the end, or calls `leave` or `close`."""
    claim: Claim | None = None
    """The permission to hold a large body in memory; the caller releases it."""

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.parts)
