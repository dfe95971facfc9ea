"""The bundled skills obey the Agent Skills format, and their scripts work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.skills.index import build_index
from gateway.skills.model import Skill

ROOT = Path(__file__).parents[2] / "skills"
INDEX = build_index([str(ROOT)], strict=True)
SKILLS = [pytest.param(skill, id=skill.id) for skill in INDEX.skills]


def run(script: str, *arguments: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ROOT / script), *arguments]
    return subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True, encoding="utf-8", timeout=30, check=False)


def test_bundled_skills_have_no_diagnostics() -> None:
    assert len(INDEX.skills) >= 3
    assert [(r.name, [d.code for d in r.diagnostics if d.level != "info"]) for r in INDEX.reports if r.verdict != "accepted"] == []
    assert all(skill.is_listed for skill in INDEX.skills)


def test_first_listed_skill_has_folders() -> None:
    assert {path.split("/")[0] for path in INDEX.listed[0].files} >= {"references", "scripts"}


@pytest.mark.parametrize("skill", SKILLS)
def test_bundled_description_names_purpose_and_occasion(skill: Skill) -> None:
    assert "Use it when" in skill.document.description
    assert len(skill.document.description) < 400


@pytest.mark.parametrize("skill", SKILLS)
def test_bundled_skill_mentions_exactly_its_files(skill: Skill) -> None:
    mentioned = set(re.findall(r"(?:references|scripts)/[\w.-]+\.\w+", skill.document.body))
    assert mentioned == set(skill.files) - {"SKILL.md"}


@pytest.mark.parametrize("skill", SKILLS)
def test_bundled_scripts_have_help_texts(skill: Skill, tmp_path: Path) -> None:
    for path in (p for p, f in skill.files.items() if f.is_script):
        done = run(f"{skill.id}/{path}", "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "usage:" in done.stdout


def test_commits_since_last_tag_are_grouped(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=30)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "feat: old")
    git("tag", "v1")
    for subject in ("feat(api)!: drop v1", "fix: crash on empty input", "Add dark mode", "chore: lint", "Whatever"):
        git("commit", "-q", "--allow-empty", "-m", subject)
    script = "changelog-writer/scripts/collect_commits.py"
    result = json.loads(run(script, "--json", cwd=tmp_path).stdout)
    assert result["from"] == "v1"
    assert {section: [c["text"] for c in commits] for section, commits in result["sections"].items()} == {
        "breaking": ["drop v1"],
        "added": ["Add dark mode"],
        "fixed": ["crash on empty input"],
        "unsorted": ["Whatever"],
        "internal": ["lint"],
    }
    assert run(script, "--from", "--output=x", cwd=tmp_path).returncode == 2


def test_minutes_without_owner_or_date_are_reported(tmp_path: Path) -> None:
    script = "meeting-minutes/scripts/check_minutes.py"
    good = "## Decisions\n- Ship it.\n## Actions\n- [ ] **Ann**: write it - by 2026-05-15\n"
    assert run(script, "-", cwd=tmp_path, text=good).returncode == 0
    bad = run(script, "-", cwd=tmp_path, text=good + "- [ ] **Team**: do it - by 2026-05-15\n- [ ] Somebody looks\n")
    assert bad.returncode == 1
    assert [line.split(":")[1] for line in bad.stdout.splitlines()] == ["5", "6", "6"]


def test_long_sentences_outside_code_are_reported(tmp_path: Path) -> None:
    text = f"# In order to\n\nShort. Then {'word ' * 35}end.\n\nWe utilize it.\n\n```\nprior to\n```\n"
    result = json.loads(run("plain-writing/scripts/readability.py", "-", "--json", cwd=tmp_path, text=text).stdout)
    assert [(f["line"], f["kind"]) for f in result["findings"]] == [(3, "long sentence"), (5, "wordy")]
    assert result["longestSentence"] == 37


def test_only_dangerous_sql_is_reported(tmp_path: Path) -> None:
    script = "sql-review/scripts/scan_sql.py"
    bad = "-- DELETE FROM x;\nDELETE\nFROM t;\nSELECT a FROM t WHERE b = NULL;\nCREATE INDEX i ON t (a);\n"
    done = run(script, "-", "--json", cwd=tmp_path, text=bad)
    assert done.returncode == 1
    assert [(f["line"], f["rule"]) for f in json.loads(done.stdout)] == [(2, "no-where"), (4, "null-compare"), (5, "index-locks")]
    good = "UPDATE t SET a = NULL, b = 'DELETE FROM x;' WHERE id = $1;\nSELECT a FROM t WHERE b IS NULL ORDER BY id LIMIT 10;\n"
    assert run(script, "-", cwd=tmp_path, text=good).returncode == 0
    assert run(script, "-", "--json", cwd=tmp_path, text=good).stdout.strip() == "[]"
