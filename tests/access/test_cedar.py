"""`access.cedar`: Cedar policies decide with the principal, the action, the resource and the arguments of a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from gateway.access.cedar_files import parse_policies, split_policies
from gateway.access.cedar_policies import Unconvertible, to_cedar
from gateway.access.cedar_schema import validate
from gateway.access.principal_rights import Access, compile_access
from gateway.auth.api_keys import KeyStore
from gateway.auth.principal import Principal
from gateway.config.access_settings import AccessSettings
from gateway.errors import ConfigError
from gateway.policy.caller_rights import Decision, is_hidden
from gateway.policy.decision import PASS
from tests.fakes.inside import gateway_inside, raw_inside
from tests.interaction.wire import Era, over_http

pytestmark = pytest.mark.timeout(60)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"repo": {"type": "string"}, "amount": {"type": "number"}, "labels": {"type": "array", "items": {"type": "string"}}},
    "required": ["repo"],
}
POLICIES = """\
// Engineers may use GitHub, but delete nothing.
permit (principal in Group::"eng", action in Action::"call", resource in Source::"github");
forbid (principal, action == Action::"github/delete", resource);

permit (principal, action == Action::"github/create", resource)
when { context.arguments.repo like "acme/*" };

forbid (principal, action == Action::"github/pay", resource)
when { context.arguments has amount && context.arguments.amount.greaterThan(decimal("100.0")) };
permit (principal is Key, action, resource in Source::"docs") when { principal.name == "ci" };
"""


def user(*groups: str, **facts: Any) -> Principal:
    return Principal("user:1", "ann", kind="user", issuer="https://idp.example", subject="ann", groups=groups, **facts)


def rules(tmp_path: Path, text: str = POLICIES, **section: Any) -> Access:
    (tmp_path / "team.cedar").write_text(text)
    access = Access()
    access.renew(compile_access(AccessSettings.model_validate({"cedar": ["team.cedar"], **section}), tmp_path))
    return access


def decision(access: Access, principal: Principal, item: str, kind: Any = "tools") -> Decision:
    rights = access.bind(principal).rights
    assert rights is not None
    return rights.decide(kind, *item.split("/", 1))


def test_policies_hide_what_they_do_not_permit(tmp_path: Path) -> None:
    access = rules(tmp_path)
    assert decision(access, user("eng"), "github/read").verdict is PASS
    assert is_hidden(decision(access, user("eng"), "github/delete").verdict)
    assert is_hidden(decision(access, user("sales"), "github/read").verdict)
    assert is_hidden(decision(access, user("eng"), "docs/search").verdict)
    assert decision(access, Principal("key:1", "ci"), "docs/search").verdict is PASS
    assert decision(access, Principal("key:1", "ci"), "docs/page://x", "resources").verdict is PASS
    assert is_hidden(decision(access, Principal("key:2", "other"), "docs/search").verdict)


def test_policies_read_the_arguments_of_a_call(tmp_path: Path) -> None:
    access = rules(tmp_path)
    create = decision(access, user("sales"), "github/create")
    assert create.verdict is PASS and create.reads_arguments
    assert create.judge({"repo": "acme/web"}, SCHEMA) is None
    for arguments in ({"repo": "other/web"}, {}, {"repo": 3}):
        refused = create.judge(arguments, SCHEMA)
        assert refused is not None and refused.rule == "access.cedar", arguments
    pay = decision(access, user("eng"), "github/pay")
    assert pay.judge({"amount": 99.5}, SCHEMA) is None and pay.judge({}, SCHEMA) is None
    for amount in (100.01, 1e300, 0.00001, "much", 1000):
        assert pay.judge({"amount": amount}, SCHEMA) is not None, amount


def test_failing_policy_refuses(tmp_path: Path) -> None:
    """Cedar ignores a policy that fails. A `forbid` that fails must not permit."""
    failing = "forbid(principal, action, resource) when { 9223372036854775807 + 1 > 3 };"
    access = rules(tmp_path, f"permit(principal, action, resource);\n{failing}")
    assert is_hidden(decision(access, user("eng"), "github/read").verdict)


def test_roles_and_policies_are_intersected(tmp_path: Path) -> None:
    roles = {"eng": {"members": [{"group": "eng"}], "allow": ["github/read", "docs"]}}
    access = rules(tmp_path, roles=roles)
    assert decision(access, user("eng"), "github/read").verdict is PASS
    assert is_hidden(decision(access, user("eng"), "github/list").verdict)
    assert is_hidden(decision(access, user("eng"), "docs/search").verdict)


def test_argument_cannot_become_an_entity() -> None:
    escapes: list[Any] = [{"__entity": {"type": "Group", "id": "eng"}}, [{"__extn": {"fn": "decimal", "arg": "1.0"}}]]
    for value in (*escapes, 2**63, float("inf"), 0.00001):
        with pytest.raises(Unconvertible):
            to_cedar(value)
    assert to_cedar({"a": [1, 2.0, None, True], "b": None, "c": 1.25}) == {
        "a": [1, 2, True],
        "c": {"__extn": {"fn": "decimal", "arg": "1.2500"}},
    }


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("permit(principal, action, resource);\n\npermit(principal,\n  action resource);", "bad.cedar:4", "unexpected token `resource`"),
        ("// only\npermit(principal, action, resource)", "bad.cedar:2", "unexpected end of input"),
        ('permit(principal == User::"a;b", action, resource);\nallow(principal);', "bad.cedar:2", "invalid policy effect"),
        ("permit(principal == ?principal, action, resource);", "bad.cedar:1", "templates"),
    ],
)
def test_malformed_policy_is_named_with_file_and_line(tmp_path: Path, text: str, place: str, problem: str) -> None:
    (tmp_path / "bad.cedar").write_text(text)
    with pytest.raises(ConfigError) as raised:
        compile_access(AccessSettings(cedar=["bad.cedar"]), tmp_path)
    assert str(raised.value).startswith(f"{place}: ") and problem in str(raised.value)


def test_unknown_attribute_of_a_principal_stops_the_start(tmp_path: Path) -> None:
    head = "permit(principal, action, resource)"
    (tmp_path / "bad.cedar").write_text(f"{head};\n{head} when {{ principal.level > 3 }};")
    with pytest.raises(ConfigError, match=r"bad\.cedar:2: .*`level`"):
        compile_access(AccessSettings(cedar=["bad.cedar"]), tmp_path)


def test_schema_has_the_types_of_the_tools() -> None:
    tools = {"github": {"create": SCHEMA}}
    right = parse_policies(POLICIES, "team.cedar")[2:3]
    assert validate(right, tools) == []
    head = 'permit(principal, action == Action::"github/create", resource)'
    wrong = parse_policies(f"{head}\nwhen {{ context.arguments.repo == 1 }};", "w.cedar")
    assert [fault.policy for fault in validate(wrong, tools)] == ["w.cedar:1"]
    optional = parse_policies(f'{head} when {{ context.arguments.amount == decimal("1.0") }};', "w")
    assert "optional attribute" in validate(optional, tools)[0].text
    assert validate(wrong, {}) == []  # the tool is not known yet


def test_policies_are_split_outside_of_text_and_comments() -> None:
    text = '// a; b\npermit(principal == User::"x;\\"y",\n action, resource); // c;\nforbid(principal, action, resource);\n'
    assert [line for line, _ in split_policies(text)] == [2, 4]


def test_decisions_without_arguments_are_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import cedarpy

    counted: list[object] = []
    real: Any = cast("Any", cedarpy).is_authorized

    def counting(*arguments: Any, **named: Any) -> Any:
        counted.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(cedarpy, "is_authorized", counting)
    access = rules(tmp_path)
    for _ in range(3):
        assert decision(access, user("eng"), "github/read").verdict is PASS
    assert len(counted) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_gateway_applies_policies_to_calls_and_lists(tmp_path: Path, era: Era) -> None:
    tools = [{"name": name, "inputSchema": SCHEMA} for name in ("create", "delete", "read")]
    (tmp_path / "team.cedar").write_text(
        'permit(principal is Key, action, resource in Source::"github") when { principal.name == "ann" };\n'
        'forbid(principal, action == Action::"github/delete", resource);\n'
        'forbid(principal, action == Action::"github/create", resource) unless { context.arguments.repo like "acme/*" };\n'
    )
    key = KeyStore(tmp_path / "gateway-state" / "keys.json").add("ann").token
    with raw_inside({"tools": tools}) as url:
        config: dict[str, Any] = {"mcpServers": {"github": {"type": "http", "url": url}}, "access": {"cedar": ["team.cedar"]}}

        def run() -> tuple[set[str], list[dict[str, Any]]]:
            async def ask() -> tuple[set[str], list[dict[str, Any]]]:
                async with over_http(inside.url, era, token=key, tasks=False) as wire:
                    listed = {tool["name"] for tool in (await wire.send("tools/list"))["result"]["tools"]}
                    repos = [("create", "acme/web"), ("create", "other/web"), ("delete", "acme/web"), ("none", "acme/web")]
                    calls = [("tools/call", {"name": f"github__{tool}", "arguments": {"repo": repo}}) for tool, repo in repos]
                    return listed, [await wire.send(method, **params) for method, params in calls]

            return anyio.run(ask)

        with gateway_inside(tmp_path, config) as inside:
            listed, answers = await anyio.to_thread.run_sync(run)
    assert {name for name in listed if name.startswith("github")} == {"github__create", "github__read"}
    assert "result" in answers[0] and not answers[0]["result"].get("isError")
    assert answers[1]["result"]["_meta"]["dev.moongate/rule"] == "access.cedar"
    told = [json.dumps(answer["error"]).replace("delete", "none") for answer in answers[2:]]
    assert told[0] == told[1]


def test_broken_policy_file_keeps_the_old_set_on_reload(tmp_path: Path) -> None:
    (tmp_path / "team.cedar").write_text('permit(principal, action, resource == Tool::"docs/a");')
    key = KeyStore(tmp_path / "gateway-state" / "keys.json").add("ann").token
    with raw_inside({"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("a", "b")]}) as url:
        config: dict[str, Any] = {"mcpServers": {"docs": {"type": "http", "url": url}}, "access": {"cedar": ["team.cedar"]}}
        with gateway_inside(tmp_path, config) as inside:

            async def listed() -> set[str]:
                async with over_http(inside.url, "modern", token=key) as wire:
                    return {tool["name"] for tool in (await wire.send("tools/list"))["result"]["tools"] if "docs" in tool["name"]}

            assert anyio.run(listed) == {"docs__a"}
            (tmp_path / "team.cedar").write_text("permit(principal, action, resource")
            with pytest.raises(ConfigError, match=r"team\.cedar:1"):
                inside.reload(tmp_path, config)
            assert anyio.run(listed) == {"docs__a"}
            (tmp_path / "team.cedar").write_text("permit(principal, action, resource);")
            inside.reload(tmp_path, config)
            assert anyio.run(listed) == {"docs__a", "docs__b"}
