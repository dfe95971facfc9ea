"""`moongate workflows`: verdicts for editors and CI, and drawings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gateway.cli.main import run_command
from tests.cli.processes import moongate, write_gateway

GOOD = "name: NAME\ndescription: d\nexecutors: {only: {tool: s/say}}\nstart: only\n"
TEAM = "name: team\ndescription: d\nsequential: {participants: [ann, workflow/good]}\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.workflow.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("NAME", name))
    return path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and data of `workflows check --json`."""
    code = run_command(["workflows", "check", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def codes(entry: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    return [(found["code"], found["level"], found["line"]) for found in entry["diagnostics"]]


def test_folder_of_mixed_files_gives_one_json_entry_each_and_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "good", GOOD)
    write(tmp_path / "deeper", "typo", GOOD.replace("start", "strat"))
    write(tmp_path, "lost", GOOD.replace("{only: {tool: s/say}}", "{only: {tool: s/say}, more: {ask: 'Sure?'}}"))
    write(tmp_path, "yaml", "name: [\n")
    write(tmp_path, "one", GOOD.replace("tool: s/say", "workflow: two"))
    write(tmp_path, "two", GOOD.replace("tool: s/say", "tool: workflow/one"))
    write(tmp_path, "twin", GOOD.replace("NAME", "good"))
    (tmp_path / "notes.yaml").write_text("{")
    code, data = check(capsys, str(tmp_path), str(tmp_path / "good.workflow.yaml"))
    by_name = {Path(entry["path"]).name.split(".")[0]: entry for entry in data}
    assert code == 5
    assert {name: codes(entry) for name, entry in by_name.items()} == {
        "good": [("duplicate-name", "error", None)],
        "twin": [("duplicate-name", "error", None)],
        "typo": [("format", "error", 4)],
        "lost": [("graph", "error", 3)],
        "yaml": [("yaml", "error", 2)],
        "one": [("circle", "error", None)],
        "two": [("circle", "error", None)],
    }
    assert by_name["typo"]["diagnostics"][0]["message"] == "strat: unknown key 'strat'. Did you mean 'start'?"
    assert all(set(entry) == {"path", "name", "verdict", "diagnostics"} for entry in data)


def test_missing_names_are_warnings_that_strict_rejects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "team", TEAM)
    assert [(code, entry["verdict"], codes(entry)) for code, [entry] in [check(capsys, str(path))]] == [
        (0, "accepted_with_warning", [("unknown-workflow", "warning", None), ("unknown-agent", "warning", None)])
    ]
    assert check(capsys, str(path), "--strict")[0] == 5
    write(tmp_path, "good", GOOD)
    (tmp_path / "ann.agent.md").write_text("---\nname: ann\ndescription: d\n---\nHi.\n")
    assert check(capsys, str(path), "--strict")[0] == 0


def test_findings_are_editor_lines_and_a_path_without_files_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "typo", GOOD.replace("start", "strat"))
    assert run_command(["workflows", "check", str(path)]) == 5
    told = capsys.readouterr()
    assert told.out == f"{path}:4: error: strat: unknown key 'strat'. Did you mean 'start'? [format]\n"
    assert "0 accepted, 0 with warnings, 1 rejected." in told.err
    odd = tmp_path / "odd.yaml"
    odd.write_text(GOOD)
    assert codes(check(capsys, str(odd))[1][0]) == [("suffix", "error", None)]
    assert codes(check(capsys, str(tmp_path / "nowhere"))[1][0]) == [("no-workflow", "error", None)]


def test_workflow_is_drawn_by_name_or_file_without_its_callees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = "executors: {a: {agent: x, output: {ok: {type: boolean}}}, b: {ask: 'Sure?'}}\nstart: a\n"
    path = write(tmp_path / "agents", "drawn", f"name: NAME\ndescription: d\n{graph}edges: [{{from: a, to: b, when: {{ok: true}}}}]\n")
    write(tmp_path / "agents", "team", TEAM)
    monkeypatch.setenv("MOONGATE_CONFIG", str(write_gateway(tmp_path, expose={"agents": ["./agents"]})))

    def drawn(*arguments: str) -> tuple[int, str]:
        return run_command(["workflows", "graph", *arguments]), capsys.readouterr().out

    code, text = drawn("drawn")
    assert (code, text.splitlines()[0]) == (0, "flowchart TD")
    assert '-. "ok: true" .->' in text
    assert json.loads(drawn(str(path), "--format", "dot", "--json")[1])["graph"].startswith("digraph Workflow {")
    target = str(tmp_path / "team.svg")
    assert drawn("team", "--format", "svg", "--output", target) == (0, f"{target}\n")
    titles = [item.text for item in ElementTree.parse(target).iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["input-conversation", "ann", "good"]
    ended = moongate("workflows", "graph", "drawm", "--json", cwd=tmp_path)
    assert (ended.code, ended.error["code"]) == (1, "not-found")
