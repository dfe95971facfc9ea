"""Tools with given behaviour, the gate around them, and a caller who answers questions when told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from gateway.config.policies import SourcePolicy
from gateway.gate.concurrency import ActiveCalls, Limiter
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel
from tests.fakes.recorded_events import RecordedEvents

Work = Callable[[JsonObject, CallContext], Awaitable[ToolOutcome]]
SCHEMA: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
ASK: JsonObject = {"method": "elicitation/create", "params": {"message": "?"}}
LOCAL = CallContext()
HIDDEN, CLEAN = "vis\u200bible", "visible"


class FakeTool:
    """A tool that runs the given function."""

    def __init__(self, work: Work, schema: JsonObject = SCHEMA) -> None:
        self._work = work
        self._definition = ToolDefinition("read", "Read a file.", schema)

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return await self._work(arguments, ctx)


class Person:
    """A caller who answers each question when told to."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        pass

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        pass

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.set()
        await self.may_answer.wait()
        return {"action": "accept"}


async def echo(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    return Complete.text("done", structured=arguments)


def failing(error: Exception) -> Work:
    async def fail(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        raise error

    return fail


def returning(outcome: ToolOutcome) -> Work:
    async def give(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return outcome

    return give


def guard(
    work: Work | Tool,
    *,
    limiter: Limiter | None = None,
    events: RecordedEvents | None = None,
    schema: JsonObject = SCHEMA,
    **rules: Any,
) -> GuardedTool:
    tool = FakeTool(work, schema) if callable(work) else work
    gate = SourceGate("docs", GateServices(events or RecordedEvents()), limiter)
    return GuardedTool(tool, ToolRules.build(tool.definition, SourcePolicy.model_validate(rules)), gate, exposed_name="docs__read")


async def complete(tool: GuardedTool, arguments: JsonObject, ctx: CallContext = LOCAL) -> Complete:
    outcome = await tool.call(arguments, ctx)
    assert isinstance(outcome, Complete)
    return outcome


def told(events: RecordedEvents) -> list[tuple[str, str | None]]:
    return [(event.kind, event.fields.get("outcome")) for event in events.recent()]


async def asking(arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
    await ctx.ask(ASK)
    return Complete.text("answered")


def without_password(text: str) -> str:
    return text.replace("hunter2", "***")


def rules_of(definition: ToolDefinition | None = None, *, is_local: bool = False, is_own: bool = False, **rules: Any) -> ToolRules:
    return ToolRules.build(definition or ToolDefinition("read"), SourcePolicy.model_validate(rules), is_local=is_local, is_own=is_own)


def guarded(
    tool: Any,
    rules: ToolRules | None = None,
    events: RecordedEvents | None = None,
    *,
    source: str = "docs",
    limiter: Limiter | None = None,
    active: ActiveCalls | None = None,
    **services: Any,
) -> GuardedTool:
    gate = SourceGate(source, GateServices(events or RecordedEvents(), **services), limiter, active)
    return GuardedTool(tool, rules or rules_of(tool.definition), gate, exposed_name="docs__read")


def last(events: RecordedEvents) -> tuple[str, Any, Any]:
    event = events.recent()[-1]
    return event.kind, event.fields.get("outcome"), event.fields.get("rule")
