"""Todo list and mode: instructions and tools for the agent, and state in the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import Agent, AgentSession, Content, ScriptedChatClient
from gateway.agents.providers.mode import AgentModeProvider, get_agent_mode, set_agent_mode
from gateway.agents.providers.todo import TodoProvider
from gateway.agents.providers.todo_store import TodoFileStore, TodoItem, TodoSessionStore, TodoStore
from gateway.errors import StorageError


def call(name: str, arguments: dict[str, Any], call_id: str = "c1") -> Content:
    return Content.from_function_call(call_id, name, arguments)


def results(client: ScriptedChatClient, request: int = -1) -> list[Any]:
    """Return the decoded results of the previous round's tool calls."""
    last = client.requests[request][0][-1]
    return [json.loads(str(content.result)) for content in last.contents if content.type == "function_result"]


@pytest.mark.requirement("NM1")
async def test_agent_edits_its_todo_list_and_receives_it_in_the_next_run() -> None:
    client = ScriptedChatClient(
        [
            [call("todos_add", {"todos": [{"title": " Read ", "description": "all"}, {"title": "Write"}, {"title": "Rest"}]})],
            [call("todos_complete", {"items": [{"id": 1, "reason": "read it"}]}), call("todos_remove", {"ids": [3, 9]}, "c2")],
            [call("todos_get_remaining", {}), call("todos_get_all", {}, "c2")],
            "done",
            "later",
        ]
    )
    provider = TodoProvider()
    agent = Agent(client, context_providers=[provider])
    session = agent.create_session()

    await agent.run("go", session=session)

    assert [item["id"] for item in results(client, 1)[0]] == [1, 2, 3]
    assert results(client, 2) == [{"completed": 1}, {"removed": 1}]
    assert [[item["title"] for item in found] for found in results(client, 3)] == [["Write"], ["Read", "Write"]]
    assert "todos_add" in str(client.requests[0][1].get("instructions"))

    restored = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    await agent.run("and now?", session=restored)
    shown = [m.text for m in client.requests[-1][0] if m.text.startswith("### Current todo list")]
    assert shown == ["### Current todo list\n- 1 [done] Read: all\n- 2 [open] Write"]
    assert await provider.store.load_state(restored, source_id="todo") == (
        [TodoItem(1, "Read", "all", True), TodoItem(2, "Write")],
        4,
    )


@pytest.mark.requirement("NM1")
@pytest.mark.parametrize("kind", ["session", "file"])
async def test_list_is_kept_by_either_store_and_a_damaged_one_is_named(kind: str, tmp_path: Path) -> None:
    store: TodoStore = TodoSessionStore() if kind == "session" else TodoFileStore(tmp_path, owner_state_key="owner")
    session = AgentSession(session_id="~odd id?")
    session.state["owner"] = "../ada"

    await store.save_state(session, [TodoItem(7, "Seven")], next_id=2, source_id="todo")

    assert await store.load_state(session, source_id="todo") == ([TodoItem(7, "Seven")], 8)
    if kind == "session":
        session.state["todo"] = {"items": "none"}
        with pytest.raises(ValueError, match="damaged"):
            await store.load_items(session, source_id="todo")
        return
    [file] = [path async for path in anyio.Path(tmp_path).rglob("*.json")]
    await file.write_text('{"items": [1]}')
    with pytest.raises(StorageError, match="damaged"):
        await store.load_items(session, source_id="todo")
    del session.state["owner"]
    with pytest.raises(RuntimeError, match="owner"):
        await store.load_items(session, source_id="todo")


@pytest.mark.requirement("NM1")
async def test_agent_switches_its_mode_and_sees_external_switches() -> None:
    client = ScriptedChatClient([[call("mode_set", {"mode": "EXECUTE"})], [call("mode_get", {})], "ok", "again", "third"])
    agent = Agent(client, context_providers=[AgentModeProvider()])
    session = agent.create_session()

    await agent.run("plan it", session=session)
    assert "plan mode" in str(client.requests[0][1].get("instructions"))
    assert results(client, 2) == [{"mode": "execute"}]
    assert get_agent_mode(session) == "execute"

    assert set_agent_mode(session, "Plan") == "plan"
    await agent.run("go on", session=session)
    await agent.run("and on", session=session)
    told = [any("from execute to plan" in m.text for m in messages) for messages, _ in client.requests[3:]]
    assert told == [True, False]
    with pytest.raises(ValueError, match="'plan', 'execute'"):
        set_agent_mode(session, "dream")


@pytest.mark.requirement("NM1")
def test_custom_modes_are_checked_at_construction() -> None:
    modes = AgentModeProvider(mode_descriptions={"Draft": "write", "Review": "check"}, default_mode="review")
    assert (modes.available_modes, modes.default_mode) == (("draft", "review"), "review")
    with pytest.raises(ValueError, match="Unknown mode"):
        AgentModeProvider(default_mode="nope")
    with pytest.raises(ValueError, match="at least one"):
        AgentModeProvider(mode_descriptions={})
    with pytest.raises(ValueError, match="have the name"):
        AgentModeProvider(mode_descriptions={"A": "x", "a ": "y"})
