"""Calls of workflow tools that fail, report progress, ask their caller, are cancelled, or run at the same time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from gateway.config.policies import SourcePolicy
from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import ASK_KEY
from tests.workflows.scripted import Listener, ScriptedToolBox, chain, publish, run


async def test_failing_tool_is_an_error_result_that_names_the_executor() -> None:
    def broken(x: int) -> str:
        raise NotFound("page", "p1")

    result = await run(await publish(chain("{tool: s/broken, arguments: {x: 1}}"), box=ScriptedToolBox(s__broken=broken)), x=1)
    assert result.is_error
    assert result.as_text() == "Executor 'only' failed: Unknown page: p1"


async def test_arguments_rejected_by_a_tool_name_executor_and_argument() -> None:
    def strict(n: int) -> str:
        return "never"

    result = await run(await publish(chain("{tool: s/strict, arguments: {n: '{{x}}'}}"), box=ScriptedToolBox(s__strict=strict)), x="text")
    assert result.is_error
    assert result.as_text().startswith("Executor 'only' failed: Refused by")
    assert "'n'" in result.as_text()


async def test_agent_without_text_input_cannot_be_an_executor() -> None:
    def silent(n: int) -> str:
        return ""

    result = await run(await publish(chain("{agent: silent}"), box=ScriptedToolBox(agent__silent=silent)), x=1)
    assert "'silent' has no text argument" in result.as_text()


async def test_tool_that_starts_a_task_cannot_be_waited_for() -> None:
    def later() -> ToolOutcome:
        return TaskStarted({"taskId": "1"})

    result = await run(await publish(chain("{tool: s/later}"), box=ScriptedToolBox(s__later=later)), x=1)
    assert result.as_text() == "Executor 'only' failed: Tool 'later' started a background task; a workflow cannot wait for one."


@pytest.mark.requirement("WF6")
async def test_progress_grows_and_names_started_and_finished_parts() -> None:
    async def slow(x: Any, ctx: CallContext) -> str:
        await ctx.progress(0.5, 1, "half")
        await ctx.progress(1.0, 1)
        return "done"

    text = """\
name: two
description: d
input: {x: {}}
executors:
  a: {tool: s/slow, arguments: {x: 1}}
  b: {tool: s/slow, arguments: {x: 2}}
start: a
edges: [{from: a, to: b}]
"""
    listener = Listener()
    await run(await publish(text, box=ScriptedToolBox(s__slow=slow)), listener.context(), x=1)
    assert [message for _, message in listener.heard] == [
        "a started", "a: half", "a finished", "b started", "b: half", "b finished",
    ]  # fmt: skip
    numbers = [number for number, _ in listener.heard]
    assert numbers == sorted(set(numbers))


async def test_tool_that_asks_reaches_the_person_behind_the_workflow() -> None:
    request: JsonObject = {"method": "elicitation/create", "params": {"message": "Sure?", "requestedSchema": {"type": "object"}}}

    async def careful(ctx: CallContext) -> ToolOutcome:
        if ctx.facts.input_responses is None:
            return InputRequired({"q": request}, state="s")
        return Complete.text(f"{ctx.facts.input_responses['q']['action']} {ctx.facts.request_state}")

    listener = Listener({"action": "accept", "content": {}})
    result = await run(await publish(chain("{tool: s/careful}"), box=ScriptedToolBox(s__careful=careful)), listener.context(), x=1)
    assert result.as_text() == "accept s"
    named = {**request["params"], "_meta": {ASK_KEY: "q"}}
    assert listener.asked == [{**request, "params": named}]


@pytest.mark.requirement("WF4")
async def test_cancelling_a_call_stops_the_executor_that_runs() -> None:
    started, stopped = anyio.Event(), anyio.Event()

    async def hang() -> str:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    tool = await publish(chain("{tool: s/hang}"), box=ScriptedToolBox(s__hang=hang))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tool.call, {"x": 1}, CallContext())
            await started.wait()
            tasks.cancel_scope.cancel()
        await stopped.wait()


async def test_workflow_over_its_deadline_is_stopped() -> None:
    async def hang() -> str:
        await anyio.sleep_forever()
        return ""

    policy = SourcePolicy(timeout_seconds=0.05)
    result = await run(await publish(chain("{tool: s/hang}"), box=ScriptedToolBox(s__hang=hang), policy=policy), x=1)
    assert result.is_error
    assert result.as_text().startswith("Timed out after 0.05 s")


async def test_concurrent_calls_of_one_workflow_are_isolated() -> None:
    gate = anyio.Event()
    waiting = 0

    async def wait(x: Any) -> str:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            gate.set()
        await gate.wait()
        return f"got {x}"

    tool = await publish(chain("{tool: s/wait, arguments: {x: '{{x}}'}}"), box=ScriptedToolBox(s__wait=wait))
    results: dict[int, str] = {}

    async def one(x: int) -> None:
        results[x] = (await run(tool, x=x)).as_text()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, 1)
            tasks.start_soon(one, 2)
    assert results == {1: "got 1", 2: "got 2"}
