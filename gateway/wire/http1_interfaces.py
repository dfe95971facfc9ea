"""Types that `http1_server` exchanges with the packages above it: admissions, started requests and connection limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SURPLUS_SCOPE_KEY = "moongate.surplus"
"""ASGI scope key of a request on a connection above the limit of connections: only health checks and administrators are served there."""

UNSENT, HALF_SENT, IDLE = range(3)
"""What a connection waits for: its first request, the rest of a request, or the next request. Connections are closed in this order to make
room for new ones.
"""

Field = tuple[bytes, bytes]
"""Name and value of a header field."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of judging a request by its head, before its body is complete: who the caller is."""

    owner: str | None
    """Id of the principal; `None` if the caller is not known and only the address counts."""
    is_local: bool
    """Whether the caller is the local user: one principal for all programs on this machine."""
    waits: bool
    """Whether a request with a short body is started only when the body is complete; otherwise the application starts at once."""


class StartedRequest(Protocol):
    """A request that the fast path has started."""

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` ended the request."""
        ...

    def cancel(self, msg: object = None) -> None:
        """End the request without a response. uvicorn calls this when it stops, as it does for tasks."""
        ...

    def left(self) -> None:
        """Note that the client disconnected, which may end the request."""
        ...

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call `then` once, when the response is ready or the SDK path must continue the request; then `answer` may be called."""
        ...

    def answer(self) -> tuple[Field | None, Sequence[bytes | memoryview]] | None:
        """Return an additional header field or `None`, with the JSON body in parts; `None` alone if `go_on` must answer the request."""
        ...

    def forget(self) -> None:
        """Release the request's memory. No other method is called afterwards."""
        ...

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as an ASGI application: hand the started call over to the SDK path."""
        ...


class Peer(Protocol):
    """One client connection, as `ConnectionTable` uses it."""

    address: str | None
    """Key under which `ConnectionTable` counts the connection (`network_of`); `None` if it was lost before its address was read."""

    def waits(self) -> tuple[int, float] | None:
        """Return `UNSENT`, `HALF_SENT` or `IDLE`, and the loop time since when; `None` while the connection serves a request or closes."""
        ...

    def evict(self) -> None:
        """Close the connection, because a new connection needs its place."""
        ...


class ConnectionTable(Protocol):
    """Counts client connections and bytes of incomplete requests, and closes some connections above a limit (`server.connections`)."""

    def network_of(self, client: tuple[str, int] | None, /) -> str | None:
        """Return the key under which connections from this address are counted: the address, or an IPv6 network."""
        ...

    def opened(self, peer: Peer, now: float, /) -> bool | None:
        """Count a new connection. Return `True` to serve it, `False` to serve it as surplus (`SURPLUS_SCOPE_KEY`), `None` to refuse it."""
        ...

    def closed(self, peer: Peer, /) -> None:
        """Stop counting a connection, because it has closed."""
        ...

    def incomplete(self, peer: Peer, admission: Admission | None, size: int, /) -> None:
        """Set the count of a connection's bytes of incomplete requests to `size`. This may close the connection."""
        ...

    def completed(self, peer: Peer, /) -> None:
        """Stop counting a connection's bytes of incomplete requests, because no request on it is incomplete any more."""
        ...
