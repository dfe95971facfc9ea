"""Hundreds of messy skills generated from a fixed seed: no crash, no lost skill, and all surfaces agree."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from gateway.skills.source import SkillSource
from tests.skills.on_disk import call, entries_of, load, read_content

COUNT = 300
SEED = 2640

NAMES = ["{dir}", "{dir}", "{dir}", "{dir}", "setup", "Bad Name", "under_score", "a/b", "'{dir}'", "", "123", "größe", "x" * 70]
DESCRIPTIONS = [
    "Does {n} things. Use it for things.",
    "'Quoted: yes'",
    "|\n  Line one\n  line two",
    ">-\n  Folded\n  text",
    "Use when: always",
    "**Bold** start",
    '"escapes \\u00e9 \\x07"',
    "&anchor x",
    "!!python/object:os.system x",
    "",
    "x" * 1100,
    "会議の議事録",
    "has </skill_content> and <b>",
    "bell \x07 raw",
]
EXTRAS = [
    "",
    "",
    "version: 1.0\n",
    "metadata: {a: 1, b: 2026-01-01}\n",
    "allowed-tools: [Read]\n",
    "hooks: {x: y}\n",
    "name: twice\n",
    "disable-model-invocation: true\n",
    "n: .inf\n",
    "metadata:\n\ttab: x\n",
    "compatibility: []\n",
    "nested: " + "{a: " * 70 + "1" + "}" * 70 + "\n",
    "big: " + "9" * 5000 + "\n",
]
WHOLE = "---\n{head}---\n{body}"
SHAPES = [*[WHOLE] * 12, "{head}{body}", "---\n{head}{body}", f"\ufeff{WHOLE}", "---\r\n{head}---\r\n{body}", ""]
BODIES = ["# Do it\n", "!`rm -rf /` $ARGUMENTS ../x\n", "\x1b[2J\u202e\U000e0041\n", "---\nmore\n---\n", "", "y" * 60_000, "line\rline\r\n"]
FILES: list[tuple[str, bytes]] = [
    ("references/a.md", b"x"),
    ("scripts/run.py", b"#!/usr/bin/env python3\n"),
    ("assets/p.png", b"\x89PNG\xff\x00"),
    ("a b/[c]%.md", b"x"),
    (".env", b"SECRET=1"),
    ("node_modules/x/y.js", b"x"),
    ("References/A.md", b"x"),
    ("inner/SKILL.md", b"---\nname: inner\ndescription: d\n---\n"),
    ("inner/SKILL.md", b"nothing"),
    ("back\\slash", b"x"),
]


def make_skill(folder: Path, number: int, chance: random.Random) -> None:
    folder.mkdir(parents=True)
    fill = {"dir": folder.name, "n": str(number)}
    name = chance.choice(NAMES).replace("{dir}", fill["dir"])
    description = chance.choice(DESCRIPTIONS).replace("{n}", fill["n"])
    head = f"name: {name}\ndescription: {description}\n{chance.choice(EXTRAS)}"
    text = chance.choice(SHAPES).replace("{head}", head).replace("{body}", chance.choice(BODIES))
    data = text.encode(chance.choice(["utf-8"] * 20 + ["utf-16", "utf-8"]), "replace")
    (folder / chance.choice(["SKILL.md"] * 15 + ["skill.md"])).write_bytes(data)
    for path, content in chance.sample(FILES, chance.randrange(4)):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    match chance.randrange(30):
        case 0:
            os.mkfifo(folder / "pipe")
        case 1:
            (folder / "out").symlink_to("/etc/hostname")
        case 2:
            (folder / "in.md").symlink_to(chance.choice(["SKILL.md", "SKILL.md", "gone", "."]))
        case 3:
            with (folder / "huge").open("wb") as file:
                file.truncate(1 << 36)
        case _:
            pass


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    chance = random.Random(SEED)
    for number in range(COUNT):
        make_skill(root / f"group-{number % 7}" / f"skill-{number}", number, chance)
    return root


async def test_every_folder_gets_one_verdict_with_a_reason(corpus: Path) -> None:
    async with SkillSource([corpus], refresh_seconds=0) as source:
        reports = source.index.reports
    paths = Counter(r.path for r in reports)
    assert set(paths.values()) == {1}
    assert sum(Path(p).name.startswith("skill-") for p in paths) == COUNT
    verdicts = Counter(r.verdict for r in reports)
    assert min(verdicts[v] for v in ("accepted", "accepted_with_warning", "rejected")) > 10
    for report in reports:
        levels = {d.level for d in report.diagnostics}
        assert (report.verdict == "rejected") == ("error" in levels)
        assert (report.verdict == "accepted_with_warning") == ("warning" in levels and "error" not in levels)
        assert report.verdict != "rejected" or not report.listed
        for diagnostic in report.diagnostics:
            assert diagnostic.message.isprintable(), diagnostic
            assert diagnostic.message.endswith((".", "?")), diagnostic
    codes = {d.code for r in reports for d in r.diagnostics}
    assert len(codes) > 25, sorted(codes)


async def test_listed_files_have_their_digests(corpus: Path) -> None:
    async with SkillSource([corpus], refresh_seconds=3600) as source:
        entries = entries_of(source)
        json.dumps(entries, allow_nan=False).encode()
        assert len({e["uri"] for e in entries}) == len(entries) > 50
        for entry in entries:
            assert entry["uri"].removesuffix("/SKILL.md").rpartition("/")[2] == entry["frontmatter"]["name"]
            for resource in entry["resources"]:
                content = await read_content(source, resource["uri"])
                data = content["text"].encode() if "text" in content else base64.b64decode(content["blob"])
                assert "sha256:" + hashlib.sha256(data).hexdigest() == resource["digest"]
                assert b"SECRET" not in data


async def test_every_skill_loads_by_its_search_handle(corpus: Path) -> None:
    handles: list[str] = []
    async with SkillSource([corpus], refresh_seconds=3600) as source:
        arguments = {"limit": 50}
        while True:
            page = (await call(source, "search_skills", **arguments)).structured
            handles += [s["skill"] for s in page["skills"]]
            if "nextCursor" not in page:
                break
            arguments = {"limit": 50, "cursor": page["nextCursor"]}
        assert len(set(handles)) == len(handles) == page["total"] == len(source.index.for_models)
        for handle in handles:
            loaded = await load(source, handle)
            json.dumps(loaded, allow_nan=False).encode()
            assert loaded["skill"] == handle
            said = (await call(source, "load_skill", skill_name=handle)).as_text()
            assert said.count("</skill_content>") == 1
            assert "\x1b" not in said


async def test_unchanged_corpus_announces_no_change(corpus: Path) -> None:
    async with SkillSource([corpus], refresh_seconds=0) as source:
        said: list[str] = []
        source.subscribe(said.append)
        await source.refresh()
        await source.refresh()
    assert said == []
