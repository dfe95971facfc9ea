"""The links there are: over streams of the SDK that somebody opened, over streamable HTTP, and over the pipe to a child process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.abc

from gateway.json_types import JsonMapping, JsonObject
from gateway.sdk import load
from gateway.upstream.desk import Desk
from gateway.upstream.exchange import Exchange, Joined, report
from gateway.upstream.link import Streams, Taker
from gateway.upstream.pipe import Pipe, PipeExchange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


OnSession = Callable[[Mapping[str, str]], None]
"""Told of a 2025 session that is up: the headers of its requests."""


class StreamLink:
    """Streams of the SDK that somebody else opened, and nothing beside them."""

    exchange = None

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def serve(self, taker: Taker) -> None:
        """Nothing comes but over the streams, whose end is the dispatcher's to see."""
        await anyio.sleep_forever()

    @asynccontextmanager
    async def widen(self) -> AsyncGenerator[Streams]:
        """They are there already."""
        yield self._streams


class HttpLink:
    """Streamable HTTP: there is no connection but for each request, and it never ends by itself.

    A 2025 session is begun and ended by the SDK's transport, and heard on its stream; the exchange takes part in it once it is up.
    """

    def __init__(self, exchange: Exchange, open_streams: Callable[[OnSession], AbstractAsyncContextManager[Streams]]) -> None:
        self.exchange = exchange
        self._open_streams = open_streams
        self._desk: Desk | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._session: Mapping[str, str] = {}

    async def serve(self, taker: Taker) -> None:
        """Nothing comes but in answers; what is asked in those of a 2025 session is answered here."""
        async with anyio.create_task_group() as tasks:
            self._tasks, self._desk = tasks, Desk(taker, tasks, self._tell)
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def widen(self) -> AbstractAsyncContextManager[Streams]:
        """Open the SDK's transport beside the exchange."""
        return self._open_streams(self._join)

    def _join(self, headers: Mapping[str, str]) -> None:
        if self._desk is not None:
            self._session = headers
            self.exchange.join(Joined(headers, self._desk.take, self._pass_on))

    def _pass_on(self, message: bytes) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(self._tell, message)

    async def _tell(self, message: bytes) -> None:
        await self.exchange.tell(message, self._session)


class PipeLink:
    """A child process. Entered by `stdio`."""

    def __init__(self, pipe: Pipe, *, is_direct: bool = True) -> None:
        self.exchange = PipeExchange(pipe) if is_direct else None
        self._pipe = pipe
        self._out: Callable[[JsonObject], Awaitable[None]] | None = None
        """Where messages go once the SDK's dispatcher is there."""
        self._end_out: Callable[[], None] = lambda: None

    async def serve(self, taker: Taker) -> None:
        """Hand on what is no answer to a call of the exchange, until the child's output ends."""
        async with anyio.create_task_group() as tasks:
            desk = Desk(taker, tasks, self._answer)

            async def take(message: JsonObject) -> None:
                method = message.get("method")
                if method == "notifications/progress" and self._reports_progress(message.get("params") or {}):
                    return
                if self._out is not None:
                    await self._out(message)
                else:
                    desk.take(message)

            try:
                await self._pipe.hand_on_forever(take)
            finally:
                self._end_out()
            tasks.cancel_scope.cancel()

    async def _answer(self, line: bytes) -> None:
        with suppress(anyio.BrokenResourceError):
            await self._pipe.answer(line)

    def _reports_progress(self, params: JsonMapping) -> bool:
        """Pass progress on if it belongs to a call of the exchange, and return whether it does."""
        progress = self._pipe.progress_of(params)
        if progress is not None:
            report(params, progress)
        return progress is not None

    @asynccontextmanager
    async def widen(self) -> AsyncGenerator[Streams]:
        """Have everything but answers to the exchange go to the SDK's dispatcher."""
        await load("gateway.upstream.dispatching")
        from gateway.upstream.dispatching import PipeWriter, message_streams

        out, read, put = message_streams()
        with out, read:
            self._out, self._end_out = put, out.close
            if not self._pipe.is_open:
                out.close()
            yield read, PipeWriter(self._pipe)
