"""Finding, listing and reading untrusted skill folders: links, file types, sizes."""

from __future__ import annotations

import os
import socket
import sysconfig
from pathlib import Path

import pytest

from gateway.skills.folders import MAX_DEPTH, Changed, Problems, find_skills, list_files, read_file
from tests.skills.on_disk import write_skill


def paths(root: Path, *segments: str) -> list[str]:
    return [found.path for found in list_files(str(root), segments).files]


def problems(root: Path, *segments: str) -> set[tuple[str, str]]:
    return {(d.code, d.level) for d in list_files(str(root), segments).problems}


def found(root: Path) -> list[str]:
    said: Problems = []
    return ["/".join(segments) for _, segments in find_skills(str(root), (str(root),), said)]


@pytest.mark.requirement(104)
def test_root_may_be_a_skill(tmp_path: Path) -> None:
    write_skill(tmp_path)
    assert found(tmp_path) == [""]


def test_skills_are_found_in_path_order(tmp_path: Path) -> None:
    write_skill(tmp_path / "b" / "two")
    write_skill(tmp_path / "a")
    write_skill(tmp_path / "a" / "inner")
    write_skill(tmp_path / "1" / "2" / "3" / "4" / "5" / "6" / "7" / "too-deep")
    assert found(tmp_path) == ["a", "b/two"]


def test_dot_folders_and_dependencies_are_not_searched(tmp_path: Path) -> None:
    for name in (".hidden", ".git", "node_modules", "__pycache__", ".venv"):
        write_skill(tmp_path / name / "skill")
    assert found(tmp_path) == []


def test_junk_and_secrets_are_not_listed(tmp_path: Path) -> None:
    junk = [".git/config", "node_modules/x.js", "a/__pycache__/x.pyc", ".venv/x", ".DS_Store", "a/x.pyc", ".env", "a/.env.local"]
    write_skill(tmp_path, files={**dict.fromkeys(junk, "x"), "a/kept.md": "x", ".hidden": "x"})
    assert paths(tmp_path) == [".hidden", "SKILL.md", "a/kept.md"]


def test_unnameable_folder_is_reported(tmp_path: Path) -> None:
    write_skill(tmp_path / "a\nb", name="a")
    write_skill(tmp_path / "good")
    said: Problems = []
    assert [s for _, s in find_skills(str(tmp_path), (str(tmp_path),), said)] == [("good",)]
    assert [d.code for _, d in said] == ["file-name"]


def test_link_to_own_file_is_listed_as_copy(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", files={"a/real.md": "x"})
    (tmp_path / "s" / "link.md").symlink_to("a/real.md")
    assert paths(tmp_path, "s") == ["SKILL.md", "a/real.md", "link.md"]
    assert problems(tmp_path, "s") == {("symlink-copied", "warning")}


def test_link_to_own_folder_is_listed_as_copy(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", files={"a/real.md": "x"})
    (tmp_path / "s" / "b").symlink_to("a")
    listing = list_files(str(tmp_path), ("s",))
    assert [f.path for f in listing.files] == ["SKILL.md", "a/real.md", "b/real.md"]
    assert listing.files[2].segments == ("s", "a", "real.md")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("../../secret", "symlink-escape"),
        ("../other/SKILL.md", "symlink-escape"),
        ("/etc/hostname", "symlink-escape"),
        ("ABSOLUTE-INSIDE", "symlink-escape"),
        (".env", "symlink-escape"),
        ("missing", "symlink-dangling"),
        ("link", "symlink-dangling"),
        (".", "symlink-cycle"),
        ("pipe", "special-file"),
    ],
)
@pytest.mark.attack(30)
def test_link_out_of_the_skill_refuses_it(tmp_path: Path, target: str, code: str) -> None:
    (tmp_path / "secret").write_text("x")
    write_skill(tmp_path / "root" / "other")
    skill = write_skill(tmp_path / "root" / "s", files={".env": "TOKEN=x", "in.md": "x"})
    if target == "pipe":
        os.mkfifo(skill / "pipe")
    (skill / "link").symlink_to(str(skill / "in.md") if target == "ABSOLUTE-INSIDE" else target)
    assert (code, "error") in problems(tmp_path / "root", "s")
    assert "link" not in paths(tmp_path / "root", "s")


def test_linked_manifest_refuses_skill(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "s", files={"real.md": "x"})
    (skill / "SKILL.md").unlink()
    (skill / "SKILL.md").symlink_to("real.md")
    assert found(tmp_path) == ["s"]
    assert ("symlink-manifest", "error") in problems(tmp_path, "s")


def test_multiplying_links_end_at_a_limit(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "s")
    for level in range(14):
        (skill / f"d{level}").mkdir()
        for side in "ab":
            (skill / f"d{level}" / side).symlink_to(f"../d{level + 1}")
    (skill / "d14").mkdir()
    assert ("too-many-files", "warning") in problems(tmp_path, "s")


def test_linked_skill_folder_counts_at_its_target(tmp_path: Path) -> None:
    write_skill(tmp_path / "store" / "s")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "s").symlink_to("../store/s")
    said: Problems = []
    roots = (str(tmp_path / "root"), str(tmp_path / "store"))
    assert list(find_skills(roots[0], roots, said)) == [(roots[1], ("s",))]
    assert said == []


def test_linked_skill_folder_outside_roots_is_refused(tmp_path: Path) -> None:
    write_skill(tmp_path / "store" / "s")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "s").symlink_to("../store/s")
    said: Problems = []
    assert list(find_skills(str(tmp_path / "root"), (str(tmp_path / "root"),), said)) == []
    assert [d.code for _, d in said] == ["link-outside-roots"]


def test_circular_link_is_searched_once(tmp_path: Path) -> None:
    write_skill(tmp_path / "a" / "s")
    (tmp_path / "a" / "loop").symlink_to("..")
    assert found(tmp_path) == ["a/s"]


def test_special_file_refuses_skill(tmp_path: Path) -> None:
    skill = write_skill(tmp_path / "s")
    os.mkfifo(skill / "pipe")
    assert problems(tmp_path, "s") == {("special-file", "error")}
    (skill / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(skill)  # a socket's path is short
        try:
            listener.bind("sock")
        finally:
            os.chdir(here)
        assert problems(tmp_path, "s") == {("special-file", "error")}


def test_fifo_as_manifest_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    os.mkfifo(tmp_path / "s" / "SKILL.md")
    assert found(tmp_path) == ["s"]
    assert problems(tmp_path, "s") == {("special-file", "error")}


@pytest.mark.parametrize(("first", "second"), [("A.md", "a.md"), ("Caf\u00e9", "Cafe\u0301"), ("stra\u00dfe", "STRASSE")])
def test_colliding_names_refuse_skill(tmp_path: Path, first: str, second: str) -> None:
    write_skill(tmp_path / "s", files={first: "1", second: "2"})
    assert problems(tmp_path, "s") == {("path-collision", "error")}


def test_two_spellings_of_manifest_refuse_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", files={"Skill.md": "x"})
    assert problems(tmp_path, "s") == {("path-collision", "error")}


@pytest.mark.attack(30)
@pytest.mark.parametrize("name", ["a.md", "SKILL.md", "deep/b.md"])
def test_hard_link_refuses_skill(tmp_path: Path, name: str) -> None:
    skill = write_skill(tmp_path / "s", files={"a.md": "x", "deep/b.md": "x"})
    os.link(skill / name, tmp_path / "elsewhere")
    assert problems(tmp_path, "s") == {("hard-link", "error")}
    with pytest.raises(Changed):
        read_file(str(tmp_path), ("s", *name.split("/")))
    (tmp_path / "elsewhere").unlink()
    assert problems(tmp_path, "s") == set()
    assert read_file(str(tmp_path), ("s", *name.split("/")))[0]


def test_hard_links_of_installed_packages_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skill = write_skill(tmp_path / "site-packages" / "team" / "skills" / "s", files={"a.md": "x"})
    os.link(skill / "a.md", tmp_path / "cache")
    root = str(skill.parent)
    assert problems(skill.parent, "s") == {("hard-link", "error")}
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site-packages"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert (problems(skill.parent, "s"), read_file(root, ("s", "a.md"))[0]) == (set(), b"x")


@pytest.mark.parametrize("name", ["a\\b.md", "a\nb.md", "a\x1bb.md", "a\udcffb.md"])
def test_unnameable_file_is_left_out(tmp_path: Path, name: str) -> None:
    skill = write_skill(tmp_path / "s")
    Path(os.fsdecode(os.fsencode(str(skill / name)))).write_text("x")
    assert paths(tmp_path, "s") == ["SKILL.md"]
    assert problems(tmp_path, "s") == {("file-name", "warning")}


def test_too_deep_folders_are_left_out(tmp_path: Path) -> None:
    write_skill(tmp_path / "s", files={"/".join(["d"] * MAX_DEPTH) + "/x.md": "x"})
    assert paths(tmp_path, "s") == ["SKILL.md"]
    assert problems(tmp_path, "s") == {("too-deep", "warning")}


@pytest.mark.attack(30)
def test_reading_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.md").write_text("secret")
    skill = write_skill(tmp_path / "root" / "s", files={"a/x.md": "mine"})
    assert read_file(str(tmp_path / "root"), ("s", "a", "x.md"))[0] == b"mine"
    (skill / "a" / "x.md").unlink()
    (skill / "a" / "x.md").symlink_to(tmp_path / "outside" / "x.md")
    with pytest.raises(Changed):
        read_file(str(tmp_path / "root"), ("s", "a", "x.md"))
    (skill / "a" / "x.md").unlink()
    (skill / "a").rmdir()
    (skill / "a").symlink_to(tmp_path / "outside")
    with pytest.raises(Changed):
        read_file(str(tmp_path / "root"), ("s", "a", "x.md"))
    skill.rename(tmp_path / "moved")
    skill.symlink_to(tmp_path / "moved")
    with pytest.raises(Changed):
        read_file(str(tmp_path / "root"), ("s", "SKILL.md"))


def test_reading_fifo_or_folder_fails_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "missing"):
        with pytest.raises(Changed):
            read_file(str(tmp_path), (name,))


def test_too_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Changed):
        read_file(str(tmp_path), ("sparse",))
    (tmp_path / "small").write_bytes(b"12345")
    assert read_file(str(tmp_path), ("small",), 5)[0] == b"12345"
    with pytest.raises(Changed):
        read_file(str(tmp_path), ("small",), 4)
