"""`WorkflowTool`: a workflow file as a tool.

One call is one run: arguments in, outputs out, a progress message whenever an executor starts, finishes or gives an
intermediate output. Reading and importing happened before (`loader`, `plan`); failures become results at the gate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from gateway.errors import AskUnavailable, WorkflowFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.framing import frame
from gateway.sdk import load
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext, Caller, LogLevel
from gateway.tools.slot import Limiter
from gateway.tools.told_lines import NewLines, Sentences
from gateway.tools.toolbox import ToolBox, ToolGuards
from gateway.types.responses import AgentResponseUpdate
from gateway.workflows.definition import object_schema
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.templates import constants

if TYPE_CHECKING:
    from gateway.workflows.events import WorkflowEvent

MAX_TOLD_CHARS = 4_000
"""Of an intermediate output in one progress message; clients show them in a line or two."""


class Forms(Protocol):
    """Asks a person outside the client."""

    async def put_form(
        self, source: str, name: str, message: str, form: JsonObject, ctx: CallContext, key: str = ""
    ) -> JsonObject:
        """Put a form and return its answer as the result of an elicitation. `key` identifies the question (`CallContext.question`)."""
        ...


class WorkflowTool:
    """Runs one workflow per call; calls run side by side, except those of a code graph that is a single object."""

    records_steps = True
    """Inside a durable task its rounds and its functions are on record, and the tools it calls record themselves."""

    def __init__(
        self, plan: WorkflowPlan, *, toolbox: ToolBox, forms: Forms | None = None, guards: ToolGuards | None = None
    ) -> None:
        """`toolbox` finds the tools that executors name, at each call. `forms` asks the person whose client cannot ask. `guards` gate
        the functions of the file and the tools of its own agents.
        """
        self._guards = guards
        self._forms = forms
        self._plan = plan
        self._toolbox = toolbox
        self._constants = constants({name: schema.get("default") for name, schema in plan.file.input.items()})
        self._one_by_one = Limiter(1) if plan.is_one_graph else None
        self.definition = define(plan)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the workflow to its end.

        Raises:
            WorkflowFailed: An executor failed, or the tool it names is not there; the text names it.
            WorkflowInvalid: A code graph could not be made.
        """
        await load("gateway.workflows.asking", "gateway.workflows.graphs", "gateway.workflows.typed")
        from gateway.workflows.asking import run_to_end
        from gateway.workflows.typed import message_of, to_result

        file = self._plan.file
        filled = {name: schema["default"] for name, schema in file.input.items() if "default" in schema}
        filled.update(arguments)
        narrator = _Narrator(ctx.caller)
        guard = self._guards.guard_of(f"workflow/{file.name}") if self._guards is not None else None
        ctx = dataclasses.replace(ctx.named_in_file(self._constants), caller=narrator, tool_guard=guard)
        workflow = await self._plan.build(await self._find_tools(), ctx)
        message: Any = self._plan.prompt(filled) if file.team is not None else filled
        if self._plan.code is not None:
            message = message_of(workflow, filled, is_derived=not file.input)
        person = dataclasses.replace(ctx, caller=_Person(file.name, narrator, self._forms, ctx)) if self._forms is not None else ctx
        async with self._one_by_one.place(ctx.principal.id) if self._one_by_one is not None else nullcontext():
            workflow.reset()
            outputs = (await run_to_end(workflow, message, ctx, narrator.hear, person=person)).get_outputs()
        is_last_only = file.python is None and file.team is None and file.output_from is None
        return to_result(outputs[-1:] if is_last_only else outputs, is_structured=self.definition.output_schema is not None)

    async def _find_tools(self) -> Mapping[str, Tool]:
        """Every tool that the graph may need, before anything runs."""
        found: dict[str, Tool] = {}
        for name, pattern in self._plan.patterns.items():
            tools = await self._toolbox.tools([pattern])
            if not tools:
                text = f"Executor {name!r} needs {pattern!r}, which is not there: unknown, hidden by policy, or its server is down."
                raise WorkflowFailed(text, executor=name)
            found[name] = tools[0]
        return found


def define(plan: WorkflowPlan) -> ToolDefinition:
    """The tool that a workflow file publishes."""
    file = plan.file
    input_schema, output_schema = object_schema(file.input, is_closed=True), None
    if plan.sample is not None:
        from gateway.workflows.typed import input_schema_of, output_schema_of

        output_schema = output_schema_of(plan.sample)
        if not file.input:
            input_schema = input_schema_of(plan.sample)
    elif file.team is not None:
        if not file.input:
            from gateway.workflows.typed import MESSAGE, MESSAGE_SCHEMA

            input_schema = object_schema({MESSAGE: MESSAGE_SCHEMA}, is_closed=True)
    elif file.python is None and file.output_from is None:
        fields = file.steps[file.output_id].output
        output_schema = object_schema(fields, is_closed=False) if fields is not None else None
    return ToolDefinition(
        name=file.name,
        description=file.description,
        input_schema=input_schema,
        output_schema=output_schema,
        task=file.task,
        task_by="nobody" if file.task == "never" else "gateway",
        may_ask=True,
    )


class _Person:
    """The way of a workflow's own questions: to the caller, and to the list of pending ones where that cannot ask. Not for what tools
    that the workflow calls ask."""

    def __init__(self, workflow: str, caller: Caller, forms: Forms, ctx: CallContext) -> None:
        self._workflow = workflow
        self._caller = caller
        self._forms = forms
        self._ctx = ctx

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Passed on."""
        await self._caller.progress(progress, total, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Ask the caller, else the list. The question is framed because templates may insert text of tools and models."""
        params: JsonObject = request["params"]
        framed = frame(f"Workflow {self._workflow!r} asks:", str(params["message"]))
        try:
            return await self._caller.ask({**request, "params": {**params, "message": framed}}, key)
        except AskUnavailable:
            return await self._forms.put_form("workflow", self._workflow, params["message"], params["requestedSchema"], self._ctx, key)


class _Narrator:
    """Tells one caller about a whole run. Numbers are counted here, so they grow whatever executors report."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._told = 0
        self._lines = NewLines()
        self._streamed: dict[str | None, Sentences] = {}
        """Text of answers that executors give in parts."""

    async def hear(self, event: WorkflowEvent[Any]) -> None:
        """Tell when an executor starts and finishes, and what it gives on the way."""
        if event.type == "intermediate" and isinstance(event.data, AgentResponseUpdate):
            if text := self._streamed.setdefault(event.executor_id, Sentences()).add(event.data.text):
                await self.progress(0, None, f"{event.executor_id}: {text}")
        elif event.type == "intermediate":
            from gateway.workflows.typed import text_of

            await self.progress(0, None, f"{event.executor_id}: {text_of(event.data)[:MAX_TOLD_CHARS]}")
        elif event.type == "executor_invoked":
            await self.progress(0, None, f"{event.executor_id} started")
        elif event.type == "executor_completed":
            rest = self._streamed.pop(event.executor_id, Sentences()).rest()
            for text in [*(f"{event.executor_id}: {text}" for text in rest), f"{event.executor_id} finished"]:
                await self.progress(0, None, text)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on the message under the next number; of one that repeats the last, the number only."""
        self._told += 1
        await self._caller.progress(float(self._told), None, self._lines.take(message))

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Passed on."""
        return await self._caller.ask(request, key)
