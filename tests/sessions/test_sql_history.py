"""Conversations in a database: in SQLite and on a PostgreSQL server."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from gateway import Agent, Content, Message, ScriptedChatClient, SqlHistoryProvider
from gateway.errors import StorageError
from tests.fakes.postgres import Postgres, postgres
from tests.fakes.running import ROOT

WRITER = """
import sys, anyio
from gateway import SqlHistoryProvider, Message

async def main(url, name, count):
    history = SqlHistoryProvider(url)
    for number in range(int(count)):
        await history.save_messages("shared", [Message("user", [f"{name} {number}"]), Message("assistant", [f"to {name} {number}"])])
        print(number, flush=True)

anyio.run(main, *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'history.db'}"
    running: Postgres = request.getfixturevalue("server")
    return running.database(f"t{abs(hash(request.node.name)) % 10**9}")


def start_writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, url, name, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.requirement("SE12", "SE17")
async def test_conversation_goes_on_where_another_program_left_it(url: str) -> None:
    client = ScriptedChatClient(["one", "two"])
    for task in ("first", "second"):
        agent = Agent(client, context_providers=[SqlHistoryProvider(url)])
        await agent.run(task, session=agent.create_session(session_id="s-1"))
    assert texts(client.requests[1][0]) == ["first", "one", "second"]
    assert SqlHistoryProvider(url).source_id == "sql_history"


async def test_messages_come_back_as_they_were_whatever_is_in_them(url: str) -> None:
    history = SqlHistoryProvider(url)
    said = [
        Message("user", ["nul \0, half a \ud83d, é, 😀, 'quotes' and %s"]),
        Message("assistant", [Content.from_function_call("c1", "f", {"a": [1, None, {"b": 1.5}]})], author_name="x", message_id="m"),
        Message("tool", [Content.from_function_result("c1", result={"deep": ["r"]})], additional_properties={"k": "v"}),
    ]
    await history.save_messages("s\0\ud800", said)
    assert await history.get_messages("s\0\ud800") == said
    assert await history.get_messages("other") == []


async def test_conversation_is_known_to_its_owner_and_can_be_deleted(url: str) -> None:
    mine, yours = SqlHistoryProvider(url, owner="me"), SqlHistoryProvider(url, owner="you")
    await mine.save_messages("s", [Message("user", ["mine"])])
    await yours.save_messages("s", [Message("user", ["yours"])])
    assert not await yours.delete_messages("t")
    assert await yours.delete_messages("s")
    assert texts(await mine.get_messages("s")) == ["mine"] and await yours.get_messages("s") == []


async def test_additions_of_a_run_stay_together_in_concurrent_stores(url: str) -> None:
    histories = [SqlHistoryProvider(url) for _ in range(4)]
    await histories[0].get_messages("s")

    async def store(number: int) -> None:
        for turn in range(5):
            await histories[number].save_messages("s", [Message("user", [f"{number}.{turn}"]), Message("assistant", [f"{number}.{turn}"])])

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(store, number)
    found = texts(await histories[0].get_messages("s"))
    assert len(found) == 40
    assert all(first == second for first, second in zip(found[::2], found[1::2], strict=True))
    assert [text for text in found[::2] if text.startswith("2")] == [f"2.{turn}" for turn in range(5)]


async def test_two_processes_store_and_a_kill_leaves_whole_runs(url: str) -> None:
    first, second = start_writer(url, "a", 10_000), start_writer(url, "b", 15)
    assert first.stdout is not None and second.stdout is not None
    for _ in range(5):
        assert first.stdout.readline()
    os.kill(first.pid, signal.SIGKILL)
    told = 5 + len(first.stdout.read().split())
    first.wait(10)
    assert second.wait(30) == 0
    found = texts(await SqlHistoryProvider(url).get_messages("shared"))
    of_first, of_second = ([text for text in found if text.startswith(name)] for name in "ab")
    assert of_second == [f"b {number}" for number in range(15)]
    assert of_first == [f"a {number}" for number in range(len(of_first))] and len(of_first) in (told, told + 1)
    assert len(found) == 2 * (len(of_first) + 15)
    first.stdout.close()
    second.stdout.close()


async def test_damaged_row_is_a_named_error_and_nothing_is_lost(tmp_path: Path) -> None:
    history = SqlHistoryProvider(tmp_path / "h.db")
    await history.save_messages("s", [Message("user", ["kept"])])
    with closing(sqlite3.connect(tmp_path / "h.db")) as raw, raw:
        raw.execute("INSERT INTO history (owner, session, messages, at) VALUES ('local', 's', '{torn', 1)")
        raw.execute("INSERT INTO history (owner, session, messages, at) VALUES ('local', 't', '[{\"no\": \"message\"}]', 1)")
    with pytest.raises(StorageError, match="Row 2 of the table `history` is damaged"):
        await history.get_messages("s")
    with pytest.raises(StorageError, match=r"'t'.*damaged"):
        await history.get_messages("t")
    with closing(sqlite3.connect(tmp_path / "h.db")) as raw:
        assert raw.execute("SELECT count(*) FROM history").fetchone() == (3,)


async def test_file_that_is_not_a_database_or_missing_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is plain text, longer than the header of a database " * 20)
    for place in (tmp_path / "text.db", tmp_path / "nowhere" / "h.db"):
        with pytest.raises(StorageError, match=place.name):
            await SqlHistoryProvider(place).get_messages("s")
    for wrong in ("mysql://host/db", "sqlite://", "sqlite:///:memory:"):
        with pytest.raises(StorageError, match="sqlite:///"):
            await SqlHistoryProvider(wrong).get_messages("s")


async def test_unreachable_server_is_an_error_without_the_password() -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1") as caught:
        await SqlHistoryProvider("postgresql://ada:hush@127.0.0.1:1/db?connect_timeout=2").get_messages("s")
    assert "hush" not in str(caught.value) and "Check that the server runs" in str(caught.value)


@pytest.mark.postgres
async def test_server_that_was_restarted_is_used_again(server: Postgres) -> None:
    history = SqlHistoryProvider(server.database("restarted"))
    await history.save_messages("s", [Message("user", ["before"])])
    await anyio.to_thread.run_sync(server.stop)
    try:
        with pytest.raises(StorageError, match="cannot be used"):
            await history.save_messages("s", [Message("user", ["lost?"])])
    finally:
        await anyio.to_thread.run_sync(server.start)
    await history.save_messages("s", [Message("user", ["after"])])
    assert texts(await history.get_messages("s")) == ["before", "after"]


def test_provider_may_be_used_by_one_event_loop_after_the_other(tmp_path: Path) -> None:
    history = SqlHistoryProvider(tmp_path / "h.db")
    for number in range(2):
        anyio.run(history.save_messages, "s", [Message("user", [str(number)])])
    assert texts(anyio.run(history.get_messages, "s")) == ["0", "1"]
