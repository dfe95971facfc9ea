"""`Delivery`: puts one request of a caller on the right session of a server, and sends it again where `policy.repeats` allows.

Which session: the shared one, or the caller's own where a legacy server fixes capabilities per session (`callers`). On a
child process that asks back, callers take turns (`turns`). Results pass through; `source` and `tool` read them.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

import anyio
import anyio.abc

from gateway.config.models import HttpServer
from gateway.errors import AuthNeeded, PolicyDenied, SessionGone, UpstreamError, UpstreamLost, UpstreamUnavailable
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject
from gateway.policy.metadata import judge_meta
from gateway.policy.repeats import may_repeat
from gateway.protocol import TASKS_EXTENSION
from gateway.tools.base import OpenQuestion
from gateway.tools.context import CallContext, ClientProfile
from gateway.tools.waits import CANCELLED, own_task
from gateway.upstream.callers import CallerSessions
from gateway.upstream.children import Holder
from gateway.upstream.connection import Connection
from gateway.upstream.hop import extend_via, received, received_call
from gateway.upstream.session import Envelope, Session, SessionHooks, open_session, with_extension
from gateway.upstream.stdio import ChildLog
from gateway.upstream.texts import hearing_readably
from gateway.upstream.transport import Remote
from gateway.upstream.turns import Turns

logger = logging.getLogger(__name__)

MAX_NAME = 60
"""Characters of the name that a client gives itself which the status shows."""

_NO_HEADERS: Mapping[str, str] = {}


class Owner(SessionHooks, Protocol):
    """Whose requests are delivered."""

    def capabilities_for(self, client: ClientProfile) -> JsonObject:
        """Client capabilities to declare on behalf of one caller."""
        ...

    def shared_capabilities(self) -> JsonObject:
        """Client capabilities declared on the connection that callers share."""
        ...

    @property
    def guards(self) -> bool:
        """Whether there is anything for `admit` to refuse."""
        ...

    async def admit(self, session: Session, method: str, params: JsonMapping) -> None:
        """Refuse a request that must not reach the server behind `session`; asked right before each sending.

        Raises:
            PolicyDenied: It must not.
            UpstreamUnavailable: It cannot be told.
        """
        ...


class Delivery:
    """Sends for one server. `start` it with the owner's task group, which outlives the callers' sessions."""

    def __init__(
        self,
        remote: Remote,
        connection: Connection,
        owner: Owner,
        *,
        own_id: str,
        annotations_of: Callable[[str], JsonMapping | None],
    ) -> None:
        """`own_id` is this gateway's hop id; `annotations_of` knows a tool's hints as its server gave them. No side effects."""
        self._remote = remote
        self._server = remote.name
        self._policy = remote.policy
        self._connection = connection
        self._owner = owner
        self._own_id = own_id
        self._plain_meta = extend_via({}, own_id, remote.name)
        """Of requests that come without any; the same object each time, which tells a session that it knows it."""
        self._annotations_of = annotations_of
        self._callers: CallerSessions | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_http = isinstance(remote.entry, HttpServer)
        self._turns = self._new_turns() if self._policy.callers == "serial" else None
        self._takes_turns_once_asked = self._policy.callers == "auto" and not self._is_http
        self._without_turn: dict[int, CallContext] = {}
        """Calls on the shared child process that began before callers took turns there."""
        self._questions: list[tuple[str, CallContext, float]] = []
        """Method, call and time (monotonic) of each question of the server that waits for an answer.

        Without a method: of each cancelled call that the server still works on.
        """

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Allow sessions per caller; they live in `tasks`."""
        self._tasks = tasks
        self._callers = CallerSessions(self._remote, tasks, self._negotiated)

    @contextmanager
    def question(self, method: str, ctx: CallContext | None) -> Generator[CallContext | None, None, None]:
        """Note a question that the server asks in the middle of `ctx`'s call, and yield the context to ask it with.

        From the first question on the server gets one client at a time, by policy `auto`. Calls that run already count as one turn.
        """
        is_without_turn = ctx is None or any(call is ctx for call in self._without_turn.values())
        if self._turns is None and self._takes_turns_once_asked and is_without_turn:
            self._turns = self._new_turns()
            self._turns.adopt(self._without_turn.values(), ctx)
        if ctx is None:
            yield None
            return
        asking = self._turns.limited(ctx) if self._turns is not None and is_without_turn else ctx
        question = method, asking, time.monotonic()
        self._questions.append(question)
        try:
            yield asking
        finally:
            self._questions.remove(question)

    def questions(self, approving: Sequence[tuple[CallContext, str]]) -> tuple[OpenQuestion, ...]:
        """Whose answers the server waits for. `approving`: contexts of calls whose question must be approved, and by whom."""
        return tuple(self._open_question(*question, approving) for question in self._questions)

    def _open_question(self, method: str, ctx: CallContext, since: float, approving: Sequence[tuple[CallContext, str]]) -> OpenQuestion:
        now, turns = time.monotonic(), self._turns
        ends_at = since + (ctx.ask_timeout_seconds if method else self._policy.timeout_seconds)
        return OpenQuestion(
            method,
            ctx.principal,
            ctx.client.name[:MAX_NAME],
            round(now - since),
            max(round((ends_at if turns is None else min(ends_at, turns.question_ends_at)) - now), 0),
            next((who for call, who in approving if call is ctx), ""),
            0 if turns is None else turns.waiting,
        )

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """One request on behalf of `ctx`, on the right session; sent once more only where `may_repeat` says so.

        The result has only the `_meta` that the gateway takes from a server.

        Raises:
            UpstreamError: See `Session.request`.
            ToolFailed: The hop guard refuses.
            PolicyDenied: The request's `_meta` is malformed; nothing was sent.
        """
        if ctx.meta and isinstance(verdict := judge_meta(ctx.meta), Reject):
            raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=self._server)
        if ctx.wants_progress:
            ctx = hearing_readably(ctx, self._policy)
        meta = extend_via(ctx.meta, self._own_id, self._server) if ctx.meta else self._plain_meta
        envelope = Envelope(ctx, meta, self._owner.capabilities_for(ctx.client), ctx.log_level, headers or _NO_HEADERS)
        connection = self._connection
        connection.begin_use()
        try:
            session = connection.ready or await connection.session(probe=True)
            try:
                result = await self._on(session, method, params, envelope)
            except (SessionGone, UpstreamLost) as error:
                if not self._may_repeat(error, method, params):
                    raise
                logger.info("%s: %s is sent again: %s", self._server, method, error)
                session = await connection.session(patient=True)
                try:
                    result = await self._on(session, method, params, envelope)
                except UpstreamUnavailable as again:
                    raise self._noted(again) from None
            except UpstreamUnavailable as error:
                raise self._noted(error) from None
        finally:
            connection.end_use()
        if connection.state != "ready":
            connection.note_success()
        return received_call(result) if method == "tools/call" else received(result)

    def _may_repeat(self, error: UpstreamError, method: str, params: JsonObject) -> bool:
        name = params.get("name")
        return may_repeat(
            "unsent" if isinstance(error, SessionGone) else "unknown",
            method,
            params,
            self._annotations_of(name) if isinstance(name, str) else None,
            idempotent=self._policy.idempotent,
            trust_annotations=self._policy.trust_annotations,
        )

    def _noted(self, error: UpstreamUnavailable) -> UpstreamUnavailable:
        """Passive health of a server whose connection stands whatever becomes of it; the error as callers read it."""
        if not self._is_http:
            return error
        self._connection.note_failure(error)
        return error if isinstance(error, AuthNeeded) else UpstreamUnavailable(self._connection.explain(), server=self._server)

    def _on(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> Awaitable[JsonObject]:
        """One sending on a session, or on its caller's own in place of it. Not a coroutine itself: each costs every call its steps."""
        agreed = session.negotiated
        if agreed.era != "modern":
            return self._in_turn(session, method, params, envelope)
        ctx = envelope.ctx
        if agreed.has_tasks and self._declares_tasks(method, ctx):
            envelope = with_extension(envelope, TASKS_EXTENSION)
        if ctx is not None:
            if ctx.input_responses is not None:
                params["inputResponses"] = ctx.input_responses
            if ctx.request_state is not None:
                params["requestState"] = ctx.request_state
        return self._admitted(session, method, params, envelope) if self._owner.guards else session.request(method, params, envelope)

    async def _admitted(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        await self._owner.admit(session, method, params)
        return await session.request(method, params, envelope)

    async def _in_turn(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        """On a session of 2025, whose callers may have to be told apart."""
        ctx = envelope.ctx
        if self._callers is not None and ctx is not None:
            askable = {k: v for k, v in envelope.capabilities.items() if k in ("sampling", "elicitation", "roots")}
            if self._needs_own_session(askable):
                await own_task()

                async def work(own: Session) -> JsonObject:
                    await own.want_level(envelope.log_level)
                    return await self._admitted(own, method, params, envelope)

                return await self._callers.run(ctx, askable, work)
            await session.want_level(envelope.log_level)
            if self._turns is not None:
                await own_task()
                async with self._turns.turn(ctx, partial(self._leave, session)) as held:
                    return await self._admitted(session, method, params, dataclasses.replace(envelope, ctx=held))
            if self._takes_turns_once_asked:
                self._without_turn[id(envelope)] = ctx
                is_cancelled = False
                try:
                    return await self._admitted(session, method, params, envelope)
                except CANCELLED:
                    is_cancelled = True
                    raise
                finally:
                    del self._without_turn[id(envelope)]
                    if self._turns is not None:
                        self._leave(session, ctx, is_cancelled)
        return await self._admitted(session, method, params, envelope)

    def _new_turns(self) -> Turns:
        return Turns(self._policy.serial_ask_seconds)

    def _leave(self, session: Session, ctx: CallContext, is_cancelled: bool) -> None:
        """End the turn of a call: of a cancelled one when the server has answered a ping, which it does after the call if it is busy."""
        assert self._turns is not None
        if is_cancelled and self._tasks is not None and not session.closed.is_set():
            self._tasks.start_soon(self._leave_settled, session, ctx)
        else:
            self._turns.leave(ctx, session.lingers())

    async def _leave_settled(self, session: Session, ctx: CallContext) -> None:
        assert self._turns is not None
        cancelled = "", ctx, time.monotonic()
        self._questions.append(cancelled)
        try:
            with anyio.move_on_after(self._policy.timeout_seconds):
                await session.request("ping", {})
        except UpstreamError as error:
            logger.debug("%s: no answer to a ping after a cancelled call: %s", self._server, error)
        finally:
            self._questions.remove(cancelled)
            self._turns.leave(ctx, session.lingers())

    def _declares_tasks(self, method: str, ctx: CallContext | None) -> bool:
        """Whether somebody sees to a task that this request may become or concerns."""
        if method == "tools/call":
            return self._policy.tasks.follow or (ctx is not None and ctx.takes_tasks)
        return method.startswith("tasks/")

    def _needs_own_session(self, askable: JsonObject) -> bool:
        """Whether the shared session would tell the server the wrong thing about this caller.

        A child process is shared unless policy says otherwise or roots are relayed, which servers read once at start.
        """
        if self._is_http:
            return bool(askable) or bool(self._owner.shared_capabilities())
        return "roots" in askable or self._policy.callers == "separate"

    @asynccontextmanager
    async def _negotiated(self, capabilities: JsonObject, holder: Holder) -> AsyncGenerator[Session, None]:
        async with (
            self._remote.open(ChildLog(), holder) as link,
            open_session(self._server, link, self._owner, client=self._remote.client) as session,
        ):
            await session.negotiate("legacy", capabilities)
            yield session
