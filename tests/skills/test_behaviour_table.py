"""The behaviour table: each kind of `SKILL.md` is accepted, listed, served by tools only, or refused, and all surfaces agree."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.skills.index import build_index
from gateway.skills.model import MAX_SKILL_BYTES, MAX_SKILL_FILES
from gateway.skills.parser import LARGE_MANIFEST_BYTES, MAX_FRONTMATTER_BYTES
from gateway.skills.source import INDEX_URI, SkillSource
from tests.skills.on_disk import CTX, call, write_skill

LISTED, TOOLS, REFUSED = "listed", "tools only", "refused"


@dataclass(frozen=True)
class Row:
    """A `SKILL.md`, or a change to a valid one, and the expected result."""

    result: str
    code: str = ""
    """Of the warning or error; empty for none."""
    head: str = "name: pdf\ndescription: Reads PDF files.\n"
    body: str = "Body.\n"
    folder: str = "pdf"
    file: str = "SKILL.md"
    raw: bytes | None = None
    then: Callable[[Path], object] | None = None


def sparse(size: int) -> Callable[[Path], object]:
    def make(skill: Path) -> None:
        with (skill / "big.bin").open("wb") as file:
            file.truncate(size)

    return make


def many(skill: Path) -> None:
    for n in range(MAX_SKILL_FILES):
        (skill / f"{n}.md").touch()


def linked(target: str, name: str = "link.md") -> Callable[[Path], object]:
    def make(skill: Path) -> None:
        (skill / "in.md").write_text("x")
        (skill / name).unlink(missing_ok=True)
        (skill / name).symlink_to(target)

    return make


def device(skill: Path) -> None:
    try:
        os.mknod(skill / "null", 0o20666, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(skill / "null")


GOOD = "name: pdf\ndescription: Reads PDF files.\n"
ROWS = {
    "spec-clean": Row(LISTED, head=GOOD + "license: MIT\ncompatibility: any\nmetadata: {a: b}\n"),
    "only unknown keys": Row(LISTED, head=GOOD + "version: 2\ntags: [a, {b: 1}]\nrequires:\n  bins: [x]\n"),
    "metadata not a string map": Row(LISTED, "metadata-type", head=GOOD + "metadata: {n: 1, m: {a: b}}\n"),
    "allowed-tools list": Row(LISTED, "allowed-tools-type", head=GOOD + "allowed-tools: [Read, Bash]\n"),
    "compatibility too long": Row(LISTED, "compatibility-type", head=GOOD + f"compatibility: {'x' * 501}\n"),
    "description too long": Row(LISTED, "description-too-long", head=f"name: pdf\ndescription: {'PDF ' * 300}\n"),
    "SKILL.md huge": Row(LISTED, "large-manifest", body="x" * LARGE_MANIFEST_BYTES),
    "BOM": Row(LISTED, "bom", raw=f"\ufeff---\n{GOOD}---\nBody.\n".encode()),
    "filename case variant": Row(LISTED, "file-name-case", file="Skill.MD"),
    "name is not the directory": Row(LISTED, "name-not-directory", folder="pdf-tools"),
    "illegal name": Row(TOOLS, "name-illegal", head="name: PDF Tools\ndescription: Reads PDF files.\n"),
    "missing name": Row(TOOLS, "name-missing", head="description: Reads PDF files.\n"),
    "YAML salvageable line by line": Row(TOOLS, "yaml-repaired", head="name: pdf\ndescription: Reads PDF files. Use when: asked\n"),
    "control characters": Row(TOOLS, "control-characters", body="PDF \x1b[2J\n"),
    "control characters in the description": Row(TOOLS, "control-characters", head='name: pdf\ndescription: "Reads PDF files.\\x07"\n'),
    "more than 512 files": Row(TOOLS, "too-many-files", then=many),
    "more than 16 MiB": Row(TOOLS, "too-large", then=sparse(MAX_SKILL_BYTES)),
    "no frontmatter": Row(REFUSED, "no-frontmatter", raw=b"Reads PDF files.\n"),
    "unclosed frontmatter": Row(REFUSED, "unclosed-frontmatter", raw=f"---\n{GOOD}".encode()),
    "not a mapping": Row(REFUSED, "frontmatter-not-mapping", head="- PDF\n"),
    "no description": Row(REFUSED, "description-missing", head="name: pdf\n"),
    "aliases": Row(REFUSED, "yaml-alias", head="name: &n pdf\ndescription: *n\n"),
    "an alias bomb": Row(
        REFUSED,
        "yaml-alias",
        head=GOOD
        + "a: &a [x, x]\n"
        + "".join(f"{c}: &{c} [{', '.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefghi", "bcdefghij", strict=True)),
    ),
    "tags": Row(REFUSED, "yaml-tag", head="name: !!python/name:os.system pdf\ndescription: PDF\n"),
    "duplicate keys": Row(REFUSED, "yaml-duplicate-key", head=GOOD + "name: other\n"),
    "nesting without end": Row(REFUSED, "yaml-depth", head=GOOD + f"a: {'[' * 20_000}{']' * 20_000}\n"),
    "not UTF-8": Row(REFUSED, "not-utf8", raw=f"---\n{GOOD}---\n".encode("utf-16")),
    "frontmatter over 64 KiB": Row(REFUSED, "frontmatter-too-large", head=GOOD + f"a: {'x' * MAX_FRONTMATTER_BYTES}\n"),
    "a link inside the skill": Row(LISTED, "symlink-copied", then=linked("in.md")),
    "a link that escapes": Row(REFUSED, "symlink-escape", then=linked("../../secret")),
    "an absolute link": Row(REFUSED, "symlink-escape", then=linked("/etc/hostname")),
    "a dangling link": Row(REFUSED, "symlink-dangling", then=linked("none")),
    "SKILL.md is a link": Row(REFUSED, "symlink-manifest", then=linked("in.md", "SKILL.md")),
    "a FIFO": Row(REFUSED, "special-file", then=lambda skill: os.mkfifo(skill / "pipe")),
    "a device": Row(REFUSED, "special-file", then=device),
    "a case collision": Row(REFUSED, "path-collision", then=lambda skill: [(skill / n).touch() for n in ("a.md", "A.md")]),
    "an NFC collision": Row(REFUSED, "path-collision", then=lambda skill: [(skill / n).touch() for n in ("\u00e9", "e\u0301")]),
    "hooks, model, context": Row(LISTED, head=GOOD + "hooks: {Stop: rm}\nmodel: opus\ncontext: fork\nallowed-tools: Bash(*)\n"),
    "a command to expand": Row(LISTED, body="Now: !`touch /tmp/ran`\n"),
    "numbers of any length": Row(TOOLS, "not-json", head=GOOD + f"a: {'1' * 5000}\n"),
}


def write(root: Path, row: Row) -> Path:
    skill = root / row.folder
    skill.mkdir(parents=True)
    (skill / row.file).write_bytes(row.raw if row.raw is not None else f"---\n{row.head}---\n{row.body}".encode())
    if row.then is not None:
        row.then(skill)
    return skill


@pytest.mark.parametrize("name", ROWS)
async def test_every_table_row_holds_on_every_surface(tmp_path: Path, name: str) -> None:
    row = ROWS[name]
    (tmp_path / "secret").write_text("secret")
    skill = write(tmp_path / "root", row)
    write_skill(tmp_path / "root" / "neighbour")
    before = (skill / row.file).read_bytes()
    async with SkillSource([tmp_path / "root"], refresh_seconds=0) as source:
        report = next(r for r in source.index.reports if Path(r.path) == skill)
        verdict = {REFUSED: "rejected"}.get(row.result, "accepted_with_warning" if row.code else "accepted")
        assert (report.verdict, report.listed) == (verdict, row.result == LISTED)
        said = {d.code for d in report.diagnostics if d.level == ("error" if row.result == REFUSED else "warning")}
        assert said == ({row.code} if row.code else set()) or (row.result == REFUSED and row.code in said)

        uri = "skill://pdf/SKILL.md"
        listed, served = row.result == LISTED, row.result != REFUSED
        assert (uri in {e["uri"] for e in (await source.extension.list_page())["skills"]}) == listed
        assert (uri in {r["uri"] for r in await source.list("resources")}) == listed
        (content,) = (await source.read(INDEX_URI, CTX)).result["contents"]
        assert (uri in {s["url"] for s in json.loads(content["text"])["skills"]}) == listed
        assert ("pdf" in {p["name"] for p in await source.list("prompts")}) == served
        found = (await call(source, "search_skills", query="pdf")).structured["skills"]
        assert [s["name"] for s in found] == (["pdf"] if served else [])
        loaded = await call(source, "load_skill", skill_name="pdf")
        assert (loaded.is_error, "uri" in (loaded.structured or {})) == (not served, listed)
        assert "\x1b" not in loaded.as_text() and "\x07" not in loaded.as_text()
        if listed:
            entry: JsonObject = (await source.extension.get(uri, CTX))["skill"]
            (content,) = (await source.read(uri, CTX)).result["contents"]
            assert content["text"].encode() == before
            assert entry["frontmatter"]["name"] == "pdf"
        else:
            for ask in (source.extension.get(uri, CTX), source.read(uri, CTX), source.extension.directory("skill://pdf")):
                with pytest.raises(NotFound):
                    await ask
        assert (await call(source, "load_skill", skill_name="neighbour")).is_error is False


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.code and row.result != REFUSED])
def test_strict_mode_refuses_every_warning(tmp_path: Path, name: str) -> None:
    write(tmp_path, ROWS[name])
    index = build_index([str(tmp_path)], strict=True)
    assert [(r.verdict, r.listed) for r in index.reports] == [("rejected", False)]
    assert index.skills == ()
