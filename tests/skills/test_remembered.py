"""The index kept for the next start: a pass over stamps, never an older truth (skills.md 5)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.skills import index as index_module
from gateway.skills.files import read_file
from gateway.skills.models import Stamp
from gateway.skills.source import SkillSource
from tests.skills.on_disk import load, read_content, write_skill

OLD = 1_700_000_000


def aged(root: Path) -> None:
    """Files that were not touched a moment ago: only of these does an equal stamp prove anything."""
    for path in root.rglob("*"):
        os.utime(path, (OLD, OLD))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content is read for the index."""
    seen: list[str] = []

    def watched(root: str, segments: tuple[str, ...], max_bytes: int = index_module.MAX_SKILL_BYTES) -> tuple[bytes, Stamp]:
        seen.append("/".join(segments))
        return read_file(root, segments, max_bytes)

    monkeypatch.setattr(index_module, "read_file", watched)
    monkeypatch.setattr(index_module, "SETTLE_NS", 0)
    return seen


def source(folder: Path) -> SkillSource:
    return SkillSource([folder / "skills"], refresh_seconds=0, state_folder=folder / "state")


async def test_a_restart_reads_no_file_that_did_not_change(tmp_path: Path, reads: list[str]) -> None:
    for name in ("a", "b", "My Odd Name"):
        write_skill(tmp_path / "skills" / name, name=name, extra="metadata: {n: 1}\n", files={"x/y.md": "text", "bin": b"\xff"})
    aged(tmp_path / "skills")
    async with source(tmp_path) as first:
        before = first.entries, [r.to_json() for r in first.problems], await load(first, "a")
    assert len(reads) == 9
    reads.clear()
    async with source(tmp_path) as again:
        assert reads == []
        assert (again.entries, [r.to_json() for r in again.problems], await load(again, "a")) == before


async def test_a_changed_file_is_read_alone(tmp_path: Path, reads: list[str]) -> None:
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
        assert [entry["uri"] for entry in again.entries] == [f"skill://{name}/SKILL.md" for name in "abc"]


async def test_a_skill_that_went_meanwhile_is_gone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / "skills" / name)
    async with source(tmp_path):
        pass
    (tmp_path / "skills" / "a" / "SKILL.md").unlink()
    async with source(tmp_path) as again:
        assert [entry["uri"] for entry in again.entries] == ["skill://b/SKILL.md"]


TORN = [b"", b"{", b"[]", b'{"format": "0"}', b'{"format": 1, "candidates": [[1]]}', b"\xff" * 100, b"[" * 100_000]


@pytest.mark.parametrize("content", TORN)
async def test_an_index_that_cannot_be_read_is_made_anew(tmp_path: Path, content: bytes) -> None:
    write_skill(tmp_path / "skills" / "a")
    async with source(tmp_path):
        pass
    (kept,) = (tmp_path / "state").iterdir()
    kept.write_bytes(content)
    async with source(tmp_path) as again:
        assert [entry["uri"] for entry in again.entries] == ["skill://a/SKILL.md"]


async def test_other_folders_have_an_index_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name / "a", description=name)
        async with SkillSource([tmp_path / name], refresh_seconds=0, state_folder=tmp_path / "state") as made:
            assert made.entries[0]["frontmatter"]["description"] == name
    assert len(list((tmp_path / "state").iterdir())) == 2
