"""`FileAccessProvider`: the tools that an agent receives for the files of a store, and their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import Agent, AgentFileStore, Content, FileAccessProvider, FileSystemAgentFileStore, InMemoryAgentFileStore, ScriptedChatClient

NAMES = [
    "file_access_save_file",
    "file_access_read_file",
    "file_access_delete_file",
    "file_access_list_files",
    "file_access_list_subdirectories",
    "file_access_search_files",
]


async def outcomes(store: AgentFileStore, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Make the calls one after the other in one run, and return their results."""
    replies = [Content.from_function_call(str(number), f"file_access_{name}", arguments) for number, (name, arguments) in enumerate(calls)]
    client = ScriptedChatClient([*replies, "done"])
    await Agent(client, context_providers=[FileAccessProvider(store, require_delete_approval=False)]).run("go")
    return [content.result for message in client.requests[-1][0] for content in message.contents if content.type == "function_result"]


@pytest.mark.requirement("FA3")
@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_agent_saves_reads_lists_searches_and_deletes(kind: str, tmp_path: Path) -> None:
    store = InMemoryAgentFileStore() if kind == "memory" else FileSystemAgentFileStore(tmp_path)
    found = await outcomes(
        store,
        ("save_file", {"file_name": "reports/may.md", "content": "Total: 3\n"}),
        ("save_file", {"file_name": "reports/may.md", "content": "Total: 4\n"}),
        ("save_file", {"file_name": "reports/may.md", "content": "Total: 4\n", "overwrite": True}),
        ("read_file", {"file_name": "reports\\may.md"}),
        ("list_files", {"directory": "reports"}),
        ("list_files", {}),
        ("list_subdirectories", {"directory": " "}),
        ("search_files", {"regex_pattern": "TOTAL", "file_pattern": "*.md"}),
        ("delete_file", {"file_name": "reports/may.md"}),
        ("delete_file", {"file_name": "reports/may.md"}),
        ("read_file", {"file_name": "reports/may.md"}),
    )
    assert found == [
        "File 'reports/may.md' saved.",
        "File 'reports/may.md' already exists. To replace it, save again with overwrite set to true.",
        "File 'reports/may.md' saved.",
        "Total: 4\n",
        '["may.md"]',
        "[]",
        '["reports"]',
        '[{"file_name": "reports/may.md", "snippet": "Total: 4\\n", "matching_lines": [{"line_number": 1, "line": "Total: 4"}]}]',
        "File 'reports/may.md' deleted.",
        "File 'reports/may.md' not found.",
        "File 'reports/may.md' not found.",
    ]


@pytest.mark.requirement("FA3", "FA2")
async def test_errors_are_texts_without_local_paths(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "folder").mkdir()
    found = await outcomes(
        FileSystemAgentFileStore(tmp_path / "files"),
        ("read_file", {"file_name": "../secret"}),
        ("save_file", {"file_name": "folder", "content": "x", "overwrite": True}),
        ("save_file", {"file_name": "n" * 300, "content": "x"}),
        ("search_files", {"regex_pattern": "("}),
        ("list_files", {"directory": "/etc"}),
        ("delete_file", {"file_name": "folder"}),
    )
    starts = ["Could not read", "Could not save", "Could not save", "Could not search", "Could not list", "Could not delete"]
    assert [text.startswith(start) for text, start in zip(found, starts, strict=True)] == [True] * 6
    assert all(str(tmp_path) not in text for text in found)


@pytest.mark.requirement("FA3", "FA5")
async def test_all_sessions_share_the_store_and_deleting_asks_a_person() -> None:
    store = InMemoryAgentFileStore()
    save = Content.from_function_call("1", "file_access_save_file", {"file_name": "a.txt", "content": "from one"})
    read = Content.from_function_call("2", "file_access_read_file", {"file_name": "A.txt"})
    delete = Content.from_function_call("3", "file_access_delete_file", {"file_name": "a.txt"})
    client = ScriptedChatClient([save, "ok", read, "ok", delete])
    agent = Agent(client, context_providers=[FileAccessProvider(store)])

    await agent.run("save", session=agent.create_session())
    await agent.run("read", session=agent.create_session())
    response = await agent.run("delete", session=agent.create_session())

    assert [tool.definition.name for tool in client.requests[0][1].get("tools", ())] == NAMES
    assert [c.result for c in client.requests[3][0][-1].contents] == ["from one"]
    assert [request.function_call.name for request in response.user_input_requests if request.function_call] == ["file_access_delete_file"]
    assert await store.file_exists("a.txt")
