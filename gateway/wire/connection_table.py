"""The interface between `http1_server` and the table that limits its connections (`server.connections`)."""

from __future__ import annotations

from typing import Protocol

from gateway.wire.http1_exchange import Admission

SURPLUS_SCOPE_KEY = "moongate.surplus"
"""ASGI scope key of a request on a connection above the limit: only health checks and administrators are served there."""

UNSENT, HALF_SENT, IDLE = range(3)
"""What a connection waits for, in the order in which connections are closed for new ones: the first request, the rest of one, the next."""


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
