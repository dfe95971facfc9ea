"""`load_config`: every case file, and what needs more than one file to show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.config.load import load_config
from gateway.config.paths import bundled
from gateway.errors import ConfigError

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


def write_case(case: dict[str, Any], folder: Path) -> Path:
    file = folder / "gateway.json"
    source = case["file"]
    file.write_text("\n".join(cast("list[str]", source)) if isinstance(source, list) else json.dumps(source))
    return file


@pytest.mark.parametrize("case_file", CASES, ids=lambda path: path.stem)
def test_case_file_loads_with_the_stated_outcome(case_file: Path, tmp_path: Path) -> None:
    case = cast("dict[str, Any]", json.loads(case_file.read_text()))
    file = write_case(case, tmp_path)
    environ = case.get("environ", {})

    def seen(text: str) -> str:
        return text.replace(str(file), "<file>").replace(str(tmp_path), "<base>")

    if "error" in case:
        with pytest.raises(ConfigError) as caught:
            load_config(file, environ)
        assert seen(str(caught.value)) == case["error"]
        assert caught.value.path == case.get("path", caught.value.path)
        return
    loaded = load_config(file, environ)
    servers = {name: json.loads(seen(server.model_dump_json())) for name, server in loaded.config.mcp_servers.items()}
    assert servers == case["servers"]
    disabled = {d.name: f"{d.json_path}: {d.reason}" for d in loaded.disabled}
    assert disabled == case.get("disabled", {})
    assert sorted(map(seen, [*loaded.problems, *loaded.notes])) == sorted(case.get("notes", []))
    assert sorted(loaded.secrets) == sorted(case.get("secrets", []))
    filters = {name: p.tools.model_dump() for name, p in loaded.config.policies.items() if p.tools.allow or p.tools.deny}
    assert filters == case.get("filters", {})


def test_the_file_is_looked_for_in_the_documented_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named: dict[str, Path] = {}
    for name in ("explicit.json", "variable.json", "gateway.json", "config/gateway.json"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"server": {"name": name}}))
        named[name] = file
    environ = {"MOONGATE_CONFIG": "variable.json"}
    assert load_config("explicit.json", environ).config.server.name == "explicit.json"
    assert load_config(None, environ).config.server.name == "variable.json"
    assert load_config(None, {}).config.server.name == "gateway.json"
    named["gateway.json"].unlink()
    assert load_config(None, {}).config.server.name == "config/gateway.json"
    named["config/gateway.json"].unlink()
    assert load_config(None, {}).path in (None, bundled("config") / "gateway.json")


def test_missing_file_is_an_error_that_names_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'nowhere.json' \(from --config\) does not exist"):
        load_config("nowhere.json", {})
    with pytest.raises(ConfigError, match=r"from \$MOONGATE_CONFIG\) is a folder"):
        load_config(None, {"MOONGATE_CONFIG": str(tmp_path)})


def test_bytes_that_are_not_utf8_are_an_error_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_bytes(b'{"server": {"name": "\xff"}}')
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 21\)"):
        load_config(file, {})


def test_relative_paths_start_from_the_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "agents").mkdir(parents=True)
    file = project / "gateway.json"
    file.write_text(
        json.dumps(
            {
                "mcpServers": {"a": {"command": "x", "cwd": "agents"}},
                "expose": {"agents": ["agents"]},
                "storage": {"dir": "state"},
            }
        )
    )
    monkeypatch.chdir(tmp_path)
    loaded = load_config(Path("project/gateway.json"), {})
    assert loaded.config.expose.agents == [str(project / "agents")]
    assert loaded.config.storage.dir == str(project / "state")
    assert loaded.config.mcp_servers["a"].model_dump()["cwd"] == str(project / "agents")


def test_referenced_file_gives_its_text_and_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / "token.txt").write_text("from-a-file\n")
    file = tmp_path / "gateway.json"
    file.write_text('{"mcpServers": {"a": {"url": "https://a.example.com", "headers": {"X-Token": "${file:token.txt}"}}}}')
    loaded = load_config(file, {})
    assert loaded.config.mcp_servers["a"].model_dump()["headers"] == {"X-Token": "from-a-file"}
    assert loaded.secrets == {"from-a-file"}


def test_empty_variable_is_set_but_takes_its_default(tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text('{"mcpServers": {"a": {"command": "x", "args": ["[${E}]", "[${E:-d}]", "[${env:U:-}]", "$E", "$$"]}}}')
    loaded = load_config(file, {"E": ""})
    assert loaded.config.mcp_servers["a"].model_dump()["args"] == ["[]", "[d]", "[]", "$E", "$$"]
