"""The cached index: a restart compares stamps and never serves outdated content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.skills import reader
from gateway.skills.folders import read_file
from gateway.skills.model import MAX_SKILL_BYTES, Stamp
from gateway.skills.source import SkillSource
from tests.skills.on_disk import entries_of, load, read_content, write_skill

OLD = 1_700_000_000


def aged(root: Path) -> None:
    """Give all files an old mtime, because an equal stamp of a recently changed file proves nothing."""
    for path in root.rglob("*"):
        os.utime(path, (OLD, OLD))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records each file whose content is read for the index."""
    seen: list[str] = []

    def watched(root: str, segments: tuple[str, ...], max_bytes: int = MAX_SKILL_BYTES) -> tuple[bytes, Stamp]:
        seen.append("/".join(segments))
        return read_file(root, segments, max_bytes)

    monkeypatch.setattr(reader, "read_file", watched)
    monkeypatch.setattr(reader, "SETTLE_NS", 0)
    return seen


def source(folder: Path) -> SkillSource:
    return SkillSource([folder / "skills"], refresh_seconds=0, state_folder=folder / "state")


async def test_restart_reads_no_unchanged_file(tmp_path: Path, reads: list[str]) -> None:
    for name in ("a", "b", "My Odd Name"):
        write_skill(tmp_path / "skills" / name, name=name, extra="metadata: {n: 1}\n", files={"x/y.md": "text", "bin": b"\xff"})
    aged(tmp_path / "skills")
    async with source(tmp_path) as first:
        before = entries_of(first), [r.to_json() for r in first.problems], await load(first, "a")
    assert len(reads) == 9
    reads.clear()
    async with source(tmp_path) as again:
        assert reads == []
        assert (entries_of(again), [r.to_json() for r in again.problems], await load(again, "a")) == before


async def test_only_changed_file_is_read(tmp_path: Path, reads: list[str]) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / "skills" / name, files={"x.md": "one"})
    aged(tmp_path / "skills")
    async with source(tmp_path):
        pass
    (tmp_path / "skills" / "a" / "x.md").write_text("two")
    write_skill(tmp_path / "skills" / "c")
    reads.clear()
    async with source(tmp_path) as again:
        assert set(reads) == {"a/x.md", "a/SKILL.md", "c/SKILL.md"}
        assert (await read_content(again, "skill://a/x.md"))["text"] == "two"
        assert [entry["uri"] for entry in entries_of(again)] == [f"skill://{name}/SKILL.md" for name in "abc"]


async def test_removed_skill_is_gone_after_restart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / "skills" / name)
    async with source(tmp_path):
        pass
    (tmp_path / "skills" / "a" / "SKILL.md").unlink()
    async with source(tmp_path) as again:
        assert [entry["uri"] for entry in entries_of(again)] == ["skill://b/SKILL.md"]


TORN = [b"", b"{", b"[]", b'{"format": "0"}', b'{"format": 1, "candidates": [[1]]}', b"\xff" * 100, b"[" * 100_000]


@pytest.mark.parametrize("content", TORN)
async def test_unreadable_cache_is_rebuilt(tmp_path: Path, content: bytes) -> None:
    write_skill(tmp_path / "skills" / "a")
    async with source(tmp_path):
        pass
    (kept,) = (tmp_path / "state").iterdir()
    kept.write_bytes(content)
    async with source(tmp_path) as again:
        assert [entry["uri"] for entry in entries_of(again)] == ["skill://a/SKILL.md"]


async def test_other_roots_have_another_cache(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name / "a", description=name)
        async with SkillSource([tmp_path / name], refresh_seconds=0, state_folder=tmp_path / "state") as made:
            assert entries_of(made)[0]["frontmatter"]["description"] == name
    assert len(list((tmp_path / "state").iterdir())) == 2
