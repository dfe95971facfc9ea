"""`Delivery`: puts one request of a caller on the right session of a server, and decides whether it may go twice.

A request is repeated only if nothing was delivered. Which session: the shared one, or the caller's own where a
legacy server fixes capabilities per session (`callers`). Results pass through; `source` and `tool` read them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from gateway.config.models import HttpServer, ServerEntry
from gateway.config.policies import SourcePolicy
from gateway.errors import AuthNeeded, PolicyDenied, UpstreamUnavailable
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.metadata import judge_meta
from gateway.tools.context import CallContext
from gateway.upstream.callers import CallerSessions
from gateway.upstream.connection import Connection
from gateway.upstream.hop import extend_via
from gateway.upstream.http import Credentials
from gateway.upstream.inputs import declared_capabilities, relayed_capabilities
from gateway.upstream.session import TASKS_EXTENSION, Envelope, Session, SessionHooks, open_session, with_extension
from gateway.upstream.stdio import ChildLog
from gateway.upstream.texts import hearing_readably
from gateway.upstream.transport import open_transport


class Delivery:
    """Sends for one server. `start` it with the owner's task group, which outlives the callers' sessions."""

    def __init__(
        self,
        server: str,
        entry: ServerEntry,
        policy: SourcePolicy,
        connection: Connection,
        hooks: SessionHooks,
        *,
        own_id: str,
        client: JsonObject,
        credentials: Credentials | None = None,
    ) -> None:
        """`own_id` is this gateway's hop id, `client` the `clientInfo` shown to the server. No side effects."""
        self._server = server
        self._entry = entry
        self._policy = policy
        self._connection = connection
        self._hooks = hooks
        self._own_id = own_id
        self._client = client
        self._credentials = credentials
        self._callers: CallerSessions | None = None

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Allow sessions per caller; they live in `tasks`."""
        self._callers = CallerSessions(self._server, tasks, self._open_for_caller)

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """One request on behalf of `ctx`, on the right session; repeated once only if nothing was delivered.

        Raises:
            UpstreamError: See `Session.request`.
            ToolFailed: The hop guard refuses.
            PolicyDenied: The request's `_meta` is malformed; nothing was sent.
        """
        if ctx.meta and isinstance(verdict := judge_meta(ctx.meta), Reject):
            raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=self._server)
        ctx = hearing_readably(ctx, self._policy)
        declared = relayed_capabilities(ctx.client, self._policy)
        envelope = Envelope(
            ctx=ctx,
            meta=extend_via(ctx.meta, self._own_id),
            capabilities=declared,
            log_level=ctx.log_level,
            headers=headers or {},
        )
        session = await self._connection.session()
        try:
            result = await self._send_on(session, method, params, envelope)
        except UpstreamUnavailable as error:
            if not session.closed.is_set():
                self._connection.note_failure(error)
                if isinstance(error, AuthNeeded):
                    raise
                raise UpstreamUnavailable(f"Server {self._server!r} cannot be reached: {error}", server=self._server) from None
            result = await self._send_on(await self._connection.session(), method, params, envelope)
        if self._connection.state == "down":
            self._connection.note_success()
        return result

    async def _send_on(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        ctx = envelope.ctx
        if session.is_modern:
            if session.negotiated.has_tasks and self._declares_tasks(method, ctx):
                envelope = with_extension(envelope, TASKS_EXTENSION)
            if ctx is not None and ctx.input_responses is not None:
                params["inputResponses"] = ctx.input_responses
            if ctx is not None and ctx.request_state is not None:
                params["requestState"] = ctx.request_state
        elif self._callers is not None and ctx is not None:
            askable = {k: v for k, v in envelope.capabilities.items() if k in ("sampling", "elicitation", "roots")}
            if self._needs_own_session(askable):

                async def work(own: Session) -> JsonObject:
                    await own.want_level(envelope.log_level)
                    return await own.request(method, params, envelope)

                return await self._callers.run(ctx, askable, work)
            await session.want_level(envelope.log_level)
        return await session.request(method, params, envelope)

    def _declares_tasks(self, method: str, ctx: CallContext | None) -> bool:
        """Whether somebody sees to a task that this request may become or concerns."""
        if method == "tools/call":
            return self._policy.tasks.follow or (ctx is not None and ctx.takes_tasks)
        return method.startswith("tasks/")

    def _needs_own_session(self, askable: JsonObject) -> bool:
        """Whether the shared session would tell the server the wrong thing about this caller.

        A child process is shared unless roots are relayed, which servers read once at start.
        """
        if isinstance(self._entry, HttpServer):
            return bool(askable) or bool(declared_capabilities(self._policy))
        return "roots" in askable

    @asynccontextmanager
    async def _open_for_caller(self, capabilities: JsonObject) -> AsyncGenerator[Session, None]:
        async with (
            open_transport(self._server, self._entry, ChildLog(), self._credentials) as streams,
            open_session(self._server, streams, self._hooks, client=self._client) as session,
        ):
            with anyio.fail_after(self._policy.connect_timeout_seconds):
                await session.negotiate("legacy", capabilities)
            yield session
