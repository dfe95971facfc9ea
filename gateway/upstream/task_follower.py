"""`TaskFollower`: polls a remote server's long-running MCP task until it has a result, for both versions of tasks in MCP.

With the extension of MCP 2026 (`io.modelcontextprotocol/tasks`, SEP-2663), the server may run any call as a task. In 2025-11-25, the client
requests a task, for tools listed with task support `required`. Once a task's id is known, the call is never resent; after a broken
connection, only the request about the task is resent. `delivery` uses this module: it polls tasks for callers that do not support tasks,
and checks the states of tasks that other callers poll. `library` uses it for Python programs. Requests are sent through the interface
`TaskLine`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, Protocol, cast

import anyio

from gateway.config.policies import TaskPolicy
from gateway.errors import (
    InputUnavailable,
    ModelError,
    NotSent,
    OutcomeUnknown,
    PolicyDenied,
    Rejected,
    TaskError,
    ToolFailed,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.gate.recorded import FOLLOWED_TASK
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of
from gateway.protocol import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT
from gateway.tools.base import is_call_result
from gateway.tools.context import CallContext
from gateway.tools.drive import input_requests_of
from gateway.upstream.input_guard import Answered, Relayed

logger = logging.getLogger(__name__)

MIN_POLL_SECONDS = 0.5
"""Shortest wait between two polls of a task, and the wait if the server does not send a poll interval."""

MAX_POLL_SECONDS = 5.0
"""Longest wait between two polls of a task, even if the server sends a longer poll interval."""

POLL_TIMEOUT_SECONDS = 30.0
"""Timeout of one poll of a task (`tasks/get`). After a timeout, the next poll follows."""

CANCEL_SECONDS = 5.0
"""Timeout of `tasks/cancel`."""

MAX_JUDGED = 2_000
"""Maximum number of stored decisions of policy on requests for input of tasks that callers poll themselves."""

_TIMEOUT_CODES = frozenset({408, REQUEST_TIMEOUT})
"""JSON-RPC error codes with which the MCP SDKs 1.x and 2.x report a timeout. A poll that fails with such a code is repeated."""

_ANSWERED: JsonObject = {}
"""Value stored in place of a task's request for input that a model of this gateway has answered. The caller does not get such a request."""

_STATES = frozenset({"working", "input_required", "completed", "failed", "cancelled"})

Dialect = Literal["modern", "legacy"]


@dataclass(frozen=True, slots=True)
class MCPTaskOptions:
    """Settings for calls that a server runs as long-running MCP tasks. Immutable; replace the whole object to change them.

    Raises:
        TypeError: `default_ttl` or `max_task_wait` is not a `timedelta`.
        ValueError: `default_ttl` or `max_task_wait` is not positive.
    """

    default_ttl: timedelta | None = None
    """How long a server with MCP 2025-11-25 is requested to keep a task (`ttl`); `None`: the server decides."""
    cancel_remote_task_on_local_cancellation: bool = True
    """Whether the task is cancelled at the server when the call is cancelled, unless the call is resumed after a restart of the gateway."""
    max_task_wait: timedelta | None = None
    """Longest time to poll a task for its result. It begins again if the call is resumed after a restart. `None`: no limit."""

    def __post_init__(self) -> None:
        for name, value in (("default_ttl", self.default_ttl), ("max_task_wait", self.max_task_wait)):
            if value is None:
                continue
            if not isinstance(cast("object", value), timedelta):
                raise TypeError(f"{name} must be a timedelta, as timedelta(seconds=60), not {type(value).__name__}.")
            if value <= timedelta(0):
                raise ValueError(f"{name} must be positive, got {value}")

    def to_wire(self) -> JsonObject:
        """Return the parameter `task` of a `tools/call` request in MCP 2025-11-25."""
        return {} if self.default_ttl is None else {"ttl": max(1, self.default_ttl // timedelta(milliseconds=1))}


class Resends:
    """Limits how often requests about one followed task are resent after a broken connection: once per object.

    A task gets one object for its polls. In MCP 2025-11-25, it gets a second object for `tasks/result`.
    """

    def __init__(self) -> None:
        self._is_used = False

    def take(self) -> bool:
        """Return whether a request may be resent, and count it."""
        is_free, self._is_used = not self._is_used, True
        return is_free


class TaskLine(Protocol):
    """The interface through which a `TaskFollower` sends requests to its server and handles the server's requests for input."""

    async def send(
        self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None, resends: Resends | None = None
    ) -> JsonObject:
        """Send one request for the call `ctx`, and return its result. Only the `_meta` keys that the gateway accepts remain in the result.

        If the connection is broken, open it again, and send a request about a task once more (`may_resend`) unless `resends` is used up.
        Raises `OutcomeUnknown`, `NotSent` or `UpstreamTimeout` if that fails too.
        """
        ...

    async def judge_input_request(self, request: JsonObject, ctx: CallContext) -> Relayed | Answered:
        """Apply policy to one request for input of a task that the caller polls itself, and return the verdict.

        Raises if policy refuses the request.
        """
        ...

    async def answer_input_request(self, request: JsonObject, key: str, ctx: CallContext) -> JsonObject:
        """Apply policy to a task's request for input, identified by `key`, and return the answer of the caller or of a model.

        Raises if policy refuses the request.
        """
        ...


class TaskFollower:
    """Polls the tasks of one server until they have results. Safe for concurrent calls.

    If a call is cancelled, polling fails or `max_task_wait` has passed, the task is cancelled at the server.
    """

    def __init__(self, server: str, line: TaskLine, options: MCPTaskOptions, *, readable: Callable[[str], str] = str) -> None:
        """Create the object without side effects.

        `line` sends the requests. `readable` removes hidden text (not seen by people) from status messages, if policy requires it. The
        attribute `options` may be replaced at any time; tasks that are being polled keep the earlier options.
        """
        self.options = options
        self._readable = readable
        self._server = server
        self._line = line
        self._noticed = False
        self._judged: OrderedDict[tuple[str, str, str], JsonObject] = OrderedDict()
        self._cancels = 0
        self._drained = anyio.Event()

    async def call(self, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """Call a tool as a task of MCP 2025-11-25, wait for the task, and return its result.

        `params` and `headers` are those of the `tools/call` request. If the server rejects the task (error -32601 or -32602), send the
        request once more, without a task. If the server answers with a result instead of a task, return this result.

        Raises:
            TaskError: The task failed, was lost, or took longer than `max_task_wait`; or it is unknown whether the task was created.
            UpstreamError: The server rejected the call, or nothing could be sent.
        """
        tool = str(params.get("name"))
        try:
            created = await self._line.send("tools/call", {**params, "task": self.options.to_wire()}, ctx, headers)
        except Rejected as error:
            if error.code not in (METHOD_NOT_FOUND, INVALID_PARAMS):
                raise
            created = await self._line.send("tools/call", dict(params), ctx, headers)
        except OutcomeUnknown:
            raise TaskError(
                f"The connection to {self._server!r} ended before the server confirmed the task of {tool!r}: "
                f"whether the task runs is unknown. The call was not resent."
            ) from None
        if is_call_result(created):
            return created
        handle = members_of(created.get("task"))
        if not isinstance(handle.get("taskId"), str):
            raise TaskError(f"Server {self._server!r} answered the call of {tool!r} with neither a result nor a task.")
        return await self.follow(tool, handle, ctx, "legacy")

    async def follow(self, tool: str, handle: JsonObject, ctx: CallContext, dialect: Dialect) -> JsonObject:
        """Poll a task until it has a result, and return the result. `handle` is the response that created the task.

        `dialect` is the version of tasks: `modern` for the 2026 extension, `legacy` for 2025-11-25. The wait does not count against the
        call's deadline, and does not use a concurrency slot.

        Raises:
            TaskError: The task failed, was lost, or took longer than `max_task_wait`.
            PolicyDenied: Policy refuses a request for input of the task.
        """
        options = self.options
        if ctx.ports.durable is not None:
            await ctx.ports.durable.keep(FOLLOWED_TASK, {"task": handle, "dialect": dialect})
        if dialect == "legacy" and not self._noticed:
            self._noticed = True
            logger.info("following tasks of the experimental 2025-11-25 dialect, which later versions replaced server=%s", self._server)
        run = _Followed(self._server, self._line, tool, handle, ctx, dialect, readable=self._readable)
        limit = options.max_task_wait.total_seconds() if options.max_task_wait is not None else float("inf")
        try:
            async with ctx.waiting():
                with anyio.move_on_after(limit):
                    return await run.result()
        except _Abandoned as abandoned:
            await self._cancel(run.id, run.quiet)
            raise TaskError(str(abandoned)) from None
        except (ModelError, PolicyDenied, ToolFailed):
            await self._cancel(run.id, run.quiet)
            raise
        except TimeoutError as error:
            await self._cancel(run.id, run.quiet)
            raise TaskError(f"Something timed out while the task of {tool!r} was followed: {error}") from None
        except anyio.get_cancelled_exc_class():
            will_resume = ctx.ports.durable is not None and await ctx.ports.durable.will_resume()
            if options.cancel_remote_task_on_local_cancellation and not will_resume:
                await self._cancel(run.id, run.quiet)
            raise
        await self._cancel(run.id, run.quiet)
        raise TaskError(f"Task of {tool!r} did not end within the limit of {limit:g} s.")

    async def judged(self, task: JsonObject, task_id: str, tool: str, ctx: CallContext) -> JsonObject:
        """Return the state `task` of a task for a caller that polls the task itself.

        Requests for input that the gateway's models answer are removed. A completed task with a malformed result is returned as failed.
        """
        if task.get("status") == "completed":
            result: JsonValue = task.get("result")
            is_one = isinstance(result, dict) and is_call_result(cast("JsonMapping", result))
            return task if is_one else _as_failed(task, INTERNAL_ERROR, _unreadable(self._server, tool))
        if isinstance(task.get("inputRequests"), dict):
            return await self._with_judged_requests(task, task_id, ctx)
        return task

    async def _with_judged_requests(self, task: JsonObject, task_id: str, ctx: CallContext) -> JsonObject:
        """Return the polled state of a task with only those requests for input that are for the caller.

        Policy is applied to each request when it is first seen, not at every poll; models of the gateway may answer it. If policy refuses a
        request, the task is cancelled and returned as failed. If no request remains, the status becomes `working`.
        """
        shown: JsonObject = {}
        for key, request in cast("JsonObject", task["inputRequests"]).items():
            place = (ctx.facts.principal.id, task_id, key)
            known = self._judged.get(place)
            if known is None:
                try:
                    verdict = await self._line.judge_input_request(cast("JsonObject", request), ctx)
                except PolicyDenied as error:
                    await self._cancel(task_id, ctx.child())
                    return _as_failed(task, INVALID_REQUEST, str(error))
                if isinstance(verdict, Answered):
                    known = _ANSWERED
                    await self._line.send("tasks/update", {"taskId": task_id, "inputResponses": {key: verdict.result}}, ctx.child())
                else:
                    known = verdict.request
                self._judged[place] = known
                if len(self._judged) > MAX_JUDGED:
                    self._judged.popitem(last=False)
            if known is not _ANSWERED:
                shown[key] = known
        if shown:
            return {**task, "inputRequests": shown}
        return {**{k: v for k, v in task.items() if k != "inputRequests"}, "status": "working"}

    async def _cancel(self, task_id: str, ctx: CallContext) -> None:
        """Cancel a task at the server, with a time limit. A failure is logged and does not replace the original error."""
        self._cancels += 1
        try:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS) as scope:
                await self._line.send("tasks/cancel", {"taskId": task_id}, ctx)
            if scope.cancelled_caught:
                logger.warning("task cancellation not answered server=%s task=%s seconds=%g", self._server, task_id, CANCEL_SECONDS)
        except UpstreamError as error:
            logger.warning("task not cancelled server=%s task=%s reason=%s", self._server, task_id, error)
        finally:
            self._cancels -= 1
            if self._cancels == 0:
                drained, self._drained = self._drained, anyio.Event()
                drained.set()

    async def drain(self) -> None:
        """Wait until running `tasks/cancel` requests have ended, at most `CANCEL_SECONDS`. Called before the connection is closed."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CANCEL_SECONDS):
            while self._cancels:
                await self._drained.wait()


class _Abandoned(Exception):
    """Raised while a task is polled if the gateway stops polling it without a result. The task is then cancelled at the server."""


class _Followed:
    """One task that `TaskFollower` polls: its last state, the answered requests for input and the call that waits for the result."""

    def __init__(
        self,
        server: str,
        line: TaskLine,
        tool: str,
        handle: JsonObject,
        ctx: CallContext,
        dialect: Dialect,
        *,
        readable: Callable[[str], str],
    ) -> None:
        self.id = str(handle["taskId"])
        self.quiet = ctx.child()
        """The call context for polls and cancellation of the task, without progress reports and without answers of the original call."""
        self._server = server
        self._line = line
        self._tool = tool
        self._ctx = ctx
        self._asking = input_requests_of(ctx, tool, {"task": self.id})
        """The call context for requests for input: keys of questions start with this task, because another task may use the same keys."""
        self._dialect: Dialect = dialect
        self._latest = handle
        self._resends = Resends()
        self._answered: set[str] = set()
        self._readable = readable
        self._said = ""
        self._messages = 0

    async def result(self) -> JsonObject:
        """Poll the task until it has ended, and return its result."""
        latest = self._latest
        while True:
            await self._report_status(latest)
            status = latest.get("status")
            if status == "completed":
                return await self._fetch(latest)
            if status == "input_required":
                if self._dialect == "legacy":
                    return await self._answer_legacy(latest)
                await self._answer(latest)
            elif status != "working":
                raise self._failed(latest)
            await anyio.sleep(poll_seconds(latest))
            latest = await self._poll(latest)

    async def _poll(self, before: JsonObject) -> JsonObject:
        try:
            with anyio.move_on_after(POLL_TIMEOUT_SECONDS):
                latest = await self._send("tasks/get")
                if latest.get("status") not in _STATES:
                    raise _Abandoned(f"Server {self._server!r} sent no valid status of the task of {self._tool!r}, so the call failed.")
                return latest
        except Rejected as error:
            if error.code not in _TIMEOUT_CODES:
                raise _Abandoned(f"Server {self._server!r} no longer follows the task of {self._tool!r}: {error}") from None
        return before

    async def _send(self, method: str, more: JsonObject | None = None) -> JsonObject:
        """Send a request about the task, and return its result."""
        ctx = self._ctx if method == "tasks/result" else self.quiet
        try:
            return await self._line.send(method, {"taskId": self.id, **(more or {})}, ctx, resends=self._resends)
        except (OutcomeUnknown, NotSent, UpstreamTimeout) as error:
            raise _Abandoned(f"The connection to {self._server!r} was lost while the task of {self._tool!r} ran: {error}") from None

    async def _fetch(self, latest: JsonObject) -> JsonObject:
        if self._dialect == "modern":
            result: JsonValue = latest.get("result")
        else:
            self._resends = Resends()
            try:
                result = await self._send("tasks/result")
            except Rejected as error:
                raise TaskError(f"The result of {self._tool!r} could not be read: {error}") from None
        if not isinstance(result, dict) or not is_call_result(cast("JsonMapping", result)):
            raise TaskError(_unreadable(self._server, self._tool))
        return cast("JsonObject", result)

    async def _answer_legacy(self, latest: JsonObject) -> JsonObject:
        """Send `tasks/result` and return the task's result. A server with MCP 2025-11-25 sends requests for input during this request.

        Raises:
            TaskError: The client supports no request for input, or the task failed.
        """
        if not any(self._ctx.facts.client.can(c) for c in ("elicitation", "sampling", "roots")):
            raise _Abandoned(str(self._failed(latest)))
        return await self._fetch(latest)

    async def _answer(self, latest: JsonObject) -> None:
        """Get answers to the requests for input that are new in the task's state `latest`, and send them to the server (`tasks/update`)."""
        for key, request in members_of(latest.get("inputRequests")).items():
            if key in self._answered or not isinstance(request, dict):
                continue
            try:
                answer = await self._line.answer_input_request(cast("JsonObject", request), key, self._asking)
            except InputUnavailable as error:
                raise _Abandoned(str(self._failed({"statusMessage": str(error), **latest}))) from None
            self._answered.add(key)
            try:
                await self._send("tasks/update", {"inputResponses": {key: answer}})
            except Rejected as error:
                raise _Abandoned(f"Server {self._server!r} rejected an answer for {self._tool!r}: {error}") from None

    def _failed(self, latest: JsonMapping) -> TaskError:
        status = str(latest.get("status"))
        said = latest.get("statusMessage") or members_of(latest.get("error")).get("message")
        if not said:
            said = "the server needs input that the caller cannot give" if status == "input_required" else "the server gave no reason"
        return TaskError(f"Task of {self._tool!r} ended as {status}: {said}")

    async def _report_status(self, latest: JsonMapping) -> None:
        """Send the task's status message to the caller as a progress report, if it is new and the caller requested progress."""
        message = latest.get("statusMessage")
        if self._ctx.facts.wants_progress and isinstance(message, str) and message and message != self._said:
            self._said = message
            self._messages += 1
            await self._ctx.progress(float(self._messages), None, self._readable(message))


def task_options(policy: TaskPolicy) -> MCPTaskOptions:
    """Convert the settings for tasks in a server's policy to `MCPTaskOptions`."""
    return MCPTaskOptions(
        default_ttl=timedelta(seconds=policy.ttl_seconds) if policy.ttl_seconds is not None else None,
        cancel_remote_task_on_local_cancellation=policy.cancel_on_abandon,
        max_task_wait=timedelta(seconds=policy.max_wait_seconds) if policy.max_wait_seconds is not None else None,
    )


def poll_seconds(task: JsonMapping) -> float:
    """Return the seconds until the next poll of a task, from its poll interval in ms (`pollIntervalMs` in 2026, `pollInterval` in 2025)."""
    wanted: JsonValue = task.get("pollIntervalMs", task.get("pollInterval"))
    if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not wanted > 0:
        return MIN_POLL_SECONDS
    return min(max(wanted / 1000, MIN_POLL_SECONDS), MAX_POLL_SECONDS)


def _unreadable(server: str, tool: str) -> str:
    return f"Server {server!r} finished {tool!r} with a result that cannot be read."


def _as_failed(task: JsonObject, code: int, text: str) -> JsonObject:
    """Return the polled state of a task with the status changed to `failed`, and the error `code` and `text`."""
    kept = {key: value for key, value in task.items() if key not in ("inputRequests", "result")}
    return {**kept, "status": "failed", "statusMessage": text, "error": {"code": code, "message": text}}
