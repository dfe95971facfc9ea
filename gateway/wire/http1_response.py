"""`Response`: the HTTP response that `http1_client` returns for a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.wire.message_sizes import Claim
from gateway.wire.sse import EventStream


@dataclass(slots=True)
class Response:
    """The HTTP response to one request that `http1_client` sent."""

    status: int
    headers: Mapping[bytes, bytes]
    """Field values by lower-case name; values of a repeated field are joined by commas."""
    parts: list[bytes]
    """The body in consecutive parts, as it arrived: not decompressed."""
    stream: EventStream | None = None
    """The messages of a body that is an event stream; `None` for any other body. The response is returned when the stream has its first
    message or has ended. The caller reads the stream to its end, or calls its `leave` or `close`.
    """
    claim: Claim | None = None
    """The permission to hold a large body in memory; the caller releases it."""

    @property
    def body(self) -> bytes:
        """The whole body of the response, as it arrived: not decompressed."""
        return b"".join(self.parts)
