"""`SkillSource`: resources, prompts, completion, changes, and agreement of all surfaces."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path

import anyio
import pytest

from gateway.errors import NotFound
from gateway.skills.source import INDEX_URI, SkillSource
from gateway.tools.base import Source, UpdatingSource
from tests.skills.on_disk import CTX, call, codes, entries_of, load, read_content, write_skill
from tests.skills.test_tools import TRAVERSALS


def on_use(*roots: Path, strict: bool = False) -> SkillSource:
    """Return a source that looks at the disk at every use and at no other time."""
    return SkillSource(roots, strict=strict, refresh_seconds=0)


def test_new_source_has_read_nothing(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    source: Source = SkillSource([tmp_path])
    assert isinstance(source, UpdatingSource)
    assert source.id == "skill"
    assert entries_of(SkillSource([tmp_path])) == []


@pytest.mark.requirement(109)
async def test_source_without_skills_lists_nothing(tmp_path: Path) -> None:
    async with on_use(tmp_path) as source:
        for kind in ("resources", "templates", "prompts"):
            assert await source.list(kind) == []
        with pytest.raises(NotFound):
            await source.read(INDEX_URI, CTX)


@pytest.mark.requirement(128)
async def test_manifests_are_listed_and_files_have_a_template(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x"})
    write_skill(tmp_path / "sql")
    async with on_use(tmp_path) as source:
        resources = await source.list("resources")
        assert [r["uri"] for r in resources] == ["skill://pdf/SKILL.md", "skill://sql/SKILL.md", INDEX_URI]
        assert resources[0] == {
            "uri": "skill://pdf/SKILL.md",
            "name": "pdf",
            "description": "Does a thing. Use it for things.",
            "mimeType": "text/markdown",
            "size": (tmp_path / "pdf" / "SKILL.md").stat().st_size,
        }
        assert [t["uriTemplate"] for t in await source.list("templates")] == ["skill://{+path}"]


@pytest.mark.parametrize(
    "data",
    [b"a\r\nb\rc\n", b"\xef\xbb\xbfbom", b"", b"no newline", "größe".encode(), b"nul\x00inside", b"form\x0cfeed\x1b[0m"],
)
async def test_text_is_served_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": data})
    async with on_use(tmp_path) as source:
        content = await read_content(source, "skill://pdf/a.md")
    assert content["text"].encode() == data
    assert content["mimeType"] == "text/markdown"


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", "größe".encode("latin-1"), "x".encode("utf-16"), b"\xed\xa0\x80"])
async def test_non_utf8_file_is_served_as_base64(tmp_path: Path, data: bytes) -> None:
    write_skill(tmp_path / "pdf", files={"a.bin": data})
    async with on_use(tmp_path) as source:
        content = await read_content(source, "skill://pdf/a.bin")
    assert base64.b64decode(content["blob"]) == data
    assert content["mimeType"] == "application/octet-stream"


async def test_manifest_is_served_as_stored(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbf---\r\nname: pdf\r\ndescription: d\r\n---\r\nBody\r\n"
    write_skill(tmp_path / "pdf")
    (tmp_path / "pdf" / "SKILL.md").write_bytes(raw)
    async with on_use(tmp_path) as source:
        content = await read_content(source, "skill://pdf/SKILL.md")
        (entry,) = entries_of(source)
    assert content["text"].encode() == raw
    assert entry["resources"][0]["digest"] == "sha256:" + hashlib.sha256(raw).hexdigest()


@pytest.mark.requirement(129)
async def test_digests_match_bytes_on_every_surface(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "text", "b.png": b"\x89PNG\xff", "c/d.py": "x"})
    async with on_use(tmp_path) as source:
        (entry,) = (await source.extension.list_page())["skills"]
        assert entry == (await source.extension.get("skill://pdf/SKILL.md", CTX))["skill"] == entries_of(source)[0]
        for resource in entry["resources"]:
            content = await read_content(source, resource["uri"])
            data = content["text"].encode() if "text" in content else base64.b64decode(content["blob"])
            assert resource["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
            assert resource["size"] == len(data)
            path = resource["uri"].removeprefix("skill://pdf/")
            tool = (await call(source, "read_skill_resource", skill_name="pdf", resource_name=path)).structured
            assert (tool["digest"], tool["uri"]) == (resource["digest"], resource["uri"])
        loaded = await load(source, "pdf")
        assert loaded["digest"] == entry["resources"][0]["digest"]
        assert {f["path"]: f["digest"] for f in loaded["files"]} == {
            r["uri"].removeprefix("skill://pdf/"): r["digest"] for r in entry["resources"][1:]
        }
        (legacy,) = json.loads((await read_content(source, INDEX_URI))["text"])["skills"]
        assert legacy["digest"] == loaded["digest"]


@pytest.mark.requirement(128)
async def test_legacy_index_names_every_skill_for_models(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    write_skill(tmp_path / "hidden", extra="disable-model-invocation: true\n")
    write_skill(tmp_path / "Tools Only", name="Tools Only")
    async with on_use(tmp_path) as source:
        content = await read_content(source, INDEX_URI)
    assert content["mimeType"] == "application/json"
    (entry,) = json.loads(content["text"])["skills"]
    assert (entry["name"], entry["type"], entry["url"]) == ("pdf", "skill-md", "skill://pdf/SKILL.md")
    assert entry["description"] == "Does a thing. Use it for things."


async def test_skill_hidden_from_models_keeps_resource_and_prompt(tmp_path: Path) -> None:
    write_skill(tmp_path / "hidden", extra="disable-model-invocation: true\n")
    async with on_use(tmp_path) as source:
        assert [r["uri"] for r in await source.list("resources")] == ["skill://hidden/SKILL.md", INDEX_URI]
        assert "Step by step" in (await read_content(source, "skill://hidden/SKILL.md"))["text"]
        assert [p["name"] for p in await source.list("prompts")] == ["hidden"]
        assert [e["uri"] for e in entries_of(source)] == ["skill://hidden/SKILL.md"]


async def test_tools_only_skill_has_no_uri(tmp_path: Path) -> None:
    write_skill(tmp_path / "my skill", name="My Skill", files={"a.md": "x"})
    async with on_use(tmp_path) as source:
        assert await source.list("resources") == []
        assert entries_of(source) == []
        assert "uri" not in await load(source, "My Skill")
        assert (await call(source, "read_skill_resource", skill_name="my-skill", resource_name="a.md")).structured["text"] == "x"
        assert [p["name"] for p in await source.list("prompts")] == ["my-skill"]
        with pytest.raises(NotFound):
            await source.read("skill://my-skill/SKILL.md", CTX)


@pytest.mark.requirement(130)
async def test_prompt_equals_text_of_load_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x"})
    async with on_use(tmp_path) as source:
        prompt = (await source.get_prompt("pdf", {}, CTX)).result
        tool = await call(source, "load_skill", skill_name="pdf")
        with pytest.raises(NotFound) as unknown:
            await source.get_prompt("nope", {}, CTX)
    (message,) = prompt["messages"]
    assert message == {"role": "user", "content": {"type": "text", "text": tool.as_text()}}
    assert unknown.value.kind == "prompt"


URI_ATTACKS = [
    *(f"skill://pdf/{name}" for name in TRAVERSALS if not name.startswith("skill://")),
    *(name for name in TRAVERSALS if name.startswith("skill://") and name != "skill://other/a.md"),
    "skill://pdf",
    "skill://pdf/",
    "skill://pdf/references",
    "skill://pdf/SKILL.md/",
    "skill:///pdf/SKILL.md",
    "SKILL://pdf/SKILL.md",
    "skill://PDF/SKILL.md",
    "skill://pdf@evil/SKILL.md",
    "skill://pdf:80/SKILL.md",
    "skill://pdf/skill.md",
    "skill://pdf/SKILL%2Emd",
    "file:///etc/passwd",
    "",
]


@pytest.mark.requirement(108)
@pytest.mark.parametrize("uri", URI_ATTACKS, ids=range(len(URI_ATTACKS)))
@pytest.mark.attack(30)
async def test_only_canonical_uri_can_be_read(tmp_path: Path, uri: str) -> None:
    (tmp_path / "secret.md").write_text("secret")
    write_skill(tmp_path / "pdf", files={"a.md": "x", "references/b.md": "x", ".env": "SECRET=1", ".git/config": "x"})
    write_skill(tmp_path / "other", files={"a.md": "x"})
    async with on_use(tmp_path) as source:
        with pytest.raises(NotFound) as refused:
            await source.read(uri, CTX)
    assert (refused.value.kind, refused.value.name) == ("resource", uri)


@pytest.mark.attack(30)
async def test_file_replaced_by_link_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    skill = write_skill(tmp_path / "root" / "pdf", files={"a.md": "mine"})
    async with SkillSource([tmp_path / "root"], refresh_seconds=3600) as source:
        assert (await read_content(source, "skill://pdf/a.md"))["text"] == "mine"
        (skill / "a.md").unlink()
        (skill / "a.md").symlink_to(tmp_path / "secret")
        with pytest.raises(NotFound):
            await source.read("skill://pdf/a.md", CTX)
        assert entries_of(source) == []
        assert "symlink-escape" in codes(source)["pdf"]


@pytest.mark.attack(30)
async def test_file_replaced_by_hard_link_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    skill = write_skill(tmp_path / "root" / "pdf", files={"a.md": "mine"})
    async with SkillSource([tmp_path / "root"], refresh_seconds=3600) as source:
        assert (await read_content(source, "skill://pdf/a.md"))["text"] == "mine"
        (skill / "a.md").unlink()
        os.link(tmp_path / "secret", skill / "a.md")
        with pytest.raises(NotFound):
            await source.read("skill://pdf/a.md", CTX)
        assert (entries_of(source), "hard-link" in codes(source)["pdf"]) == ([], True)


async def test_file_replaced_by_fifo_does_not_block(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "mine"})
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (skill / "a.md").unlink()
        os.mkfifo(skill / "a.md")
        with anyio.fail_after(20), pytest.raises(NotFound):
            await source.read("skill://pdf/a.md", CTX)


async def test_file_that_grew_over_limit_is_not_served(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "mine"})
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        os.truncate(skill / "a.md", 1 << 40)
        with pytest.raises(NotFound):
            await source.read("skill://pdf/a.md", CTX)
        assert "too-large" in codes(source)["pdf"]


async def test_changed_file_is_indexed_before_it_is_served(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "old"})
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (skill / "a.md").write_text("new")
        assert (await read_content(source, "skill://pdf/a.md"))["text"] == "new"
        digest = "sha256:" + hashlib.sha256(b"new").hexdigest()
        assert entries_of(source)[0]["resources"][1]["digest"] == digest
        write_skill(skill, description="Newer.", body="Newer.\n")
        assert (await load(source, "pdf"))["body"] == "Newer.\n"
        assert entries_of(source)[0]["frontmatter"]["description"] == "Newer."


async def test_removed_file_is_not_found(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "x"})
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (skill / "a.md").unlink()
        with pytest.raises(NotFound):
            await source.read("skill://pdf/a.md", CTX)
        assert [r["uri"] for r in entries_of(source)[0]["resources"]] == ["skill://pdf/SKILL.md"]


async def test_loading_removed_skill_is_an_error_result(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf")
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (skill / "SKILL.md").unlink()
        assert (await call(source, "load_skill", skill_name="pdf")).is_error


async def test_added_file_is_found(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf")
    async with SkillSource([tmp_path], refresh_seconds=3600) as source:
        (skill / "new.md").write_text("new")
        done = await call(source, "read_skill_resource", skill_name="pdf", resource_name="new.md")
        assert done.structured["text"] == "new"


@pytest.mark.requirement(131)
async def test_changes_are_announced_by_kind(tmp_path: Path) -> None:
    async with on_use(tmp_path) as source:
        said: list[str] = []
        source.subscribe(said.append)

        async def heard() -> set[str]:
            said.clear()
            await source.refresh()
            return set(said)

        assert await heard() == set()
        write_skill(tmp_path / "pdf", files={"a.md": "x"})
        assert await heard() == {"tools", "resources", "prompts"}
        assert await heard() == set()
        write_skill(tmp_path / "pdf", description="Another.")
        assert await heard() == {"tools", "resources", "prompts"}
        (tmp_path / "pdf" / "a.md").write_text("y")
        assert await heard() == set()
        (tmp_path / "pdf" / "SKILL.md").unlink()
        assert await heard() == {"tools", "resources", "prompts"}
        assert await source.tools() == []


async def test_unchanged_tools_stay_the_same_objects(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    async with on_use(tmp_path) as source:
        before = await source.tools()
        write_skill(tmp_path / "sql")
        await source.refresh()
        after = await source.tools()
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True]


@pytest.mark.requirement(131)
async def test_change_is_noticed_without_use(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    changed = anyio.Event()
    async with SkillSource([tmp_path], refresh_seconds=0.01) as source:
        source.subscribe(lambda kind: changed.set() if kind == "resources" else None)
        write_skill(tmp_path / "sql")
        with anyio.fail_after(20):
            await changed.wait()
        assert [r["uri"] for r in await source.list("resources")][1] == "skill://sql/SKILL.md"


async def test_source_can_be_entered_again(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf")
    source = SkillSource([tmp_path], refresh_seconds=0.01)
    for _ in range(2):
        async with source:
            assert len(entries_of(source)) == 1


async def test_watched_files_report_changes(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "x", "b.md": "x"})
    updates: list[str] = []
    async with on_use(tmp_path) as source:
        source.subscribe_updates(updates.append)
        await source.watch("skill://pdf/a.md")
        await source.watch("skill://pdf/a.md")
        with pytest.raises(NotFound):
            await source.watch("skill://pdf/none.md")
        (skill / "a.md").write_text("y")
        (skill / "b.md").write_text("y")
        await source.refresh()
        assert updates == ["skill://pdf/a.md"]
        await source.unwatch("skill://pdf/a.md")
        (skill / "a.md").unlink()
        await source.refresh()
        assert updates == ["skill://pdf/a.md"] * 2
        await source.unwatch("skill://pdf/a.md")
        (skill / "a.md").write_text("z")
        await source.refresh()
        assert updates == ["skill://pdf/a.md"] * 2


async def test_completion_offers_skills_then_files(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x", "references/b.md": "x"})
    write_skill(tmp_path / "sql")
    ref = {"type": "ref/resource", "uri": "skill://{+path}"}
    async with on_use(tmp_path) as source:

        async def offered(value: str) -> list[str]:
            return (await source.complete(ref, {"name": "path", "value": value}, None, CTX))["values"]

        assert await offered("") == ["pdf/SKILL.md", "sql/SKILL.md"]
        assert await offered("s") == ["sql/SKILL.md"]
        assert await offered("pdf/") == ["pdf/SKILL.md", "pdf/a.md", "pdf/references/b.md"]
        nothing = await source.complete({"type": "ref/prompt", "name": "pdf"}, {"name": "x", "value": ""}, None, CTX)
        assert nothing == {"values": [], "total": 0, "hasMore": False}


async def test_completion_is_capped(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={f"f{n}": "x" for n in range(150)})
    async with on_use(tmp_path) as source:
        ref = {"type": "ref/resource", "uri": "skill://{+path}"}
        done = await source.complete(ref, {"name": "path", "value": "pdf/"}, None, CTX)
    assert (len(done["values"]), done["total"], done["hasMore"]) == (100, 151, True)


async def test_problems_name_skills_and_roots(tmp_path: Path) -> None:
    write_skill(tmp_path / "clean", extra="version: 1\n")
    write_skill(tmp_path / "warned", extra="metadata: {n: 1}\n")
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / "SKILL.md").write_text("nothing")
    async with on_use(tmp_path, tmp_path / "missing") as source:
        assert codes(source) == {"missing": {"root-missing"}, "refused": {"no-frontmatter"}, "warned": {"metadata-type"}}
        assert [p.verdict for p in source.problems] == ["rejected", "rejected", "accepted_with_warning"]
        report = source.problems[1].to_json()
    assert report == {
        "path": str(tmp_path / "refused"),
        "name": "",
        "verdict": "rejected",
        "listed": False,
        "diagnostics": [{"code": "no-frontmatter", "level": "error", "message": report["diagnostics"][0]["message"], "line": 1}],
    }


async def test_strict_source_serves_only_valid_skills(tmp_path: Path) -> None:
    write_skill(tmp_path / "clean")
    write_skill(tmp_path / "warned", extra="metadata: {n: 1}\n")
    async with on_use(tmp_path, strict=True) as source:
        assert [e["uri"] for e in entries_of(source)] == ["skill://clean/SKILL.md"]
        assert [p.verdict for p in source.problems] == ["rejected"]


async def test_concurrent_uses_share_one_refresh(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "old"})
    async with on_use(tmp_path) as source:
        write_skill(tmp_path / "sql")
        said: list[str] = []
        source.subscribe(said.append)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(source.refresh)
                tasks.start_soon(read_content, source, "skill://pdf/a.md")
        assert sorted(said) == ["prompts", "resources", "tools"]
