"""Sessions over several runs of an agent: what is remembered, by whom, and how it is stored."""

from __future__ import annotations

import json

import pytest

from gateway import Agent, AgentSession, ContextProvider, HistoryProvider, InMemoryHistoryProvider, ScriptedChatClient, SessionContext
from gateway.json_types import JsonObject


class Noting(ContextProvider):
    """Adds an instruction and notes the order in which it is called."""

    def __init__(self, source_id: str, log: list[str]) -> None:
        super().__init__(source_id)
        self.log = log

    async def before_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        self.log.append(f"{self.source_id}>")
        state["runs"] = state.get("runs", 0) + 1
        context.extend_instructions(f"I am {self.source_id}.")

    async def after_run(self, *, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        assert context.response is not None
        self.log.append(f"<{self.source_id} {context.response.text}")


@pytest.mark.requirement("SE16")
async def test_a_session_without_providers_remembers_the_conversation() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    session = agent.create_session()
    await agent.run("first", session=session)
    await agent.run("second", session=session)
    assert [message.text for message in client.requests[1][0]] == ["first", "one", "second"]


async def test_runs_without_a_session_know_nothing_of_each_other() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    await agent.run("first")
    await agent.run("second")
    assert [message.text for message in client.requests[1][0]] == ["second"]


@pytest.mark.requirement("SE1", "SE18")
async def test_a_session_goes_through_json_and_on_from_there() -> None:
    client = ScriptedChatClient(["one", "two"])
    agent = Agent(client)
    session = agent.create_session(session_id="s-1")
    await agent.run("first", session=session)
    restored = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    await agent.run("second", session=restored)
    assert (restored.session_id, restored.to_dict()["type"]) == ("s-1", "session")
    assert [message.text for message in client.requests[1][0]] == ["first", "one", "second"]


@pytest.mark.requirement("SE4", "SE6")
async def test_providers_run_forward_before_and_backward_after_each_with_its_own_state() -> None:
    log: list[str] = []
    client = ScriptedChatClient(["hi", "hi"])
    agent = Agent(client, "Base.", context_providers=[Noting("a", log), Noting("b", log)])
    session = agent.create_session()
    await agent.run("x", session=session)
    await agent.run("y", session=session)
    assert log[:4] == ["a>", "b>", "<b hi", "<a hi"]
    assert {key: session.state[key] for key in ("a", "b")} == {"a": {"runs": 2}, "b": {"runs": 2}}
    assert client.requests[0][1].get("instructions") == "Base.\n\nI am a.\n\nI am b."


@pytest.mark.requirement("SE7")
async def test_providers_have_state_even_without_a_session() -> None:
    log: list[str] = []
    agent = Agent(ScriptedChatClient(["hi"]), context_providers=[Noting("a", log)])
    await agent.run("x")
    assert log == ["a>", "<a hi"]


@pytest.mark.requirement("SE12", "SE13", "SE14")
async def test_a_history_that_does_not_load_still_stores_and_may_leave_out_either_side() -> None:
    for inputs, outputs, kept in ((True, True, ["ask", "answer"]), (False, True, ["answer"]), (True, False, ["ask"]), (False, False, None)):
        history = InMemoryHistoryProvider("audit")
        history.load_messages, history.store_inputs, history.store_outputs = False, inputs, outputs
        agent = Agent(ScriptedChatClient(["answer"]), context_providers=[history])
        session = agent.create_session()
        await agent.run("ask", session=session)
        stored = session.state["audit"].get("messages")
        assert (stored and [message["contents"][0]["text"] for message in stored]) == kept


async def test_a_provider_service_keeps_its_own_history() -> None:
    agent = Agent(ScriptedChatClient(["hi"]))
    session = agent.get_session("thread-9")
    await agent.run("x", session=session)
    assert session.state == {}
    assert session.to_dict()["service_session_id"] == "thread-9"


async def test_a_history_of_ones_own_needs_two_methods() -> None:
    with pytest.raises(NotImplementedError):
        await HistoryProvider("mine").get_messages(AgentSession(), {})
