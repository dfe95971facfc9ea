"""`TaskMethods`: serves the `tasks/…` requests of the 2026 tasks extension (SEP-2663) and of protocol 2025-11-25.

`server.task_calls` finds the tasks. Ids that are unknown, expired, or belong to another principal cause the same error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.inbound import decode_header_value
from mcp_types import CallToolRequestParams, PaginatedRequestParams, RequestParams
from pydantic import ConfigDict, Field
from starlette.requests import Request

from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.decision import Reject
from gateway.protocol import HEADER_MISMATCH, INTERNAL_ERROR, INVALID_PARAMS, MCP_NAME_HEADER, METHOD_NOT_FOUND, RpcError
from gateway.server.clients import Clients, RequestContext, is_modern, principal_of
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.server.task_calls import TaskHandler, declares_tasks, lacks_tasks
from gateway.server.task_wire import legacy_task, modern_state
from gateway.server.visible_tools import seek_visible
from gateway.tasks.task import Task
from gateway.tools.base import TaskMethod, complete_result
from gateway.tools.context import CallContext
from gateway.tools.questions import ask_until_usable

RELATED_TASK = "io.modelcontextprotocol/related-task"
"""Key in `_meta`, defined by protocol 2025-11-25, whose value names the task to which a message belongs."""

NO_TASK = "Task not found"


class TaskParams(RequestParams):
    """Parameters of a `tasks/get`, `tasks/update`, `tasks/cancel` or `tasks/result` request."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    task_id: str = Field(alias="taskId")
    input_responses: dict[str, Any] | None = Field(default=None, alias="inputResponses")


class TaskMethods:
    """Serves the `tasks/…` requests of 2025 and 2026 clients, and the `tools/call` requests of 2025 clients that start a task."""

    def __init__(self, handler: TaskHandler, catalog: Catalog, clients: Clients) -> None:
        self._handler = handler
        self._catalog = catalog
        self._clients = clients
        self.on_legacy: Callable[[RequestContext, Task], None] = lambda ctx, task: None
        """Called with the request's context and the task when a 2025 client starts a task, whose status changes the client must get."""

    def bind(self, server: Server[Any]) -> None:
        """Register the handlers of the `tasks/…` methods, and the middleware for calls that start tasks, with the SDK's server."""
        server.add_request_handler("tasks/get", TaskParams, self._guarded(self._get))
        server.add_request_handler("tasks/update", TaskParams, self._guarded(self._update))
        server.add_request_handler("tasks/cancel", TaskParams, self._guarded(self._cancel))
        server.add_request_handler("tasks/result", TaskParams, self._guarded(self._result))
        server.add_request_handler("tasks/list", PaginatedRequestParams, self._list)
        server.middleware.append(self.start_legacy)

    async def start_legacy(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: serve a 2025 client's `tools/call` request that has `task`, and so starts a task. Pass on all other requests.

        A request is also passed on, and refused like a call without `task`, if its tool does not exist or policy refuses the call. It is a
        middleware, so that the SDK's models do not validate the result (a task).

        Raises:
            RpcError: The tool cannot run as a task, or the caller has too many tasks.
        """
        raw = ctx.params or {}
        if ctx.method != "tools/call" or is_modern(ctx) or not isinstance(raw.get("task"), dict):
            return await call_next(ctx)
        params = CallToolRequestParams.model_validate(raw)
        call = self._clients.context(ctx, WireCaller(ctx))
        try:
            tool = await seek_visible(self._catalog, params.name, call.facts.principal)
        except NotFound:
            return await call_next(ctx)
        if tool.definition.task_by == "nobody" and tool.rules.denied is None:
            raise RpcError(METHOD_NOT_FOUND, f"Tool {params.name!r} cannot run as a task.")
        arguments = cast("JsonObject", raw.get("arguments") or {})
        if isinstance(tool.check(arguments, call.facts.principal), Reject):
            return await call_next(ctx)
        ttl = cast("JsonMapping", raw["task"]).get("ttl")
        seconds = ttl / 1000 if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0 else None
        task = await self._handler.start(tool, arguments, call, seconds)
        self.on_legacy(ctx, task)
        return {"task": legacy_task(task)}

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
            return complete_result(answer, is_modern=era == "modern")

        return handler

    def _check_modern(self, ctx: RequestContext, params: TaskParams) -> None:
        if ctx.method == "tasks/result":
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not declares_tasks(self._context(ctx).facts.client):
            raise lacks_tasks("This request needs the tasks extension to be declared.")
        request: object = ctx.request
        if isinstance(request, Request):
            header = cast("Request[Any]", request).headers.get(MCP_NAME_HEADER)
            if header is None or decode_header_value(header) != params.task_id:
                raise RpcError(HEADER_MISMATCH, f"Header {MCP_NAME_HEADER} must be the task's id.")

    def _context(self, ctx: RequestContext) -> CallContext:
        return self._clients.context(ctx, WireCaller(ctx))

    async def _relay(self, ctx: RequestContext, params: TaskParams, method: TaskMethod) -> JsonObject:
        call = self._context(ctx)
        handle, tool = await self._handler.open(params.task_id, call)
        wire: JsonObject = {"taskId": handle.task_id}
        if method == "tasks/update":
            wire["inputResponses"] = params.input_responses or {}
        answer = await tool.task(method, wire, call.with_answers(None, None))
        return {**answer, "taskId": params.task_id} if method == "tasks/get" else {}

    def _is_relayed(self, params: TaskParams) -> bool:
        return "." in params.task_id

    async def _get(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/get")
        task = await self._handler.find(params.task_id, principal_of(ctx))
        return modern_state(task) if is_modern(ctx) else legacy_task(task)

    async def _update(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if not is_modern(ctx):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/update")
        await self._handler.runner.answer(await self._handler.find(params.task_id, principal_of(ctx)), params.input_responses or {})
        return {}

    async def _cancel(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        if self._is_relayed(params):
            return await self._relay(ctx, params, "tasks/cancel")
        task = await self._handler.find(params.task_id, principal_of(ctx))
        if is_modern(ctx):
            await self._handler.runner.cancel(task)
            return {}
        if task.is_over:
            raise RpcError(INVALID_PARAMS, f"The task is already {legacy_task(task)['status']}.")
        return legacy_task(await self._handler.runner.cancel(task))

    async def _result(self, ctx: RequestContext, params: TaskParams) -> JsonObject:
        """Serve a `tasks/result` request of a 2025 client: wait until the task has ended, and return its result.

        Meanwhile, the requests for input of the task are sent to the client. Raises `RpcError` if the task failed or was cancelled.
        """
        task = await self._handler.find(params.task_id, principal_of(ctx))
        call = self._context(ctx)
        while not task.is_over:
            ask = next(iter(task.open_requests.items()), None)
            if ask is None:
                task = await self._handler.runner.wait_for_change(task)
                continue
            key, request = ask
            inner: JsonObject = request.get("params") or {}
            asked: JsonObject = {**request, "params": {**inner, "_meta": {RELATED_TASK: {"taskId": task.id}}}}
            await ask_until_usable(call, asked, partial(self._answer, task, key))
            task = task if task.is_here else await self._handler.runner.find(task.id, task.principal)
        if task.result is None:
            error = task.error or {"code": INTERNAL_ERROR, "message": "The task was cancelled."}
            raise RpcError(error["code"], error["message"])
        return {**task.result, "_meta": {**(task.result.get("_meta") or {}), RELATED_TASK: {"taskId": task.id}}}

    async def _answer(self, task: Task, key: str, answer: JsonObject) -> None:
        await self._handler.runner.answer(task, {key: answer})

    async def _list(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        if is_modern(ctx):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        principal = principal_of(ctx)
        tasks = await self._handler.runner.all_of(principal.id)
        return {"tasks": [legacy_task(task) for task in tasks if await self._handler.is_visible(task, principal)]}
