"""`CallHandler`: runs `tools/call` requests of both eras. `to_wire` and `is_plain_result`: the form in which results are sent.

Both paths run calls by `run`, `run_plain` and `run_legacy` and send the same results; the SDK path calls the handler itself. Policy is
applied by the gate: the catalog's tools are already guarded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.catalog import Catalog
from gateway.errors import AskUnavailable, NotFound, Rejected, TaskError, ToolFailed
from gateway.gate.refusals import refusal
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.pin_check import PINS_RULE
from gateway.protocol import (
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    SERVER_INFO_META_KEY,
    TASKS_EXTENSION,
    RpcError,
)
from gateway.server.client_limits import fit_outcome
from gateway.server.clients import Clients, CloseableCaller, RequestContext, is_modern, scope_of_request
from gateway.server.fast_path.in_flight import STARTED_SCOPE_KEY, InFlightCall
from gateway.server.parked import GONE, ParkedCalls, open_upstream_state, seal_upstream_state
from gateway.server.rpc_errors import relays_code, to_rpc_error
from gateway.server.running_calls import RunningCalls
from gateway.server.task_calls import TaskHandler, declares_tasks
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome, complete_result
from gateway.tools.context import CallContext
from gateway.tools.drive import drive, drive_on
from gateway.tools.ports import Caller

if TYPE_CHECKING:
    from mcp_types import CallToolRequestParams

    from gateway.server.sdk_path.wire_caller import WireCaller

FIRST_WITH_TASKS = "2025-11-25"
"""The first protocol version of the 2025 era that has tasks."""

KEY_GONE = "The API key of this call was revoked or has expired, so the call was ended."


_BLOCKS: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
"""Fields that a content block of each type has besides `type`. A block with others is left to the SDK's models."""
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""Fields of a `tools/call` result that are the same in every protocol version."""


class CallHandler:
    """Serves `tools/call` requests of both protocol eras, for the fast path and the SDK path."""

    def __init__(self, catalog: Catalog, clients: Clients, parked: ParkedCalls, tasks: TaskHandler) -> None:
        self._tasks = tasks
        self._catalog = catalog
        self._clients = clients
        self._parked = parked
        self.running = RunningCalls()

    async def __call__(self, ctx: RequestContext, params: CallToolRequestParams) -> JsonObject:
        """Run one request of a call on the SDK path, and return its result in wire form. A call that the fast path started is awaited.

        A call that requests input from a 2026 client has several requests, each of which is a round of the call.
        """
        from gateway.server.sdk_path.wire_caller import WireCaller, is_call_result

        modern = is_modern(ctx)
        era = "modern" if modern else "legacy"
        caller = WireCaller(ctx, self._clients.tasks)
        call = self._clients.context(ctx, caller)
        try:
            started = _started_call(ctx)
            outcome: ToolOutcome = Complete.text(KEY_GONE, is_error=True)
            with self.running.of(call.facts.principal.id):  # cancelled if the caller's key is revoked, with the outcome above
                outcome = await (self._leg(ctx, params.name, call, caller) if started is None else started.outcome(caller))
            if modern and scope_of_request(ctx) is None:
                self._parked.note_behind(outcome, partial(self._again, ctx, params.name), call)
        except Rejected as error:
            if relays_code(error.code, era):
                raise to_rpc_error(error, era) from None
            outcome = Complete.text(f"Server {error.server!r} refused the call: {error}", is_error=True)
        except AskUnavailable as error:
            if modern and error.capability:
                raise to_rpc_error(error, era) from None
            outcome = Complete.text(str(error), is_error=True)
        except NotFound as error:
            if error.kind != GONE:
                raise to_rpc_error(error, era) from None
            outcome = Complete.text(str(error), is_error=True)
        finally:
            await caller.finish()
        if isinstance(outcome, Complete):
            wire = to_wire(fit_outcome(outcome, call.facts.client), modern=modern)
            if is_plain_result(wire) or is_call_result(wire, ctx.protocol_version):
                return wire
            outcome = Complete.text(f"Tool {params.name!r} answered with a result that cannot be read; it may have run.", is_error=True)
        return to_wire(outcome, modern=modern)

    async def _leg(self, ctx: RequestContext, name: str, call: CallContext, caller: WireCaller) -> ToolOutcome:
        try:
            tool = await self._catalog.seek(name)
        except NotFound:
            if (reason := self._catalog.refuse_quarantined(name, call.facts.principal)) is not None:
                return refusal(PINS_RULE, reason)
            raise
        arguments = cast("JsonObject", (ctx.params or {}).get("arguments") or {})
        return await (self.run if is_modern(ctx) else self.run_legacy)(tool, arguments, call, caller)

    async def _again(self, ctx: RequestContext, name: str, leg: CallContext) -> ToolOutcome:
        arguments = cast("JsonObject", (ctx.params or {}).get("arguments") or {})
        return await (await self._catalog.seek(name)).call(arguments, leg)

    async def run(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext, caller: Caller) -> ToolOutcome:
        """Run one round of a 2026 client's call: one request and its result, which may request input for the next round."""
        if declares_tasks(ctx.facts.client):
            ctx = ctx.with_facts(dataclasses.replace(ctx.facts, takes_tasks=True))
            if self._tasks.starts_here(tool, arguments, ctx):
                return self._tasks.started(await self._tasks.start(tool, arguments, ctx))
        elif self._tasks.must_run_here(tool):
            required: JsonObject = {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}}
            raise RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"Tool {tool.exposed_name!r} only runs as a task.", required)
        run = tool.call
        if not ctx.facts.takes_tasks and self._tasks.may_take_long(tool, arguments, ctx):
            run = self._attended(tool)
        if tool.definition.may_ask and ctx.facts.client.can_be_asked:
            outcome = await self._parked.run(partial(run, arguments), ctx, caller)
        else:
            state = ctx.facts.request_state
            outcome = await run(arguments, ctx if state is None else ctx.with_state(open_upstream_state(state)))
            if isinstance(outcome, InputRequired):
                return seal_upstream_state(outcome)
        return self._tasks.relayed(tool, outcome, ctx) if isinstance(outcome, TaskStarted) else outcome

    async def run_plain(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Run one round of a 2026 client's call to a tool that never runs as a task of this gateway and never asks the client.

        The outcome equals that of `run`.
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
        """Run a 2025 client's call to its end, and send its requests for input to the client."""
        if self._tasks.must_run_here(tool):
            if ctx.facts.client.protocol_version >= FIRST_WITH_TASKS:
                raise RpcError(METHOD_NOT_FOUND, f"Tool {tool.exposed_name!r} only runs as a task: send `task` with the call.")
            if not isinstance(tool.check(arguments, ctx.facts.principal), Reject):
                return self._tasks.handle(await self._tasks.start(tool, arguments, ctx), tool)
        try:
            if self._tasks.may_take_long(tool, arguments, ctx):
                outcome = await self._tasks.attend(tool, arguments, ctx, lambda inner: drive(tool, arguments, inner))
            else:
                outcome = await tool.call(arguments, ctx)
                if isinstance(outcome, InputRequired):
                    outcome = await drive_on(outcome, partial(tool.call, arguments), ctx, tool.definition.name)
            if caller.has_more:
                await caller.close()
            return outcome
        except (ToolFailed, TaskError) as error:
            return Complete.text(str(error), is_error=True)


def _started_call(ctx: RequestContext) -> InFlightCall | None:
    """Return the call that the fast path started for this request and delegated; `None` if it started none."""
    request: object = ctx.request
    if isinstance(request, InFlightCall):
        return request
    scope = scope_of_request(ctx)
    return None if scope is None else cast("InFlightCall | None", scope.get(STARTED_SCOPE_KEY))


def to_wire(outcome: ToolOutcome, *, modern: bool) -> JsonObject:
    """Return the outcome of a call in wire form: as `CallToolResult`, `InputRequiredResult` or `CreateTaskResult`."""
    match outcome:
        case Complete():
            result: JsonObject = outcome.result if "content" in outcome.result else {"content": [], **outcome.result}
            return complete_result(result, is_modern=modern)
        case InputRequired():
            return input_required_to_wire(outcome)
        case TaskStarted():
            return {**outcome.task, "resultType": "task"}


def input_required_to_wire(outcome: InputRequired) -> JsonObject:
    """Return a request for input in wire form, as `InputRequiredResult`."""
    wire: JsonObject = {"resultType": "input_required"}
    if outcome.requests:
        wire["inputRequests"] = {key: dict(request) for key, request in outcome.requests.items()}
    if outcome.state is not None:
        wire["requestState"] = outcome.state
    if outcome.meta:
        wire["_meta"] = outcome.meta
    return wire


def is_plain_result(result: JsonMapping) -> bool:
    """Whether a call's result is so usual that the SDK's models of every protocol version would send it unchanged."""
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
