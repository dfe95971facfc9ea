"""Stored results: written atomically, visible only to their owner, limited per owner, deleted after they expire."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gateway.errors import NotFound, StorageError
from gateway.storage.result_folder import FolderResults


def store(folder: Path, *, max_bytes: int = 100_000, age: float = 0.0) -> FolderResults:
    """A store whose clock is `age` seconds ahead."""
    return FolderResults(folder / "results", ttl_seconds=60, max_bytes_per_owner=max_bytes, clock=lambda: time.time() + age)


def keep(results: FolderResults, owner: str, body: bytes) -> str:
    return results.keep(owner, body, mime_type="text/plain", origin="up__lines").id


@pytest.mark.attack(5)
def test_body_comes_back_whole_and_in_slices_to_its_owner_only(tmp_path: Path) -> None:
    results = store(tmp_path)
    kept = keep(results, "ada", b"0123456789\n")
    assert results.body("ada", kept) == b"0123456789\n"
    assert results.slice("ada", kept, 8, 100) == b"89\n"
    for owner, name in (("bob", kept), ("ada", "A" * 22), ("ada", "../ada"), ("ada", "")):
        with pytest.raises(NotFound):
            results.find(owner, name)


def test_oldest_bodies_of_the_same_owner_are_evicted(tmp_path: Path) -> None:
    results = store(tmp_path)
    other = keep(results, "bob", b"b" * 40_000)
    ids = [keep(results, "ada", bytes([65 + n]) * 40_000) for n in range(4)]
    left: list[int] = []
    for position, kept in enumerate(ids):
        try:
            results.find("ada", kept)
            left.append(position)
        except NotFound:
            continue
    assert left == [2, 3]
    assert results.find("bob", other).size == 40_000
    with pytest.raises(StorageError):
        keep(results, "ada", b"x" * 100_001)


def test_expired_result_is_unknown_before_the_sweep_and_then_deleted(tmp_path: Path) -> None:
    kept = keep(store(tmp_path), "ada", b"body")
    later = store(tmp_path, age=61)
    with pytest.raises(NotFound):
        later.find("ada", kept)
    store(tmp_path, age=59).sweep()
    assert store(tmp_path).body("ada", kept) == b"body"
    later.sweep()
    assert list((tmp_path / "results").iterdir()) == []


def test_sweep_removes_crash_leftovers_but_not_current_writes(tmp_path: Path) -> None:
    results = store(tmp_path)
    kept = keep(results, "ada", b"body")
    [folder] = (tmp_path / "results").iterdir()
    (folder / ".half.tmp").write_bytes(b"{")
    results.sweep()
    assert (folder / ".half.tmp").exists()
    os.utime(folder / ".half.tmp", (1, 1))
    results.sweep()
    assert [path.name for path in folder.iterdir()] == [kept]


def test_damaged_file_is_as_unknown_as_a_missing_one(tmp_path: Path) -> None:
    results = store(tmp_path)
    kept = keep(results, "ada", b"body")
    [file] = (tmp_path / "results").rglob(kept)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(NotFound):
        results.body("ada", kept)


def test_names_in_any_script_fit_the_metadata_line(tmp_path: Path) -> None:
    results = store(tmp_path)
    for origin in ("🌕" * 600, "up__\ud800"):
        kept = results.keep("ada", b"body", mime_type="🌕" * 300, origin=origin)
        assert results.body("ada", kept.id) == b"body"
