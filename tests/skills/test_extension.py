"""Payloads of the skills extension (SEP-2640)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.skills.source import SkillSource
from tests.skills.on_disk import CTX, entries_of, write_skill


def serving(root: Path) -> SkillSource:
    return SkillSource([root], refresh_seconds=0)


async def test_pages_list_every_skill_once_while_skills_change(tmp_path: Path) -> None:
    for n in range(7):
        write_skill(tmp_path / f"s{n}")
    async with serving(tmp_path) as source:
        page = await source.extension.list_page(limit=3)
        seen: list[str] = [e["uri"] for e in page["skills"]]
        (tmp_path / "s1" / "SKILL.md").unlink()
        write_skill(tmp_path / "a-new-one-before")
        write_skill(tmp_path / "s5x")
        while cursor := page.get("nextCursor"):
            page = await source.extension.list_page(cursor, limit=3)
            seen += [e["uri"] for e in page["skills"]]
    assert seen == [f"skill://{name}/SKILL.md" for name in ("s0", "s1", "s2", "s3", "s4", "s5", "s5x", "s6")]


async def test_results_have_ttl_and_cache_scope(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    async with serving(tmp_path) as source:
        results: list[JsonObject] = [
            await source.extension.list_page(),
            await source.extension.get("skill://pdf/SKILL.md", CTX),
            await source.extension.directory("skill://pdf"),
        ]
    for result in results:
        assert result["ttlMs"] > 0
        assert result["cacheScope"] == "private"


async def test_page_without_skills_is_empty(tmp_path: Path) -> None:
    async with serving(tmp_path) as source:
        assert (await source.extension.list_page())["skills"] == []


@pytest.mark.parametrize("cursor", ["!", "ä", "a", "_w"])
async def test_foreign_cursor_is_not_found(tmp_path: Path, cursor: str) -> None:
    write_skill(tmp_path / "pdf")
    async with serving(tmp_path) as source:
        with pytest.raises(NotFound):
            await source.extension.list_page(cursor)


async def test_frontmatter_is_verbatim_json(tmp_path: Path) -> None:
    extra = "date: 2026-01-31\nflag: yes\ntags: [a, {b: 1}]\nnothing:\nmetadata:\n  a: b\n"
    write_skill(tmp_path / "pdf", extra=extra)
    async with serving(tmp_path) as source:
        entry = (await source.extension.get("skill://pdf/SKILL.md", CTX))["skill"]
    assert entry["frontmatter"] == {
        "name": "pdf",
        "description": "Does a thing. Use it for things.",
        "date": "2026-01-31",
        "flag": "yes",
        "tags": ["a", {"b": 1}],
        "nothing": None,
        "metadata": {"a": "b"},
    }


async def test_get_returns_current_state_of_folder(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (tmp_path / "pdf" / "new.md").write_text("x")
        entry = (await source.extension.get("skill://pdf/SKILL.md", CTX))["skill"]
    assert [r["uri"] for r in entry["resources"]] == ["skill://pdf/SKILL.md", "skill://pdf/new.md"]


@pytest.mark.parametrize("uri", ["skill://pdf", "skill://pdf/", "skill://pdf/a.md", "skill://nope/SKILL.md", "SKILL.md", "", "/SKILL.md"])
async def test_get_of_other_uri_is_not_found(tmp_path: Path, uri: str) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x"})
    async with serving(tmp_path) as source:
        with pytest.raises(NotFound) as refused:
            await source.extension.get(uri, CTX)
    assert refused.value.kind == "skill"


async def test_directory_lists_direct_children(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a b/deep/x.py": "x", "a b/y.md": "yy", "z.txt": "z"})
    async with serving(tmp_path) as source:
        top = (await source.extension.directory("skill://pdf"))["resources"]
        inner = (await source.extension.directory("skill://pdf/a%20b"))["resources"]
    assert [(r["uri"], r["name"], r["mimeType"]) for r in top] == [
        ("skill://pdf/SKILL.md", "pdf", "text/markdown"),
        ("skill://pdf/a%20b", "a b", "inode/directory"),
        ("skill://pdf/z.txt", "z.txt", "text/plain"),
    ]
    assert [(r["uri"], r.get("size")) for r in inner] == [("skill://pdf/a%20b/deep", None), ("skill://pdf/a%20b/y.md", 2)]


async def test_large_directory_has_pages(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={f"f{n:03}": "x" for n in range(250)})
    seen: list[str] = []
    async with serving(tmp_path) as source:
        cursor: str | None = None
        while True:
            page = await source.extension.directory("skill://pdf", cursor)
            seen += [r["uri"] for r in page["resources"]]
            cursor = page.get("nextCursor")
            if cursor is None:
                break
    assert len(seen) == len(set(seen)) == 251


@pytest.mark.parametrize(
    "uri",
    ["skill://pdf/", "skill://pdf/a.md", "skill://pdf/a", "skill://pdf/..", "skill://nope", "skill://", "skill:", "", "skill://pdf/sub/../sub"],
)
async def test_unknown_directory_is_not_found(tmp_path: Path, uri: str) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x", "sub/b.md": "x"})
    async with serving(tmp_path) as source:
        assert (await source.extension.directory("skill://pdf/sub"))["resources"]
        with pytest.raises(NotFound) as refused:
            await source.extension.directory(uri)
    assert refused.value.kind == "directory"


async def test_directories_lead_to_every_file(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a/b/c/d.md": "x", "a/e.md": "x", "#odd%/f.md": "x"})
    found: set[str] = set()
    async with serving(tmp_path) as source:
        waiting = ["skill://pdf"]
        while waiting:
            for child in (await source.extension.directory(waiting.pop()))["resources"]:
                if child["mimeType"] == "inode/directory":
                    waiting.append(child["uri"])
                else:
                    found.add(child["uri"])
        assert found == {r["uri"] for r in entries_of(source)[0]["resources"]}
