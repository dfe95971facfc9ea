"""`draw`: returns the graph of a workflow file as Mermaid, DOT or SVG text, for the command `moongate workflows graph`.

It builds the graph with placeholders instead of tools, because the graph never runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import anyio.to_thread

from gateway.config.executes import RunEntry
from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.gate.function_rules import FunctionRules
from gateway.json_types import JsonObject
from gateway.tools.base import ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.workflows.loader import load_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.viz import WorkflowViz
from gateway.workflows.workflow import Workflow

Picture = Literal["mermaid", "dot", "svg"]


class _Placeholder:
    """A tool that cannot be called. It replaces the real tools in a workflow graph that is built only to be drawn."""

    def __init__(self, name: str) -> None:
        task: JsonObject = {"type": "object", "properties": {"task": {"type": "string"}}}
        self.definition = ToolDefinition(name=name, description="", input_schema=task, task="never")

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Refuse the call.

        Raises:
            ToolFailed: Always, because a graph with this placeholder is only drawn and never runs.
        """
        raise ToolFailed(f"{self.definition.name!r} is only drawn.")


async def draw(
    path: Path, picture: Picture, *, base_dir: Path, rules: FunctionRules | None = None, refusal: Callable[[RunEntry], str | None]
) -> str:
    """Return the graph of the workflow file at `path` as Mermaid, DOT or SVG text.

    The folder `base_dir` is searched first for Python modules that the file names. `rules` decide which Python functions may run to build
    the graph. `refusal`, which may block, returns a reason if a person has not accepted the file's Python objects; they are then not
    imported.

    Raises:
        WorkflowInvalid: The file or a module that it names is invalid, the file must be accepted first, or the workflow is a `@workflow`
            function, which has no graph; one problem per line.
    """
    file = load_workflow(path)
    entry = file.run_entry(path)
    if entry is not None and (reason := await anyio.to_thread.run_sync(refusal, entry)) is not None:
        raise WorkflowInvalid(f"{path}: {reason}")
    plan = await WorkflowPlan.prepare(file, base_dir=base_dir, rules=rules)
    tools = {name: _Placeholder(pattern) for name, pattern in plan.patterns.items()}
    workflow = plan.sample or await plan.build(tools, CallContext())
    if not isinstance(workflow, Workflow):
        raise WorkflowInvalid(
            f"{path}: python: {workflow.entry_id!r} is a function, whose steps are known only when it runs, so it has no graph."
        )
    made = WorkflowViz(workflow)
    match picture:
        case "mermaid":
            return made.to_mermaid()
        case "dot":
            return made.to_digraph()
        case "svg":
            return made.to_svg()
