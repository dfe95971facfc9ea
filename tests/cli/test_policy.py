"""`moongate policy`: the decision about a call, and rules that have another effect than their text suggests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.agents.test_tool import agent_file
from tests.architecture.documents import example_of
from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import free_port, gateway_http, raw_stdio, until

READ = {
    "name": "read",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}, "tenant": {}, "session": {}},
        "required": ["path"],
    },
}
TOLD: dict[str, Any] = {
    "tools": [
        READ,
        {"name": "gone", "inputSchema": {"type": "object"}},
        {"name": "off", "inputSchema": {"type": "object"}},
        {"name": "inner", "inputSchema": {"type": "object"}},
        {"name": "odd", "description": "x\u202ey", "inputSchema": {"type": "object"}},
    ]
}
POLICY: dict[str, Any] = {
    "tools": {"deny": ["gone"]},
    "hiddenText": "refuse",
    "approval": {"always": ["inner"]},
    "arguments": {"read": {"path": {"type": "string", "pattern": "^docs/[a-z]+$"}}, "*": {"limit": {"maximum": 50}}},
    "overrides": {
        "read": {"name": "fetch", "fixed": {"tenant": "acme"}, "defaults": {"limit": 10}},
        "off": {"enabled": False},
        "inner": {"listed": False},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy")
    servers = {"up": raw_stdio(TOLD), "other": {"url": f"http://127.0.0.1:{free_port()}/mcp"}}
    write_gateway(made, mcpServers=servers, policies={"up": POLICY}, storage={"dir": "state"})
    return made


def explain(folder: Path, *arguments: str) -> Any:
    return moongate("policy", "explain", *arguments, "--json", cwd=folder)


@pytest.mark.parametrize("name", ["up__fetch", "up/read"])
def test_passing_call_shows_the_sent_arguments(folder: Path, name: str) -> None:
    done = explain(folder, name, "path=docs/a", "tenant=evil", "foo=1", "--args", '{"session": 1, "_meta": {}}')
    assert done.code == 0
    assert done.data == {
        "tool": "up__fetch",
        "source": "up",
        "native": "read",
        "listed": True,
        "approval": False,
        "verdict": "allowed",
        "rule": None,
        "reason": None,
        "path": None,
        "written": None,
        "dropped": [
            {"argument": "session", "rule": "frameworkNames"},
            {"argument": "_meta", "rule": "_meta"},
            {"argument": "tenant", "rule": "overrides.read.fixed"},
            {"argument": "foo", "rule": "undeclared"},
        ],
        "added": [
            {"argument": "limit", "value": 10, "rule": "overrides.read.defaults"},
            {"argument": "tenant", "value": "acme", "rule": "overrides.read.fixed"},
        ],
        "rules": [
            {"rule": "arguments.*.limit", "argument": "limit", "outcome": "passes"},
            {"rule": "arguments.read.path", "argument": "path", "outcome": "passes"},
        ],
        "arguments": {"limit": 10, "path": "docs/a", "tenant": "acme"},
    }


def test_rejected_call_names_the_rule_and_the_other_verdicts(folder: Path) -> None:
    done = explain(folder, "up__fetch", "path=/etc/passwd")
    assert (done.code, done.error["code"]) == (6, "denied")
    shown = done.data
    assert (shown["verdict"], shown["rule"], shown["path"]) == ("refused", "arguments.read.path", "policies.up.arguments.read.path")
    assert shown["written"] == {"type": "string", "pattern": "^docs/[a-z]+$"}
    assert shown["arguments"] is None
    assert [rule["outcome"] for rule in shown["rules"]] == ["passes", "refuses"]


def test_text_output_shows_verdict_rule_and_sent_arguments(folder: Path) -> None:
    refused = moongate("policy", "explain", "up__fetch", "path=x", "foo=1", cwd=folder)
    assert "verdict   refused by arguments.read.path" in refused.out
    assert "dropped   foo  (undeclared)" in refused.out
    assert "leaves    nothing" in refused.out
    passed = moongate("policy", "explain", "up__fetch", "path=docs/a", cwd=folder)
    assert 'leaves    {"limit": 10, "path": "docs/a", "tenant": "acme"}' in passed.out
    assert "added     limit = 10  (overrides.read.defaults)" in passed.out


@pytest.mark.parametrize(
    ("name", "rule"), [("up__gone", "tools.deny[0]"), ("up/off", "overrides.off.enabled"), ("up__odd", "hiddenText")]
)
def test_hidden_tool_is_explained_by_the_rule_that_hides_it(folder: Path, name: str, rule: str) -> None:
    done = explain(folder, name)
    assert (done.code, done.data["verdict"], done.data["rule"]) == (6, "refused", rule)


def test_policy_reports_hidden_tool_and_required_approval(folder: Path) -> None:
    shown = explain(folder, "up__inner").data
    assert (shown["listed"], shown["approval"], shown["verdict"]) == (False, True, "allowed")


def test_unknown_name_and_unresponsive_server_are_reported(folder: Path) -> None:
    assert explain(folder, "up__nothing").error["code"] == "not-found"
    assert explain(folder, "other__x").error["code"] == "unreachable"


def test_explaining_sends_no_call(tmp_path: Path) -> None:
    from tests.fakes.running import upstream_http

    with upstream_http() as url:
        write_gateway(tmp_path, mcpServers={"up": {"url": url}}, storage={"dir": "state"})
        assert explain(tmp_path, "up__echo", "text=hi").data["arguments"] == {"text": "hi"}
        calls = moongate("call", "up__stats", "--json", cwd=tmp_path).data["structuredContent"]["calls"]
    assert "echo" not in calls


@pytest.mark.requirement(26)
def test_lint_ends_with_1_on_findings(tmp_path: Path) -> None:
    rules = {
        "tools": {"deny": ["nope"]},
        "arguments": {"read": {"path": {"patern": "^docs/", "type": "string"}, "tenant": {"pattern": "abc"}}},
        "additionalArguments": {"up__read": ["x"]},
        "overrides": {"read": {"fixed": {"limit": "many"}}},
    }
    policies = {"up": rules, "upp": {"tools": {"deny": ["*"]}}}
    write_gateway(tmp_path, mcpServers={"up": raw_stdio(TOLD)}, policies=policies, storage={"dir": "state"})
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    assert (done.code, done.error["code"], done.data["checked"], done.data["unchecked"]) == (1, "policy-findings", ["up"], [])
    found = [(finding["path"].removeprefix("policies."), finding["kind"]) for finding in done.data["findings"]]
    assert [finding for finding in found if finding[1] != "note"] == [
        ("upp", "dead"),
        ("up.tools.deny[0]", "open"),
        ("up.arguments.read.tenant", "open"),
        ("up.arguments.read.path", "unusable"),
        ("up.overrides.read.fixed.limit", "conflict"),
        ("up.additionalArguments.up__read", "dead"),
    ]
    shown = moongate("policy", "lint", cwd=tmp_path)
    assert "refuses everything  policies.up.arguments.read.path" in shown.out
    assert "does nothing        policies.upp\n" in shown.out
    assert "did you mean 'pattern'?" in shown.out
    assert "Did you mean 'up'?" in shown.out


def test_lint_exits_0_for_sound_rules_and_4_for_silent_servers(folder: Path, tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={"up": raw_stdio({"tools": [READ]})}, storage={"dir": "state"})
    assert moongate("policy", "lint", cwd=tmp_path).code == 0
    done = moongate("policy", "lint", "--json", cwd=folder)
    assert (done.code, [missing["source"] for missing in done.data["unchecked"]]) == (4, ["other"])


FILES: dict[str, Any] = {
    "tools": [
        {"name": name, "inputSchema": {"type": "object", "properties": {argument: kind}, "required": [argument]}}
        for name, argument, kind in (
            ("read_text_file", "path", {"type": "string"}),
            ("read_media_file", "path", {"type": "string"}),
            ("read_multiple_files", "paths", {"type": "array", "items": {"type": "string"}}),
        )
    ]
}


@pytest.mark.attack(20)
def test_rule_that_leaves_sibling_tools_open_is_reported(tmp_path: Path) -> None:
    rules: dict[str, Any] = {"tools": {"allow": ["read_*"]}, "arguments": {"read_text_file": {"path": {"within": "docs/"}}}}
    write_gateway(tmp_path, mcpServers={"files": raw_stdio(FILES)}, policies={"files": rules, "tme": {}}, storage={"dir": "state"})
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    assert (done.code, [finding["path"] for finding in done.data["findings"]]) == (
        1,
        ["policies.tme", "policies.files.arguments.read_media_file.path", "policies.files.arguments.read_multiple_files.paths"],
    )
    doctor = moongate("doctor", cwd=tmp_path)
    assert "policies.files.arguments.read_media_file.path: tool 'read_media_file' accepts 'path' without a rule" in doctor.out
    assert "policies.tme: no source is called 'tme'" in doctor.out
    with gateway_http(tmp_path, {"mcpServers": {"files": raw_stdio(FILES)}, "policies": {"files": rules, "tme": {}}}, "logged"):
        log = tmp_path / "logged.log"
        until(lambda: "policies.files.arguments.read_multiple_files.paths" in log.read_text())
        until(lambda: "policies.tme: no source is called 'tme'" in log.read_text())
    rules["arguments"] = {"*": {"path": {"within": "docs/"}, "paths": {"within": "docs/"}}}
    write_gateway(tmp_path, mcpServers={"files": raw_stdio(FILES)}, policies={"files": rules}, storage={"dir": "state"})
    assert moongate("policy", "lint", cwd=tmp_path).code == 0


@pytest.mark.attack(20)
def test_lint_judges_rules_of_an_agents_file_tools(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    agent_file(tmp_path / "agents", "clerk", files="{root: ../data, access: write}", model="openai:m")
    rules: dict[str, Any] = {"arguments": {"*": {"file_name": {"within": "notes/"}, "directory": {"within": "notes/"}}}}
    write_gateway(tmp_path, expose={"agents": ["agents"]}, policies={"agent/clerk": rules}, storage={"dir": "state"})
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    assert done.code == 1
    assert {finding["path"].removeprefix("policies.agent/clerk.arguments.") for finding in done.data["findings"]} == {
        "file_access_list_files.directory", "file_access_list_subdirectories.directory", "file_access_search_files",
    }  # fmt: skip
    rules = example_of("configuration.md", "agent/clerk")
    write_gateway(tmp_path, expose={"agents": ["agents"]}, policies={"agent/clerk": rules}, storage={"dir": "state"})
    assert moongate("policy", "lint", cwd=tmp_path).code == 0


def test_lint_doctor_and_the_log_judge_rules_of_our_own_sources(tmp_path: Path) -> None:
    (tmp_path / "shelf.py").write_text(
        "from gateway import tool\n\n\n@tool\ndef fetch(path: str) -> str:\n    \"\"\"Fetch a file.\"\"\"\n    return path\n"
    )
    rules = {"arguments": {"fetch": {"path": {"pattern": "^docs/"}}, "fecth": {"path": {"within": "docs/"}}}}
    policies = {"function": rules, "agent/nobody": {"arguments": {"save": {"file_name": {"within": "notes/"}}}}}
    write_gateway(tmp_path, expose={"functions": ["shelf"]}, policies=policies, storage={"dir": "state"})
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    assert done.code == 1
    assert {finding["path"] for finding in done.data["findings"]} == {
        "policies.function.arguments.fetch.path",
        "policies.function.arguments.fecth",
        "policies.agent/nobody",
    }
    doctor = moongate("doctor", cwd=tmp_path)
    text = "policies.function.arguments.fecth: this source has no tool 'fecth'. Did you mean 'fetch'?"
    assert text in doctor.out
    assert "policies.agent/nobody: no agent has this name" in doctor.out
    with gateway_http(tmp_path, {"expose": {"functions": ["shelf"]}, "policies": policies}, "logged"):
        assert text in (tmp_path / "logged.log").read_text()
