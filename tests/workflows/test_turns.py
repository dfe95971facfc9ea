"""A code graph that is one object runs one call at a time; callers take turns."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from gateway.auth.principal import Principal
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.workflows.builder import WorkflowBuilder
from gateway.workflows.function_executor import executor
from gateway.workflows.loader import parse_workflow
from gateway.workflows.plan import WorkflowPlan
from gateway.workflows.tool import WorkflowTool
from gateway.workflows.workflow_context import WorkflowContext
from tests.workflows.scripted import ScriptedToolBox


@pytest.mark.attack(42)
async def test_callers_take_turns_at_code_graph() -> None:
    ran = list[str]()

    @executor(id="step")
    async def step(who: str, ctx: WorkflowContext[None, str]) -> None:
        ran.append(who)
        await anyio.lowlevel.checkpoint()
        await ctx.yield_output("done")

    made = WorkflowBuilder(start_executor=step).build()
    file = parse_workflow("name: x\ndescription: d\npython: here:made\ninput: {who: {type: string}}\n")
    plan = WorkflowPlan(file, code=made, sample=made)
    tool = WorkflowTool(plan, toolbox=ScriptedToolBox())

    async def call(who: str) -> None:
        await tool.call({"who": who}, CallContext(CallFacts(principal=Principal(who))))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for who in ("anna", "anna", "anna", "anna", "bob"):
                tasks.start_soon(call, who)
    assert ran == ["anna", "anna", "bob", "anna", "anna"]
