"""`PipeCarrier`: requests to a child process over stdio, for servers of both versions."""

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
    """Sends requests over one pipe, which `stdio` opens and closes. Plain asyncio, because an answer settles a future of the pipe."""

    is_single_stream = True
    has_headers = False

    def __init__(self, server: str, pipe: Pipe) -> None:
        self._server = server
        self._pipe = pipe
        self._last_id = FIRST_REQUEST_ID - 1
        self._writer = RequestWriter("_meta")

    @property
    def is_open(self) -> bool:
        """Whether the child has both its input and its output open."""
        return self._pipe.is_open and self._pipe.takes_input

    def close(self) -> None:
        """Fail the pending requests."""
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
            if is_written and method != "initialize":  # which may not be cancelled
                with suppress(anyio.BrokenResourceError):
                    pipe.write_now([cancellation(number)])
            raise
        finally:
            if not is_answered or request.progress is not None or method != "tools/call":
                pipe.forget(number, call)

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to the child process; a failure is not reported (`Carrier.notify`)."""
        with suppress(anyio.BrokenResourceError):
            await self._pipe.write(encode_message(notification(method, params)))

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's own messages to `receiver` until the connection ends (`Carrier.serve`)."""
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
        """If a message is progress of a pending request, pass it on. Return whether it is."""
        progress = self._pipe.progress_of(params)
        if progress is not None:
            report(params, progress)
        return progress is not None
