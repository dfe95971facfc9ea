"""Stores of agents' files: the same tests for memory and disk, and a disk folder from which no path or link leads out."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import anyio
import pytest

from gateway.agents.files.disk import FileSystemAgentFileStore
from gateway.agents.files.store import AgentFileStore, InMemoryAgentFileStore
from gateway.storage.contained_folder import ContainedFolder

BAD_PATHS = ["../up", "a/../../up", "/etc/passwd", "\\windows", "C:/x", "a/./b", "", "  ", "a/", "nul\0l", "a\nb"]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> AgentFileStore:
    return InMemoryAgentFileStore() if request.param == "memory" else FileSystemAgentFileStore(tmp_path / "files")


@pytest.mark.requirement("FA1")
async def test_store_writes_reads_lists_and_deletes_below_its_root(store: AgentFileStore) -> None:
    await store.write_file("plan.md", "one")
    await store.write_file("reports\\2026/may.md", "zwei\n")
    await store.create_directory("reports/empty")

    assert await store.read_file("reports/2026/may.md") == "zwei\n"
    assert await store.list_files() == ["plan.md"]
    assert await store.list_directories() == ["reports"]
    assert await store.list_files("reports/2026") == ["may.md"]
    assert "2026" in await store.list_directories("reports/")
    assert await store.file_exists("plan.md") and not await store.file_exists("reports")
    assert (await store.delete_file("plan.md"), await store.delete_file("plan.md")) == (True, False)
    assert await store.read_file("plan.md") is None
    assert (await store.list_files("nowhere"), await store.list_directories("nowhere")) == ([], [])


@pytest.mark.requirement("FA1")
async def test_exactly_one_of_concurrent_writers_without_overwrite_wins(store: AgentFileStore) -> None:
    lost: list[int] = []

    async def write(number: int) -> None:
        try:
            await store.write_file("one.txt", f"writer {number}", overwrite=False)
        except FileExistsError:
            lost.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(write, number)

    winner = ({*range(8)} - {*lost}).pop()
    assert len(lost) == 7
    assert await store.read_file("one.txt") == f"writer {winner}"
    await store.write_file("one.txt", "replaced")
    assert await store.read_file("one.txt") == "replaced"


@pytest.mark.requirement("FA1", "FA4")
async def test_search_returns_relative_names_snippets_and_line_numbers(store: AgentFileStore) -> None:
    await store.write_file("notes.md", "x" * 80 + "\nan ERROR here\r\n" + "y" * 80)
    await store.write_file("logs/a/run.log", "error one\nfine\nError two")
    await store.write_file("logs/run.txt", "all fine")

    flat = await store.search_files("", "error")
    below = await store.search_files("logs", "error", "*.LOG", recursive=True)

    assert [(r.file_name, [(m.line_number, m.line) for m in r.matching_lines]) for r in flat] == [("notes.md", [(2, "an ERROR here")])]
    assert flat[0].snippet == "x" * 46 + "\nan ERROR here\r\n" + "y" * 43
    assert [r.to_dict() for r in below] == [
        {
            "file_name": "a/run.log",
            "snippet": "error one\nfine\nError two",
            "matching_lines": [{"line_number": 1, "line": "error one"}, {"line_number": 3, "line": "Error two"}],
        }
    ]
    assert await store.search_files("logs", "error") == []
    with pytest.raises(ValueError, match="256"):
        await store.search_files("", "e" * 257)
    with pytest.raises(ValueError, match="not a regular expression"):
        await store.search_files("", "(unclosed")


@pytest.mark.requirement("FA2")
@pytest.mark.parametrize("path", BAD_PATHS)
async def test_every_operation_rejects_paths_that_are_not_relative(store: AgentFileStore, path: str) -> None:
    for operation in (store.read_file, store.delete_file, store.file_exists):
        with pytest.raises(ValueError, match="Invalid path"):
            await operation(path)
    with pytest.raises(ValueError, match="Invalid path"):
        await store.write_file(path, "x")


@pytest.mark.requirement("FA4")
@pytest.mark.parametrize("make", [InMemoryAgentFileStore, FileSystemAgentFileStore])
async def test_pattern_that_backtracks_forever_is_stopped(make: Callable[..., AgentFileStore], tmp_path: Path) -> None:
    root = [tmp_path] if make is FileSystemAgentFileStore else []
    assert signature(make).parameters["search_timeout_seconds"].default == 10
    store = make(*root, search_timeout_seconds=1.5)
    await store.write_file("trap.txt", "a" * 60 + "!")
    ticks = 0
    done = anyio.Event()

    async def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        with anyio.fail_after(20), pytest.raises(ValueError, match="longer than"):
            await store.search_files("", "(a+)+$", recursive=True)
        done.set()
    assert ticks > 10


@pytest.mark.requirement("FA2")
async def test_binary_and_oversized_files_are_rejected_and_not_searched(tmp_path: Path) -> None:
    store = FileSystemAgentFileStore(tmp_path)
    (tmp_path / "image.png").write_bytes(b"\xff\xfe needle")
    (tmp_path / "text.md").write_text("needle")
    with (tmp_path / "huge.log").open("wb") as file:
        file.truncate(9_000_000)
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ValueError, match="not UTF-8"):
        await store.read_file("image.png")
    with pytest.raises(ValueError, match="larger than"):
        await store.read_file("huge.log")
    with anyio.fail_after(20), pytest.raises(ValueError, match="not a file"):
        await store.read_file("pipe")
    assert [r.file_name for r in await store.search_files("", "needle")] == ["text.md"]


@pytest.mark.requirement("FA2")
@pytest.mark.parametrize("path", ["link.txt", "folder/secret.txt", "deep/folder/secret.txt"])
async def test_link_anywhere_in_a_path_is_never_followed(tmp_path: Path, path: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    root = tmp_path / "root"
    store = FileSystemAgentFileStore(root)
    (root / "deep").mkdir()
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside, target_is_directory=True)
    (root / "deep" / "folder").symlink_to(outside, target_is_directory=True)

    for operation in (store.read_file, store.delete_file, store.file_exists):
        with pytest.raises(ValueError, match="symbolic link"):
            await operation(path)
    with pytest.raises(ValueError, match="symbolic link"):
        await store.write_file(path, "overwritten")
    assert (outside / "secret.txt").read_text() == "secret"
    assert await store.list_files() == []
    assert await store.list_directories() == ["deep"]
    assert await store.search_files("", "secret", recursive=True) == []
    with pytest.raises(ValueError, match="symbolic link"):
        await store.list_files("folder")


@pytest.mark.attack(30)
async def test_hard_link_is_not_read_or_searched_and_outside_file_stays(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    store = FileSystemAgentFileStore(tmp_path / "root")
    (tmp_path / "root" / "deep").mkdir()
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        os.link(tmp_path / "secret.txt", tmp_path / "root" / name)
        with pytest.raises(ValueError, match="hard link"):
            await store.read_file(name)
    assert await store.search_files("", "secret", recursive=True) == []
    await store.write_file("a.txt", "mine")
    await store.delete_file("b.txt")
    assert ((tmp_path / "secret.txt").read_text(), await store.read_file("a.txt")) == ("secret", "mine")


def test_file_that_is_just_being_made_can_be_read(tmp_path: Path) -> None:
    """`write` gives a new file two names for a moment; a read at that time returns its content."""
    folder = ContainedFolder(tmp_path)
    stop = threading.Event()
    failures: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            for name in folder.children()[0]:
                try:
                    assert folder.read(name, max_bytes=100) in (b"content", None)
                except (ValueError, AssertionError) as error:
                    failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        folder.write(f"{number % 5}", b"content", overwrite=False)
        folder.delete(f"{number % 5}")
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []


def test_leftover_of_a_killed_writer_does_not_hide_its_file(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_bytes(b"content")
    os.link(tmp_path / "notes.md", tmp_path / ".moongate-0123456789abcdef.tmp")
    assert ContainedFolder(tmp_path).read("notes.md", max_bytes=100) == b"content"


@pytest.mark.requirement("FA2")
def test_folder_swapped_for_a_link_never_leaks_files(tmp_path: Path) -> None:
    """A second thread swaps while we read and write; at no moment may the outside be seen or changed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f.txt").write_bytes(b"secret")
    folder = ContainedFolder(tmp_path / "root")
    inside = folder.root / "d"
    inside.mkdir()
    (inside / "f.txt").write_bytes(b"mine")
    stop = threading.Event()

    def swap() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            with contextlib.suppress(OSError):  # the writer may have created the folder again in between
                inside.rename(folder.root / f"parked{number}")
                inside.symlink_to(outside, target_is_directory=True)
                inside.unlink()
                (folder.root / f"parked{number}").rename(inside)

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes | None] = set()
    try:
        for _ in range(400):
            try:
                seen.add(folder.read("d/f.txt", max_bytes=100))
                folder.write("d/f.txt", b"mine", overwrite=True)
            except (ValueError, OSError):
                continue
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"mine", None}
    assert [(p.name, p.read_bytes()) for p in outside.iterdir()] == [("f.txt", b"secret")]


@pytest.mark.requirement("FA2")
def test_write_leaves_no_half_file_and_keeps_the_mode(tmp_path: Path) -> None:
    folder = ContainedFolder(tmp_path)
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o700)
    folder.write("run.sh", b"new", overwrite=True)
    assert ((tmp_path / "run.sh").stat().st_mode & 0o777, (tmp_path / "run.sh").read_text()) == (0o700, "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        folder.write("folder", b"x", overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "run.sh"]
    with pytest.raises(ValueError, match="empty"):
        FileSystemAgentFileStore(" ")
