"""Types shared by the HTTP server in `http1_server` and the packages that use it: admissions, started requests, connection limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SURPLUS_SCOPE_KEY = "moongate.surplus"
"""ASGI scope key of requests on a connection above the connection limit, where only health checks and administrators are served."""

UNSENT, HALF_SENT, IDLE = range(3)
"""Kinds of waiting client connections: without any request yet, with an incomplete request head, or idle after a request. They are closed
in this order to make room for new connections. A connection that only drops received bytes after its last response counts as `UNSENT`.
"""

Field = tuple[bytes, bytes]
"""Name and value of an HTTP header field."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The caller of an HTTP request, as determined from the request's head before its body is complete."""

    owner: str | None
    """Id of the principal for whom the request's bytes are counted. `None` for an unknown caller: the bytes are counted for its address."""
    is_local: bool
    """Whether the caller is the local user: one principal for all programs on this machine."""
    waits: bool
    """Whether to wait for the end of a short body, so that the fast path (no MCP SDK) can answer; else the ASGI application starts now."""


class StartedRequest(Protocol):
    """An HTTP request in progress on the fast path, which answers plain requests without the MCP SDK."""

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has ended the request."""
        ...

    def cancel(self, msg: object = None) -> None:
        """End the request without a response. uvicorn calls this when it stops, as it does for tasks."""
        ...

    def left(self) -> None:
        """Handle the disconnection of the client, which may end the request."""
        ...

    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once: when the response is ready, or when it is known that `go_on` must produce the response.

        After `then` was called, the connection may call `answer`, which returns the response, or `None` if `go_on` must produce it.
        """
        ...

    def answer(self) -> tuple[Field | None, Sequence[bytes | memoryview]] | None:
        """Return an additional header field (or `None`) and the JSON body in consecutive parts.

        Return `None` instead of this pair if the request was cancelled, or the method `go_on` must produce the response.
        """
        ...

    def forget(self) -> None:
        """Release the request's memory. The connection calls this method last."""
        ...

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as an ASGI application: hand the started call over to the handlers that use the MCP SDK (SDK path)."""
        ...


class Peer(Protocol):
    """One client connection that `ConnectionTable` counts and may close."""

    address: str | None
    """Key under which `ConnectionTable` counts the connection: an IP address or IPv6 network; `None` if the address could not be read."""

    def waits(self) -> tuple[int, float] | None:
        """Return what the connection waits for (`UNSENT`, `HALF_SENT` or `IDLE`), and the event loop time at which the wait began.

        Return `None` while the connection receives the body of a request, serves a request or is closing.
        """
        ...

    def evict(self) -> None:
        """Close the connection to make room for a new one."""
        ...


class ConnectionTable(Protocol):
    """Counts client connections and the bytes of their incomplete requests, and closes connections above a limit.

    `server.connections` implements it.
    """

    def network_of(self, client: tuple[str, int] | None, /) -> str | None:
        """Return the key under which connections from this address are counted: the address, or an IPv6 network."""
        ...

    def opened(self, peer: Peer, now: float, /) -> bool | None:
        """Count a new connection. Return `True` if it is to be served, `None` if it is to be refused.

        Return `False` if only health checks and administrators are to be served on the connection (`SURPLUS_SCOPE_KEY`). `now` is the event
        loop time.
        """
        ...

    def closed(self, peer: Peer, /) -> None:
        """Stop counting a connection, because it has closed."""
        ...

    def incomplete(self, peer: Peer, admission: Admission | None, size: int, /) -> None:
        """Record that a connection's incomplete requests now have `size` bytes. Above a limit, close connections, maybe this one.

        `admission` is the caller of the request that is arriving, or `None` if the caller has not been determined.
        """
        ...

    def completed(self, peer: Peer, /) -> None:
        """Stop counting the bytes of a connection's incomplete requests: all requests are complete, or the rest of a request is dropped."""
        ...
