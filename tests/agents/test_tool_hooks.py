"""Hooks around the tool calls of a run: they drop, block, change and answer calls, and see each call's toolkit and result."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import AgentSession, ContextProvider, LifecycleHooks, ScriptedChatClient, SessionContext, tool
from gateway import lifecycle as contexts
from gateway.errors import MiddlewareFailure
from tests.agents.hooked_agents import agent_of, call, run

pytestmark = pytest.mark.filterwarnings("ignore::gateway.staging.ExperimentalWarning")


@pytest.mark.requirement("HK7")
@pytest.mark.parametrize("stream", [False, True])
async def test_all_tools_of_an_answer_may_be_dropped(stream: bool) -> None:
    class NoTools(LifecycleHooks):
        async def before_tool_execution(self, context: contexts.ToolExecutionContext) -> None:
            context.skip_tool_execution = True

    client = ScriptedChatClient([["I would add ", call("add", "1", a=1, b=2), call("add", "2", a=1, b=2)], "never"])
    response = await run(agent_of(client, NoTools()), stream=stream)
    assert (response.text, len(client.requests)) == ("I would add ", 1)
    assert [c.type for m in response.messages for c in m.contents] == ["text"]


@pytest.mark.requirement("HK8")
@pytest.mark.parametrize("stream", [False, True])
async def test_batch_hook_runs_once_for_several_calls_and_can_block_some(stream: bool) -> None:
    batches: list[list[str]] = []

    class Batch(LifecycleHooks):
        async def before_parallel_batch(self, context: contexts.ParallelBatchContext) -> None:
            batches.append([call.call_id or "" for call in context.calls])
            context.blocked["2"] = "not today"

    client = ScriptedChatClient([[call("add", "1", a=1, b=2), call("add", "2", a=3, b=4)], call("add", "3", a=5, b=6), "done"])
    await run(agent_of(client, Batch()), stream=stream)
    assert batches == [["1", "2"]]
    found = [str(c.result) for m in client.requests[-1][0] for c in m.contents if c.type == "function_result"]
    assert found == ["3", "not today", "11"]


@pytest.mark.requirement("HK9", "HK10")
async def test_function_hook_can_block_change_or_answer_a_call() -> None:
    class Guard(LifecycleHooks):
        async def before_function(self, context: contexts.FunctionContext) -> None:
            with pytest.raises(MiddlewareFailure, match=r"`arguments` cannot be changed here.*override\(arguments=…\)"):
                context.arguments["a"] = 9  # pyright: ignore[reportIndexIssue]  # to read only
            if context.call_id == "1":
                context.block_execution, context.override_result = True, "blocked"

        async def wrap_function_call(self, request: contexts.FunctionRequest, handler: contexts.FunctionHandler) -> Any:
            return await handler(request.override(arguments={**request.arguments, "a": 100}))

    client = ScriptedChatClient([[call("add", "1", a=1, b=2), call("add", "2", a=1, b=2)], "done"])
    await agent_of(client, Guard()).run("go")
    assert [str(c.result) for c in client.requests[-1][0][-1].contents] == ["blocked", "102"]


@pytest.mark.requirement("HK9", "HK11")
async def test_function_hook_has_toolkit_and_result() -> None:
    seen: list[tuple[str, str | None, Any, str | None]] = []

    class Adding(ContextProvider):
        async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            context.extend_tools(self.source_id, [tool(name="look")(lambda: "seen"), tool(name="skip")(lambda: "never")])

    class Watch(LifecycleHooks):
        async def before_function(self, context: contexts.FunctionContext) -> None:
            context.block_execution = context.function_name == "skip"

        async def after_function(self, context: contexts.FunctionContext) -> None:
            error = None if context.error is None else str(context.error)
            seen.append((context.function_name, context.toolkit, context.result, error))

    calls = [call(name, str(n), **arguments) for n, (name, arguments) in enumerate(
        {"add": {"a": 1, "b": 2}, "look": {}, "skip": {}, "fail": {}}.items()
    )]  # fmt: skip
    agent = agent_of(ScriptedChatClient([calls, "done"]), Watch())
    agent.context_providers.append(Adding("files"))
    await agent.run("go")
    told = {name: (toolkit, result, error) for name, toolkit, result, error in seen}
    assert {name: value[0] for name, value in told.items()} == {"add": None, "look": "files", "skip": "files", "fail": None}
    assert (told["skip"][1:], told["fail"][1:]) == ((None, None), (None, "broken"))
    assert (str(told["add"][1]), str(told["look"][1])) == ("3", "seen")
