"""`NotificationDispatcher`: passes a server's requests and notifications to a `Receiver`, each in a task, and sends the responses."""

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
from gateway.upstream.carriers.carrier import Receiver
from gateway.wire.jsonrpc import encode_message
from gateway.wire.rpc_envelope import error_response, response

logger = logging.getLogger(__name__)


class NotificationDispatcher:
    """Processes the requests and notifications of the server at one connection, each in its own task of the task group `tasks`."""

    def __init__(self, receiver: Receiver, tasks: anyio.abc.TaskGroup, send: Callable[[bytes], Awaitable[None]]) -> None:
        """`receiver` processes the messages, and `send` sends the JSON of a response to the server."""
        self._receiver = receiver
        self._tasks = tasks
        self._send = send
        self._answering: dict[int | str, anyio.CancelScope] = {}

    def dispatch(self, message: JsonObject, ctx: CallContext | None = None) -> None:
        """Start processing a request or notification of the server. Drop a response to which no pending request belongs.

        `ctx` is the call to which the message belongs, `None` if that is unknown. A `notifications/cancelled` cancels the server's request
        whose id it contains.
        """
        method, number = message.get("method"), message.get("id")
        params = cast("JsonMapping", message.get("params") or {})
        if not isinstance(method, str):
            logger.debug("response without a pending request dropped")
        elif isinstance(number, int | str):
            self._tasks.start_soon(self._answer, number, method, params, ctx)
        else:
            cancelled = params.get("requestId") if method == "notifications/cancelled" else None
            if isinstance(cancelled, int | str) and (scope := self._answering.get(cancelled)) is not None:
                scope.cancel()
            self._tasks.start_soon(self._receiver.receive_notification, method, params, ctx)

    async def _answer(self, number: int | str, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        message: JsonObject | None = None
        with anyio.CancelScope() as scope:
            self._answering[number] = scope
            try:
                message = response(number, await self._receiver.answer_request(method, params, ctx))
            except RpcError as error:
                message = error_response(number, error)
        if self._answering.get(number) is scope:  # otherwise the server has reused the id for another request
            del self._answering[number]
        if message is None:
            return  # the server cancelled the request
        try:
            line = encode_message(message)
        except ToolFailed:
            line = encode_message(error_response(number, RpcError(INTERNAL_ERROR, "The answer cannot be encoded as JSON.")))
        await self._send(line)
