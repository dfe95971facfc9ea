"""Conversations in files: one per session, whole after a crash, several processes on one folder."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway import Agent, Content, FileHistoryProvider, Message, ScriptedChatClient
from gateway.errors import StorageError
from gateway.storage import line_file
from gateway.storage.atomic_files import try_lock
from tests.fakes.running import ROOT

WRITER = """
import sys, anyio
from gateway import FileHistoryProvider, Message

async def main(folder, name, count):
    history = FileHistoryProvider(folder)
    for number in range(int(count)):
        await history.save_messages("shared", [Message("user", [f"{name} {number}"]), Message("assistant", ["x" * 20_000])])
        print(number, flush=True)

anyio.run(main, *sys.argv[1:])
"""


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def start_writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), name, str(count)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.requirement("SE17")
async def test_session_file_has_a_line_per_message_and_outlives_a_process(tmp_path: Path) -> None:
    client = ScriptedChatClient(["one", [Content.from_text("two\nlines")]])
    for task in ("first", "second"):
        agent = Agent(client, context_providers=[FileHistoryProvider(tmp_path / "history")])
        await agent.run(task, session=agent.create_session(session_id="s-1"))
    assert texts(client.requests[1][0]) == ["first", "one", "second"]
    [file] = entries(tmp_path / "history")
    assert file.name == "s-1.jsonl"
    stored = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["role"] for line in stored] == ["user", "assistant", "user", "assistant"]
    assert "_attribution" not in file.read_text()


@pytest.mark.requirement("SE17", "SE8")
async def test_unsafe_ids_are_encoded_and_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    history = FileHistoryProvider(folder)
    ids = ["../../etc/passwd", "a/b", "CON", "con.txt", ".hidden", "dot.", "sp ace", "é" * 300, "x" * 500, "\ud800", "nul\0l"]
    for number, session_id in enumerate([*ids, None, ""]):
        await history.save_messages(session_id, [Message("user", [str(number)])])
    assert [texts(await history.get_messages(session_id)) for session_id in ids] == [[str(number)] for number in range(len(ids))]
    assert texts(await history.get_messages(None)) == [str(len(ids)), str(len(ids) + 1)]
    assert entries(tmp_path) == [folder]
    assert len(entries(folder)) == len(ids) + 1
    assert (folder / "~session-Li4vLi4vZXRjL3Bhc3N3ZA.jsonl").exists() and (folder / "default.jsonl").exists()
    assert history.source_id == "file_history"


async def test_nothing_is_created_before_the_first_store(tmp_path: Path) -> None:
    history = FileHistoryProvider(tmp_path / "deep" / "history")
    assert await history.get_messages("s") == []
    await history.save_messages("s", [])
    assert entries(tmp_path) == []


async def test_line_that_was_torn_is_left_out_reported_and_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = FileHistoryProvider(tmp_path)
    await history.save_messages("s", [Message("user", ["whole"])])
    file = tmp_path / "s.jsonl"
    with file.open("ab") as raw:
        raw.write(b'{"type": "message", "role": "us')
    with caplog.at_level(logging.WARNING):
        assert texts(await history.get_messages("s")) == ["whole"]
    assert "s.jsonl" in caplog.text and "bytes=31" in caplog.text
    await history.save_messages("s", [Message("user", ["next"])])
    assert texts(await history.get_messages("s")) == ["whole", "next"]
    assert (tmp_path / "s.jsonl.torn").read_bytes() == b'{"type": "message", "role": "us\n'


async def test_last_line_that_only_lacks_its_break_counts(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(json.dumps(Message("user", ["by hand"]).to_dict()))
    history = FileHistoryProvider(tmp_path)
    assert texts(await history.get_messages("s")) == ["by hand"]
    await history.save_messages("s", [Message("user", ["next"])])
    assert texts(await history.get_messages("s")) == ["by hand", "next"]


@pytest.mark.parametrize("damage", ["{not json}", "[1]", '{"type": "message"}', '"text"', "\xff"])
async def test_damaged_line_is_a_named_error_and_nothing_is_lost(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "s.jsonl"
    good = json.dumps(Message("user", ["good"]).to_dict()).encode()
    file.write_bytes(good + b"\n\n" + damage.encode("latin-1") + b"\n" + good + b"\n")
    before = file.read_bytes()
    history = FileHistoryProvider(tmp_path)
    with pytest.raises(StorageError, match=r"Line 3 of .*s\.jsonl"):
        await history.get_messages("s")
    await history.save_messages("s", [Message("user", ["later"])])
    assert file.read_bytes().startswith(before)


async def test_file_held_by_another_process_is_an_error_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_file, "LOCK_SECONDS", 0.1)
    history = FileHistoryProvider(tmp_path)
    await history.save_messages("s", [Message("user", ["kept"])])
    descriptor = os.open(tmp_path / "s.jsonl", os.O_RDWR)
    try:
        os.lseek(descriptor, 2**40, os.SEEK_SET)
        assert try_lock(descriptor)
        with pytest.raises(StorageError, match="Another process has locked"):
            await history.save_messages("s", [Message("user", ["refused"])])
        with pytest.raises(StorageError, match="Another process has locked"):
            await history.get_messages("s")
    finally:
        os.close(descriptor)
    assert texts(await history.get_messages("s")) == ["kept"]


async def test_special_file_or_folder_is_rejected_by_name(tmp_path: Path) -> None:
    (tmp_path / "away").write_text("secret\n")
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "link.jsonl").symlink_to(tmp_path / "away")
    (tmp_path / "h" / "folder.jsonl").mkdir()
    history = FileHistoryProvider(tmp_path / "h")
    for name in ("link", "folder"):
        with pytest.raises(StorageError, match=rf"{name}\.jsonl"):
            await history.save_messages(name, [Message("user", ["x"])])
    assert (tmp_path / "away").read_text() == "secret\n"
    with pytest.raises(StorageError, match="history folder"):
        await FileHistoryProvider(tmp_path / "away" / "x").save_messages("s", [Message("user", ["x"])])


async def test_json_functions_are_replaceable_and_a_message_is_one_line(tmp_path: Path) -> None:
    history = FileHistoryProvider(tmp_path, dumps=lambda value: json.dumps(value).encode(), loads=json.loads)
    await history.save_messages("s", [Message("user", ["x"])])
    assert texts(await history.get_messages("s")) == ["x"]
    with pytest.raises(ValueError, match="single line"):
        await FileHistoryProvider(tmp_path, dumps=lambda value: json.dumps(value, indent=1)).save_messages("s", [Message("user", ["y"])])
    assert texts(await history.get_messages("s")) == ["x"]


async def test_concurrent_appends_and_a_kill_leave_whole_lines(tmp_path: Path) -> None:
    first, second = start_writer(tmp_path, "a", 10_000), start_writer(tmp_path, "b", 25)
    assert first.stdout is not None
    for _ in range(10):
        assert first.stdout.readline()
    os.kill(first.pid, signal.SIGKILL)
    told = 10 + len(first.stdout.read().split())
    first.wait(10)
    assert second.wait(30) == 0
    found = [text for text in texts(await FileHistoryProvider(tmp_path).get_messages("shared")) if not text.startswith("x")]
    assert [text for text in found if text.startswith("b")] == [f"b {number}" for number in range(25)]
    of_first = [text for text in found if text.startswith("a")]
    assert of_first == [f"a {number}" for number in range(len(of_first))] and len(of_first) in (told, told + 1)
    for process in (first, second):
        assert process.stdout is not None
        process.stdout.close()
