"""`EventStream`: an HTTP response that sends the AG-UI events of a run as server-sent events. Used by `server.agui_runs` and `hosting`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import anyio
from ag_ui.core import BaseEvent
from ag_ui.encoder import EventEncoder
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from gateway.wire.sse import encode_comment

KEEP_ALIVE_SECONDS = 15
"""Seconds without an event after which an SSE comment is sent, because proxies close idle streams, and writing detects a lost client."""

SEND_SECONDS = 30
"""Time limit, in seconds, for one write of the response; a client that does not read for longer is considered lost."""


class EventStream(Response, ABC):
    """HTTP response that executes one run of an agent and streams its AG-UI events. If the client disconnects, the run is cancelled."""

    def __init__(self) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]

    @abstractmethod
    async def run(self, channel: Channel) -> None:
        """Execute the agent's run and send all of its AG-UI events to `channel`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response as an ASGI application: the head, then the events of the run until it ends or the client disconnects."""
        channel = Channel(send)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with anyio.create_task_group() as tasks:

            async def leave_with_client() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(leave_with_client)
            tasks.start_soon(channel.keep_alive)
            await self.run(channel)
            await channel.end()
            tasks.cancel_scope.cancel()


class Channel:
    """Writes AG-UI events to the body of an HTTP response. Writes are serialized, and each has the deadline `SEND_SECONDS`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock()
        self._encoder = EventEncoder()
        self._wrote = anyio.Event()

    async def send(self, events: Sequence[BaseEvent]) -> None:
        """Write AG-UI events to the response body.

        Raises:
            TimeoutError: The client does not read.
        """
        if events:
            await self._write("".join(map(self._encoder.encode, events)).encode())

    async def keep_alive(self) -> None:
        """Write an SSE comment after each `KEEP_ALIVE_SECONDS` without an event, until cancelled."""
        while True:
            self._wrote = anyio.Event()
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                await self._wrote.wait()
                continue
            await self._write(encode_comment("still here"))

    async def end(self) -> None:
        """End the response body."""
        await self._write(b"", more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with self._lock:
            with anyio.fail_after(SEND_SECONDS):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._wrote.set()


def refusal(status: int, message: str) -> JSONResponse:
    """Return the JSON error response to an AG-UI request that is rejected before a run starts."""
    return JSONResponse({"error": "not_found" if status == 404 else "invalid_request", "message": message}, status)
