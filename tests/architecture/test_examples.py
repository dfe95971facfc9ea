"""The configurations that ship with Moongate load as they are, and validate in an editor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.config.json_schemas import build_schema
from gateway.config.jsonc import parse
from gateway.config.load import load_config
from gateway.policy.argument_policy import rule_problem
from tests.architecture.sources import ROOT

FILES = [ROOT / "config" / "gateway.json", *sorted((ROOT / "config" / "examples").glob("*.json"))]
REFERENCE = re.compile(r"\$\{([A-Z_]+)\}")
BUNDLED_SOURCES = {"notes", "units"}


def environment(path: Path) -> dict[str, str]:
    """Values for the variables that the file's first lines ask the reader to set."""
    values = {"GATEWAY": "https://example.com/mcp", "PORT": "8766"}
    names = REFERENCE.findall(path.read_text())
    return {name: next((value for part, value in values.items() if part in name), "set-by-the-test") for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_configuration_loads_with_every_server_on(path: Path) -> None:
    loaded = load_config(path, environment(path))
    assert loaded.disabled == []
    assert [note for note in [*loaded.problems, *loaded.notes] if "gallery" not in note and "inputs" not in note] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_configuration_is_valid_in_an_editor(path: Path) -> None:
    validator: Any = jsonschema_rs.validator_for(build_schema())
    assert [error.message for error in validator.iter_errors(parse(path.read_text()))] == []


@pytest.mark.parametrize("path", [path for path in FILES[1:] if REFERENCE.search(path.read_text())], ids=lambda path: path.stem)
def test_unset_variable_disables_the_entry_and_is_named(path: Path) -> None:
    loaded = load_config(path, {})
    assert loaded.disabled
    for server in loaded.disabled:
        assert REFERENCE.search(path.read_text())
        assert any(name in server.reason for name in REFERENCE.findall(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_argument_rules_of_a_shipped_configuration_apply(path: Path) -> None:
    rules = [
        rule
        for policy in load_config(path, environment(path)).config.policies.values()
        for arguments in policy.arguments.values()
        for rule in arguments.values()
    ]
    assert [problem for rule in rules if (problem := rule_problem(rule))] == []


def test_the_bundled_configuration_names_files_that_exist() -> None:
    config = load_config(FILES[0], environment(FILES[0])).config
    assert set(config.mcp_servers) == BUNDLED_SOURCES
    assert (ROOT / "config" / "servers" / "notes.py").is_file()
    assert all(Path(folder).is_dir() for folder in [*config.expose.agents, *config.expose.skills])
