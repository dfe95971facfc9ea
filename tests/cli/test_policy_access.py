"""`moongate policy explain --as`, `policy test` and `policy lint` with the section `access`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.api_keys import KeyStore
from tests.cli.processes import moongate, write_gateway
from tests.fakes.running import raw_stdio

TOLD: dict[str, Any] = {
    "tools": [
        {"name": "read", "inputSchema": {"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]}},
        {"name": "merge", "inputSchema": {"type": "object"}},
        {"name": "drop", "inputSchema": {"type": "object"}},
    ]
}
ROLES: dict[str, Any] = {
    "eng": {
        "members": [{"group": "eng"}, {"key": "ci"}],
        "allow": ["up"],
        "deny": ["up/drop"],
        "arguments": {"up/read": {"repo": {"enum": ["web"]}}},
        "approval": ["up/merge"],
    }
}
WHO = "--as", "ann", "--issuer", "https://idp.example", "--group", "eng"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("access")
    write_gateway(made, mcpServers={"up": raw_stdio(TOLD)}, access={"roles": ROLES}, storage={"dir": "state"})
    KeyStore(made / "state" / "keys.json").add("ci")
    return made


def test_explain_names_role_and_rule_of_a_caller(folder: Path) -> None:
    done = moongate("policy", "explain", "up/read", "repo=web", *WHO, "--json", cwd=folder)
    assert done.code == 0 and done.data["access"]["roles"] == ["eng"] and done.data["access"]["verdict"] == "allowed"
    done = moongate("policy", "explain", "up/read", "repo=api", *WHO, "--json", cwd=folder)
    assert done.code == 6 and done.data["rule"] == "access.roles.eng.arguments.up/read.repo"
    done = moongate("policy", "explain", "up/drop", "--as", "key:ci", cwd=folder)
    assert done.code == 6 and "refused by access" in done.out and "roles eng" in done.out
    assert "`access.roles.eng.deny[0]` denies it" in done.out
    done = moongate("policy", "explain", "up/merge", *WHO, "--json", cwd=folder)
    assert done.data["approval"] and done.data["access"]["approval"] == "access.roles.eng.approval[0]"
    done = moongate("policy", "explain", "up/read", "repo=x", "--as", "bob", "--json", cwd=folder)
    assert (done.code, done.data["access"]["verdict"], done.data["access"]["roles"]) == (6, "hidden", [])
    assert moongate("policy", "explain", "up/read", "--as", "key:none", cwd=folder).code == 1
    assert moongate("policy", "explain", "up/drop", cwd=folder).code == 0


def test_table_with_arguments_is_judged_by_all_rules(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"caller": "ci", "tool": "up__read", "arguments": {"repo": "web"}, "expect": "allow"},
        {"caller": "ci", "tool": "up/read", "arguments": {"repo": "api"}, "expect": "refuse"},
        {"caller": "ci", "tool": "up/read", "arguments": {}, "expect": "refuse"},
        {"caller": "ci", "tool": "up/merge", "arguments": {}, "expect": "approval"},
        {"caller": "bob", "tool": "up/drop", "expect": "allow"},
    ]
    callers = {"ci": {"key": "ci"}, "bob": {"subject": "bob", "issuer": "https://idp.example"}}
    (folder / "table.json").write_text(json.dumps({"callers": callers, "rows": rows}))
    done = moongate("policy", "test", "table.json", "--json", cwd=folder)
    assert done.code == 1 and done.data["wrong"] == 1
    assert [(row["decided"], row["right"]) for row in done.data["rows"]] == [
        ("allow", True), ("refuse", True), ("refuse", True), ("approval", True), ("hide", False)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("callers: {}\nrows: []", "rows"),
        ("callers: {a: {key: k, subject: s}}\nrows: [{caller: a, tool: up/read, expect: allow}]", "either `key` or `subject`"),
        ("callers: {a: {key: k}}\nrows: [{caller: b, tool: up/read, expect: allow}]", "'b' is not under `callers`"),
        ("callers: {a: {key: k}}\nrows: [{caller: a, tool: up/read, prompt: up/x, expect: allow}]", "one of `tool`"),
        ("callers: {a: {key: k}}\nrows: [{caller: a, prompt: x, expect: allow}]", "SOURCE/NAME"),
        ("callers: [", "Line"),
    ],
)
def test_malformed_table_is_refused(folder: Path, table: str, problem: str) -> None:
    (folder / "bad.yaml").write_text(table)
    done = moongate("policy", "test", "bad.yaml", cwd=folder)
    assert done.code in (1, 2) and problem in done.err and not done.out


def test_lint_finds_holes_and_misspelled_names(tmp_path: Path) -> None:
    roles = {
        "eng": {
            "members": [{"key": "cii"}, {"group": "eng"}],
            "allow": ["upp", "up"],
            "deny": ["up/dropp"],
            "arguments": {"up/read": {"rpo": {"enum": ["web"]}, "repo": {"pattern": "("}}},
            "approval": ["oup/merge"],
        },
        "more": {"members": [{"group": "eng"}], "allow": ["up/read"]},
        "nobody": {"allow": ["up"], "deny": ["up"]},
        "all": {"allow": ["*"]},
    }
    (tmp_path / "team.cedar").write_text('permit(principal, action, resource);\nforbid(principal, action, resource in Source::"upp");')
    access = {"roles": roles, "default": "all", "cedar": ["team.cedar"]}
    write_gateway(tmp_path, mcpServers={"up": raw_stdio(TOLD)}, access=access, storage={"dir": "state"})
    KeyStore(tmp_path / "state" / "keys.json").add("ci")
    done = moongate("policy", "lint", "--json", cwd=tmp_path)
    found = {(finding["path"], finding["kind"]) for finding in done.data["findings"]}
    assert done.code == 1
    assert found >= {
        ("access.roles.eng.members[0].key", "dead"),
        ("access.roles.eng.allow[0]", "dead"),
        ("access.roles.eng.deny[0]", "open"),
        ("access.roles.eng.arguments.up/read.rpo", "open"),
        ("access.roles.eng.arguments.up/read.repo", "unusable"),
        ("access.roles.eng.arguments.up/read", "open"),
        ("access.roles.eng.approval[0]", "open"),
        ("access.roles.nobody.members", "dead"),
        ("access.roles.nobody.allow[0]", "conflict"),
        ("access.roles.all.allow", "open"),
        ("access.cedar team.cedar:2", "open"),
    }
    texts = " ".join(finding["text"] for finding in done.data["findings"])
    for meant in ("'ci'", "'up'", "'drop'", "'repo'"):
        assert f"Did you mean {meant}?" in texts
