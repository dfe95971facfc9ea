"""The links there are: over streams of the SDK that somebody opened, over streamable HTTP, and over the pipe to a child process."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import anyio
import anyio.abc

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import INTERNAL_ERROR, RpcError
from gateway.sdk import load
from gateway.upstream.exchange import Exchange, encode_message, report
from gateway.upstream.link import Streams, Taker
from gateway.upstream.pipe import Pipe, PipeExchange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


logger = logging.getLogger(__name__)


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
    """Streamable HTTP: there is no connection but for each request, and it never ends by itself."""

    def __init__(self, exchange: Exchange, open_streams: Callable[[], AbstractAsyncContextManager[Streams]]) -> None:
        self.exchange = exchange
        self._open_streams = open_streams

    async def serve(self, taker: Taker) -> None:
        """Nothing comes but in answers."""
        await anyio.sleep_forever()

    def widen(self) -> AbstractAsyncContextManager[Streams]:
        """Open the SDK's transport beside the exchange."""
        return self._open_streams()


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
            desk = _Desk(self._pipe, taker, tasks)

            async def take(message: JsonObject) -> None:
                method = message.get("method")
                if method == "notifications/progress" and desk.tells_progress(message.get("params") or {}):
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


class _Desk:
    """Takes what a child says by itself, as the SDK's dispatcher does: each in a task of its own."""

    def __init__(self, pipe: Pipe, taker: Taker, tasks: anyio.abc.TaskGroup) -> None:
        self._pipe = pipe
        self._taker = taker
        self._tasks = tasks
        self._answering: dict[int | str, anyio.CancelScope] = {}

    def tells_progress(self, params: JsonMapping) -> bool:
        """Pass progress on, if it is that of a call of the exchange."""
        progress = self._pipe.progress_of(params)
        if progress is not None:
            self._tasks.start_soon(report, params, progress)
        return progress is not None

    def take(self, message: JsonObject) -> None:
        """Take a request or a notification; an answer that nobody waits for is dropped."""
        method, said = message.get("method"), message.get("id")
        params = cast("JsonMapping", message.get("params") or {})
        if not isinstance(method, str):
            logger.debug("an answer that nobody waits for was dropped")
        elif isinstance(said, int | str):
            self._tasks.start_soon(self._answer, said, method, params)
        else:
            taken_back = params.get("requestId") if method == "notifications/cancelled" else None
            if isinstance(taken_back, int | str) and (scope := self._answering.get(taken_back)) is not None:
                scope.cancel()
            self._tasks.start_soon(self._taker.hear, method, params, None)

    async def _answer(self, said: int | str, method: str, params: JsonMapping) -> None:
        message: JsonObject = {"jsonrpc": "2.0", "id": said}
        with anyio.CancelScope() as scope:
            self._answering[said] = scope
            try:
                message["result"] = await self._taker.answer(method, params, None)
            except RpcError as error:
                message["error"] = _error(error)
        if self._answering.get(said) is scope:  # and not that of another under the same id
            del self._answering[said]
        if len(message) == 2:
            return  # taken back: it gets no answer
        try:
            line = encode_message(message)
        except ToolFailed:
            line = encode_message({"jsonrpc": "2.0", "id": said, "error": _error(RpcError(INTERNAL_ERROR, "The answer is no JSON."))})
        with suppress(anyio.BrokenResourceError):
            await self._pipe.answer(line)


def _error(error: RpcError) -> JsonObject:
    return {"code": error.code, "message": error.message, **({} if error.data is None else {"data": error.data})}
