"""Tasks on the wire, in both dialects: the modern extension (SEP-2663) and the core tasks of 2025-11-25.

A task is either one of a remote server, relayed under a sealed handle, or one that runs here (`tasks.runner`): a slow
tool promoted by policy, or a call that a server of the other dialect runs as a task. Clients cannot tell which. Ids that
are unknown, expired or somebody else's get one and the same error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.inbound import decode_header_value
from mcp_types import CallToolRequestParams, PaginatedRequestParams, RequestParams
from pydantic import ConfigDict, Field
from starlette.requests import Request

from gateway.catalog import Catalog
from gateway.errors import GatewayError, NotFound, StorageError, TaskError
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject
from gateway.protocol import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MCP_NAME_HEADER,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    RpcError,
)
from gateway.server.caller import WireCaller
from gateway.server.clients import Clients, RequestContext, is_modern, principal_of
from gateway.server.errors import to_rpc_error
from gateway.server.handles import Handle, TaskHandles
from gateway.server.task_wire import legacy_task, modern_state, modern_task
from gateway.tasks.attending import Work
from gateway.tasks.runner import TaskKind, TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.tools import still_running
from gateway.tools.base import Complete, TaskMethod, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import drive
from gateway.tools.guard import GuardedTool
from gateway.upstream.session import TASKS_EXTENSION
from gateway.upstream.tasks import poll_seconds

RELATED_TASK = "io.modelcontextprotocol/related-task"
"""`_meta` key of 2025-11-25 that names the task a message belongs to."""

OWN_SOURCES = ("agent", "workflow")
"""Sources whose tools say themselves whether they run as tasks; what a server says of its tools is followed for it."""

NO_TASK = "Task not found"

SPACING_SECONDS = 0.5
"""Between two notifications about one task (requirements 3.C2/95)."""

ENDED = frozenset({"completed", "failed", "cancelled"})
"""The states a task stays in."""


class TaskParams(RequestParams):
    """Parameters of `tasks/get`, `tasks/update`, `tasks/cancel` and `tasks/result`."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")


def declares_tasks(ctx: CallContext) -> bool:
    """Whether this very request declares the modern extension."""
    extensions = ctx.client.capabilities.get("extensions")
    return ctx.era == "modern" and isinstance(extensions, dict) and TASKS_EXTENSION in extensions


class TaskHandler:
    """Serves tasks of one server."""

    def __init__(self, catalog: Catalog, clients: Clients, key: bytes) -> None:
        """`key` (32 bytes) seals the handles of relayed tasks. `run_with` follows."""
        self._catalog = catalog
        self._clients = clients
        self._given: TaskRunner | None = None
        self._on_legacy: Callable[[RequestContext, Task], None] = lambda ctx, task: None
        self._handles = TaskHandles(key)

    def run_with(self, runner: TaskRunner) -> None:
        """Hand over what runs tasks here."""
        self._given = runner

    def tell_legacy(self, on_start: Callable[[RequestContext, Task], None]) -> None:
        """Have `on_start` called with each task that a 2025 client starts."""
        self._on_legacy = on_start

    @property
    def _runner(self) -> TaskRunner:
        if self._given is None:
            raise NotFound("task", "")
        return self._given

    async def call(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
        """The call inside a task.

        Raises:
            NotFound: The tool is not there (`kind` is `tool`).
        """
        return await drive(await self._catalog.seek(tool), arguments, ctx)

    def bind(self, server: Server[Any]) -> None:
        """Declare the extension and serve the methods."""
        server.extensions[TASKS_EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._guarded(self._get))
        server.add_request_handler("tasks/update", TaskParams, self._guarded(self._update))
        server.add_request_handler("tasks/cancel", TaskParams, self._guarded(self._cancel))
        server.add_request_handler("tasks/result", TaskParams, self._guarded(self._result))
        server.add_request_handler("tasks/list", PaginatedRequestParams, self._list)
        server.middleware.append(self.start_legacy)

    # -- starting ----------------------------------------------------------------------------------------------

    def starts_here(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call becomes a task of this gateway. A call that policy refuses does not: its refusal is the answer."""
        runs_here = self._given is not None and tool.definition.task_by == "gateway"
        return runs_here and ctx.takes_tasks and not isinstance(tool.check(arguments, ctx.principal), Reject)

    def may_take_long(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> bool:
        """Whether a call of a client that has no tasks may go on as one when its client has waited long enough."""
        if self._given is None or self._given.settings.inline_seconds is None or tool.definition.task_by == "nobody":
            return False
        return not isinstance(tool.check(arguments, ctx.principal), Reject)

    async def attend(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, work: Work) -> ToolOutcome:
        """Make a call whose client waits for it: what `work` gives, or a handle when it takes too long (`TaskRunner.attend`).

        A source whose `timeoutSeconds` is within the wait keeps to it: its calls never become tasks this way.
        """
        seconds = self._runner.settings.inline_seconds
        inner = dataclasses.replace(ctx, in_task=seconds is not None and tool.timeout_seconds > seconds)
        outcome = await self._runner.attend(tool.exposed_name, arguments, inner, work, kind=_kind(tool))
        return self.handle(outcome, tool) if isinstance(outcome, Task) else outcome

    def handle(self, task: Task, tool: GuardedTool) -> Complete:
        """What a client that has no tasks gets for one."""
        return still_running(task, has_output_schema=tool.definition.output_schema is not None)

    def must_run_here(self, tool: GuardedTool) -> bool:
        """Whether an agent or workflow of ours says that it only runs as a task."""
        return self._given is not None and tool.definition.task == "required" and tool.source in OWN_SOURCES

    async def start(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, ttl_seconds: float | None = None) -> Task:
        """Run a call as a task of this gateway.

        Raises:
            TaskError: The caller has too many.
        """
        return await self._runner.start(tool.exposed_name, arguments, ctx, ttl_seconds=ttl_seconds, kind=_kind(tool))

    def started(self, task: Task) -> TaskStarted:
        """The create answer of a task that runs here."""
        return TaskStarted(modern_task(task))

    def relayed(self, tool: GuardedTool, outcome: TaskStarted, ctx: CallContext) -> TaskStarted:
        """The create answer of a server's task, under a handle of ours."""
        handle = Handle(tool.exposed_name, tool.source, str(outcome.task["taskId"]))
        return TaskStarted({**outcome.task, "taskId": self._handles.seal(handle, ctx.principal.id)})

    async def start_legacy(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: a 2025 `tools/call` with `task` for a tool that has tasks; what it answers passes the SDK unmodelled."""
        raw = ctx.params or {}
        if ctx.method != "tools/call" or is_modern(ctx) or not isinstance(raw.get("task"), dict):
            return await call_next(ctx)
        params = CallToolRequestParams.model_validate(raw)
        try:
            tool = await self._catalog.seek(params.name)
        except NotFound:
            return await call_next(ctx)
        if tool.definition.task_by == "nobody":
            raise RpcError(METHOD_NOT_FOUND, f"Tool {params.name!r} cannot run as a task.")
        arguments = cast("JsonObject", raw.get("arguments") or {})
        facts = self._clients.context(ctx, WireCaller(ctx))
        if isinstance(tool.check(arguments, facts.principal), Reject):
            return await call_next(ctx)
        ttl = cast("JsonMapping", raw["task"]).get("ttl")
        seconds = ttl / 1000 if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0 else None
        try:
            task = await self.start(tool, arguments, facts, seconds)
        except (TaskError, StorageError) as error:
            raise to_rpc_error(error, "legacy") from None
        self._on_legacy(ctx, task)
        return {"task": legacy_task(task)}

    # -- following them ----------------------------------------------------------------------------------------

    async def follow(self, task_id: str, facts: CallContext, tell: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Give `tell` the task's state in the words of the extension, now and after each change, until it is over.

        At most every `SPACING_SECONDS`; a change in between is told with the next.

        Raises:
            NotFound: Unknown, expired, or somebody else's.
        """
        said: JsonObject = {}
        while True:
            if "." in task_id:
                state = {**await self._state_of_relayed(task_id, facts), "taskId": task_id}
                changed = poll_seconds(state)
            else:
                task = await self._runner.find(task_id, facts.principal.id)
                state, changed = modern_state(task), 0.0
                if state == said and not task.is_over:
                    await self._runner.moved(task)
            spacing = 0.0
            if state != said:
                said, spacing = state, SPACING_SECONDS
                await tell(dict(state))
            if state.get("status") in ENDED:
                return
            await anyio.sleep(max(changed, spacing))

    async def knows(self, task_id: str, facts: CallContext) -> bool:
        """Whether the caller has such a task, as far as can be told without asking its server."""
        try:
            await (self._open(task_id, facts) if "." in task_id else self._runner.find(task_id, facts.principal.id))
        except NotFound:
            return False
        return True

    async def _state_of_relayed(self, task_id: str, facts: CallContext) -> JsonObject:
        handle, tool = await self._open(task_id, facts)
        plain = dataclasses.replace(facts, input_responses=None, request_state=None)
        return await tool.task("tasks/get", {"taskId": handle.task_id}, plain)

    async def _open(self, task_id: str, facts: CallContext) -> tuple[Handle, GuardedTool]:
        """The server's own id behind a handle, and the tool to ask about it. Raises `NotFound`."""
        handle = self._handles.open(task_id, facts.principal.id)
        tool = await self._catalog.seek(handle.tool)
        if tool.source != handle.source:
            raise NotFound("task", "")
        return handle, tool

    # -- asking about them -------------------------------------------------------------------------------------

    def _guarded(
        self, serve: Callable[[RequestContext, TaskParams], Awaitable[JsonObject]]
    ) -> Callable[[RequestContext, TaskParams], Awaitable[JsonObject]]:
        async def handler(ctx: RequestContext, params: TaskParams) -> JsonObject:
            era = "modern" if is_modern(ctx) else "legacy"
            if era == "modern":
                self._check_modern(ctx, params)
            try:
                answer = await serve(ctx, params)
            except NotFound:
                raise RpcError(INVALID_PARAMS, NO_TASK) from None
            except GatewayError as error:
                raise to_rpc_error(error, era) from None
            return {"resultType": "complete", **answer} if era == "modern" else answer

        return handler

    def _check_modern(self, ctx: RequestContext, params: TaskParams) -> None:
        if ctx.method == "tasks/result":
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not declares_tasks(self._context(ctx)):
            required: JsonObject = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This request needs the tasks extension to be declared.", required)
        request: object = ctx.request
        if isinstance(request, Request):
            header = cast("Request[Any]", request).headers.get(MCP_NAME_HEADER)
            if header is None or decode_header_value(header) != params.task_id:
                raise RpcError(HEADER_MISMATCH, f"Header {MCP_NAME_HEADER} must be the task's id.")

    def _context(self, ctx: RequestContext) -> CallContext:
        return self._clients.context(ctx, WireCaller(ctx))

    async def _relay(self, ctx: RequestContext, params: TaskParams, method: TaskMethod) -> JsonObject:
        facts = self._context(ctx)
        handle, tool = await self._open(params.task_id, facts)
        wire: JsonObject = {"taskId": handle.task_id}
        if method == "tasks/update":
            wire["inputResponses"] = params.input_responses or {}
        answer = await tool.task(method, wire, dataclasses.replace(facts, input_responses=None, request_state=None))
        return {**answer, "taskId": params.task_id} if method == "tasks/get" else {}

    def _is_relayed(self, params: TaskParams) -> bool:
        return "." in params.task_id

    async def _get(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/get")
        task = await self._runner.find(params.task_id, principal_of(ctx).id)
        return modern_state(task) if is_modern(ctx) else legacy_task(task)

    async def _update(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if not is_modern(ctx):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/update")
        await self._runner.answer(await self._runner.find(params.task_id, principal_of(ctx).id), params.input_responses or {})
        return {}

    async def _cancel(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/cancel")
        task = await self._runner.find(params.task_id, principal_of(ctx).id)
        if is_modern(ctx):
            await self._runner.cancel(task)
            return {}
        if task.is_over:
            raise RpcError(INVALID_PARAMS, f"The task is already {legacy_task(task)['status']}.")
        return legacy_task(await self._runner.cancel(task))

    async def _result(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        """2025-11-25: wait for the end, putting the task's asks to the client meanwhile."""
        task = await self._runner.find(params.task_id, principal_of(ctx).id)
        facts = self._context(ctx)
        while not task.is_over:
            ask = next(iter(task.asks.items()), None)
            if ask is None:
                task = await self._runner.moved(task)
                continue
            key, request = ask
            inner: JsonObject = request.get("params") or {}
            answer = await facts.ask({**request, "params": {**inner, "_meta": {RELATED_TASK: {"taskId": task.id}}}})
            await self._runner.answer(task, {key: answer})
            task = task if task.is_here else await self._runner.find(task.id, task.principal)
        if task.result is None:
            error = task.error or {"code": INTERNAL_ERROR, "message": "The task was cancelled."}
            raise RpcError(error["code"], error["message"])
        return {**task.result, "_meta": {**(task.result.get("_meta") or {}), RELATED_TASK: {"taskId": task.id}}}

    async def _list(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        if is_modern(ctx):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        return {"tasks": [legacy_task(task) for task in await self._runner.all_of(principal_of(ctx).id)]}


def _kind(tool: GuardedTool) -> TaskKind:
    return TaskKind(tool.task_limits, tool.resumes)
