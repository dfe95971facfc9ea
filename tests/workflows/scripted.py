"""Workflow tools over a tool box whose tools are functions, a caller that records progress, and an executor that passes texts on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from gateway.config.policies import SourcePolicy
from gateway.errors import InputUnavailable
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject, JsonValue
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete, Tool
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.function import FunctionTool
from gateway.tools.ports import LogLevel
from gateway.workflows.definition import WorkflowFile
from gateway.workflows.executor import Executor, handler
from gateway.workflows.loader import load_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from gateway.workflows.workflow_context import WorkflowContext


def workflow_of(text: str, name: str = "workflow.yaml") -> WorkflowFile:
    """Read `text` as a file called `name`."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return load_workflow(path)


class ScriptedToolBox:
    """Tools by pattern, each behind a real gate as the catalog makes it."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        """Add each function as a tool; the keyword `agent__researcher=f` adds `f` as `agent/researcher`."""
        self._tools: dict[str, Tool] = {}
        for name, function in functions.items():
            source, _, native = name.partition("__")
            tool = FunctionTool[..., Any](function, name=native)
            self._tools[f"{source}/{native}"] = guard(tool, source=source)

    def add(self, pattern: str, tool: Tool) -> None:
        """Add a tool under this pattern."""
        self._tools[pattern] = tool

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return [self._tools[pattern] for pattern in patterns if pattern in self._tools]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        return ()


def guard(tool: Tool, *, source: str = "workflow", policy: SourcePolicy | None = None) -> GuardedTool:
    """The tool behind its gate."""
    gate = SourceGate(source, GateServices(EventStream()))
    rules = ToolRules.build(tool.definition, policy or SourcePolicy())
    return GuardedTool(tool, rules, gate, exposed_name=f"{source}__{tool.definition.name}")


class Listener:
    """A caller that records progress and answers questions from a script."""

    def __init__(self, *answers: JsonObject) -> None:
        self.heard: list[tuple[float, str | None]] = []
        self.asked: list[JsonObject] = []
        self._answers = list(answers)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, message))

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None: ...

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.append(request)
        if not self._answers:
            raise InputUnavailable("Nobody is there.", capability="elicitation.form")
        return self._answers.pop(0)

    def context(self) -> CallContext:
        return CallContext(CallFacts(wants_progress=True), CallPorts(caller=self))


class Relay(Executor):
    """Appends its id to the text, sends it on and yields it."""

    @handler
    async def text(self, message: str, ctx: WorkflowContext[str, str]) -> None:
        await ctx.send_message(message + self.id)
        await ctx.yield_output(message + self.id)


async def publish(
    text: str, *, base_dir: Path = Path(), policy: SourcePolicy | None = None, box: ScriptedToolBox | None = None
) -> GuardedTool:
    plan = await WorkflowPlan.prepare(workflow_of(text), base_dir=base_dir)
    return guard(WorkflowTool(plan, toolbox=box or ScriptedToolBox()), policy=policy)


async def run(tool: GuardedTool, ctx: CallContext | None = None, **arguments: Any) -> Complete:
    with anyio.fail_after(20):
        outcome = await tool.call(arguments, ctx or CallContext())
    assert isinstance(outcome, Complete)
    return outcome


def chain(executor: str, *, more: str = "", head: str = "input: {x: {}}") -> str:
    return f"name: one\ndescription: d\n{head}\nexecutors:\n  only: {executor}\nstart: only\n{more}"
