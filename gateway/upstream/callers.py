"""Sessions of a legacy server that belong to one caller each.

A handshake-era server fixes the client's capabilities per session and asks back on it, so a caller that can be
asked gets a session of its own there: on demand, capped, and closed when idle. Modern servers need none. Every
session lives in its own task of the owner's task group.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import anyio
import anyio.abc

from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.json_types import JsonObject
from gateway.tools.context import CallContext
from gateway.upstream.session import Session

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Caller sessions of one HTTP server at once."""

IDLE_SECONDS = 600.0
"""A caller session unused this long is closed."""

OpenSession = Callable[[JsonObject], AbstractAsyncContextManager[Session]]
"""Opens a negotiated session that declares these capabilities."""


@dataclass(slots=True)
class _Held:
    scope: anyio.CancelScope
    settled: anyio.Event = field(default_factory=anyio.Event)
    session: Session | None = None
    error: str = ""
    users: int = 0
    last_used: float = 0.0


class CallerSessions:
    """Hands out one session per caller. `tasks` is the owner's task group and outlives the sessions."""

    def __init__(self, server: str, tasks: anyio.abc.TaskGroup, open_session: OpenSession) -> None:
        self._server = server
        self._tasks = tasks
        self._open = open_session
        self._held: dict[str, _Held] = {}

    async def run(self, ctx: CallContext, capabilities: JsonObject, work: Callable[[Session], Awaitable[JsonObject]]) -> JsonObject:
        """Run `work` on the caller's session, opening it first where there is none.

        Raises:
            UpstreamUnavailable: It cannot be opened, or too many are busy.
        """
        key = self._key(ctx, capabilities)
        held = self._held.get(key)
        if held is None or (held.session is not None and held.session.closed.is_set()):
            held = self._start(key, capabilities)
        held.users += 1
        try:
            await held.settled.wait()
            if held.session is None:
                raise UpstreamUnavailable(held.error, server=self._server)
            return await work(held.session)
        finally:
            held.users -= 1
            held.last_used = anyio.current_time()

    def _key(self, ctx: CallContext, capabilities: JsonObject) -> str:
        """Which session serves a call. Callers that cannot be asked anything share one; a legacy client has its own.

        Calls of modern clients stand alone, so each that may be asked has a session to itself while it runs: what the
        server asks outside the call's own stream can only be meant for it.
        """
        if not capabilities:
            return "nobody"
        declared = json.dumps(capabilities, sort_keys=True)
        if ctx.line:
            return f"line:{ctx.line}|{declared}"
        if ctx.client.session_id is not None:
            return f"{ctx.client.session_id}|{declared}"
        number = 0
        while (held := self._held.get(key := f"principal:{ctx.principal.id}|{declared}|{number}")) is not None and held.users:
            number += 1
        return key

    def _start(self, key: str, capabilities: JsonObject) -> _Held:
        if len(self._held) >= MAX_SESSIONS:
            idle = [(h.last_used, k) for k, h in self._held.items() if h.users == 0]
            if not idle:
                raise UpstreamUnavailable(f"Server {self._server!r} already has {MAX_SESSIONS} busy sessions.", server=self._server)
            self._held.pop(min(idle)[1]).scope.cancel()
        held = _Held(anyio.CancelScope(), last_used=anyio.current_time())
        self._held[key] = held
        self._tasks.start_soon(self._hold, key, held, capabilities)
        return held

    async def _hold(self, key: str, held: _Held, capabilities: JsonObject) -> None:
        """Own one session from opening to its end, whatever happens to it."""
        try:
            with held.scope:
                async with self._open(capabilities) as session:
                    held.session = session
                    held.settled.set()
                    await self._until_idle(held, session)
        except Exception as error:  # the supervisor boundary: one caller's session failing stays with that caller
            held.error = str(error) if isinstance(error, GatewayError) else f"Server {self._server!r}: {type(error).__name__}"
            logger.info("%s: a caller's session ended: %s", self._server, held.error)
        finally:
            held.settled.set()
            if self._held.get(key) is held:
                del self._held[key]

    async def _until_idle(self, held: _Held, session: Session) -> None:
        while not session.closed.is_set():
            with anyio.move_on_after(IDLE_SECONDS):
                await session.closed.wait()
            if held.users == 0 and anyio.current_time() - held.last_used >= IDLE_SECONDS:
                return
