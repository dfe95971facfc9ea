"""`create_harness_agent`: the parts of the created agent, and a run with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import (
    DEFAULT_HARNESS_INSTRUCTIONS,
    Agent,
    Content,
    ContextProvider,
    Message,
    OpenAIChatClient,
    RawAgent,
    ScriptedChatClient,
    TruncationStrategy,
    create_harness_agent,
    tool,
)


def kinds(agent: Agent) -> list[str]:
    return [type(provider).__name__ for provider in agent.context_providers]


def test_the_parts_stand_in_their_order_and_each_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "SKILL.md").write_text("---\nname: greet\ndescription: Greets.\n---\nSay hello.\n")
    client = ScriptedChatClient([])
    plain = create_harness_agent(client)
    assert kinds(plain) == ["InMemoryHistoryProvider", "TodoProvider", "AgentModeProvider"]
    assert "web search" in caplog.text
    assert plain.instructions == DEFAULT_HARNESS_INSTRUCTIONS.strip()
    full = create_harness_agent(
        client,
        agent_instructions="Study birds.",
        max_context_window_tokens=1000,
        max_output_tokens=100,
        skills_paths=[tmp_path],
        background_agents=[Agent(client, name="other")],
        context_providers=[ContextProvider("own")],
        default_options={"temperature": 0.5},
        disable_web_search=True,
    )
    assert kinds(full) == [
        "InMemoryHistoryProvider",
        "CompactionProvider",
        "TodoProvider",
        "AgentModeProvider",
        "SkillsProvider",
        "BackgroundAgentsProvider",
        "ContextProvider",
    ]
    assert (full.instructions or "").endswith("Study birds.") and full.default_options == {"max_tokens": 100, "temperature": 0.5}
    bare = create_harness_agent(
        client,
        harness_instructions="",
        disable_compaction=True,
        before_compaction_strategy=TruncationStrategy(max_n=4, compact_to=2),
        disable_todo=True,
        disable_mode=True,
        disable_tool_auto_approval=True,
        disable_web_search=True,
    )
    assert (kinds(bare), bare.instructions, bare.middleware, bare.tools) == (["InMemoryHistoryProvider"], None, [], [])
    assert isinstance(bare, RawAgent)
    searching = create_harness_agent(OpenAIChatClient("m", api_key="k"))
    assert [hosted["type"] for hosted in searching.tools] == ["web_search"]


@pytest.mark.parametrize(
    ("window", "output", "said"),
    [(0, None, "window_tokens must be positive"), (None, -1, "output_tokens must be positive"), (10, 10, "must be less")],
)
def test_window_without_room_is_refused(window: int | None, output: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        create_harness_agent(ScriptedChatClient([]), max_context_window_tokens=window, max_output_tokens=output)


async def test_harness_uses_todos_and_approvals_and_stores_each_model_call() -> None:
    stored: list[int] = []

    @tool(approval_mode="always_require")
    def send(text: str) -> str:
        stored.append(len(session.state["in_memory"]["messages"]))
        return f"sent {text}"

    add = Content.from_function_call("1", "todos_add", arguments={"todos": [{"title": "send it"}]})
    client = ScriptedChatClient([[add], [Content.from_function_call("2", "send", arguments={"text": "hi"})], "done"])
    agent = create_harness_agent(client, tools=send, disable_web_search=True)
    session = agent.create_session()

    first = await agent.run("Go", session=session)
    [asked] = first.user_input_requests
    answer: Any = asked.to_function_approval_response(approved=True)
    last = await agent.run(Message("user", [answer]), session=session)

    assert last.text == "done" and stored and stored[0] > 0
    assert session.state["todo"]["items"][0]["title"] == "send it"
