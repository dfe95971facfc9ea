"""`require_per_service_call_history_persistence`: what histories load and store at each model call of a run."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from gateway import (
    Agent,
    AgentSession,
    ChatClientInvalidResponseException,
    ChatResponseUpdate,
    ContextProvider,
    Message,
    ScriptedChatClient,
    SessionContext,
    tool,
)
from gateway.errors import AgentInvalidRequestException
from tests.agents.building import both_ways, call, run
from tests.sessions.test_sessions import Adding, Kept

pytestmark = pytest.mark.requirement("SE12", "SE14")


class Keeping(Kept):
    """A history that counts how often it stores."""

    def __init__(self, source_id: str = "kept", **flags: Any) -> None:
        super().__init__(source_id, **flags)
        self.saves: list[list[str]] = []

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], **kwargs: Any) -> None:
        await super().save_messages(session_id, messages, **kwargs)
        self.saves.append([message.role for message in messages])


def work() -> str:
    return "done"


def agent_with(
    *providers: ContextProvider, kind: type[ScriptedChatClient] = ScriptedChatClient, **settings: Any
) -> tuple[Agent, ScriptedChatClient, AgentSession]:
    client = kind([call("work"), "one", call("work", id="c2"), "two"])
    agent = Agent(
        client, tools=[work], context_providers=list(providers), require_per_service_call_history_persistence=True, **settings
    )
    return agent, client, agent.create_session()


def shown(client: ScriptedChatClient) -> list[list[str]]:
    """Return the messages of each model call: role and text."""
    return [[message.text or message.role for message in messages] for messages, _ in client.requests]


@both_ways
async def test_history_loads_before_and_stores_after_every_model_call(stream: bool) -> None:
    history = Keeping()
    agent, client, session = agent_with(history)
    await run(agent, stream, "first", session=session)
    await run(agent, stream, "second", session=session)
    assert (history.loads, history.saves) == (4, [["user", "assistant"], ["tool", "assistant"]] * 2)
    first = ["first", "assistant", "tool"]
    assert shown(client) == [["first"], first, [*first, "one", "second"], [*first, "one", "second", "assistant", "tool"]]


@both_ways
async def test_message_added_to_a_history_reaches_the_next_call(stream: bool) -> None:
    history = Keeping()

    def interrupt() -> str:
        history.stored.append(Message("user", ["be quick"]))
        return "done"

    client = ScriptedChatClient([call("interrupt"), "one"])
    agent = Agent(client, tools=[interrupt], context_providers=[history], require_per_service_call_history_persistence=True)
    await run(agent, stream, "first", session=agent.create_session())
    assert shown(client)[1] == ["first", "assistant", "be quick", "tool"]


@both_ways
@pytest.mark.parametrize(
    ("flags", "saves"),
    [
        ({"store_outputs": False}, [["user"], ["tool"]]),
        ({"store_inputs": False}, [["assistant"], ["assistant"]]),
        ({"load_messages": False}, [["user", "assistant"], ["tool", "assistant"]]),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:No history provider of agent")
async def test_tool_results_are_input_of_the_next_call(
    flags: dict[str, Any], saves: list[list[str]], stream: bool
) -> None:
    history = Keeping(**flags)
    agent, client, session = agent_with(history)
    await run(agent, stream, "first", session=session)
    assert history.saves == saves
    assert shown(client)[1] == ["first", "assistant", "tool"]


@both_ways
@pytest.mark.parametrize("kept", [False, True])
async def test_provider_context_is_shown_to_every_call_of_a_run_once(kept: bool, stream: bool) -> None:
    history = Keeping(store_context_messages=kept)
    agent, client, session = agent_with(Adding("facts"), history)
    await run(agent, stream, "first", session=session)
    assert shown(client) == [["from facts", "first"], ["from facts", "first", "assistant", "tool"]]


async def test_history_cut_by_another_provider_stays_cut_for_the_run() -> None:
    class Cutting(ContextProvider):
        async def before_run(self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]) -> None:
            context.context_messages["kept"] = context.context_messages["kept"][-1:]

    history = Keeping()
    history.stored = [Message("user", ["long ago"]), Message("assistant", ["indeed"])]
    agent, client, session = agent_with(history, Cutting("cuts"))
    await run(agent, False, "first", session=session)
    assert shown(client) == [["indeed", "first"], ["indeed", "first", "assistant", "tool"]]


@both_ways
async def test_call_that_was_approved_is_stored_once_with_its_result(stream: bool) -> None:
    history = Keeping()
    client = ScriptedChatClient([call("delete"), "gone", "more"])

    @tool(approval_mode="always_require")
    def delete() -> str:
        return "deleted"

    agent = Agent(
        client,
        tools=[delete],
        context_providers=[history],
        require_per_service_call_history_persistence=True,
    )
    session = agent.create_session()
    asked = await run(agent, stream, "first", session=session)
    answer = Message("user", [asked.user_input_requests[0].to_function_approval_response(True)])
    await run(agent, stream, answer, session=session)
    await run(agent, stream, "third", session=session)
    calls = [c for m in client.requests[2][0] for c in m.contents if c.type == "function_call"]
    results = [c.result for m in client.requests[2][0] for c in m.contents if c.type == "function_result"]
    assert (len(calls), results) == (1, ["deleted"])


# -- a conversation that the model's provider keeps -----------------------------------------------------------------


class Stores(ScriptedChatClient):
    """A client whose provider stores the conversation."""

    async def _updates(self, messages: Any, *, stream: bool, options: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
        async for update in super()._updates(messages, stream=stream, options=options):
            update.conversation_id = "conv-1"
            yield update


@both_ways
@pytest.mark.requirement("C5")
async def test_provider_conversation_needs_a_client_that_stores(stream: bool) -> None:
    for options, before in (({}, "conv-1"), ({"conversation_id": "conv-1"}, None)):
        history = Keeping()
        agent, client, session = agent_with(history, default_options=options)
        session.service_session_id = before
        with pytest.raises(AgentInvalidRequestException, match="require_per_service_call_history_persistence"):
            await run(agent, stream, "first", session=session)
        assert (client.requests, history.saves, history.loads) == ([], [], 0)


@both_ways
async def test_answer_with_a_conversation_needs_a_client_that_stores(stream: bool) -> None:
    history = Keeping()
    agent, client, session = agent_with(history, kind=Stores)
    with pytest.raises(ChatClientInvalidResponseException, match="conversation_id"):
        await run(agent, stream, "first", session=session)
    assert (len(client.requests), history.saves, session.service_session_id) == (1, [], None)


@both_ways
async def test_histories_only_store_if_the_service_keeps_the_conversation(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    history = Keeping()
    agent, client, session = agent_with(history, kind=Stores, default_options={"store": True})
    with caplog.at_level(logging.WARNING, "gateway"):
        await run(agent, stream, "first", session=session)
    assert (history.loads, history.saves) == (0, [["user", "assistant"], ["tool", "assistant"]])
    assert shown(client) == [["first"], ["tool"]] and session.service_session_id == "conv-1"
    assert "history=kept" in caplog.text and "load_messages=False" in caplog.text


async def test_storing_provider_without_conversation_name_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    agent, _, session = agent_with(Keeping(), default_options={"store": True})
    with caplog.at_level(logging.WARNING, "gateway"):
        await run(agent, False, "first", session=session)
    assert "conversation not named" in caplog.text


@both_ways
async def test_response_ids_are_hidden_if_the_history_continues(stream: bool) -> None:
    seen: list[str | None] = []

    class Looks(ContextProvider):
        async def after_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:
            seen.append(context.response.response_id)

    agent, _, session = agent_with(Keeping(), Looks("looks"))
    parts: list[str | None] = []
    if stream:
        streamed = agent.run("first", stream=True, session=session)
        parts = [update.response_id async for update in streamed]
        response = await streamed.get_final_response()
    else:
        response = await agent.run("first", session=session)
    assert (response.response_id, set(parts) <= {None}, seen) == (None, True, [None])
    agent.require_per_service_call_history_persistence = False
    assert (await run(agent, stream, "second", session=session)).response_id
