"""`draw`: the graph of a workflow file, built without what it calls. For `moongate workflows graph`; never run.

Modules that the file names are imported; agents and tools need not be there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import anyio.to_thread

from gateway.config.executes import RunEntry
from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.json_types import JsonObject
from gateway.tools.base import ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.function_rules import FunctionRules
from gateway.workflows.loader import load_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.viz import WorkflowViz
from gateway.workflows.workflow import Workflow

Picture = Literal["mermaid", "dot", "svg"]


class _Placeholder:
    """Stands where a tool will be."""

    def __init__(self, name: str) -> None:
        task: JsonObject = {"type": "object", "properties": {"task": {"type": "string"}}}
        self.definition = ToolDefinition(name=name, description="", input_schema=task, task="never")

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Never called.

        Raises:
            ToolFailed: Always.
        """
        raise ToolFailed(f"{self.definition.name!r} is only drawn.")


async def draw(
    path: Path, picture: Picture, *, base_dir: Path, rules: FunctionRules | None = None, refusal: Callable[[RunEntry], str | None]
) -> str:
    """The file's graph as text of that kind. `rules` say which functions may run to make it; `refusal` why nothing of it is imported.

    Raises:
        WorkflowInvalid: The file, or a module it names, cannot be used, or waits for acceptance; one line per mistake.
    """
    file = load_workflow(path)
    entry = file.run_entry(path)
    if entry is not None and (reason := await anyio.to_thread.run_sync(refusal, entry)) is not None:
        raise WorkflowInvalid(f"{path}: {reason}")
    plan = await WorkflowPlan.prepare(file, base_dir=base_dir, rules=rules)
    tools = {name: _Placeholder(pattern) for name, pattern in plan.patterns.items()}
    workflow = plan.sample or await plan.build(tools, CallContext())
    if not isinstance(workflow, Workflow):
        raise WorkflowInvalid(f"{path}: python: {workflow.entry_id!r} is a function, and its steps are known only when it runs: no graph.")
    made = WorkflowViz(workflow)
    match picture:
        case "mermaid":
            return made.to_mermaid()
        case "dot":
            return made.to_digraph()
        case "svg":
            return made.to_svg()
