"""`runs-as: caller` in the file of an agent or workflow: a run may use only what the file names and the caller may use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.openai_server import openai_server
from tests.fakes.running import gateway_http
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
VAULT: dict[str, Any] = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("open", "look")]}
FLOW = """\
name: {name}
description: Opens the vault.
input: {{}}
runs-as: {runs_as}
executors:
  one: {{tool: vault/{tool}, arguments: {{}}}}
start: one
output: one
"""


def call(url: str, key: str, tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with over_http(url, "modern", token=key, tasks=False) as wire:
            return (await wire.send("tools/call", name=tool, arguments=arguments or {})).get("result") or {}

    return anyio.run(ask)


def test_workflow_that_runs_as_caller_intersects_both_rights(tmp_path: Path) -> None:
    for name, runs_as, tool in (("own", "file", "open"), ("theirs", "caller", "open"), ("both", "caller", "look")):
        (tmp_path / f"{name}.workflow.yaml").write_text(FLOW.format(name=name, runs_as=runs_as, tool=tool))
    outer = FLOW.format(name="outer", runs_as="file", tool="open").replace("vault/open", "workflow/theirs")
    (tmp_path / "outer.workflow.yaml").write_text(outer)
    key = KeyStore(tmp_path / "gateway-state" / "keys.json").add("ann", scopes=["workflow", "vault"]).token
    role = {"members": [{"key": "ann"}], "allow": ["workflow/*", "vault/look"]}
    with raw_inside(VAULT) as vault:
        config: dict[str, Any] = {
            "mcpServers": {"vault": {"type": "http", "url": vault}},
            "expose": {"agents": ["."]},
            "access": {"roles": {"some": role}},
        }
        with gateway_inside(tmp_path, config) as inside:
            assert not call(inside.url, key, "workflow__own").get("isError")
            assert not call(inside.url, key, "workflow__both").get("isError")
            for name in ("workflow__theirs", "workflow__outer"):
                refused = call(inside.url, key, name)
                assert refused["isError"] and "vault" not in json.dumps(refused), refused
            narrow = {**config, "access": {"roles": {"some": {**role, "allow": ["workflow/*"]}}}}
            inside.reload(tmp_path, narrow)
            assert call(inside.url, key, "workflow__both")["isError"]
            assert not call(inside.url, key, "workflow__own").get("isError")


def test_scopes_of_a_key_limit_a_workflow_that_runs_as_caller(tmp_path: Path) -> None:
    (tmp_path / "theirs.workflow.yaml").write_text(FLOW.format(name="theirs", runs_as="caller", tool="open"))
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    keys = {scopes: store.add("k", scopes=scopes).token for scopes in (("workflow",), ("workflow", "vault"))}
    with raw_inside(VAULT) as vault:
        config: dict[str, Any] = {"mcpServers": {"vault": {"type": "http", "url": vault}}, "expose": {"agents": ["."]}}
        with gateway_inside(tmp_path, config) as inside:
            assert [bool(call(inside.url, key, "workflow__theirs").get("isError")) for key in keys.values()] == [True, False]


@pytest.mark.parametrize(("runs_as", "offered"), [("file", {"vault__open", "vault__look"}), ("caller", {"vault__look"})])
def test_agent_that_runs_as_caller_sees_what_the_caller_may_use(tmp_path: Path, runs_as: str, offered: set[str]) -> None:
    header = f"name: clerk\ndescription: Helps.\nmodel: openai:m\ntools: [vault/*]\nruns-as: {runs_as}"
    (tmp_path / "clerk.agent.md").write_text(f"---\n{header}\n---\nHelp.\n")
    key = KeyStore(tmp_path / "gateway-state" / "keys.json").add("ann").token
    role = {"members": [{"key": "ann"}], "allow": ["agent/clerk", "vault/look"]}
    turns: list[dict[str, Any]] = [{"tool_calls": [{"name": "vault__open", "arguments": {}}]}, {"text": "{last_tool}", "repeat": True}]
    with raw_inside(VAULT) as vault, openai_server(*turns) as model:
        config: dict[str, Any] = {
            "mcpServers": {"vault": {"type": "http", "url": vault}},
            "expose": {"agents": ["."]},
            "access": {"roles": {"some": role}},
        }
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        with gateway_http(tmp_path, config, env=env) as url:
            answered = call(url, key, "agent__clerk", {"task": "open it"})
        requests = anyio.run(model.requests)
    assert {tool["name"] for tool in requests[0]["body"]["tools"]} == offered
    assert answered["content"][0]["text"].startswith('{"name": "open"') == (runs_as == "file"), answered
