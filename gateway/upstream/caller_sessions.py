"""`CallerSessions`: opens separate sessions with an MCP 2025 server for the callers that cannot share a session.

In MCP versions before 2026-07-28, the client's capabilities are fixed when a session begins, and the server sends requests for input
(sampling, elicitation, roots) on the session. So over streamable HTTP, each caller that supports such requests gets a session of its own.
For a server over stdio or HTTP+SSE, policy (`callers`) and the capability `roots` decide. Sessions are opened on demand, limited in number,
and closed when idle. Each session runs in its own task, in the task group of the object's owner.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import anyio
import anyio.abc

from gateway.errors import GatewayError, NotSent, only_cause
from gateway.json_types import JsonObject
from gateway.tools.context import CallContext
from gateway.upstream.child_processes import Holder
from gateway.upstream.server_session import Session
from gateway.upstream.transport import Remote

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Maximum number of open sessions with one server, besides the session that its `Connection` holds for all callers."""

IDLE_SECONDS = 600.0
"""Seconds without a call after which the session of a caller is closed."""

OpenSession = Callable[[JsonObject, Holder], AbstractAsyncContextManager[Session]]
"""Function that opens a session and completes its handshake.

It receives the client capabilities to declare, and the `Holder` through which the session's child process may be stopped while it is idle.
"""


@dataclass(slots=True)
class _Held:
    scope: anyio.CancelScope
    settled: anyio.Event = field(default_factory=anyio.Event)
    session: Session | None = None
    error: str = ""
    users: int = 0
    last_used: float = 0.0
    leaving: bool = False

    def idle_since(self) -> float | None:
        """Return the event loop time at which the last call on the session ended; `None` while the session is in use or being opened."""
        return None if self.users or self.session is None else self.last_used

    def evict(self) -> None:
        """Close the session. The caller's next call opens a new session."""
        self.leaving = True
        self.scope.cancel()


class CallerSessions:
    """Opens, shares and closes the sessions with one server that callers use instead of the session that all callers share.

    A session without client capabilities may serve several callers; any other session belongs to a single caller. The task group `tasks`
    outlives the sessions.
    """

    def __init__(self, remote: Remote, tasks: anyio.abc.TaskGroup, open_session: OpenSession) -> None:
        self._remote = remote
        self._server = remote.name
        self._tasks = tasks
        self._open = open_session
        self._held: dict[str, _Held] = {}

    async def run(self, ctx: CallContext, capabilities: JsonObject, work: Callable[[Session], Awaitable[JsonObject]]) -> JsonObject:
        """Run `work` on the session of the caller of `ctx`, and return the result of `work`.

        If the caller has no session, open one that declares the client capabilities `capabilities` to the server.

        Raises:
            NotSent: The session cannot be opened, or `MAX_SESSIONS` sessions are busy.
        """
        key = self._key(ctx, capabilities)
        held = self._held.get(key)
        if held is None or held.leaving or (held.session is not None and held.session.closed.is_set()):
            held = self._start(key, capabilities)
        held.users += 1
        try:
            await held.settled.wait()  # ends after `connectTimeoutSeconds` at the latest, the deadline for opening a session
            if held.session is None:
                raise NotSent(held.error, server=self._server)
            return await work(held.session)
        finally:
            held.users -= 1
            held.last_used = anyio.current_time()
            if not held.users and self._remote.children is not None:
                self._remote.children.note_idle()

    def _key(self, ctx: CallContext, capabilities: JsonObject) -> str:
        """Return the key of the server session on which a call runs. Calls with equal keys share a session.

        `capabilities` are the client capabilities to declare to the server. If they are empty, the server cannot request input, and all
        calls share one session unless policy separates callers. Otherwise, all calls that come from one session of an MCP 2025 client share
        a server session. Concurrent calls of an MCP 2026 client never share a session, because the gateway could not tell which of the
        calls a request for input belongs to. A call that starts a task and the polls of its task (`CallFacts.line`) always share a session.
        """
        if not capabilities:
            separate = self._remote.policy.callers == "separate"
            return f"{ctx.facts.client.session_id or ctx.facts.principal.id}|" if separate else "nobody"
        declared = json.dumps(capabilities, sort_keys=True)
        if ctx.facts.line:
            return f"line:{ctx.facts.line}|{declared}"
        if ctx.facts.client.session_id is not None:
            return f"{ctx.facts.client.session_id}|{declared}"
        number = 0
        while (held := self._held.get(key := f"principal:{ctx.facts.principal.id}|{declared}|{number}")) is not None and held.users:
            number += 1
        return key

    def _start(self, key: str, capabilities: JsonObject) -> _Held:
        if len(self._held) >= MAX_SESSIONS:
            idle = [(h.last_used, k) for k, h in self._held.items() if h.users == 0]
            if not idle:
                raise NotSent(f"Server {self._server!r} already has {MAX_SESSIONS} busy sessions.", server=self._server)
            self._held.pop(min(idle)[1]).scope.cancel()
        now = anyio.current_time()
        held = _Held(anyio.CancelScope(deadline=now + self._remote.policy.connect_timeout_seconds), last_used=now)
        self._held[key] = held
        self._tasks.start_soon(self._hold, key, held, capabilities)
        return held

    async def _hold(self, key: str, held: _Held, capabilities: JsonObject) -> None:
        """Open the session of `key`, keep it open until it ends or is idle for `IDLE_SECONDS`, and close it."""
        try:
            with held.scope:
                async with self._open(capabilities, held) as session:
                    held.scope.deadline = math.inf
                    held.session = session
                    held.settled.set()
                    await self._until_idle(held, session)
            if held.session is None:
                held.error = f"Server {self._server!r}: no answer within {self._remote.policy.connect_timeout_seconds:g} s."
        except Exception as error:  # the supervisor boundary: a failure of one caller's session must not affect others
            cause = only_cause(error)
            text = f"This caller's session with server {self._server!r} ended unexpectedly; call again, or let the operator check its log."
            held.error = str(cause) if isinstance(cause, GatewayError) else text
            logger.info("session of a caller ended server=%s reason=%s error=%s", self._server, held.error, type(cause).__name__)
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
