"""`moongate skills`: verdicts for editors and CI, and what skills cost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import run_command
from tests.cli.processes import moongate, write_gateway
from tests.skills.on_disk import write_skill


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and data of `skills check --json`."""
    code = run_command(["skills", "check", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_folder_of_mixed_skills_gives_one_json_entry_each_and_exit_5(tmp_path: Path) -> None:
    write_skill(tmp_path / "clean", extra="homepage: https://example.com\n")
    write_skill(tmp_path / "other-folder", name="warned")
    write_skill(tmp_path / "Loud Name", name="Loud Name")
    write_skill(tmp_path / "broken").joinpath("SKILL.md").write_text("# No frontmatter\n")
    ended = moongate("skills", "check", ".", "--json", cwd=tmp_path)
    assert ended.code == 5
    by_name = {Path(entry["path"]).name: entry for entry in ended.data}
    assert {name: (e["verdict"], e["listed"], e["name"]) for name, e in by_name.items()} == {
        "clean": ("accepted", True, "clean"),
        "other-folder": ("accepted_with_warning", True, "warned"),
        "Loud Name": ("accepted_with_warning", False, "loud-name"),
        "broken": ("rejected", False, ""),
    }
    assert all(set(entry) == {"path", "name", "verdict", "listed", "diagnostics"} for entry in ended.data)
    assert [(d["code"], d["level"], d["line"]) for d in by_name["clean"]["diagnostics"]] == [("unknown-key", "info", 4)]
    assert [(d["code"], d["level"], d["line"]) for d in by_name["broken"]["diagnostics"]] == [("no-frontmatter", "error", 1)]
    assert ended.error["code"] == "skills-rejected"


def test_skills_without_a_finding_end_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(tmp_path / "a")
    write_skill(tmp_path / "b", extra="metadata: {n: 1}\n")
    assert check(capsys, str(tmp_path))[0] == 0


def test_strict_rejects_what_has_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(tmp_path / "a")
    write_skill(tmp_path / "b", extra="metadata: {n: 1}\n")
    code, data = check(capsys, str(tmp_path), "--strict")
    assert (code, [(entry["verdict"], entry["listed"]) for entry in data]) == (5, [("accepted", True), ("rejected", False)])


@pytest.mark.parametrize("named", ["pdf", "pdf/SKILL.md", "."])
def test_path_may_be_a_folder_of_skills_a_skill_or_its_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    write_skill(tmp_path / "pdf")
    monkeypatch.chdir(tmp_path)
    code, data = check(capsys, named)
    assert (code, [entry["path"] for entry in data]) == (0, ["pdf" if named != "." else "./pdf"])


@pytest.mark.parametrize(("named", "expected"), [("nowhere", "root-missing"), ("empty", "no-skill")])
def test_path_without_any_skill_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, expected: str
) -> None:
    (tmp_path / "empty").mkdir()
    code, data = check(capsys, str(tmp_path / named))
    assert (code, [d["code"] for entry in data for d in entry["diagnostics"]]) == (5, [expected])


def test_skill_linked_from_outside_is_rejected_under_its_own_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(tmp_path / "elsewhere" / "pdf")
    write_skill(tmp_path / "skills" / "fine")
    (tmp_path / "skills" / "pdf").symlink_to(tmp_path / "elsewhere" / "pdf")
    code, data = check(capsys, str(tmp_path / "skills"))
    assert (code, {Path(e["path"]).name: e["verdict"] for e in data}) == (5, {"fine": "accepted", "pdf": "rejected"})
    assert check(capsys, str(tmp_path / "skills"), str(tmp_path / "elsewhere"))[0] == 0


@pytest.mark.attack(30)
def test_check_and_doctor_name_hard_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret").write_text("secret")
    skill = write_skill(tmp_path / "skills" / "pdf")
    os.link(tmp_path / "secret", skill / "a.md")
    code, (entry,) = check(capsys, str(tmp_path / "skills"))
    assert (code, entry["verdict"], [d["code"] for d in entry["diagnostics"]]) == (5, "rejected", ["hard-link"])
    assert "'a.md'" in entry["diagnostics"][0]["message"]
    write_gateway(tmp_path, expose={"skills": ["skills"]})
    checks = moongate("doctor", "--json", cwd=tmp_path).data["checks"]
    assert [(c["status"], "hard-link: 'a.md'" in c["text"]) for c in checks if c["subject"].startswith("skill ")] == [("fail", True)]


def test_lines_for_people_name_file_line_and_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_skill(tmp_path / "a", description="Use it: now")
    write_skill(tmp_path / "b", extra="homepage: x\n")
    assert run_command(["skills", "check", str(tmp_path)]) == 0
    seen = capsys.readouterr()
    (line,) = seen.out.splitlines()
    assert line.startswith(f"{tmp_path}/a/SKILL.md:3: warning: Not valid YAML (a `: ` inside a value")
    assert line.endswith("[yaml-repaired]")
    assert seen.err.splitlines() == ["1 accepted, 1 with warnings, 0 rejected; 1 of them for tools only."]


def test_listed_skills_show_their_context_size(tmp_path: Path) -> None:
    folders = [
        write_skill(tmp_path / "skills" / "Long One", name="Long One", body="b" * 4000),
        write_skill(tmp_path / "skills" / "short", description="d" * 35, body="b" * 40),
    ]
    long, short = (-(-len((folder / "SKILL.md").read_text()) // 4) for folder in folders)  # 4 characters a token
    write_gateway(tmp_path, expose={"skills": ["skills"]})
    data = moongate("skills", "list", "--tokens", "--json", cwd=tmp_path).data
    assert [(s["name"], s["listed"], s["tokens"]) for s in data["skills"]][1] == ("short", True, {"advertised": 10, "loaded": short})
    assert (data["skills"][0]["name"], data["skills"][0]["uri"], data["skills"][0]["tokens"]["loaded"]) == ("long-one", None, long)
    assert data["total"]["loaded"] == long + short
