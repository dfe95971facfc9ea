"""`moongate policy`: what would become of a call, and which rules do not do what they look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import free_port, raw_stdio

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
def test_a_call_that_passes_shows_exactly_what_would_leave(folder: Path, name: str) -> None:
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


def test_a_refused_call_names_the_rule_where_it_stands_and_what_the_others_say(folder: Path) -> None:
    done = explain(folder, "up__fetch", "path=/etc/passwd")
    assert (done.code, done.error["code"]) == (6, "denied")
    shown = done.data
    assert (shown["verdict"], shown["rule"], shown["path"]) == ("refused", "arguments.read.path", "policies.up.arguments.read.path")
    assert shown["written"] == {"type": "string", "pattern": "^docs/[a-z]+$"}
    assert shown["arguments"] is None
    assert [rule["outcome"] for rule in shown["rules"]] == ["passes", "refuses"]


def test_people_read_the_verdict_the_rule_and_what_leaves(folder: Path) -> None:
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
def test_a_tool_that_policy_hides_is_explained_by_what_hides_it(folder: Path, name: str, rule: str) -> None:
    done = explain(folder, name)
    assert (done.code, done.data["verdict"], done.data["rule"]) == (6, "refused", rule)


def test_a_tool_that_clients_do_not_see_and_one_that_needs_a_person_say_so(folder: Path) -> None:
    shown = explain(folder, "up__inner").data
    assert (shown["listed"], shown["approval"], shown["verdict"]) == (False, True, "allowed")


def test_a_name_that_nobody_has_is_not_found_and_a_server_that_does_not_answer_is_said(folder: Path) -> None:
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
def test_lint_finds_what_fails_open_and_ends_with_5(tmp_path: Path) -> None:
    rules = {
        "tools": {"deny": ["nope"]},
        "arguments": {"read": {"path": {"patern": "^docs/", "type": "string"}, "tenant": {"maximum": 5}}},
        "additionalArguments": {"up__read": ["x"]},
        "overrides": {"read": {"fixed": {"limit": "many"}}},
    }
    write_gateway(tmp_path, mcpServers={"up": raw_stdio(TOLD)}, policies={"up": rules}, storage={"dir": "state"})
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    assert (done.code, done.error["code"], done.data["checked"], done.data["unchecked"]) == (5, "tool-error", ["up"], [])
    found = [(finding["path"].removeprefix("policies.up."), finding["kind"]) for finding in done.data["findings"]]
    assert [finding for finding in found if finding[1] != "note"] == [
        ("tools.deny[0]", "open"),
        ("arguments.read.path", "open"),
        ("arguments.read.tenant", "open"),
        ("overrides.read.fixed.limit", "conflict"),
        ("additionalArguments.up__read", "dead"),
    ]
    shown = moongate("policy", "lint", cwd=tmp_path)
    assert "fails open          policies.up.arguments.read.path" in shown.out
    assert "Did you mean 'pattern'?" in shown.out


def test_lint_of_sound_rules_ends_with_0_and_of_servers_that_do_not_answer_with_4(folder: Path, tmp_path: Path) -> None:
    write_gateway(tmp_path, mcpServers={"up": raw_stdio({"tools": [READ]})}, storage={"dir": "state"})
    assert moongate("policy", "lint", cwd=tmp_path).code == 0
    done = moongate("policy", "lint", "--json", cwd=folder)
    assert (done.code, [missing["source"] for missing in done.data["unchecked"]]) == (4, ["other"])
