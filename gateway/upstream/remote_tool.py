"""`RemoteTool`: a tool of a remote server. Each call is one request, whose result passes through unchanged."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from typing import Protocol, cast

from gateway.errors import NotFound, Rejected, ToolFailed
from gateway.gate.recorded import FOLLOWED_TASK
from gateway.json_types import JsonObject
from gateway.protocol import INVALID_PARAMS
from gateway.tools.base import Complete, InputRequired, TaskMethod, TaskStarted, ToolDefinition, ToolOutcome, is_call_result
from gateway.tools.context import CallContext
from gateway.upstream.listing import Listed
from gateway.upstream.param_headers import param_headers
from gateway.upstream.tasks import TaskFollower


class Sender(Protocol):
    """What a tool needs of its source."""

    @property
    def tasks(self) -> TaskFollower:
        """Follows the tasks that calls become."""
        ...

    async def send(self, method: str, params: JsonObject, ctx: CallContext, headers: Mapping[str, str] | None = None) -> JsonObject:
        """Send one request on behalf of `ctx`, and return its result with only the `_meta` that the gateway accepts."""
        ...

    def judge(self, result: JsonObject, ctx: CallContext) -> InputRequired:
        """Return the judged requests for input of an `input_required` result."""
        ...


class RemoteTool:
    """Implements `Tool` for one listed tool."""

    keeps_tasks = True
    """Inside a durable task, the server's own task is recorded: after a restart it is followed on, and the call is not sent again."""

    def __init__(self, listed: Listed, sender: Sender) -> None:
        self._listed = listed
        self._sender = sender

    @property
    def definition(self) -> ToolDefinition:
        """The tool as its server listed it."""
        return self._listed.definition

    @property
    def has_tasks(self) -> bool:
        """Whether the server supports the tasks extension of 2026."""
        return self._listed.definition.task_by == "server"

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Send `tools/call` with the native name."""
        listed = self._listed
        name = listed.definition.name
        headers = param_headers(listed.headers, arguments) if listed.headers else None
        if listed.meta:
            ctx = dataclasses.replace(ctx, meta={**ctx.meta, **listed.meta})
        if ctx.durable is not None and isinstance(kept := ctx.durable.kept(FOLLOWED_TASK), dict):
            known = cast("JsonObject", kept)
            return Complete(await self._sender.tasks.follow(name, known["task"], ctx, known["dialect"]))
        params: JsonObject = {"name": name, "arguments": arguments}
        if listed.definition.task == "required":
            ctx = dataclasses.replace(ctx, line=ctx.line or secrets.token_hex(8))
            return Complete.received(await self._sender.tasks.call(params, ctx, headers))
        result = await self._sender.send("tools/call", params, ctx, headers)
        match result.pop("resultType", "complete"):
            case "complete" if is_call_result(result):
                return Complete.received(result)
            case "complete":
                raise ToolFailed(f"Tool {name!r} answered with a result that cannot be read; it may have run.")
            case "input_required":
                return self._sender.judge(result, ctx)
            case "task" if isinstance(result.get("taskId"), str):
                if ctx.takes_tasks:
                    return TaskStarted(result)
                return Complete(await self._sender.tasks.follow(name, result, ctx, "modern"))
            case other:
                raise ToolFailed(f"Tool {name!r} answered with a result of type {other!r}, which this gateway did not offer to take.")

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send one request about a task that a 2026 server made of a call (`TaskTool`). Each request for input is judged once."""
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
