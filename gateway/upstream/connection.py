"""`Connection`: the one supervisor of one remote server.

A single task enters and leaves every session of the server, so cancel scopes always match and a failing server
fails alone. Callers ask for the current session and wait, bounded, while one is being made. Knows nothing of
tools or lists: `source` is told through `on_ready` and `on_lost`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Literal, cast

import anyio

from gateway.config.models import ServerEntry
from gateway.config.policies import SourcePolicy
from gateway.errors import AuthNeeded, GatewayError, UpstreamLost, UpstreamUnavailable
from gateway.json_types import JsonMapping, JsonObject
from gateway.upstream.http import Credentials
from gateway.upstream.session import Negotiated, Session, SessionHooks, open_session
from gateway.upstream.stdio import ChildLog
from gateway.upstream.transport import open_transport

logger = logging.getLogger(__name__)

State = Literal["starting", "ready", "down"]

FIRST_BACKOFF_SECONDS = 0.5
"""Wait after the first failure; doubles up to `MAX_BACKOFF_SECONDS`."""

MAX_BACKOFF_SECONDS = 30.0
"""Longest wait between attempts to reach a server that is down."""

STABLE_SECONDS = 5.0
"""A session that lasted this long is reconnected at once; a shorter one counts as a failure."""

RETRY_SPACING_SECONDS = 1.0
"""A call that finds the server down triggers an attempt of its own, but never more often than this."""


class Connection:
    """Supervises one server. `run` must be going while `session` is used."""

    def __init__(
        self,
        server: str,
        entry: ServerEntry,
        policy: SourcePolicy,
        hooks: SessionHooks,
        *,
        client: JsonObject,
        capabilities: JsonMapping,
        on_ready: Callable[[Session], Awaitable[None]],
        credentials: Credentials | None = None,
    ) -> None:
        """`client` is our `clientInfo`; `capabilities` are declared to a legacy server. No side effects."""
        self.server = server
        self.state: State = "starting"
        self.last_error = ""
        self.auth_needed = False
        """Whether it is down because the server wants (other) credentials."""
        self.negotiated: Negotiated | None = None
        self.milliseconds: float | None = None
        self._entry = entry
        self._policy = policy
        self._hooks = hooks
        self._client = client
        self._capabilities = capabilities
        self._credentials = credentials
        self._on_ready = on_ready
        self._session: Session | None = None
        self._attempt_over = anyio.Event()
        self._wanted = anyio.Event()
        self._attempted_at = float("-inf")

    async def session(self) -> Session:
        """The live session; waits for one being made, and starts an attempt where none is.

        Raises:
            UpstreamUnavailable: No session within `connectTimeoutSeconds`, with the reason of the last failure.
        """
        session = self._session
        if session is not None and not session.closed.is_set():
            return session
        with anyio.move_on_after(self._policy.connect_timeout_seconds):
            while True:
                if self.state == "down" and anyio.current_time() - self._attempted_at < RETRY_SPACING_SECONDS:
                    break
                self._wanted.set()
                await self._attempt_over.wait()
                session = self._session
                if session is not None and not session.closed.is_set():
                    return session
                if self.state == "down":
                    break
        kind = AuthNeeded if self.auth_needed else UpstreamUnavailable
        raise kind(self.explain(), server=self.server)

    def explain(self) -> str:
        """Why no call can be made now, for a model or a person."""
        if self.auth_needed:
            return self.last_error
        if self.state == "down":
            return f"Server {self.server!r} is down: {self.last_error}"
        return f"Server {self.server!r} is still starting; try again in a moment."

    async def run(self) -> None:
        """Keep one session alive until cancelled."""
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            self._attempted_at = anyio.current_time()
            served = await self._live_once()
            self._attempt_over, self._wanted = anyio.Event(), anyio.Event()
            if served and anyio.current_time() - self._attempted_at >= STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
                continue
            with anyio.move_on_after(backoff):
                await self._wanted.wait()
            backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)

    async def _live_once(self) -> bool:
        """One session from connect to end; whether it got as far as being ready."""
        log = ChildLog()
        ready = False
        try:
            async with open_transport(self.server, self._entry, log, self._credentials) as streams:
                async with open_session(self.server, streams, self._hooks, client=self._client) as session:
                    await self._become_ready(session)
                    ready = True
                    await session.closed.wait()
            self._fail("the connection ended", log)
        except Exception as error:  # the supervisor boundary: whatever one server does stays with it
            self._fail(_reason(error), log, auth_needed=_is_about_auth(error))
        finally:
            self._session = None
        return ready

    async def _become_ready(self, session: Session) -> None:
        started = anyio.current_time()
        try:
            with anyio.fail_after(self._policy.connect_timeout_seconds):
                closed = False
                async with anyio.create_task_group() as tasks:

                    async def watch() -> None:
                        nonlocal closed
                        await session.closed.wait()
                        closed = True
                        tasks.cancel_scope.cancel()

                    tasks.start_soon(watch)
                    await session.negotiate(self._policy.era, self._capabilities)
                    await self._on_ready(session)
                    tasks.cancel_scope.cancel()
                if closed:
                    raise UpstreamUnavailable("it ended during the handshake", server=self.server)
        except UpstreamLost:
            raise UpstreamUnavailable("it closed the connection during the handshake", server=self.server) from None
        except TimeoutError:
            text = f"no answer within {self._policy.connect_timeout_seconds:g} s"
            raise UpstreamUnavailable(text, server=self.server) from None
        self.negotiated = session.negotiated
        self.milliseconds = (anyio.current_time() - started) * 1000
        self.state, self.last_error, self.auth_needed = "ready", "", False
        self._session = session
        self._attempt_over.set()

    def _fail(self, reason: str, log: ChildLog, *, auth_needed: bool = False) -> None:
        was = self.state
        self.auth_needed = auth_needed
        said = log.explain()
        self.state = "down"
        self.last_error = f"{reason} ({said})" if said else reason
        self._session = None
        if was != "down":
            logger.warning("%s: down: %s", self.server, self.last_error)
        self._attempt_over.set()

    def note_failure(self, error: UpstreamUnavailable) -> None:
        """Passive health: a call could not be delivered although the session stands (stateless servers)."""
        if self.state == "ready":
            self.state, self.last_error, self.auth_needed = "down", str(error), isinstance(error, AuthNeeded)
            logger.warning("%s: down: %s", self.server, error)

    def note_success(self) -> None:
        """Passive health: the server answered."""
        if self.state == "down" and self._session is not None:
            self.state, self.last_error, self.auth_needed = "ready", "", False


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _is_about_auth(error: BaseException) -> bool:
    return isinstance(_first(error), AuthNeeded)


def _reason(error: BaseException) -> str:
    """The first thing that went wrong, in one line, without internals of a peer."""
    error = _first(error)
    if isinstance(error, GatewayError):
        return str(error)
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
