"""`RequestPresence`: ends a request of a 2025 HTTP session if its client is lost while the request needs the client.

In a 2025 session a closed stream does not cancel its request: the client may open the stream again with `Last-Event-ID` (2025-11-25,
Transports). But a request that waits for a person's answer needs a stream to ask the client; without a stream, the call would occupy its
concurrency slot until the question expires. A call also needs its client if other clients wait for the call's end, because the remote
server serves one client at a time. `resumable_sessions` reports the open streams, and calls report when they need the client
(`CallContext.presence`). Over stdio, and for 2026 requests, this module is not needed: the end of the connection ends the call.
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
"""Seconds without an open stream after which a request that needs its client (to ask a person, or because other callers wait) is ended.

The SSE `retry` field asks clients to reconnect after half a second (`resumable_sessions.RETRY_MILLISECONDS`)."""

PRESENCE_SCOPE_KEY = "moongate.attendance"
"""ASGI scope key of the `RequestPresence` of a POST in a 2025 session: the object that tracks whether the client of the request is
reachable."""


class RequestPresence:
    """Tracks whether the client of one request in a 2025 HTTP session is reachable; implements `Presence`.

    The request needs its client while `need` was called more often than `release`. A request that needs its client is ended if the client
    has had no stream open for `RESUME_SECONDS`.
    """

    def __init__(self, running: MutableMapping[str, RequestPresence]) -> None:
        """`running` contains the session's requests in progress, by JSON-RPC id as text. This object adds and removes its own entry."""
        self._running = running
        self._scope: anyio.CancelScope | None = None
        self._streams = self._needs = 0
        self._left_at = 0.0
        self._came = anyio.Event()

    @contextmanager
    def stream(self) -> Generator[None, None, None]:
        """Count an open stream on which the client receives messages of the request, while this context is entered.

        The stream is the response to the request's POST, or to a GET that resumes this response.
        """
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
        """Enter this context to run the request with the JSON-RPC id `number`. If the needed client is lost, the code inside is cancelled.

        Execution then continues after the context.
        """
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
        """Whether the client has a stream open for the request.

        Also true after the request has ended, because a task that continues the request's call needs no client.
        """
        return self._streams > 0 or self._scope is None

    def may_return(self, now: float) -> bool:
        """Whether the client lost its stream less than `RESUME_SECONDS` before `now` (event loop time), and may open the stream again."""
        return not self.is_here and now < self._left_at + RESUME_SECONDS

    async def here(self) -> None:
        """Wait until the client has a stream open, or the request has ended."""
        while not self.is_here:
            await self._came.wait()

    def need(self) -> None:
        """From now until `release`, end the request if its client is lost. Each `need` requires its own `release`."""
        self._needs += 1
        self._update()

    def release(self) -> None:
        """Undo one call of `need`: a lost client no longer ends the request, unless other calls of `need` are still in effect."""
        self._needs -= 1
        self._update()

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None, None]:
        """Enter this context around a wait for a person or a queue: if the client is lost during the wait, the request is ended."""
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
