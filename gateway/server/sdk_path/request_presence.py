"""`RequestPresence`: ends a request of a 2025 HTTP session whose client is lost while the request waits for a person.

In a session a closed stream does not cancel its request: the client may open the stream again with `Last-Event-ID` (2025-11-25,
Transports). A request that waits for an answer is different. Without a stream the client cannot be asked, and the question would keep
its call and its slot until the question expires. The same holds for a call that keeps other clients waiting for a server that serves one
client at a time. `resumable_sessions` counts the streams; calls count the needs (`CallContext.presence`). Over stdio, and for 2026
requests, the end of the connection ends the call.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import MutableMapping

RESUME_SECONDS = 5.0
"""How long a request that waits for a person, or that others wait for, goes on without a stream. The `retry` field of its events asks
clients to reconnect after half a second (`resumable_sessions.RETRY_MILLISECONDS`)."""

PRESENCE_SCOPE_KEY = "moongate.attendance"
"""ASGI scope key of the `RequestPresence` of a POST in a 2025 session."""


class RequestPresence:
    """Implements `Presence` for one request: while `need` was called more often than `release`, the request needs its client.

    The request is ended when it needs its client, and the client has had no stream open for `RESUME_SECONDS`.
    """

    def __init__(self, running: MutableMapping[str, RequestPresence]) -> None:
        """`running` contains the requests of the session that are in progress, by their ids as text."""
        self._running = running
        self._scope: anyio.CancelScope | None = None
        self._streams = self._needs = 0
        self._left_at = 0.0
        self._came = anyio.Event()

    @contextmanager
    def stream(self) -> Generator[None, None, None]:
        """Count a stream that carries messages of the request to the client: its POST, or a GET that resumes the stream."""
        self._streams += 1
        self._update()
        try:
            yield
        finally:
            self._streams -= 1
            self._left_at = anyio.current_time()
            self._update()

    @contextmanager
    def request(self, number: int | str) -> Generator[None, None, None]:
        """Run the request inside this context. When the client is lost, the code inside is cancelled, and the context ends."""
        key = str(number)
        self._running[key] = self
        try:
            with anyio.CancelScope() as self._scope:
                yield
        finally:
            self._scope = None
            self._came.set()
            if self._running.get(key) is self:
                del self._running[key]

    @property
    def is_here(self) -> bool:
        """Whether the client has a stream open. True also after the request ended: a task that it started needs no client."""
        return self._streams > 0 or self._scope is None

    async def here(self) -> None:
        """Wait until the client has a stream open, or the request has ended."""
        while not self.is_here:
            await self._came.wait()

    def need(self) -> None:
        """End the request if its client is lost before `release`. Calls nest."""
        self._needs += 1
        self._update()

    def release(self) -> None:
        """Undo one `need`."""
        self._needs -= 1
        self._update()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Call `need`, and `release` at the end of the context: for a wait for a person or a queue."""
        self.need()
        try:
            yield
        finally:
            self.release()

    def _update(self) -> None:
        if self._streams:
            self._came.set()
            self._came = anyio.Event()
        if self._scope is not None:
            is_alone = self._needs and not self._streams
            self._scope.deadline = self._left_at + RESUME_SECONDS if is_alone else math.inf
