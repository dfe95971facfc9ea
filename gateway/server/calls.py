"""`CallHandler`: runs the `tools/call` requests of 2025 and 2026 clients. `to_wire`: converts the outcome of a call to the JSON result.

The fast path, which does not use the MCP SDK, and the SDK path (`sdk_path.call_methods`) both run calls with this module, so they send the
same results. The catalog's tools apply policy themselves: each is wrapped by the gate (the checks that every call passes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.protocol import METHOD_NOT_FOUND, SERVER_INFO_META_KEY, RpcError
from gateway.server.clients import CloseableCaller
from gateway.server.parked import ParkedCalls, open_upstream_state, seal_upstream_state
from gateway.server.running_calls import RunningCalls
from gateway.server.task_calls import TaskHandler, declares_tasks, lacks_tasks
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome, complete_result
from gateway.tools.context import CallContext
from gateway.tools.drive import drive, drive_on
from gateway.tools.ports import Caller

FIRST_WITH_TASKS = "2025-11-25"
"""The first MCP protocol version in which a client can call a tool as a task."""

_BLOCKS: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
"""Type of a content block → its fields besides `type`. A block with exactly these fields is sent without the MCP SDK's models.

A result with any other block is converted by the SDK's models."""
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""Fields of a `tools/call` result that have the same form in every protocol version, so that they need no conversion by the MCP SDK."""


class CallHandler:
    """Runs the `tools/call` requests of 2025 and 2026 clients, for the fast path (without the MCP SDK) and the SDK path."""

    def __init__(self, parked: ParkedCalls, tasks: TaskHandler) -> None:
        self._tasks = tasks
        self._parked = parked
        self.running = RunningCalls()
        """The calls of the SDK path, by caller."""

    async def run(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, caller: Caller) -> ToolOutcome:
        """Run one round of a 2026 client's call (one request and its result), and return the outcome.

        The outcome may be a request for input, which the client answers with the next round, or a task.
        """
        if declares_tasks(ctx.facts.client):
            ctx = ctx.with_facts(dataclasses.replace(ctx.facts, takes_tasks=True))
            if self._tasks.starts_here(tool, arguments, ctx):
                return self._tasks.started(await self._tasks.start(tool, arguments, ctx))
        elif self._tasks.must_run_here(tool):
            raise lacks_tasks(f"Tool {tool.exposed_name!r} only runs as a task.")
        run = tool.call
        if not ctx.facts.takes_tasks and self._tasks.may_take_long(tool, arguments, ctx):
            run = self._attended(tool)
        if ctx.facts.client.takes_input_requests and tool.may_ask(ctx.facts.principal):
            outcome = await self._parked.run(partial(run, arguments), ctx, caller)
        else:
            state = ctx.facts.request_state
            outcome = await run(arguments, ctx if state is None else ctx.with_state(open_upstream_state(state)))
            if isinstance(outcome, InputRequired):
                return seal_upstream_state(outcome)
        return self._tasks.relayed(tool, outcome, ctx) if isinstance(outcome, TaskStarted) else outcome

    async def run_plain(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run one round of a 2026 client's call (one request and its result), with the same outcome as `run`, but faster.

        Only for a tool that never runs as a task of this gateway, and that requests input from the client only by its result, not while it
        runs.
        """
        outcome = await tool.call(arguments, ctx)
        if isinstance(outcome, Complete):
            return outcome
        return seal_upstream_state(outcome) if isinstance(outcome, InputRequired) else self._tasks.relayed(tool, outcome, ctx)

    def _attended(self, tool: GuardedTool) -> Callable[[JsonObject, CallContext], Awaitable[ToolOutcome]]:
        async def run(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
            return await self._tasks.attend(tool, arguments, ctx, lambda inner: tool.call(arguments, inner))

        return run

    async def run_legacy(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, caller: CloseableCaller) -> ToolOutcome:
        """Run a 2025 client's call until it is finished, and return the outcome. Send the client requests for input while the call runs.

        A call that takes long may become a task; the result then tells the client how to follow the task.
        """
        if self._tasks.must_run_here(tool):
            if ctx.facts.client.protocol_version >= FIRST_WITH_TASKS:
                raise RpcError(METHOD_NOT_FOUND, f"Tool {tool.exposed_name!r} only runs as a task: send `task` with the call.")
            if not isinstance(tool.check(arguments, ctx.facts.principal), Reject):
                return self._tasks.handle(await self._tasks.start(tool, arguments, ctx), tool)
        if self._tasks.may_take_long(tool, arguments, ctx):
            outcome = await self._tasks.attend(tool, arguments, ctx, lambda inner: drive(tool, arguments, inner))
        else:
            outcome = await tool.call(arguments, ctx)
            if isinstance(outcome, InputRequired):
                outcome = await drive_on(outcome, partial(tool.call, arguments), ctx, tool.definition.name)
        if caller.has_more:
            await caller.close()
        return outcome


def to_wire(outcome: ToolOutcome, *, modern: bool) -> JsonObject:
    """Convert the outcome of a call to the JSON result that is sent: a `CallToolResult`, `InputRequiredResult` or `CreateTaskResult`.

    `modern` is whether the client uses the 2026 protocol.
    """
    match outcome:
        case Complete():
            result: JsonObject = outcome.result if "content" in outcome.result else {"content": [], **outcome.result}
            return complete_result(result, is_modern=modern)
        case InputRequired():
            return input_required_to_wire(outcome)
        case TaskStarted():
            return {**outcome.task, "resultType": "task"}


def add_server_info(result: JsonObject, server_info: JsonObject) -> JsonObject:
    """Add `server_info` to the `_meta` of a result for a 2026 client, in place, as the MCP SDK does on the SDK path; return the result.

    `server_info` has the key `SERVER_INFO_META_KEY`, whose value is the gateway's name and version.
    """
    meta: JsonObject | None = result.get("_meta")
    result["_meta"] = {**meta, **server_info} if meta else server_info
    return result


def input_required_to_wire(outcome: InputRequired) -> JsonObject:
    """Convert an outcome that requests input to the JSON object `InputRequiredResult`."""
    wire: JsonObject = {"resultType": "input_required"}
    if outcome.requests:
        wire["inputRequests"] = {key: dict(request) for key, request in outcome.requests.items()}
    if outcome.state is not None:
        wire["requestState"] = outcome.state
    if outcome.meta:
        wire["_meta"] = outcome.meta
    return wire


def is_plain_result(result: JsonMapping) -> bool:
    """Whether a `tools/call` result can be sent without the MCP SDK's models, because they would not change it in any protocol version.

    This is true if the result has only common fields, and content blocks of the types text, image and audio.
    """
    content: list[JsonMapping] | None = result.get("content")  # checked in the next line
    if not isinstance(content, list):
        return False
    for key in result:
        if key not in _RESULT:
            return False
    if "_meta" in result and not _is_plain_result_meta(result["_meta"]):
        return False
    if "structuredContent" in result and result["structuredContent"] is None:
        return False
    if "isError" in result and not isinstance(result["isError"], bool):
        return False
    for block in content:
        if not _is_plain_block(block):
            return False
    return True


def _is_plain_result_meta(meta: JsonValue) -> bool:
    return isinstance(meta, dict) and SERVER_INFO_META_KEY not in meta and None not in cast("JsonMapping", meta).values()


def _is_plain_block(block: JsonMapping) -> bool:
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    known = _BLOCKS.get(kind) if isinstance(kind, str) else None
    if known is None or len(block) != len(known) + 1:
        return False
    for name in known:
        if not isinstance(block.get(name), str):
            return False
    return True
