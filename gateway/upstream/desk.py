"""`Desk`: takes what a server says by itself, past the SDK's dispatcher and as that one does: each in a task of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import cast

import anyio
import anyio.abc

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import INTERNAL_ERROR, RpcError
from gateway.tools.context import CallContext
from gateway.upstream.exchange import encode_message
from gateway.upstream.link import Taker

logger = logging.getLogger(__name__)


class Desk:
    """Of one connection; what it begins lives in `tasks`."""

    def __init__(self, taker: Taker, tasks: anyio.abc.TaskGroup, answer: Callable[[bytes], Awaitable[None]]) -> None:
        """`answer` sends the answer to a request of the server's."""
        self._taker = taker
        self._tasks = tasks
        self._send = answer
        self._answering: dict[int | str, anyio.CancelScope] = {}

    def take(self, message: JsonObject, ctx: CallContext | None = None) -> None:
        """Take a request or a notification, said during `ctx`'s call if that is known; an answer that nobody waits for is dropped."""
        method, said = message.get("method"), message.get("id")
        params = cast("JsonMapping", message.get("params") or {})
        if not isinstance(method, str):
            logger.debug("an answer that nobody waits for was dropped")
        elif isinstance(said, int | str):
            self._tasks.start_soon(self._answer, said, method, params, ctx)
        else:
            taken_back = params.get("requestId") if method == "notifications/cancelled" else None
            if isinstance(taken_back, int | str) and (scope := self._answering.get(taken_back)) is not None:
                scope.cancel()
            self._tasks.start_soon(self._taker.hear, method, params, ctx)

    async def _answer(self, said: int | str, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        message: JsonObject = {"jsonrpc": "2.0", "id": said}
        with anyio.CancelScope() as scope:
            self._answering[said] = scope
            try:
                message["result"] = await self._taker.answer(method, params, ctx)
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
        await self._send(line)


def _error(error: RpcError) -> JsonObject:
    return {"code": error.code, "message": error.message, **({} if error.data is None else {"data": error.data})}
