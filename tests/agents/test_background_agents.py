"""`BackgroundAgentsProvider`: agents that work while another goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway import Agent, AgentSession, BaseChatClient, ChatOptions, ChatResponseUpdate, Content, Message, ScriptedChatClient
from gateway.agents.middleware.loop import AgentLoopMiddleware, background_tasks_running
from gateway.agents.providers.background import BackgroundAgentsProvider


class HeldClient(BaseChatClient):
    """A client that answers with the last text of its input once `go` is set; raises if the text is `fail`."""

    def __init__(self) -> None:
        super().__init__("held")
        self.go = anyio.Event()
        self.started = anyio.Event()
        self.cancelled = False

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        self.started.set()
        try:
            await self.go.wait()
        except BaseException:
            self.cancelled = True
            raise
        if messages[-1].text == "fail":
            raise RuntimeError("secret detail")
        yield ChatResponseUpdate([Content.from_text(f"did {messages[-1].text} after {len(messages) - 1}")], "assistant")


def call(name: str, call_id: str = "c", **arguments: Any) -> Content:
    return Content.from_function_call(call_id, f"background_agents_{name}", arguments)


def start(text: str, call_id: str = "c") -> Content:
    return call("start_task", call_id, agent_name="Helper", input=text, description=f"do {text}")


def results(client: ScriptedChatClient) -> list[str]:
    """Return the results of all tool calls before the last answer, in order."""
    return [str(c.result) for message in client.requests[-1][0] for c in message.contents if c.type == "function_result"]


@pytest.mark.requirement("NM1")
async def test_background_tasks_run_concurrently_and_can_be_awaited() -> None:
    helper = HeldClient()
    helper.go.set()
    replies = [
        [start("a", "1"), start("fail", "2")],
        call("wait_for_first_completion", task_ids=[1]),
        call("wait_for_first_completion", task_ids=[2]),
        [call("get_task_results", "1", task_id=1), call("get_task_results", "2", task_id=2)],
        call("continue_task", task_id=1, text="b"),
        call("wait_for_first_completion", task_ids=[1]),
        call("get_task_results", task_id=1),
        call("clear_completed_task", task_id=1),
        call("get_all_tasks"),
        "done",
    ]
    client = ScriptedChatClient(replies)
    async with BackgroundAgentsProvider([Agent(helper, name="helper", description="Helps")]) as provider:
        agent = Agent(client, context_providers=[provider])
        with anyio.fail_after(20):
            await agent.run("go", session=agent.create_session())

    found = results(client)
    assert found[:2] == ["Background task 1 started on agent 'Helper'.", "Background task 2 started on agent 'Helper'."]
    assert found[2] in ("Task 1 finished with status: completed.", "Task 1 is not running; current status: completed.")
    assert found[3] in ("Task 2 finished with status: failed.", "Task 2 is not running; current status: failed.")
    assert found[4:7] == ["did a after 0", "Task failed: RuntimeError", "Task 1 continued with new input."]
    assert found[8:] == ["did b after 2", "Task 1 cleared.", "Tasks:\n- Task 2 [failed] (helper): do fail"]
    assert "- helper: Helps" in str(client.requests[0][1].get("instructions"))


@pytest.mark.requirement("NM1")
async def test_task_outlives_its_run_until_the_provider_is_closed() -> None:
    helper = HeldClient()
    client = ScriptedChatClient([start("a"), "started", "still there"])
    provider = BackgroundAgentsProvider([Agent(helper, name="helper")])
    agent = Agent(client, context_providers=[provider])
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run("how is it?", session=session)
    assert "### Current background tasks\n- Task 1 [running] (helper): do a" in [m.text for m in client.requests[-1][0]]
    with anyio.fail_after(20):
        await helper.started.wait()
    assert not helper.cancelled

    await provider.aclose()
    assert helper.cancelled


@pytest.mark.requirement("NM1")
async def test_task_of_ended_process_is_lost_and_unknown_task_is_named() -> None:
    session = AgentSession()
    state = {"next_task_id": 2, "tasks": [{"id": 1, "agent_name": "helper", "description": "old", "status": "running"}]}
    session.state["background_agents"] = json.loads(json.dumps(state))
    calls = [
        [call("get_task_results", "1", task_id=1), call("get_task_results", "2", task_id=7)],
        [call("continue_task", "1", task_id=1, text="x"), call("wait_for_first_completion", "2", task_ids=[7])],
        [call("start_task", "1", agent_name="nobody", input="x", description="y"), call("clear_completed_task", "2", task_id=7)],
        "done",
    ]
    client = ScriptedChatClient(calls)
    agent = Agent(client, context_providers=[BackgroundAgentsProvider([Agent(HeldClient(), name="helper")])])
    await agent.run("go", session=session)
    found = results(client)
    assert "lost" in found[0] and "cannot be continued" in found[2]
    assert found[1] == found[5] == "Error: No task found with ID 7."
    assert found[3] == "Error: None of the specified task IDs correspond to running tasks."
    assert found[4] == "Error: No background agent found with name 'nobody'. Available agents: helper"


@pytest.mark.requirement("NM1")
async def test_how_many_run_at_once_is_bounded() -> None:
    helper = HeldClient()
    client = ScriptedChatClient([[start(str(number), str(number)) for number in range(17)], "done"])
    async with BackgroundAgentsProvider([Agent(helper, name="helper")]) as provider:
        agent = Agent(client, context_providers=[provider])
        await agent.run("go", session=agent.create_session())
        assert [text.startswith("Error: 16 tasks") for text in results(client)].count(True) == 1


@pytest.mark.requirement("NM1")
def test_agents_need_different_names() -> None:
    client = ScriptedChatClient([])
    for agents, problem in (
        ([], "at least one"),
        ([Agent(client)], "needs a name"),
        ([Agent(client, name="a"), Agent(client, name="A")], "have the name"),
    ):
        with pytest.raises(ValueError, match=problem):
            BackgroundAgentsProvider(agents)


@pytest.mark.requirement("LP7")
async def test_loop_goes_on_while_background_tasks_run() -> None:
    helper = HeldClient()
    client = ScriptedChatClient([start("a"), "started", call("wait_for_first_completion", task_ids=[1]), "over", "never"])
    async with BackgroundAgentsProvider([Agent(helper, name="helper")]) as provider:
        agent = Agent(client, context_providers=[provider], middleware=[AgentLoopMiddleware(background_tasks_running(provider))])

        async def let_go() -> None:
            while len(client.requests) < 3:
                await anyio.lowlevel.checkpoint()
            helper.go.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            with anyio.fail_after(20):
                await agent.run("go", session=agent.create_session())
    assert len(client.requests) == 4
