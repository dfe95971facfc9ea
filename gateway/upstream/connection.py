"""`Connection`: opens the session with one remote MCP server, which all callers share, and opens a new session after failures.

One task opens and closes every session, so that cancel scopes are entered and left in the same task, and a failing server does not affect
other servers. Callers wait for a limited time while a session is being opened. An idle connection is closed after `idleSeconds`, and the
next call opens it again. After a failure, attempts to connect are spaced out; while a failing server's session is still open, one call
every `PROBE_SECONDS` tries the server. `server_lists` reads the lists of tools, resources and prompts of a new session (`on_ready`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import anyio

from gateway.config.models import StdioServer
from gateway.errors import Busy, Forbidden, GatewayError, NotReadyInTime, NotSent, OutcomeUnknown, Unauthorized, first_cause
from gateway.json_types import JsonMapping
from gateway.tools.base import SourceFailure
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.server_messages import SessionHooks
from gateway.upstream.server_session import Session, open_session
from gateway.upstream.single_servers import is_handed_over
from gateway.upstream.stdio import ChildLog
from gateway.upstream.transport import Remote

logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "idle", "auth needed", "down"]

HEAD_START_SECONDS = 0.03
"""Delay in seconds of the first attempt to connect to a server.

The start of server processes uses all CPU cores. The delay lets a gateway over stdio send its first response to the client before that.
"""

FIRST_BACKOFF_SECONDS = 0.5
"""Seconds between the first failed attempt to connect and the next, if no call needs the server.

The wait doubles after each failure, up to `MAX_BACKOFF_SECONDS`.
"""

MAX_BACKOFF_SECONDS = 30.0
"""Longest wait between attempts to reach a server that no call needs, unless the server requests a longer wait (`Retry-After`)."""

STABLE_SECONDS = 5.0
"""Seconds between the begin of an attempt to connect and the end of its session, after which a new session is opened at once.

If the session ends sooner, its end counts as a failure.
"""

RETRY_SPACING_SECONDS = 1.0
"""Shortest pause after a failed attempt to connect, before a call can trigger the next attempt."""

MAX_SPACING_SECONDS = 10.0
"""Longest pause after a failed attempt to connect, before a call can trigger the next attempt.

A pause is as long as the last attempt took, up to this limit, unless the server requests another wait (`Retry-After`). Calls during the
pause fail at once, except a request that is sent a second time: it waits for one more attempt.
"""

PROBE_SECONDS = 3.0
"""Time between two calls that may try a failing server whose session is still open. All other calls in this time fail at once."""


class Connection:
    """Opens and supervises the one session with a server, which all callers share. `run` must be running while `session` is used."""

    def __init__(
        self,
        remote: Remote,
        hooks: SessionHooks,
        *,
        capabilities: JsonMapping,
        on_ready: Callable[[Session], Awaitable[None]],
        keep_awake: Callable[[], bool],
    ) -> None:
        """Store the arguments, without side effects.

        `capabilities` are the client capabilities declared to an MCP 2025 server. While `keep_awake` returns true, the connection never
        counts as idle.
        """
        self.server = remote.name
        self.state: State = "starting"
        self.last_error = ""
        self.failure: SourceFailure | None = None
        self.down_since: float | None = None
        """Time (`time.time`) since when the server has been failing; `None` while it is not."""
        self.negotiated: Negotiated | None = None
        self.milliseconds: float | None = None
        self.settled = anyio.Event()
        """Set when the first attempt to connect has ended; set at once if only the first call is to start that attempt."""
        self.responded = anyio.Event()
        """Set when the server has answered the first handshake, or when the first attempt to connect has ended (`settled`)."""
        self._remote = remote
        self._places = remote.children if isinstance(remote.entry, StdioServer) else None
        """Limits the child processes of the gateway, and is notified when this server's process is idle. `None` for a server over HTTP."""
        self._hooks = hooks
        self._capabilities = capabilities
        self._on_ready = on_ready
        self._keep_awake = keep_awake
        self._session: Session | None = None
        self._came_up = anyio.Event()
        self._attempt_over = anyio.Event()
        self._wanted = anyio.Event()
        self._users = 0
        self._last_used = 0.0
        self._resting = False
        self._watch_scope: anyio.CancelScope | None = None
        self._retry_at = float("-inf")

    # -- for callers -------------------------------------------------------------------------------------------

    def begin_use(self) -> None:
        """Count one more call that uses the connection, so that it is not idle until `end_use`. Call it before `session`."""
        self._users += 1

    def end_use(self) -> None:
        """End one use that `begin_use` counted. After the last use, the idle timeout begins."""
        self._users -= 1
        self._last_used = time.monotonic()
        if not self._users and self._places is not None:
            self._places.note_idle()

    async def session(self, *, probe: bool = False, waits_for_attempt: bool = False) -> Session:
        """Return the live session. If no session is open, wait for the running attempt to open a session, or start an attempt.

        Set `probe` if the session is for a call. A server can be failing although its session is open: then only one call per
        `PROBE_SECONDS` gets the session, to try the server, and other calls raise the error. If `waits_for_attempt`, wait for one
        more attempt after a failed attempt to connect.

        Raises:
            NotSent: No session was opened within `connectTimeoutSeconds`, or the server is failing; the message gives the last failure.
        """
        session = self._standing()
        if session is not None:
            if probe and self.state != "ready":
                self._admit_probe()
            return session
        with anyio.move_on_after(self._remote.policy.connect_timeout_seconds):
            while True:
                if self._is_failing and anyio.current_time() < self._retry_at:
                    if not waits_for_attempt:
                        break
                    waits_for_attempt = False
                    with anyio.CancelScope(deadline=self._retry_at) as pause:
                        await self._attempt_over.wait()
                else:
                    pause = None
                if pause is None or pause.cancelled_caught:
                    self._wanted.set()
                    await self._attempt_over.wait()
                session = self._standing()
                if session is not None:
                    return session
                if self._is_failing and not waits_for_attempt:
                    break
        raise self._failure()

    @property
    def ready(self) -> Session | None:
        """The live session, or `None` if no session is open or the server is failing. Does not wait."""
        return self._standing() if self.state == "ready" else None

    def _standing(self) -> Session | None:
        session = self._session
        return None if session is None or session.closed.is_set() else session

    async def live(self) -> Session:
        """Wait for a live session and return it, without starting an attempt to connect. For code that only receives notifications."""
        while True:
            session = self._standing()
            if session is not None:
                return session
            await self._came_up.wait()

    def explain(self) -> str:
        """Return a sentence for a model or a person that says why the server cannot be called now."""
        if self.state == "auth needed":
            return self.last_error
        if self._is_failing:
            return f"Server {self.server!r} is down: {self.last_error}"
        return f"Server {self.server!r} is still starting; try again in a moment."

    def try_at_once(self) -> None:
        """Let the next call try the server at once, without the wait after a failure.

        Called when the cause of the failure was removed, for example because a person signed in.
        """
        self._retry_at = float("-inf")

    def connect_after_sign_in(self) -> None:
        """Connect to the server now if it waits for a person to sign in, because a person signed in at another gateway."""
        if self.state == "auth needed":
            self.try_at_once()
            self._wanted.set()

    def note_failure(self, error: NotSent) -> None:
        """Mark the server as failing because a call could not be sent over HTTP. The session stays open. Does nothing without a session."""
        if self._session is None:
            return
        self._session.forget_tools()
        wait = error.retry_after_seconds if isinstance(error, Busy) else RETRY_SPACING_SECONDS
        # The failure of a second call, which was in flight already, must not shorten the wait that the server requested (`Retry-After`).
        self._retry_at = max(self._retry_at, anyio.current_time() + wait)
        self._note_down(error)

    def note_success(self) -> None:
        """Mark a failing server as ready again, because it answered a call."""
        if self._is_failing and self._session is not None:
            self._note_up()

    # -- supervision -------------------------------------------------------------------------------------------

    async def run(self, *, asleep: bool = False) -> None:
        """Keep one session with the server open until cancelled. If `asleep`, do not connect before the first call that needs a session."""
        backoff = FIRST_BACKOFF_SECONDS
        if asleep:
            self.state = "idle"
            self.settled.set()
            self.responded.set()
        else:
            await anyio.sleep(HEAD_START_SECONDS)
        while True:
            if self.state == "idle":
                await self._wanted.wait()
                self.state, backoff = "starting", FIRST_BACKOFF_SECONDS
            self._wanted = anyio.Event()
            started = anyio.current_time()
            served = await self._live_once(started)
            if self._is_idle:
                continue
            if served and self.state == "starting":
                backoff = FIRST_BACKOFF_SECONDS
                continue
            with anyio.move_on_after(max(backoff, self._retry_at - anyio.current_time())):
                await self._wanted.wait()
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)

    async def _live_once(self, started: float) -> bool:
        """Run one session from connecting to its end. Return whether the session became ready."""
        log = ChildLog()
        limit = self._remote.policy.connect_timeout_seconds
        ready = False
        try:
            with anyio.CancelScope(deadline=started + limit) as scope:
                async with self._remote.open(log, self) as carrier:
                    async with open_session(self.server, carrier, self._hooks, client=self._remote.client) as session:
                        await self._become_ready(session, started)
                        scope.deadline = math.inf
                        ready = True
                        await self._until_over(session)
                        self._end_session(session, started)
            if scope.cancelled_caught:
                raise NotReadyInTime(f"no answer within {limit:g} s", server=self.server)
            if self.state == "ready":
                self._fail(NotSent("the connection ended", server=self.server), log, started)
        except Exception as error:  # the supervisor boundary: a failure of one server must not affect others
            if ready and self.state in ("idle", "starting"):
                logger.info("connection not closed cleanly server=%s reason=%s", self.server, _reason(error))
            else:
                self._fail(error, log, started)
        finally:
            self._session = None
        return ready

    async def _become_ready(self, session: Session, started: float) -> None:
        closed = False
        try:
            async with anyio.create_task_group() as tasks:

                async def watch() -> None:
                    nonlocal closed
                    await session.closed.wait()
                    closed = True
                    tasks.cancel_scope.cancel()

                tasks.start_soon(watch)
                await session.negotiate(self._remote.policy.era, self._capabilities)
                self.responded.set()
                await self._on_ready(session)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if isinstance(first_cause(group), OutcomeUnknown):
                raise NotSent("it closed the connection during the handshake", server=self.server) from None
            raise
        if closed:
            raise NotSent("it ended during the handshake", server=self.server)
        self.negotiated = session.negotiated
        self.milliseconds = (anyio.current_time() - started) * 1000
        self._last_used = anyio.current_time()
        self._resting = False
        self._session = session
        self._note_up()
        self._wanted = anyio.Event()
        self._came_up.set()
        self._came_up = anyio.Event()
        self._attempt_ended()
        if self._places is not None:
            self._places.note_idle()

    async def _until_over(self, session: Session) -> None:
        """Wait until the session ends, has been idle for `idleSeconds`, or is closed to make room for another child process (`evict`)."""
        idle = self._remote.policy.idle_seconds
        while not session.closed.is_set() and not self._resting:
            now = anyio.current_time()
            busy = self._users > 0 or self._keep_awake()
            deadline = math.inf if idle is None else (now if busy else self._last_used) + idle
            with anyio.CancelScope(deadline=deadline) as self._watch_scope:
                await session.closed.wait()
            since = self.idle_since()
            if idle is not None and since is not None and anyio.current_time() - since >= idle:
                self.evict()
        self._watch_scope = None

    def _end_session(self, session: Session, started: float) -> None:
        """Stop using the session for calls, because it has ended. Closing it, which may take some time, follows later.

        If at least `STABLE_SECONDS` have passed since `started`, the begin of the attempt to connect, let `run` open a new session at once;
        also if another gateway takes over the process of the server (`single: true`).
        """
        is_stable, self._session = anyio.current_time() - started >= STABLE_SECONDS, None
        if not self._resting and (is_stable or is_handed_over(session.carrier)):
            self.state = "starting"
            logger.info("connection ended, connecting again server=%s", self.server)

    def idle_since(self) -> float | None:
        """Return the event loop time at which the last use ended or the session was opened; `None` if it is in use or not open.

        If the result is `None`, the session cannot be closed to make room for the child process of another server.
        """
        if self._users or self._session is None or self._resting or self._keep_awake():
            return None
        return self._last_used

    def evict(self) -> None:
        """Close the session because it is idle. The next call opens a new session."""
        self._resting = True
        self._session = None
        self.state = "idle"
        self.last_error, self.failure, self.down_since = "", None, None
        logger.info("idle server stopped, the next call starts it again server=%s", self.server)
        if self._watch_scope is not None:
            self._watch_scope.cancel()

    # -- health ------------------------------------------------------------------------------------------------

    @property
    def _is_idle(self) -> bool:
        return self.state == "idle"

    @property
    def _is_failing(self) -> bool:
        return self.state in ("down", "auth needed")

    def _failure(self) -> NotSent:
        kind = Unauthorized if self.state == "auth needed" else NotSent
        return kind(self.explain(), server=self.server)

    def _admit_probe(self) -> None:
        """Let one call per `PROBE_SECONDS` try a failing server whose session is open, and raise the failure for all other calls.

        This is the half-open state of a circuit breaker.
        """
        now = time.monotonic()
        if now < self._retry_at:
            raise self._failure()
        self._retry_at = now + PROBE_SECONDS

    def _note_up(self) -> None:
        self.state, self.last_error, self.failure, self.down_since = "ready", "", None, None
        self._retry_at = float("-inf")

    def _note_down(self, error: BaseException, said: str = "") -> None:
        was = self.state
        self.state = "auth needed" if isinstance(error, Unauthorized) else "down"
        self.failure = _kind_of(error)
        self.last_error = _reason(error) + (f" ({said})" if said else "")
        if was != self.state:
            self.down_since = self.down_since or time.time()
            kind = type(first_cause(error)).__name__
            logger.warning("connection failed server=%s state=%r error=%s reason=%s", self.server, self.state, kind, self.last_error)

    def _fail(self, error: BaseException, log: ChildLog, started: float) -> None:
        """Record that an attempt to connect failed, or that a session ended soon after its start, and delay the next attempt."""
        now = anyio.current_time()
        first = first_cause(error)
        took = 0.0 if self.state == "ready" else now - started
        spacing = min(max(took, RETRY_SPACING_SECONDS), MAX_SPACING_SECONDS)
        self._retry_at = now + (first.retry_after_seconds if isinstance(first, Busy) else spacing)
        self._session = None
        self._note_down(first, log.explain())
        self._attempt_ended()

    def _attempt_ended(self) -> None:
        """Wake the callers that wait for the outcome of an attempt to connect, because it has ended."""
        self._attempt_over.set()
        self._attempt_over = anyio.Event()
        self.settled.set()
        self.responded.set()


def _kind_of(error: BaseException) -> SourceFailure | None:
    if isinstance(error, Unauthorized | Forbidden):
        return "credentials"
    return "timeout" if isinstance(error, NotReadyInTime) else None


def _reason(error: BaseException) -> str:
    """Return the message of the first exception in nested exception groups. Unless it is a `GatewayError`, return only its first line."""
    error = first_cause(error)
    if isinstance(error, GatewayError):
        return str(error)
    text = str(error).strip().splitlines()
    return text[0][:200] if text else "the connection failed"
