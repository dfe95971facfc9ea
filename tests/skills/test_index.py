"""`SkillIndex`: names, limits, nested skills, strict mode, and rebuilding."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gateway.skills.index import SkillIndex, build_index, file_uri
from gateway.skills.model import MAX_SKILL_BYTES, MAX_SKILL_FILES
from tests.skills.on_disk import write_skill


def build(*roots: Path, strict: bool = False, previous: SkillIndex | None = None) -> SkillIndex:
    return build_index([str(root) for root in roots], strict=strict, previous=previous)


def verdicts(index: SkillIndex) -> dict[str, tuple[str, bool, set[str]]]:
    return {
        Path(r.path).name: (r.verdict, r.listed, {d.code for d in r.diagnostics if d.level != "info"}) for r in index.reports
    }


def uris(index: SkillIndex) -> list[str | None]:
    return [skill.uri for skill in index.listed]


def test_valid_skill_is_listed_with_digests_and_sizes(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", extra="license: MIT\n", files={"references/a b.md": "x", "scripts/run.py": "y"})
    index = build(tmp_path)
    assert verdicts(index) == {"pdf": ("accepted", True, set())}
    (skill,) = index.listed
    assert skill.entry["frontmatter"] == {"name": "pdf", "description": "Does a thing. Use it for things.", "license": "MIT"}
    assert skill.entry["resources"] == [
        {
            "uri": uri,
            "digest": "sha256:" + hashlib.sha256((tmp_path / "pdf" / path).read_bytes()).hexdigest(),
            "size": (tmp_path / "pdf" / path).stat().st_size,
        }
        for uri, path in [
            ("skill://pdf/SKILL.md", "SKILL.md"),
            ("skill://pdf/references/a%20b.md", "references/a b.md"),
            ("skill://pdf/scripts/run.py", "scripts/run.py"),
        ]
    ]


def test_uris_end_in_the_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "My PDF Tools", name="pdf")
    index = build(tmp_path)
    assert uris(index) == ["skill://pdf/SKILL.md"]
    assert verdicts(index)["My PDF Tools"] == ("accepted_with_warning", True, {"name-not-directory"})


def test_illegal_name_is_served_by_tools_under_folder_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "My PDF Tools!", name="PDF Tools")
    index = build(tmp_path)
    assert uris(index) == []
    assert [s.id for s in index.skills] == ["my-pdf-tools"]
    assert verdicts(index)["My PDF Tools!"] == ("accepted_with_warning", False, {"name-illegal"})
    assert index.by_file == {}


def test_repaired_yaml_is_for_tools_only(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", description="Use when: always")
    index = build(tmp_path)
    assert verdicts(index)["pdf"] == ("accepted_with_warning", False, {"yaml-repaired"})


def test_too_many_files_are_for_tools_only(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={f"f{n:03}": "x" for n in range(MAX_SKILL_FILES)})
    index = build(tmp_path)
    assert verdicts(index)["pdf"] == ("accepted_with_warning", False, {"too-many-files"})
    assert len(index.skills[0].files) == MAX_SKILL_FILES
    assert "SKILL.md" in index.skills[0].files


def test_maximum_number_of_files_is_listed(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={f"f{n:03}": "x" for n in range(MAX_SKILL_FILES - 1)})
    assert verdicts(build(tmp_path))["pdf"] == ("accepted", True, set())


def test_too_many_bytes_are_for_tools_only(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"small.md": "x"})
    with (skill / "huge.bin").open("wb") as file:
        file.truncate(1 << 40)
    index = build(tmp_path)
    assert verdicts(index)["pdf"] == ("accepted_with_warning", False, {"too-large"})
    assert set(index.skills[0].files) == {"SKILL.md", "small.md"}


def test_too_large_manifest_is_refused(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf")
    os.truncate(skill / "SKILL.md", MAX_SKILL_BYTES + 1)
    verdict, listed, found = verdicts(build(tmp_path))["pdf"]
    assert (verdict, listed) == ("rejected", False)
    assert "manifest-unreadable" in found


@pytest.mark.parametrize("kind", ["link", "fifo", "collision"])
def test_folder_with_traps_is_refused(tmp_path: Path, kind: str) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "x"})
    match kind:
        case "link":
            (skill / "out").symlink_to("/etc")
        case "fifo":
            os.mkfifo(skill / "pipe")
        case _:
            (skill / "A.md").write_text("x")
    index = build(tmp_path)
    assert index.skills == ()
    assert verdicts(index)["pdf"][0] == "rejected"


def test_broken_skill_does_not_hide_others(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_bytes(b"\xff\xfe nothing")
    index = build(tmp_path)
    assert uris(index) == ["skill://good/SKILL.md"]
    assert verdicts(index)["bad"] == ("rejected", False, {"not-utf8"})


@pytest.mark.requirement(105)
def test_second_skill_of_a_name_gets_a_prefix(tmp_path: Path) -> None:
    write_skill(tmp_path / "b" / "setup")
    write_skill(tmp_path / "b" / "setup-two", name="setup")
    write_skill(tmp_path / "a" / "setup")
    index = build(tmp_path / "b", tmp_path / "a")
    assert uris(index) == ["skill://a/setup/SKILL.md", "skill://setup/SKILL.md", "skill://setup-two/setup/SKILL.md"]
    assert index.by_root["skill://setup"].origin == "b/setup"
    assert "name-taken" in {d.code for d in index.by_root["skill://a/setup"].diagnostics}


def test_prefix_is_never_a_skill_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "1" / "team" / "pdf")
    write_skill(tmp_path / "2" / "team" / "pdf")
    write_skill(tmp_path / "2" / "other", name="team", files={"pdf/SKILL.md": "mine"})
    index = build(tmp_path / "1", tmp_path / "2")
    assert "skill://team-2/pdf/SKILL.md" in uris(index)
    assert len(set(uris(index))) == len(index.listed) == 3


def test_folder_under_two_roots_is_one_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "b" / "pdf")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "pdf").symlink_to("../a/b/pdf")
    index = build(tmp_path / "links", tmp_path / "a" / "b", tmp_path / "a")
    assert uris(index) == ["skill://pdf/SKILL.md"]
    assert index.skills[0].diagnostics == ()


def test_valid_nested_skill_has_its_own_entry(tmp_path: Path) -> None:
    write_skill(tmp_path / "outer", files={"skills/inner/notes.md": "x"})
    write_skill(tmp_path / "outer" / "skills" / "inner")
    index = build(tmp_path)
    assert uris(index) == ["skill://inner/SKILL.md", "skill://outer/SKILL.md"]
    own, inside = index.by_file["skill://inner/SKILL.md"][1], index.by_file["skill://outer/skills/inner/SKILL.md"][1]
    assert own.digest == inside.digest


@pytest.mark.parametrize("document", ["no frontmatter", "---\nname: Not Legal\ndescription: d\n---\n"])
def test_invalid_nested_skill_is_only_a_file(tmp_path: Path, document: str) -> None:
    write_skill(tmp_path / "outer", files={"inner/SKILL.md": document})
    index = build(tmp_path)
    assert [s.id for s in index.skills] == ["outer"]
    assert verdicts(index) == {"outer": ("accepted", True, set())}
    assert "skill://outer/inner/SKILL.md" in index.by_file


def test_strict_mode_refuses_warnings(tmp_path: Path) -> None:
    write_skill(tmp_path / "clean", extra="version: 1\n")
    write_skill(tmp_path / "warned", extra="metadata: {n: 1}\n")
    write_skill(tmp_path / "zzz", name="clean")
    assert [s.id for s in build(tmp_path).skills] == ["clean", "warned", "zzz/clean"]
    index = build(tmp_path, strict=True)
    assert [s.id for s in index.skills] == ["clean"]
    assert verdicts(index)["warned"] == ("rejected", False, {"metadata-type"})


def test_strict_mode_refuses_second_skill_of_a_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "pdf")
    write_skill(tmp_path / "b" / "pdf")
    index = build(tmp_path, strict=True)
    assert [(r.verdict, r.listed) for r in index.reports] == [("accepted", True), ("rejected", False)]
    assert [d.code for d in index.reports[1].diagnostics] == ["name-taken"]


def test_misspelled_manifest_is_served_as_skill_md(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf")
    (skill / "SKILL.md").rename(skill / "skill.md")
    index = build(tmp_path)
    assert uris(index) == ["skill://pdf/SKILL.md"]
    assert verdicts(index)["pdf"] == ("accepted_with_warning", True, {"file-name-case"})


def test_missing_root_is_reported_by_configured_path(tmp_path: Path) -> None:
    index = build(tmp_path / "nowhere")
    (report,) = index.trouble
    assert (report.path, report.diagnostics[0].code) == (str(tmp_path / "nowhere"), "root-missing")


def test_unchanged_folders_return_the_same_index(tmp_path: Path) -> None:
    write_skill(tmp_path / "pdf", files={"a.md": "x"})
    first = build(tmp_path)
    assert build(tmp_path, previous=first) is first


def test_change_of_equal_size_within_a_clock_tick_is_seen(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "pdf", files={"a.md": "one"})
    status = (skill / "a.md").stat()
    first = build(tmp_path)
    (skill / "a.md").write_text("two")
    os.utime(skill / "a.md", ns=(status.st_atime_ns, status.st_mtime_ns))
    second = build(tmp_path, previous=first)
    assert second.skills[0].files["a.md"].digest == "sha256:" + hashlib.sha256(b"two").hexdigest()


def test_rebuild_reads_only_changed_files(tmp_path: Path) -> None:
    write_skill(tmp_path / "a")
    write_skill(tmp_path / "b")
    first = build(tmp_path)
    write_skill(tmp_path / "b", description="New.")
    second = build(tmp_path, previous=first)
    assert second.named("a")[0].document is first.named("a")[0].document
    assert second.named("b")[0].document.description == "New."


def test_rebuild_of_one_skill_keeps_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_skill(tmp_path / name)
    first = build(tmp_path)
    for name in ("a", "b"):
        write_skill(tmp_path / name, description="New.")
    second = build_index([str(tmp_path)], previous=first, only=frozenset({first.named("a")[0].key}))
    assert [s.document.description for s in second.skills] == ["New.", "Does a thing. Use it for things."]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/[slug].md", "skill://s/a%20b/%5Bslug%5D.md"),
        ("100%.md", "skill://s/100%25.md"),
        ("what?#.md", "skill://s/what%3F%23.md"),
        ("größe.md", "skill://s/gr%C3%B6%C3%9Fe.md"),
        ("a+b@c:(d).md", "skill://s/a+b@c:(d).md"),
    ],
)
def test_uris_have_one_quoting(path: str, uri: str) -> None:
    assert file_uri("skill://s", path) == uri
