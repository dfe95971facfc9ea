"""`Link`: an open way to one server, on which a `Session` speaks; `links` has those there are.

Plain requests, and all over a pipe, take its `exchange`, which needs no SDK. Everything else (the handshake and the stream of a 2025
server behind a URL, a sign-in, a proxy, traces) takes the SDK's dispatcher over the streams that `widen` gives; they are opened when
they are first wanted. What a server says by itself goes to the session's `Taker`, whichever way it comes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from gateway.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from gateway.tools.context import CallContext
    from gateway.upstream.exchange import Exchange
    from gateway.upstream.pipe import PipeExchange

Streams = tuple[Any, Any]
"""The SDK's message streams: what is read, and what is written to."""


class Taker(Protocol):
    """Who takes what a server says by itself. `ctx` is the call it belongs to, where the way it came tells."""

    async def answer(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Answer a request of the server's. Raises `RpcError`."""
        ...

    async def hear(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Take a notification. Never raises."""
        ...


class Link(Protocol):
    """Made and closed by who opened it; used by one session."""

    @property
    def exchange(self) -> Exchange | PipeExchange | None:
        """The short way; `None` where everything has to go the long one."""
        ...

    async def serve(self, taker: Taker) -> None:
        """Hand on what the server says, until the connection ends."""
        ...

    def widen(self) -> AbstractAsyncContextManager[Streams]:
        """The SDK's streams over the same connection; at most once."""
        ...
