"""`FileSkillsSource`: its strict rules, and paths that lead out of a skill."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gateway import FileSkill, FileSkillScript, FileSkillsSource, Skill
from tests.skills.on_disk import write_skill


async def found(*roots: Path, **options: Any) -> dict[str, Skill]:
    return {skill.frontmatter.name: skill for skill in await FileSkillsSource(list(roots), **options).get_skills()}


async def offers(skill: Skill, *names: str) -> list[str]:
    """Return the names that are resources, and with a leading `!` those that are scripts."""
    resources = [name for name in names if await skill.get_resource(name) is not None]
    return resources + [f"!{name}" for name in names if await skill.get_script(name) is not None]


@pytest.mark.requirement(101)
@pytest.mark.parametrize(
    ("document", "description"),
    [
        ("\ufeff---\nname: s\ndescription: with a mark\n---\nbody", "with a mark"),
        ("---\r\nname: s\r\ndescription: carriage returns\r\n---\r\nbody", "carriage returns"),
        ("---\nname: 's'\ndescription: \"double: quoted\"\n---\nbody", "double: quoted"),
        ("---\nname: s\ndescription: >-\n  folded\n  text\n---\nbody", "folded text"),
        ("---\nname: s\ndescription: |-\n  two\n  lines\n---\nbody", "two\nlines"),
        ("---\nname: s\ndescription: plain\n  goes on\nunknown: [1]\n---\nbody", "plain goes on"),
    ],
)
async def test_every_yaml_style_of_frontmatter_is_read(tmp_path: Path, document: str, description: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "SKILL.md").write_bytes(document.encode())
    assert (await found(tmp_path))["s"].frontmatter.description == description


@pytest.mark.requirement(101)
@pytest.mark.parametrize(
    "document",
    [
        "no frontmatter",
        "---\nname: s\ndescription: never closed",
        "---\nname: [s\ndescription: x\n---\n",
        "---\nName: s\ndescription: x\n---\n",
        "---\nname: s\nDESCRIPTION: x\n---\n",
        "---\nname: s\nname: s\ndescription: x\n---\n",
        "---\nname: s\n---\n",
        "---\nname: s\ndescription: [x]\n---\n",
        "---\n- name\n---\n",
        "---\nname: S\ndescription: x\n---\n",
    ],
)
async def test_broken_skill_is_logged_and_others_load(
    tmp_path: Path, document: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "SKILL.md").write_text(document)
    write_skill(tmp_path / "fine")
    assert set(await found(tmp_path)) == {"fine"}
    assert any(record.levelno == logging.ERROR and "s/SKILL.md" in record.getMessage() for record in caplog.records)


@pytest.mark.requirement(101)
async def test_non_utf8_skill_is_left_out(tmp_path: Path) -> None:
    write_skill(tmp_path / "s").joinpath("SKILL.md").write_bytes("---\nname: s\ndescription: ü\n---\n".encode("latin-1"))
    assert await found(tmp_path) == {}


@pytest.mark.requirement(102)
async def test_invalid_metadata_entry_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path / "s", extra='metadata:\n  owner: us\n  n: 1\n  list: [a]\n  map: {a: b}\n')
    assert (await found(tmp_path))["s"].frontmatter.metadata == {"owner": "us", "n": "1"}
    assert {name for name in ("list", "map") if f"key='{name}'" in caplog.text} == {"list", "map"}


@pytest.mark.requirement(103, "SK7")
async def test_folder_with_other_name_is_left_out(tmp_path: Path) -> None:
    write_skill(tmp_path / "folder", name="other")
    assert await found(tmp_path) == {}


@pytest.mark.requirement(104, "SK7")
async def test_root_is_searched_two_levels_deep(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "one")
    write_skill(tmp_path / "a" / "group" / "two")
    write_skill(tmp_path / "a" / "group" / "deep" / "three")
    write_skill(tmp_path / "a" / "one" / "nested")
    write_skill(tmp_path / "itself")
    assert set(await found(tmp_path / "a", tmp_path / "itself")) == {"one", "two", "itself"}


@pytest.mark.requirement(105)
async def test_first_skill_of_a_name_wins_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_skill(tmp_path / "a" / "s", description="first")
    write_skill(tmp_path / "b" / "s", description="second")
    assert (await found(tmp_path / "a", tmp_path / "b"))["s"].frontmatter.description == "first"
    assert "second skill of the same name left out" in caplog.text


NAMES: tuple[str, ...] = ("a.md", "b.TXT", "c.bin", "sub/d.json", "sub/deep/e.md", "scripts/f.py", "sub/SKILL.md", ".env.md")
FILES: dict[str, str | bytes] = dict.fromkeys(NAMES, "x")


@pytest.mark.requirement(106, "SK8")
async def test_files_are_offered_by_extension_two_levels_deep(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", files=FILES)
    skill = (await found(tmp_path))["s"]
    assert await offers(skill, *FILES, "SKILL.md") == ["a.md", "b.TXT", "sub/d.json", "!scripts/f.py"]
    assert await offers(skill, "SUB/D.json", "Scripts/F.PY") == ["SUB/D.json", "!Scripts/F.PY"]


def is_first(skill: str, path: str) -> bool:
    return (skill, path) == ("s", "a.md")


@pytest.mark.requirement(106, "SK8")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"resource_extensions": list[str]()}, ["!scripts/f.py"]),
        ({"script_extensions": list[str](), "resource_extensions": (".bin",)}, ["c.bin"]),
        ({"search_depth": 1}, ["a.md", "b.TXT"]),
        ({"search_depth": 3, "resource_extensions": (".MD",), "script_extensions": list[str]()}, ["a.md", "sub/deep/e.md"]),
        ({"resource_filter": is_first, "script_filter": is_first}, ["a.md"]),
        ({"resource_directories": ["sub/deep", "../x", "/etc"], "script_directories": ["."]}, ["sub/deep/e.md"]),
    ],
)
async def test_offered_files_are_configurable(tmp_path: Path, options: dict[str, Any], expected: list[str]) -> None:
    write_skill(tmp_path / "s", files=FILES)
    assert await offers((await found(tmp_path, **options))["s"], *FILES) == expected


@pytest.mark.requirement(106)
@pytest.mark.parametrize("options", [{"search_depth": 0}, {"resource_directories": [" "]}])
def test_invalid_setting_is_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"search_depth|blank"):
        FileSkillsSource(tmp_path, **options)


@pytest.mark.requirement(107, "SK9")
async def test_links_are_not_offered(tmp_path: Path) -> None:
    outside = write_skill(tmp_path / "outside" / "linked", files={"secret.md": "s"})
    root = tmp_path / "root"
    write_skill(root / "s", files={"real.md": "r"})
    (root / "s" / "file.md").symlink_to(outside / "secret.md")
    (root / "s" / "own.md").symlink_to("real.md")
    (root / "s" / "sub").symlink_to(outside)
    (root / "linked").symlink_to(outside)
    (root / "manifest").mkdir()
    (root / "manifest" / "SKILL.md").symlink_to(outside / "SKILL.md")
    skills = await found(root)
    assert set(skills) == {"s"}
    assert await offers(skills["s"], "real.md", "file.md", "own.md", "sub/secret.md") == ["real.md"]


@pytest.mark.requirement(107, "SK9")
@pytest.mark.parametrize("swap", ["file", "folder"])
async def test_file_replaced_by_link_is_refused(tmp_path: Path, swap: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.md").write_text("secret")
    (outside / "b.py").write_text("secret")
    ran: list[str] = []

    def runner(skill: FileSkill, script: FileSkillScript, args: object = None) -> None:
        ran.append(script.name)

    write_skill(tmp_path / "s", files={"sub/a.md": "mine", "sub/b.py": "mine"})
    skill = (await found(tmp_path, script_runner=runner))["s"]
    resource, script = await skill.get_resource("sub/a.md"), await skill.get_script("sub/b.py")
    assert resource is not None and script is not None
    assert await resource.read() == "mine"
    for name in ("a.md", "b.py"):
        (tmp_path / "s" / "sub" / name).unlink()
    if swap == "folder":
        (tmp_path / "s" / "sub").rmdir()
        (tmp_path / "s" / "sub").symlink_to(outside)
    else:
        (tmp_path / "s" / "sub" / "a.md").symlink_to(outside / "a.md")
        (tmp_path / "s" / "sub" / "b.py").symlink_to(outside / "b.py")
    with pytest.raises(ValueError, match="link"):
        await resource.read()
    with pytest.raises(ValueError, match="link"):
        await script.run(skill)
    assert ran == []


@pytest.mark.requirement(107, "SK9")
@pytest.mark.parametrize(("root", "runs"), [(".", True), ("./s/", True), ("s/..", True), ("other", False), ("s/run.py", False)])
async def test_script_runs_only_below_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, runs: bool) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_skill(tmp_path / "s", files={"run.py": "print()"})
    script = FileSkillScript(name="run.py", full_path=str(folder / "run.py"), runner=lambda skill, script, args=None: "ran", root=root)
    skill = (await found(tmp_path))["s"]
    if runs:
        assert await script.run(skill) == "ran"
    else:
        with pytest.raises(ValueError, match="outside the folder"):
            await script.run(skill)


@pytest.mark.requirement(108, "SK9")
@pytest.mark.parametrize(
    "name", ["../x.md", "..\\x.md", "%2e%2e/x.md", "%252e%252e/x.md", "/etc/passwd", "sub/../../x.md", "./a.md/../../x.md"]
)
async def test_no_name_leads_out_of_the_skill(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.md").write_text("secret")
    write_skill(tmp_path / "s", files={"a.md": "a"})
    assert await offers((await found(tmp_path))["s"], name) == []


@pytest.mark.requirement(111, 112)
async def test_file_skill_loads_whole_file_then_lists(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", body="Do it.\n", files={"a&b.md": "a", "run.py": "r"})
    write_skill(tmp_path / "bare", body="Do it.")
    skills = await found(tmp_path)
    whole = (tmp_path / "s" / "SKILL.md").read_text()
    assert await skills["s"].get_content() == (
        f"{whole}\n\n<available_resources>\n"
        '  <resource name="a&amp;b.md"/>\n'
        "</available_resources>\n\n<available_scripts>\n"
        '  <script name="run.py">\n    <parameters_schema>{"type": "array", "items": {"type": "string"}}</parameters_schema>\n  </script>\n'
        "</available_scripts>"
    )
    assert (await skills["bare"].get_content()).endswith("Do it.\n\n<available_resources />\n\n<available_scripts />")
    assert isinstance(skills["s"], FileSkill) and skills["s"].path == str(tmp_path / "s")
