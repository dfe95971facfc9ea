"""`WorkflowTool`: a workflow file as a tool.

One call is one run: arguments in, the output executor's last result out, a progress message whenever an executor
starts or finishes. Reading and importing happened before (`loader`, `plan`); failures become results at the gate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import anyio

from gateway.errors import ToolFailed, WorkflowFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext, Caller, LogLevel
from gateway.tools.toolbox import ToolBox
from gateway.workflows.asking import run_to_end
from gateway.workflows.definition import WorkflowFile, object_schema
from gateway.workflows.events import WorkflowEvent
from gateway.workflows.messages import WorkflowMessage
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.runner import START_SOURCE
from gateway.workflows.steps import as_result
from gateway.workflows.workflow import Workflow


class WorkflowTool:
    """Runs one workflow per call; calls run side by side, except those of a code graph that is a single object."""

    records_steps = True
    """Inside a durable task its rounds and its functions are on record, and the tools it calls record themselves."""

    def __init__(self, plan: WorkflowPlan, *, toolbox: ToolBox) -> None:
        """`toolbox` finds the tools that executors name, at each call."""
        self._plan = plan
        self._toolbox = toolbox
        self._one_by_one = anyio.CapacityLimiter(1) if isinstance(plan.code, Workflow) else None
        self.definition = define(plan.file)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the workflow to its end.

        Raises:
            WorkflowFailed: An executor failed, or the tool it names is not there; the text names it.
            WorkflowInvalid: A code graph could not be made.
        """
        filled = {name: schema["default"] for name, schema in self._plan.file.input.items() if "default" in schema}
        filled.update(arguments)
        narrator = _Narrator(ctx.caller)
        ctx = dataclasses.replace(ctx, caller=narrator)
        workflow = await self._plan.build(await self._find_tools())
        message = filled if self._plan.code is None else _first_message(workflow, filled)
        async with self._one_by_one or nullcontext():
            workflow.reset()
            return _to_result((await run_to_end(workflow, message, ctx, narrator.hear)).get_outputs())

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


def define(file: WorkflowFile) -> ToolDefinition:
    """The tool that a workflow file publishes."""
    step = file.steps[file.output_id] if file.python is None else None
    fields = step.output if step is not None else None
    return ToolDefinition(
        name=file.name,
        description=file.description,
        input_schema=object_schema(file.input, is_closed=True),
        output_schema=object_schema(fields, is_closed=False) if fields is not None else None,
        task=file.task,
        task_by="nobody" if file.task == "never" else "gateway",
        may_ask=True,
    )


def _first_message(workflow: Workflow, arguments: JsonObject) -> JsonValue:
    """What the start of a code graph takes: the arguments as an object, else the value of the only one."""
    start = workflow.get_start_executor()
    if start.can_handle(WorkflowMessage(arguments, START_SOURCE)):
        return arguments
    values = list(arguments.values())
    if len(values) == 1 and values[0] is not None and start.can_handle(WorkflowMessage(values[0], START_SOURCE)):
        return values[0]
    text = f"Executor {start.id!r} takes neither the arguments as an object (dict) nor the only one's value; adapt its handler or `input`."
    raise WorkflowFailed(text, executor=start.id)


def _to_result(outputs: list[Any]) -> Complete:
    if not outputs:
        return Complete.text("The workflow ended without output.")
    last: Any = outputs[-1]
    if isinstance(last, Complete):
        return last
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return as_result(to_jsonable_python(last))
    except PydanticSerializationError:
        raise ToolFailed(f"The workflow's output is {type(last).__name__}, which cannot be written as JSON.") from None


class _Narrator:
    """Tells one caller about a whole run. Numbers are counted here, so they grow whatever executors report."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._told = 0

    async def hear(self, event: WorkflowEvent[Any]) -> None:
        """Tell when an executor starts and finishes."""
        if event.type == "executor_invoked":
            await self.progress(0, None, f"{event.executor_id} started")
        elif event.type == "executor_completed":
            await self.progress(0, None, f"{event.executor_id} finished")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on the message under the next number."""
        self._told += 1
        await self._caller.progress(float(self._told), None, message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._caller.log(level, data, logger)

    async def ask(self, request: JsonObject) -> JsonObject:
        """Passed on."""
        return await self._caller.ask(request)
