"""The generated schema accepts what the loader accepts and flags what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest

from gateway.config.json_schemas import build_schema
from gateway.config.jsonc import parse
from tests.config.test_load import CASES, write_case


def validator() -> Any:
    return jsonschema_rs.validator_for(build_schema())


@pytest.mark.parametrize("case_file", [c for c in CASES if not c.stem.startswith(("error_", "one_bad"))], ids=lambda path: path.stem)
def test_files_of_hosts_are_valid_in_an_editor(case_file: Path, tmp_path: Path) -> None:
    case = cast("dict[str, Any]", json.loads(case_file.read_text()))
    assert validator().is_valid(parse(write_case(case, tmp_path).read_text()))


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServer": {}},
        {"mcpServers": {"a": {"command": "x", "arg": []}}},
        {"mcpServers": {"a": {"type": "http"}}},
        {"mcpServers": {"a b": {"command": "x"}}},
        {"policies": {"a": {"timeoutSeconds": 0}}},
    ],
)
def test_mistakes_are_flagged_in_an_editor(document: dict[str, Any]) -> None:
    assert not validator().is_valid(document)


def test_every_key_is_described() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        missing: list[str] = []
        for name, part in schema.get("properties", {}).items():
            if "description" not in part and "$ref" not in part:
                missing.append(f"{path}.{name}")
        return missing

    schema = build_schema()
    found = undescribed(schema, "")
    for name, definition in schema["$defs"].items():
        found += undescribed(definition, name)
    assert found == []
