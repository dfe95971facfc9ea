"""Folders of skills beside `expose.skills`: of other hosts, and of Python packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.config.load import load_config
from gateway.errors import ConfigError


def load(folder: Path, skills: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are served, relative to `folder`."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    path = folder / "project" / "gateway.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"expose": {{"skills": ["own"]}}, "skills": {skills}}}')
    (path.parent / "own").mkdir(exist_ok=True)
    return [str(Path(place).relative_to(folder)) for place in load_config(str(path), {}).config.expose.skills]


def test_existing_host_skill_folders_are_served_project_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("home/.claude/skills", "project/.claude/skills", "home/.copilot/skills", "project/.agents/skills"):
        (tmp_path / place).mkdir(parents=True)
    found = load(tmp_path, '{"vendors": ["claude", "copilot", "cursor"]}', monkeypatch)
    assert found == ["project/own", "project/.claude/skills", "home/.claude/skills", "home/.copilot/skills"]
    assert load(tmp_path, "{}", monkeypatch) == ["project/own"]


def test_package_brings_its_folder_of_skills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib" / "with_skills" / "skills").mkdir(parents=True)
    (tmp_path / "lib" / "with_skills" / "__init__.py").write_text("raise RuntimeError('not to be imported')")
    (tmp_path / "lib" / "without_skills").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), *sys.path])
    assert load(tmp_path, '{"packages": ["with_skills"]}', monkeypatch) == ["project/own", "lib/with_skills/skills"]
    for name, said in (("without_skills", "no folder"), ("absent_package", "not installed")):
        with pytest.raises(ConfigError, match=said):
            load(tmp_path, f'{{"packages": ["{name}"]}}', monkeypatch)
