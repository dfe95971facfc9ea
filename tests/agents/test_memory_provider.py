"""Memory by topic: notes that an agent writes, receives and consolidates; separate owners and processes; a crash while writing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import (
    Agent,
    AgentSession,
    ChatResponseUpdate,
    Content,
    InMemoryHistoryProvider,
    MemoryContextProvider,
    MemoryFileStore,
    MemoryIndexEntry,
    MemoryTopicRecord,
    Message,
    ScriptedChatClient,
)
from gateway.errors import ModelError, StorageError
from tests.fakes.running import ROOT

NOTHING = '{"memories": []}'

WRITER = """
import sys, anyio
from gateway import Agent, AgentSession, InMemoryHistoryProvider, MemoryContextProvider, MemoryFileStore, ScriptedChatClient, Content

async def main(folder, name, count):
    provider = MemoryContextProvider(store=MemoryFileStore(folder), max_extractions=0)
    for number in range(int(count)):
        write = Content.from_function_call("c", "write_memory", {"topic": "Shared", "memory": f"{name} {number}"})
        session = AgentSession(session_id=f"{name}-{number}")
        agent = Agent(ScriptedChatClient([write, "ok"]), context_providers=[InMemoryHistoryProvider(), provider])
        await agent.run("note it", session=session)
        print(number, flush=True)

anyio.run(main, *sys.argv[1:])
"""


def call(name: str, arguments: dict[str, Any], call_id: str = "c1") -> Content:
    return Content.from_function_call(call_id, name, arguments)


def results(client: ScriptedChatClient, request: int) -> list[str]:
    return [str(content.result) for content in client.requests[request][0][-1].contents if content.type == "function_result"]


def shown(client: ScriptedChatClient, request: int = -1) -> str:
    [text] = [message.text for message in client.requests[request][0] if message.text.startswith("## Memory")]
    return text


def files(folder: Path) -> dict[str, Path]:
    """Return the files of the owner, keyed by their path within the owner's folder."""
    return {path.relative_to(folder).as_posix().split("/", 3)[-1]: path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.requirement("NM1")
async def test_agent_manages_topics_and_later_sessions_get_matching_ones(tmp_path: Path) -> None:
    client = ScriptedChatClient(
        [
            [
                call("write_memory", {"topic": "Coffee", "memory": "Takes it\n black."}),
                call("write_memory", {"topic": "Cats", "memory": "# Two."}, "c2"),
            ],
            [
                call("list_memory_topics", {}),
                call("read_memory_topic", {"topic": "cats"}, "c2"),
                call("read_memory_topic", {"topic": "Dogs"}, "c3"),
                call("search_memory_transcripts", {"query": "ZEBRA"}, "c4"),
            ],
            "first done",
            "second done",
            [call("search_memory_transcripts", {"query": "ZEBRA"}), call("delete_memory_topic", {"topic": "Coffee"}, "c2")],
            "third done",
        ]
    )
    agent = Agent(
        client, context_providers=[InMemoryHistoryProvider(), MemoryContextProvider(store=MemoryFileStore(tmp_path), max_extractions=0)]
    )

    await agent.run("a zebra", session=agent.create_session(session_id="one"))
    topics, cats, dogs, found = results(client, 2)
    assert [(topic["topic"], topic["summary"]) for topic in json.loads(topics)] == [("Cats", "# Two."), ("Coffee", "Takes it black.")]
    assert "Sessions: one" in cats and cats.endswith("## Memories\n- \\# Two.") and "'Dogs' does not exist" in dogs
    assert json.loads(found) == []  # the search finds messages of earlier runs only

    await agent.run("Which coffee?", session=agent.create_session(session_id="two"))
    text = shown(client)
    assert "- [Cats](topics/cats.md): # Two." in text and "### topics/coffee.md\n# Coffee" in text and "### topics/cats.md" not in text
    assert "write_memory" in str(client.requests[-1][1].get("instructions"))

    await agent.run("forget it", session=agent.create_session(session_id="three"))
    found, deleted = results(client, 5)
    assert json.loads(found) == [{"session_id": "one", "line_number": 1, "role": "user", "text": "a zebra"}]
    kept = files(tmp_path)
    assert "deleted" in deleted and {"topics/cats.md", "transcripts/one.jsonl", "state.json"} < set(kept) and "topics/coffee.md" not in kept
    assert "Coffee" not in kept["MEMORY.md"].read_text() and kept["topics/cats.md"].stat().st_mode & 0o077 == 0


@pytest.mark.requirement("NM1")
async def test_facts_are_extracted_after_run_and_invalid_ones_are_ignored(tmp_path: Path) -> None:
    items = [
        {"topic": "Name", "memory": "Is Ada."},
        {"topic": "Name", "memory": "is ada."},
        {"topic": 5},
        {"topic": "Over", "memory": "It."},
    ]
    client = ScriptedChatClient(
        ["hello", f"```json\n{json.dumps({'memories': items})}\n```", "a", "no JSON", "b", ModelError("gone"), "c", "[1]"]
    )
    provider = MemoryContextProvider(store=MemoryFileStore(tmp_path), max_extractions=1)
    agent = Agent(client, context_providers=[InMemoryHistoryProvider(), provider])

    answers = [(await agent.run("I am Ada", session=agent.create_session())).text for _ in range(4)]

    assert answers == ["hello", "a", "b", "c"]
    asked = client.requests[1][0]
    assert [message.role for message in asked] == ["system", "user"] and asked[1].text == "USER: I am Ada\n\nASSISTANT: hello"
    [name] = [path for path in files(tmp_path) if path.startswith("topics/")]
    assert MemoryTopicRecord.from_markdown(files(tmp_path)[name].read_text()).memories == ["Is Ada."]


@pytest.mark.requirement("NM1")
async def test_topics_are_consolidated_when_due_and_new_facts_stay(tmp_path: Path) -> None:
    store = MemoryFileStore(tmp_path, owner_state_key="user")
    session = AgentSession(session_id="s")
    session.state["user"] = "ada"
    for topic in ("Bad", "Good"):
        record = MemoryTopicRecord(topic=topic, summary="", memories=["old", "older"], updated_at="2026-01-01T00:00:00+00:00")
        store.write_topic(session, record, source_id="memory")

    class Tidier(ScriptedChatClient):
        """A model during whose answer another process writes a memory."""

        async def _updates(self, messages: Any, *, stream: bool, options: Any) -> AsyncGenerator[ChatResponseUpdate, None]:
            if '"Good"' in messages[-1].text:
                record = store.get_topic(session, source_id="memory", topic="Good")
                record.memories.append("newer")
                store.write_topic(session, record, source_id="memory")
            async for update in super()._updates(messages, stream=stream, options=options):
                yield update

    tidier = Tidier(["nonsense", '{"summary": "Short.", "memories": ["short"]}', "{}"])
    provider = MemoryContextProvider(
        store=store, max_extractions=0, consolidation_min_sessions=2, consolidation_interval=timedelta(0), consolidation_client=tidier
    )
    agent = Agent(ScriptedChatClient(["1", "2", "3"]), context_providers=[InMemoryHistoryProvider(), provider])
    for number in range(3):
        other = agent.create_session(session_id=f"run {number}")
        other.state["user"] = "ada"
        await agent.run("go", session=other)
        assert len(tidier.requests) == (0, 2, 2)[number]

    good = store.get_topic(session, source_id="memory", topic="Good")
    assert (good.summary, good.memories) == ("Short.", ["short", "newer"])
    assert store.get_topic(session, source_id="memory", topic="bad").memories == ["old", "older"]
    assert store.read_state(session, source_id="memory")["sessions_since_consolidation"] == ["run 2"]


@pytest.mark.requirement("NM1", "SE13")
async def test_recent_turns_are_loaded_and_filter_selects_stored_messages(tmp_path: Path) -> None:
    def masked(message: Message) -> Message | None:
        if message.role == "assistant" and message.text == "secret":
            return None
        return message

    for with_tools in (True, False):
        client = ScriptedChatClient(["one", [call("list_memory_topics", {})], "two", "secret", "four"])
        store = MemoryFileStore(tmp_path / str(with_tools))
        provider = MemoryContextProvider(2, with_tools, store=store, max_extractions=0, history_message_filter=masked)
        agent = Agent(client, context_providers=[provider])
        session = agent.create_session()
        for text in ("1", "2", "3", "4"):
            await agent.run(text, session=session)
        texts = [message.text for message in client.requests[-1][0] if message.text and not message.text.startswith("## Memory")]
        kinds = {content.type for message in client.requests[-1][0] for content in message.contents}
        assert texts == ["2", "two", "3", "4"]
        assert ("function_call" in kinds) is with_tools


@pytest.mark.requirement("NM1")
async def test_owners_have_separate_folders_with_agent_framework_names(tmp_path: Path) -> None:
    store = MemoryFileStore(tmp_path, owner_state_key="user", owner_prefix="u:")
    provider = MemoryContextProvider(store=store, max_extractions=0)
    client = ScriptedChatClient([call("write_memory", {"topic": "日本語", "memory": "x"}), "ok", "ok", "ok"])
    agent = Agent(client, context_providers=[InMemoryHistoryProvider(), provider])
    ada, bob = agent.create_session(), agent.create_session()
    ada.state["user"], bob.state["user"] = "../ada", "bob"

    await agent.run("note", session=ada)
    await agent.run("what?", session=bob)
    assert "日本語" not in shown(client)
    await agent.run("日本語?", session=ada)
    assert "- x" in shown(client)
    assert store.get_transcripts_directory(ada, source_id="memory") == tmp_path / "bWVtb3J5" / "dTouLi9hZGE" / "memory" / "transcripts"
    with pytest.raises(RuntimeError, match="user"):
        await agent.run("whose?", session=agent.create_session())


@pytest.mark.requirement("NM1")
async def test_damaged_memory_is_named_and_the_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryFileStore(tmp_path / "kept", owner_state_key="user")
    session = AgentSession(session_id="s")
    session.state["user"] = "ada"
    agent = Agent(
        ScriptedChatClient(["fine", "fine"]),
        context_providers=[InMemoryHistoryProvider(), MemoryContextProvider(store=store, max_extractions=0)],
    )
    await agent.run("go", session=session)
    root = files(tmp_path / "kept")["MEMORY.md"].parent
    (root / "topics").mkdir()
    (root / "topics" / "bad.md").write_bytes(b"\xff")
    (tmp_path / "outside.md").write_text("# Secret\n")
    (root / "topics" / "linked.md").symlink_to(tmp_path / "outside.md")

    assert (await agent.run("go", session=session)).text == "fine"
    assert "bad.md" in caplog.text
    with pytest.raises(StorageError, match=r"bad\.md"):
        store.list_topics(session, source_id="memory")
    (root / "topics" / "bad.md").unlink()
    assert store.list_topics(session, source_id="memory") == []
    with pytest.raises(StorageError, match="link"):
        store.get_topic(session, source_id="memory", topic="linked")


@pytest.mark.requirement("NM1")
async def test_two_processes_write_one_topic_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    def start(name: str, count: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), name, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    first, second = start("a", 10_000), start("b", 10)
    assert first.stdout is not None and second.stdout is not None
    for _ in range(5):
        assert first.stdout.readline()
    os.kill(first.pid, signal.SIGKILL)
    told = 5 + len(first.stdout.read().split())
    first.wait(10)
    assert second.wait(60) == 0
    first.stdout.close()
    second.stdout.close()

    client = ScriptedChatClient([call("read_memory_topic", {"topic": "shared"}), "ok"])
    with anyio.fail_after(30):
        await Agent(
            client, context_providers=[InMemoryHistoryProvider(), MemoryContextProvider(store=MemoryFileStore(tmp_path), max_extractions=0)]
        ).run("what?")
    [read] = results(client, 1)
    memories = MemoryTopicRecord.from_markdown(read).memories
    assert [one for one in memories if one.startswith("b")] == [f"b {number}" for number in range(10)]
    of_first = [one for one in memories if one.startswith("a")]
    assert of_first == [f"a {number}" for number in range(len(of_first))] and len(of_first) in (told, told + 1)


@pytest.mark.requirement("NM1")
def test_topic_survives_markdown_and_json(tmp_path: Path) -> None:
    record = MemoryTopicRecord(
        topic=" A  topic ",
        summary="# head\n\\\\# x\nUpdated: no",
        memories=["# a", "\\# b", "c\nd", "C D", ""],
        updated_at="then",
        session_ids=["s", "t"],
    )
    assert record.memories == ["# a", "\\# b", "c d"]
    assert MemoryTopicRecord.from_markdown(record.to_markdown()) == record
    assert MemoryTopicRecord.from_dict(record.to_dict()) == record
    entry = MemoryIndexEntry.from_topic_record(record)
    assert MemoryIndexEntry.from_dict(entry.to_dict()) == entry and entry.to_pointer_line(max_length=12) == "- [A topi..."
    for bad in ({}, {**record.to_dict(), "memories": "x"}, {**record.to_dict(), "topic": 1}):
        with pytest.raises(ValueError, match="memor"):
            MemoryTopicRecord.from_dict(bad)
    with pytest.raises(ValueError, match="recent_turns"):
        MemoryContextProvider(-1, store=MemoryFileStore(tmp_path))
