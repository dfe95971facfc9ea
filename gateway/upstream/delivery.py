"""Calls the tools of a remote server: `RemoteTool` converts a call to a request, and `Delivery` sends the request on the right session.

`Delivery` sends a failed request a second time if `policy.retry_safety` allows it. All callers share one session with a server, with one
exception: a session of an MCP 2025 server has fixed client capabilities, so a caller with other capabilities may need its own session
(`caller_sessions`), and policy can require it (`callers: separate`). If a shared server over stdio or HTTP+SSE sends requests for input,
one client at a time uses it (`serial_queue`). Results pass through unchanged, except for `_meta`.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol, cast

import anyio
import anyio.abc

from gateway.config.models import HttpServer, StdioServer
from gateway.errors import NotFound, NotSent, PolicyDenied, Rejected, RequestFailure, ToolFailed, Unauthorized, UpstreamError
from gateway.gate.recorded import FOLLOWED_TASK
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.metadata import judge_meta
from gateway.policy.retry_safety import may_resend
from gateway.protocol import INVALID_PARAMS, TASKS_EXTENSION
from gateway.tools.base import (
    Complete,
    OpenQuestion,
    TaskMethod,
    TaskStarted,
    ToolDefinition,
    ToolOutcome,
    is_call_result,
)
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from gateway.upstream.caller_sessions import CallerSessions
from gateway.upstream.child_processes import Holder
from gateway.upstream.connection import Connection
from gateway.upstream.gateway_chain import extend_via, received
from gateway.upstream.input_guard import InputGuard, to_input_required
from gateway.upstream.listing import Listed
from gateway.upstream.param_headers import param_headers
from gateway.upstream.pinning import Pinning
from gateway.upstream.serial_queue import SerialQueue
from gateway.upstream.server_messages import SessionHooks
from gateway.upstream.server_session import Envelope, Session, open_session, with_extension
from gateway.upstream.stdio import ChildLog
from gateway.upstream.task_follower import Resends, TaskFollower, TaskLine
from gateway.upstream.text_filters import with_readable_progress
from gateway.upstream.transport import Remote

logger = logging.getLogger(__name__)

MAX_NAME = 60
"""Maximum characters of a client's self-declared name in the gateway's status."""

_NO_HEADERS: Mapping[str, str] = {}

_PLAIN_MEMBERS = frozenset({"content", "structuredContent", "isError", "resultType"})
"""Members of a plain `tools/call` result. A result with only these, and only plain text in `content`, is not searched for `_meta`."""


class Sender(TaskLine, Protocol):
    """The interface through which `RemoteTool` sends requests to its server. The source (`UpstreamSource`) of the server implements it."""

    @property
    def tasks(self) -> TaskFollower:
        """The object that polls the server's tasks to their results, if the server runs calls as MCP tasks."""
        ...


class RemoteTool:
    """One tool of a remote server, with the gateway's `Tool` interface."""

    keeps_tasks = True
    """Whether a stored (durable) task of the gateway can continue a call of this tool after a restart.

    True, because the server may run the call as an MCP task. The gateway stores the id of the server's task, and polls this task after the
    restart instead of sending the call again.
    """

    def __init__(self, listed: Listed, sender: Sender) -> None:
        self._listed = listed
        self._sender = sender

    @property
    def definition(self) -> ToolDefinition:
        """The tool's definition, as its server listed it."""
        return self._listed.definition

    @property
    def has_tasks(self) -> bool:
        """Whether the server supports the tasks extension of MCP 2026 (SEP-2663)."""
        return self._listed.definition.task_by == "server"

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Send `tools/call` with the tool's name on its server, and return the outcome.

        If the server runs the call as an MCP task, poll the task until it has a result, unless the caller supports tasks itself. If the
        call belongs to a stored task of the gateway and was sent before a restart, only poll the server's task.
        """
        listed = self._listed
        name = listed.definition.name
        headers = param_headers(listed.headers, arguments) if listed.headers else None
        if listed.meta:
            ctx = ctx.with_meta({**ctx.facts.meta, **listed.meta})
        if ctx.ports.durable is not None and isinstance(kept := ctx.ports.durable.kept(FOLLOWED_TASK), dict):
            known = cast("JsonObject", kept)
            return Complete(await self._sender.tasks.follow(name, known["task"], ctx, known["dialect"]))
        params: JsonObject = {"name": name, "arguments": arguments}
        if listed.definition.task == "required":
            ctx = ctx.with_facts(dataclasses.replace(ctx.facts, line=ctx.facts.line or secrets.token_hex(8)))
            return Complete.received(await self._sender.tasks.call(params, ctx, headers))
        result = await self._sender.send("tools/call", params, ctx, headers)
        match result.pop("resultType", "complete"):
            case "complete" if is_call_result(result):
                return Complete.received(result)
            case "complete":
                raise ToolFailed(f"Tool {name!r} answered with a result that cannot be read; it may have run.")
            case "input_required":
                return to_input_required(result)
            case "task" if isinstance(result.get("taskId"), str):
                if ctx.facts.takes_tasks:
                    return TaskStarted(result)
                return Complete(await self._sender.tasks.follow(name, result, ctx, "modern"))
            case other:
                raise ToolFailed(f"Tool {name!r} answered with a result of type {other!r}, which this gateway did not offer to take.")

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a request (`method`) about a call that an MCP 2026 server runs as a task, and return its result (interface `TaskTool`).

        A request for input in the task's state is judged by policy once, not at every poll.

        Raises:
            NotFound: The server does not know the task.
        """
        try:
            answer = await self._sender.send(method, params, ctx)
        except Rejected as error:
            if error.code == INVALID_PARAMS:
                raise NotFound("task", "") from None
            raise
        answer.pop("resultType", None)
        if method == "tasks/get":
            return await self._sender.tasks.judged(answer, str(params["taskId"]), self._listed.definition.name, ctx)
        return answer


def add_input_responses(params: JsonObject, ctx: CallContext) -> None:
    """Add the client's answers and the request state of the call `ctx` to the parameters of a request, if the call is a retry."""
    if ctx.facts.input_responses is not None:
        params["inputResponses"] = ctx.facts.input_responses
    if ctx.facts.request_state is not None:
        params["requestState"] = ctx.facts.request_state


def received_call(result: JsonObject) -> JsonObject:
    """Remove the `_meta` keys that the gateway does not accept from a result of `tools/call`, and return it.

    A result of plain text is returned without a search, because it cannot contain `_meta`.
    """
    return result if _is_plain(result) else received(result)


def _is_plain(result: JsonObject) -> bool:
    for name in result:
        if name not in _PLAIN_MEMBERS:
            return False
    content: JsonValue = result.get("content")
    for item in cast("list[JsonValue]", content) if isinstance(content, list) else ():
        block: JsonObject | None = item  # may have any type; checked below
        if isinstance(block, dict) and (len(block) != 2 or not isinstance(block.get("text"), str)):
            return False
    return True


class Delivery:
    """Sends the requests to one remote server, each on the session that all callers share or on a session that belongs to its caller.

    Before `start`, only the shared session is used.
    """

    def __init__(
        self,
        remote: Remote,
        connection: Connection,
        hooks: SessionHooks,
        guard: InputGuard,
        *,
        own_id: str,
        pins: Pinning,
        admit: Callable[[Session, str, JsonMapping], Awaitable[None]],
        annotations_of: Callable[[str], JsonMapping | None],
    ) -> None:
        """`own_id` is this gateway's id. `Delivery` adds it to the list of gateways (`via`) that a request has passed.

        `annotations_of` returns a tool's annotations as the server listed them. `admit` is called before each attempt to send a request,
        while `pins.may_refuse` is true. It raises if the request must not be sent on a session, because the session's tools differ from the
        accepted definitions.
        """
        self._remote = remote
        self._server = remote.name
        self._policy = remote.policy
        self._connection = connection
        self._hooks = hooks
        self._guard = guard
        self._admit = admit
        self._own_id = own_id
        self._pins = pins
        self._client: ClientProfile | None = None
        """Client of the last call; `_capabilities` are the client capabilities that are declared to the server for this client.

        Neither object is modified, so that sessions can reuse the JSON of `_capabilities` for the client's next call.
        """
        self._capabilities: JsonObject = {}
        self._plain_meta = extend_via({}, own_id, remote.name)
        """The `_meta` of requests whose caller sent no `_meta`. Always the same object, so that sessions reuse its JSON."""
        self._annotations_of = annotations_of
        self._callers: CallerSessions | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_streamable_http = isinstance(remote.entry, HttpServer)
        self._is_single = isinstance(remote.entry, StdioServer) and remote.entry.single
        self._serial_queue = SerialQueue(self._policy.serial_ask_seconds) if self._policy.callers == "serial" else None
        self._serializes_after_input_request = self._policy.callers == "auto" and not self._is_streamable_http
        self._unqueued: dict[int, CallContext] = {}
        """Running calls that began before the clients of the shared child process had to use it one at a time, by id of the `Envelope`."""
        self._questions: list[tuple[str, CallContext, float]] = []
        """Method, call and start time (`time.monotonic`) of each request for input of the server that has no answer yet.

        A cancelled call that the server has not finished is listed too, with an empty method.
        """

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Allow sessions that belong to a single caller. Each session runs as a task in `tasks`, which must outlive all sessions."""
        self._tasks = tasks
        self._callers = CallerSessions(self._remote, tasks, self._negotiated)

    @contextmanager
    def question(self, method: str, ctx: CallContext | None) -> Generator[CallContext | None, None, None]:
        """Register a server's request for input while it is open, and yield the context with which to relay it to the caller.

        `ctx` is the call to which the request belongs. If that is unknown, `ctx` is `None`, and `None` is yielded. If policy has
        `callers: auto`, the first request for input of a shared server over stdio or HTTP+SSE limits its use to one client at a time from
        then on. The calls that run at this time count as calls of one client.
        """
        is_unqueued = ctx is None or any(call is ctx for call in self._unqueued.values())
        if self._serial_queue is None and self._serializes_after_input_request and is_unqueued:
            self._serial_queue = SerialQueue(self._policy.serial_ask_seconds)
            self._serial_queue.adopt(self._unqueued.values(), ctx)
        if ctx is None:
            yield None
            return
        asking = self._serial_queue.limited(ctx) if self._serial_queue is not None and is_unqueued else ctx
        question = method, asking, time.monotonic()
        self._questions.append(question)
        try:
            yield asking
        finally:
            self._questions.remove(question)

    def questions(self, approving: Sequence[tuple[CallContext, str]]) -> tuple[OpenQuestion, ...]:
        """Return the server's requests for input that have no answer yet, for the gateway's status.

        A cancelled call that the server has not finished is listed too, with an empty method.

        `approving` lists the calls whose request for input waits for an approval, each with the name of the approvers.
        """
        return tuple(self._open_question(*question, approving) for question in self._questions)

    def _open_question(self, method: str, ctx: CallContext, since: float, approving: Sequence[tuple[CallContext, str]]) -> OpenQuestion:
        now, queue = time.monotonic(), self._serial_queue
        ends_at = since + (ctx.facts.ask_timeout_seconds if method else self._policy.timeout_seconds)
        return OpenQuestion(
            method,
            ctx.facts.principal,
            ctx.facts.client.name[:MAX_NAME],
            round(now - since),
            max(round((ends_at if queue is None else min(ends_at, queue.question_ends_at)) - now), 0),
            next((who for call, who in approving if call is ctx), ""),
            0 if queue is None else queue.waiting,
        )

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one request for the call `ctx`, and return the result. After a failure, send it once more if that cannot do harm.

        The result has only the `_meta` that the gateway accepts from servers. `resends` limits how often requests about one task are sent
        again.

        Raises:
            UpstreamError: The request failed; the subclass tells whether the server may have acted on it.
            ToolFailed: The call is in a loop of gateways, or passed too many gateways.
            PolicyDenied: The request's `_meta` is malformed, or the tool differs from its accepted definition; nothing was sent.
        """
        if ctx.facts.meta and isinstance(verdict := judge_meta(ctx.facts.meta), Reject):
            raise PolicyDenied(f"Refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=self._server)
        if ctx.facts.wants_progress:
            ctx = with_readable_progress(ctx, self._policy)
        meta = extend_via(ctx.facts.meta, self._own_id, self._server) if ctx.facts.meta else self._plain_meta
        client = ctx.facts.client
        if client is not self._client:  # consecutive calls often come from the same client
            self._client, self._capabilities = client, self._guard.capabilities_for(client)
        envelope = Envelope(ctx, meta, self._capabilities, ctx.facts.log_level, headers or _NO_HEADERS)
        connection = self._connection
        connection.begin_use()
        try:
            session = connection.ready or await connection.session(probe=True)
            try:
                result = await self._on(session, method, params, envelope)
            except RequestFailure as failure:
                if not self._may_resend(failure, method, params) or not (resends is None or resends.take()):
                    raise self._noted(failure) from None
                logger.info("request resent server=%s method=%s reason=%s", self._server, method, failure)
                session = await connection.session(waits_for_attempt=True)
                try:
                    result = await self._on(session, method, params, envelope)
                except RequestFailure as again:
                    raise self._noted(again) from None
        finally:
            connection.end_use()
        if connection.state != "ready":
            connection.note_success()
        return received_call(result) if method == "tools/call" else received(result)

    async def relay(self, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        """Send one request that another gateway has forwarded, and return the result. That gateway decides whether to resend it.

        Raises the errors of `send`.
        """
        connection = self._connection
        connection.begin_use()
        try:
            session = connection.ready or await connection.session(probe=True)
            return await self._on(session, method, params, envelope)
        finally:
            connection.end_use()

    def _may_resend(self, failure: RequestFailure, method: str, params: JsonObject) -> bool:
        name = params.get("name")
        return may_resend(
            failure,
            method,
            params,
            self._annotations_of(name) if isinstance(name, str) else None,
            idempotent=self._policy.idempotent,
            trust_annotations=self._policy.trust_annotations,
        )

    def _noted(self, failure: RequestFailure) -> RequestFailure:
        """Return the error that the caller gets for a failed request. Its type is that of `failure`.

        If a request could not be sent over HTTP, also mark the server as failing, because the server's session stays open and does not show
        the failure.
        """
        if not isinstance(failure, NotSent) or not self._is_streamable_http:
            return failure
        self._connection.note_failure(failure)
        if not isinstance(failure, Unauthorized):
            failure.args = (self._connection.explain(),)
        return failure

    def _on(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> Awaitable[JsonObject]:
        """Send the request once, on `session` or on the caller's own session, and return an awaitable of the result.

        Not a coroutine function, because one more coroutine would slow down every call.
        """
        agreed = session.negotiated
        if agreed.era != "modern":
            return self._send_queued(session, method, params, envelope)
        ctx = envelope.ctx
        if agreed.has_tasks and self._declares_tasks(method, ctx):
            envelope = with_extension(envelope, TASKS_EXTENSION)
        if ctx is not None:
            add_input_responses(params, ctx)
        return self._admitted(session, method, params, envelope) if self._pins.may_refuse else session.request(method, params, envelope)

    async def _admitted(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        await self._admit(session, method, params)
        return await session.request(method, params, envelope)

    async def _send_queued(self, session: Session, method: str, params: JsonObject, envelope: Envelope) -> JsonObject:
        """Send the request once to an MCP 2025 server, on the caller's own session or on the shared `session`.

        On the shared session, first wait for the client's turn if only one client at a time may use the session.
        """
        ctx = envelope.ctx
        if self._callers is not None and ctx is not None:
            askable = {k: v for k, v in envelope.capabilities.items() if k in ("sampling", "elicitation", "roots")}
            if self._needs_own_session(askable):

                async def work(own: Session) -> JsonObject:
                    await own.want_level(envelope.log_level)
                    return await self._admitted(own, method, params, envelope)

                return await self._callers.run(ctx, askable, work)
            await session.want_level(envelope.log_level)
            if self._serial_queue is not None:
                async with self._serial_queue.slot(ctx, partial(self._leave, session)) as held:
                    return await self._admitted(session, method, params, dataclasses.replace(envelope, ctx=held))
            if self._serializes_after_input_request:
                self._unqueued[id(envelope)] = ctx
                is_cancelled = False
                try:
                    return await self._admitted(session, method, params, envelope)
                except anyio.get_cancelled_exc_class():
                    is_cancelled = True
                    raise
                finally:
                    del self._unqueued[id(envelope)]
                    if self._serial_queue is not None:
                        self._leave(session, ctx, is_cancelled)
        return await self._admitted(session, method, params, envelope)

    def _leave(self, session: Session, ctx: CallContext, is_cancelled: bool) -> None:
        """End a call's turn (the exclusive use by its client) on the shared session.

        For a cancelled call, the turn ends when the server has answered a ping, or after `timeoutSeconds` of the policy. A server that
        handles one message at a time answers the ping when it has finished the cancelled call.
        """
        assert self._serial_queue is not None
        if is_cancelled and self._tasks is not None and not session.closed.is_set():
            self._tasks.start_soon(self._leave_settled, session, ctx)
        else:
            self._serial_queue.leave(ctx, session.messages.settle_seconds)

    async def _leave_settled(self, session: Session, ctx: CallContext) -> None:
        assert self._serial_queue is not None
        cancelled = "", ctx, time.monotonic()
        self._questions.append(cancelled)
        try:
            with anyio.move_on_after(self._policy.timeout_seconds):
                await session.request("ping", {})
        except UpstreamError as error:
            logger.debug("ping after a cancelled call failed server=%s reason=%s", self._server, error)
        finally:
            self._questions.remove(cancelled)
            self._serial_queue.leave(ctx, session.messages.settle_seconds)

    def _declares_tasks(self, method: str, ctx: CallContext | None) -> bool:
        """Return whether a request declares the tasks extension.

        `tasks/…` always declares it. `tools/call` declares it if the gateway polls the server's tasks (`tasks.follow`) or the caller
        accepts tasks.
        """
        if method == "tools/call":
            return self._policy.tasks.follow or (ctx is not None and ctx.facts.takes_tasks)
        return method.startswith("tasks/")

    def _needs_own_session(self, askable: JsonObject) -> bool:
        """Return whether a caller needs a session of its own, because the shared session declares other client capabilities.

        `askable` are the capabilities for requests for input that the caller's session would declare. Over streamable HTTP, a caller uses
        the shared session only if neither session declares such capabilities. Callers share another server although their capabilities
        differ, unless policy forbids it or the caller has roots, which servers read only once, at the start.
        """
        if self._is_single:
            return False
        if self._is_streamable_http:
            return bool(askable) or bool(self._guard.shared_capabilities())
        return "roots" in askable or self._policy.callers == "separate"

    @asynccontextmanager
    async def _negotiated(self, capabilities: JsonObject, holder: Holder) -> AsyncGenerator[Session, None]:
        async with (
            self._remote.open(ChildLog(), holder) as carrier,
            open_session(self._server, carrier, self._hooks, client=self._remote.client) as session,
        ):
            await session.negotiate("legacy", capabilities)
            yield session
