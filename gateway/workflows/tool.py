"""`WorkflowTool`: a tool that runs the workflow of a workflow file. `source` creates these tools.

Each call does one run: the arguments are its input, its outputs are the tool result, and progress notifications report its executors and
intermediate outputs. The gate, through which each tool call passes, converts exceptions to error results.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gateway.errors import ToolFailed, WorkflowFailed
from gateway.gate.concurrency import Limiter
from gateway.gate.own_tools import admitted
from gateway.json_types import JsonObject
from gateway.sdk import load
from gateway.tools.base import Complete, Tool, ToolDefinition
from gateway.tools.context import CallContext
from gateway.tools.ports import Caller, PassingCaller
from gateway.tools.progress_text import NewLines, Sentences
from gateway.tools.toolbox import ToolBox, ToolGuards, guarded_by
from gateway.types.responses import AgentResponseUpdate
from gateway.workflows.callers import Forms, QuestionCaller
from gateway.workflows.definition import object_schema
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.step_templates import constants

if TYPE_CHECKING:
    from gateway.workflows.events import WorkflowEvent

MAX_OUTPUT_CHARS = 4_000
"""Number of characters to which an intermediate output of the workflow is cut for a progress notification to the client."""


class WorkflowTool:
    """A tool that runs the workflow of a workflow file, once per call.

    Calls run concurrently, unless the file names a graph object in Python, which can do only one run at a time.
    """

    records_steps = True
    """Whether the workflow, and the tools that it calls, record their steps in a durable task (background call that resumes): always true.

    A call of this tool that was interrupted by a restart can therefore run again without asking a person.
    """

    def __init__(
        self, plan: WorkflowPlan, *, toolbox: ToolBox, forms: Forms | None = None, guards: ToolGuards | None = None
    ) -> None:
        """Create the tool for the workflow file in `plan`. `toolbox` finds the tools that its executors call, at each call of this tool.

        `forms` puts questions on a list that a person answers at the command line, for clients that cannot show them. With `guards`, Python
        functions of the file and tools of its agents are subject to policy, approval and time limit.
        """
        self._guards = guards
        self._forms = forms
        self._plan = plan
        self._toolbox = toolbox
        self._constants = constants({name: schema.get("default") for name, schema in plan.file.input.items()})
        self._one_by_one = Limiter(1) if plan.is_one_graph else None
        self.definition = define(plan)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        """Run the workflow to its end, and return its outputs as the tool result.

        Raises:
            WorkflowFailed: An executor failed, or its tool is not available; the text names the executor.
            WorkflowInvalid: The Python function that should return the workflow failed.
            InputUnavailable: The client cannot ask a person.
            ToolFailed: A person declined to answer, an agent's tool has no text argument, or an output cannot be written as JSON.
        """
        await load("gateway.workflows.info_requests", "gateway.workflows.file_graph", "gateway.workflows.workflow_schemas")
        from gateway.workflows.info_requests import run_to_end
        from gateway.workflows.workflow_schemas import message_of, to_result

        file = self._plan.file
        filled = {name: schema["default"] for name, schema in file.input.items() if "default" in schema}
        filled.update(arguments)
        narrator = RunNarrator(ctx.ports.caller)
        guard = self._guards.guard_of(f"workflow/{file.name}") if self._guards is not None else None
        ctx = guarded_by(ctx.for_file(file.runs_as).named_in_file(self._constants).with_caller(narrator), guard)
        workflow = await self._plan.build(await self._find_tools(ctx), ctx)
        message: Any = self._plan.prompt(filled) if file.team is not None else filled
        if self._plan.code is not None:
            message = message_of(workflow, filled, is_derived=not file.input)
        person = ctx.with_caller(QuestionCaller(file.name, narrator, self._forms, ctx)) if self._forms is not None else ctx
        async with self._one_by_one.slot(ctx.facts.principal.id) if self._one_by_one is not None else nullcontext():
            workflow.reset()
            outputs = (await run_to_end(workflow, message, ctx, narrator.report, person=person)).get_outputs()
        is_last_only = file.python is None and file.team is None and file.output_from is None
        return to_result(outputs[-1:] if is_last_only else outputs, is_structured=self.definition.output_schema is not None)

    async def _find_tools(self, ctx: CallContext) -> Mapping[str, Tool]:
        """Return the tools that the executors need, by executor id. They are looked up before the workflow runs.

        A quarantined tool (hidden until a person accepts its definition) is called at once, so that the gate refuses and records the call
        before any executor has run.

        Raises:
            WorkflowFailed: A tool is not available.
        """
        from gateway.workflows.steps import invoke

        found: dict[str, Tool] = {}
        for name, pattern in self._plan.patterns.items():
            tools = await self._toolbox.tools([pattern])
            may_use = tools if self._plan.file.runs_as == "file" else admitted(tools, ctx.facts.principal)
            if tools and not may_use:
                raise WorkflowFailed(f"Executor {name!r} uses something that the caller may not use.", executor=name)
            for held in () if tools else await self._toolbox.quarantined([pattern]):
                try:
                    await invoke(held, {}, ctx)
                except ToolFailed as error:
                    raise WorkflowFailed(f"Executor {name!r} needs {pattern!r}. {error}", executor=name) from None
            if not tools:
                text = f"Executor {name!r} needs {pattern!r}, which is not available: unknown, hidden by policy, or its server is down."
                raise WorkflowFailed(text, executor=name)
            found[name] = tools[0]
        return found


def define(plan: WorkflowPlan) -> ToolDefinition:
    """Return the definition of a workflow's tool: name, description, input schema and output schema.

    The input schema comes from `input` in the file. Without `input`, it comes from the type annotations of a workflow in Python; an
    orchestration then has the text `message`, and a graph no argument. The output schema comes from the fields of the graph's output
    executor, or from the annotations of a workflow in Python.
    """
    file = plan.file
    input_schema, output_schema = object_schema(file.input, is_closed=True), None
    if plan.sample is not None:
        from gateway.workflows.workflow_schemas import input_schema_of, output_schema_of

        output_schema = output_schema_of(plan.sample)
        if not file.input:
            input_schema = input_schema_of(plan.sample)
    elif file.team is not None:
        if not file.input:
            from gateway.workflows.workflow_schemas import MESSAGE, MESSAGE_SCHEMA

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
        may_request_input=True,
    )


class RunNarrator(PassingCaller):
    """Reports the events of a workflow run to the client as progress notifications.

    It is also the `Caller` (port from a tool call to its client) of the calls that the workflow makes. All progress values come from one
    counter, because MCP requires increasing values.
    """

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._count = 0
        self._lines = NewLines()
        self._streamed: dict[str | None, Sentences] = {}
        """Id of an executor → text of its agent's answer that has arrived in a stream and has not been reported to the client yet."""

    async def report(self, event: WorkflowEvent[Any]) -> None:
        """Send a progress message if the event is the start or end of an executor, or an intermediate output. Ignore other events."""
        if event.type == "intermediate" and isinstance(event.data, AgentResponseUpdate):
            if text := self._streamed.setdefault(event.executor_id, Sentences()).add(event.data.text):
                await self.progress(0, None, f"{event.executor_id}: {text}")
        elif event.type == "intermediate":
            from gateway.workflows.workflow_schemas import text_of

            await self.progress(0, None, f"{event.executor_id}: {text_of(event.data)[:MAX_OUTPUT_CHARS]}")
        elif event.type == "executor_invoked":
            await self.progress(0, None, f"{event.executor_id} started")
        elif event.type == "executor_completed":
            rest = self._streamed.pop(event.executor_id, Sentences()).rest()
            for text in [*(f"{event.executor_id}: {text}" for text in rest), f"{event.executor_id} finished"]:
                await self.progress(0, None, text)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress notification with the next number as its value; `progress` and `total` are ignored.

        If the message is empty or equals the last one, the notification has no message.
        """
        self._count += 1
        await self._caller.progress(float(self._count), None, self._lines.take(message))
