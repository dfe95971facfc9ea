"""Types that `http1_server` exchanges with the packages above it: admissions, started requests and connection limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SURPLUS_SCOPE_KEY = "moongate.surplus"
"""ASGI scope key of a request on a connection above the limit: only health checks and administrators are served there."""

UNSENT, HALF_SENT, IDLE = range(3)
"""What a connection waits for, in the order in which connections are closed for new ones: the first request, the rest of one, the next."""

Field = tuple[bytes, bytes]
"""Name and value of a header field."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The caller of a request whose body is incomplete."""

    owner: str | None
    """Id of the principal; `None` if the caller is not known and only the address counts."""
    is_local: bool
    """Whether the caller is the local user, who stands for all local programs."""
    waits: bool
    """Whether a request with a short body is started when the body is complete."""


class StartedRequest(Protocol):
    """A request that the fast path has started."""

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` ended it."""
        ...

    def cancel(self, msg: object = None) -> None:
        """End the request without a response. uvicorn calls this when it stops, as it does for tasks."""
        ...

    def left(self) -> None:
        """Note that the client disconnected, which may end the request."""
        ...

    def when_settled(self, then: Callable[[], None]) -> None:
        """Call `then` once, as soon as `answer` may be called."""
        ...

    def answer(self) -> tuple[Field | None, Sequence[bytes | memoryview]] | None:
        """Return a header field for the response, if it needs one, and the JSON body in parts; `None` if `go_on` must answer."""
        ...

    def forget(self) -> None:
        """Release the request's memory. No other method is called afterwards."""
        ...

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as an ASGI application: hand the started call over to the SDK path."""
        ...


class Peer(Protocol):
    """A connection, as the connection table sees it."""

    address: str | None
    """The client's network; `None` if the connection was lost before its address could be read."""

    def waits(self) -> tuple[int, float] | None:
        """Return `UNSENT`, `HALF_SENT` or `IDLE`, and since when (loop time); `None` while the connection serves a request or closes."""
        ...

    def give_way(self) -> None:
        """Close the connection, because another one needs its place."""
        ...


class ConnectionTable(Protocol):
    """Counts connections and incomplete requests, and closes some above a limit (`server.connections`)."""

    def network_of(self, client: tuple[str, int] | None, /) -> str | None:
        """Return the key under which connections from this address are counted: the address, or an IPv6 network."""
        ...

    def opened(self, peer: Peer, now: float, /) -> bool | None:
        """Count a connection; return whether it is served: `False` above the limit (`SURPLUS_SCOPE_KEY`), `None` if it is refused."""
        ...

    def closed(self, peer: Peer, /) -> None:
        """Stop counting a connection."""
        ...

    def incomplete(self, peer: Peer, admission: Admission | None, size: int, /) -> None:
        """Count the bytes of incomplete requests. This may close the connection."""
        ...

    def completed(self, peer: Peer, /) -> None:
        """Stop counting incomplete requests."""
        ...
