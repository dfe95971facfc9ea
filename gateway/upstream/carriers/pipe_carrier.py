"""`PipeCarrier`: sends the requests of a session to a child process over stdio, for MCP 2025 and 2026."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import anyio.abc

from gateway.json_types import JsonMapping, JsonObject
from gateway.protocol import RpcError
from gateway.upstream.carriers.carrier import FIRST_REQUEST_ID, Headers, OutgoingRequest, Receiver, cancellation, rejected, report
from gateway.upstream.carriers.notification_dispatcher import NotificationDispatcher
from gateway.upstream.pipe import Pipe
from gateway.wire.jsonrpc import RequestWriter, encode_message
from gateway.wire.rpc_envelope import notification


class PipeCarrier:
    """The `Carrier` of one child process. Sends requests over the pipe that `upstream.stdio` opens and closes.

    It uses asyncio instead of anyio, because each response sets the result of an asyncio future of the pipe.
    """

    is_single_stream = True
    has_headers = False

    def __init__(self, server: str, pipe: Pipe) -> None:
        self._server = server
        self._pipe = pipe
        self._last_id = FIRST_REQUEST_ID - 1
        self._writer = RequestWriter("_meta")

    @property
    def is_open(self) -> bool:
        """Whether the child's standard input and standard output are open, so that requests can be sent."""
        return self._pipe.is_open and self._pipe.takes_input

    def close(self) -> None:
        """Fail all pending requests."""
        self._pipe.end_calls()

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result (`Carrier.request`)."""
        self._last_id = number = self._last_id + 1
        method = request.method
        line = self._writer.parts(number, method, request.params, request.begin(number))
        pipe = self._pipe
        call = pipe.expect(number, request.progress, is_call=method == "tools/call")
        is_written = is_answered = False
        try:
            if pipe.is_writable:
                pipe.write_now(line)
            else:
                await pipe.write(*line)
            is_written = True
            result = await call
            is_answered = True
            return result
        except RpcError as error:
            raise rejected(self._server, error) from None
        except anyio.BrokenResourceError:
            raise pipe.closed() from None
        except asyncio.CancelledError:
            if is_written and method != "initialize":  # the specification forbids to cancel `initialize`
                with suppress(anyio.BrokenResourceError):
                    pipe.write_now([cancellation(number)])
            raise
        finally:
            if not is_answered or request.progress is not None or method != "tools/call":
                pipe.forget(number, call)

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to the child process (`Carrier.notify`). Raises nothing if it cannot be sent."""
        with suppress(anyio.BrokenResourceError):
            await self._pipe.write(encode_message(notification(method, params)))

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's requests and notifications to `receiver` until the connection ends (`Carrier.serve`)."""
        async with anyio.create_task_group() as tasks:
            dispatcher = NotificationDispatcher(receiver, tasks, self._answer)

            async def receive(message: JsonObject) -> None:
                if message.get("method") != "notifications/progress" or not self._reports_progress(message.get("params") or {}):
                    dispatcher.dispatch(message)

            task_status.started()
            await self._pipe.pass_on_forever(receive)
            tasks.cancel_scope.cancel()

    async def _answer(self, line: bytes) -> None:
        with suppress(anyio.BrokenResourceError):
            await self._pipe.answer(line)

    def _reports_progress(self, params: JsonMapping) -> bool:
        """Pass a progress notification to its pending request. Return whether a pending request has the notification's token."""
        progress = self._pipe.progress_of(params)
        if progress is not None:
            report(params, progress)
        return progress is not None
