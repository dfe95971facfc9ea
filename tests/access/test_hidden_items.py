"""Roles over HTTP, in both protocol eras: what a role does not allow is not listed, and gets the response for an unknown name."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from gateway.storage.record_types import AuditEntry
from tests.fakes.inside import Inside, gateway_inside, raw_inside
from tests.interaction.wire import Era, over_http
from tests.skills.on_disk import write_skill
from tests.storage.test_records import records

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
ANY: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
DOCS: dict[str, Any] = {
    "instructions": "Ask me about the docs.",
    "tools": [{"name": name, "inputSchema": ANY} for name in ("search_pages", "search_people", "delete")],
    "resources": [{"uri": f"page://{name}", "name": name} for name in ("open", "shut")],
    "templates": [{"uriTemplate": "shut://{id}", "name": "shut"}],
    "prompts": [{"name": name} for name in ("ask", "tell")],
    "reads": {f"page://{name}": {"contents": [{"uri": f"page://{name}", "text": name}]} for name in ("open", "shut")},
    "rendered": {name: {"messages": []} for name in ("ask", "tell")},
}
VAULT: dict[str, Any] = {"instructions": "The vault's own words.", "tools": [{"name": "open", "inputSchema": ANY}]}
FLOW = """\
name: fetch
description: Opens the vault.
input: {}
executors:
  one: {tool: vault/open, arguments: {}}
start: one
output: one
"""
ROLES: dict[str, Any] = {
    "reader": {
        "members": [{"key": "reader"}],
        "allow": ["tools:docs/search_*", "resources:docs/page://open", "prompts:docs/ask", "gateway"],
        "deny": ["docs/search_people"],
        "arguments": {"docs/search_pages": {"n": {"maximum": 3}}},
    },
    "flow": {"members": [{"key": "flow"}], "allow": ["workflow/fetch"]},
    "everything": {"allow": ["*"]},
}


@dataclass(frozen=True)
class Deployment:
    inside: Inside
    folder: Path
    config: dict[str, Any]
    keys: dict[str, str]

    @property
    def url(self) -> str:
        return self.inside.url

    def get(self, name: str, path: str) -> httpx2.Response:
        return httpx2.get(self.url.removesuffix("/mcp") + path, headers={"Authorization": f"Bearer {self.keys[name]}"})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("roles")
    (folder / "flow.workflow.yaml").write_text(FLOW)
    (folder / "clerk.agent.md").write_text("---\nname: clerk\ndescription: Helps.\nmodel: openai:none\n---\nHelp.\n")
    write_skill(folder / "skills" / "pdf")
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name).token for name in ("reader", "flow", "other")}
    keys["narrow"] = store.add("reader", scopes=["docs/delete", "resources:docs"]).token
    with ExitStack() as stack:
        urls = {name: stack.enter_context(raw_inside(told)) for name, told in (("docs", DOCS), ("vault", VAULT))}
        config = {
            "mcpServers": {name: {"type": "http", "url": url} for name, url in urls.items()},
            "policies": {"docs": {"tasks": {"promote": ["delete"]}}, "vault": {"disclosure": "on-demand"}},
            "expose": {"agents": ["."], "skills": ["skills"]},
            "access": {"roles": ROLES, "default": "everything"},
        }
        yield Deployment(stack.enter_context(gateway_inside(folder, config)), folder, config, keys)


def names(answer: dict[str, Any], kind: str, key: str) -> set[str]:
    return {entry[key] for entry in answer["result"][kind]}


def renamed(answer: dict[str, Any], name: str) -> str:
    """Return an answer as JSON without its id, with a placeholder in place of the name that the request had."""
    return json.dumps({key: value for key, value in answer.items() if key != "id"}, sort_keys=True).replace(name, "NAME")


OWN = {
    "read_result", "list_tools", "load_tools", "unload_tools", "task_status", "task_result", "task_cancel", "session_list", "session_delete"
}  # fmt: skip


@pytest.mark.parametrize("era", ERAS)
async def test_lists_have_only_items_that_a_role_allows(deployment: Deployment, era: Era) -> None:
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        assert names(await wire.send("tools/list"), "tools", "name") - OWN == {"docs__search_pages", "gateway_status"}
        assert names(await wire.send("resources/list"), "resources", "uri") - {"moongate://status"} == {"docs+page://open"}
        assert not [u for u in names(await wire.send("resources/templates/list"), "resourceTemplates", "uriTemplate") if "shut" in u]
        assert names(await wire.send("prompts/list"), "prompts", "name") == {"docs__ask"}
    async with over_http(deployment.url, era, token=deployment.keys["other"]) as wire:
        listed = names(await wire.send("tools/list"), "tools", "name")
        assert {"docs__delete", "workflow__fetch", "gateway_status", "search_skills"} <= listed


@pytest.mark.parametrize("era", ERAS)
async def test_hidden_tool_gets_the_answer_of_an_unknown_tool(deployment: Deployment, era: Era) -> None:
    task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
    hidden = ("docs__delete", "docs__search_people", "vault__open", "workflow__fetch", "agent__clerk", "load_skill")
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        for params in ({}, {"arguments": {"odd": 1}}, task):
            unknown = renamed(await wire.send("tools/call", name="docs__no_such", **params), "docs__no_such")
            assert '"error"' in unknown
            for tool in hidden:
                assert renamed(await wire.send("tools/call", name=tool, **params), tool) == unknown
        passed = (await wire.send("tools/call", name="docs__search_pages", arguments={"text": "x"}))["result"]
        assert passed["structuredContent"]["got"]["name"] == "search_pages"


@pytest.mark.parametrize("era", ERAS)
async def test_hidden_reads_get_the_answer_of_unknown_names(deployment: Deployment, era: Era) -> None:
    def completing(kind: str, key: str, name: str) -> dict[str, Any]:
        return {"ref": {"type": kind, key: name}, "argument": {"name": "id", "value": ""}}

    pairs: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
        ("prompts/get", {"name": "docs__tell"}, {"name": "docs__none"}, "docs__tell", "docs__none"),
        ("resources/read", {"uri": "docs+page://shut"}, {"uri": "docs+page://none"}, "docs+page://shut", "docs+page://none"),
        ("resources/read", {"uri": "skill://pdf/SKILL.md"}, {"uri": "nope://x"}, "skill://pdf/SKILL.md", "nope://x"),
        (
            "completion/complete",
            completing("ref/prompt", "name", "docs__tell"),
            completing("ref/prompt", "name", "docs__none"),
            "docs__tell",
            "docs__none",
        ),
    ]
    if era == "modern":
        pairs.append(("skills/get", {"uri": "skill://pdf/SKILL.md"}, {"uri": "skill://no/SKILL.md"}, "skill://pdf/", "skill://no/"))
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        for method, params, other, name, unknown in pairs:
            answers = renamed(await wire.send(method, **params), name), renamed(await wire.send(method, **other), unknown)
            assert answers[0] == answers[1] and '"error"' in answers[0], method
        read = (await wire.send("resources/read", uri="docs+page://open"))["result"]
        assert read["contents"][0]["text"] == "open"
        assert "result" in await wire.send("prompts/get", name="docs__ask")


@pytest.mark.parametrize("era", ERAS)
async def test_role_judges_the_arguments_of_a_call(deployment: Deployment, era: Era) -> None:
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        refused = (await wire.send("tools/call", name="docs__search_pages", arguments={"n": 4}))["result"]
        assert refused["_meta"]["dev.moongate/rule"] == "access.roles.reader.arguments.docs/search_pages.n"
        assert not (await wire.send("tools/call", name="docs__search_pages", arguments={"n": 3}))["result"].get("isError")
    async with over_http(deployment.url, era, token=deployment.keys["other"]) as wire:
        assert not (await wire.send("tools/call", name="docs__search_pages", arguments={"n": 4}))["result"].get("isError")


@pytest.mark.parametrize("era", ERAS)
async def test_scopes_and_roles_are_intersected(deployment: Deployment, era: Era) -> None:
    """The key has a scope for `delete`, which its role hides, and a role for `search_pages`, for which it has no scope."""
    async with over_http(deployment.url, era, token=deployment.keys["narrow"]) as wire:
        assert names(await wire.send("tools/list"), "tools", "name") - OWN == set()
        assert "Unknown tool" in json.dumps(await wire.send("tools/call", name="docs__delete", arguments={}))
        refused = (await wire.send("tools/call", name="docs__search_pages", arguments={}))["result"]
        assert refused["_meta"]["dev.moongate/rule"] == "scopes"
        assert "result" in await wire.send("resources/read", uri="docs+page://open")


@pytest.mark.parametrize("era", ERAS)
async def test_workflow_uses_what_its_file_names(deployment: Deployment, era: Era) -> None:
    async with over_http(deployment.url, era, token=deployment.keys["flow"], tasks=False) as wire:
        assert names(await wire.send("tools/list"), "tools", "name") - OWN == {"workflow__fetch"}
        done = (await wire.send("tools/call", name="workflow__fetch", arguments={}))["result"]
        assert not done.get("isError"), done
        assert "error" in await wire.send("tools/call", name="vault__open", arguments={})


async def test_texts_and_status_name_no_hidden_source(deployment: Deployment) -> None:
    async with over_http(deployment.url, "modern", token=deployment.keys["reader"], tasks=False) as wire:
        shown = (await wire.send("server/discover"))["result"]["instructions"]
        assert "- docs: 1 server tool" in shown and "vault" not in shown and "workflow" not in shown and "skill" not in shown
        status = (await wire.send("tools/call", name="gateway_status", arguments={}))["result"]
        assert [(row["name"], row["tools"]) for row in status["structuredContent"]["sources"]] == [("docs", 1)]
        found = (await wire.send("tools/call", name="list_tools", arguments={}))["result"]["structuredContent"]
        assert found == {"tools": [], "total": 0}
    page = deployment.get("reader", "/status.json").json()
    assert [row["name"] for row in page["sources"]] == ["docs"] and "prefixes" not in page and "vault" not in json.dumps(page)
    assert "vault" not in deployment.get("reader", "/").text
    assert deployment.get("flow", "/status.json").status_code == 404


async def test_agent_hidden_from_a_caller_is_unknown_to_agui(deployment: Deployment) -> None:
    body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    headers = {"Authorization": f"Bearer {deployment.keys['reader']}"}
    origin = deployment.url.removesuffix("/mcp")
    answers = [httpx2.post(f"{origin}/agui/{name}", headers=headers, json=body) for name in ("clerk", "nobody")]
    assert [(answer.status_code, answer.text.replace("clerk", "nobody")) for answer in answers] == [(404, answers[1].text)] * 2


async def test_refusal_of_a_hidden_tool_is_audited(deployment: Deployment) -> None:
    async with over_http(deployment.url, "modern", token=deployment.keys["flow"]) as wire:
        await wire.send("tools/call", name="docs__search_people", arguments={})

    async def refused() -> list[AuditEntry]:
        async with records(deployment.folder / "gateway-state") as made:
            entries = await (await made.audit()).read(since=0, source="docs", limit=1000)
        return [entry for entry in entries if entry.name == "docs__search_people" and entry.fields.get("rule") == "access"]

    with anyio.fail_after(20):
        while not (found := await refused()):
            await anyio.sleep(0.05)
    assert {entry.kind for entry in found} == {"call.refused"}


def test_reload_changes_rights_and_broken_access_keeps_them(tmp_path: Path) -> None:
    from gateway.errors import ConfigError

    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    key = store.add("ann").token

    def listed() -> set[str]:
        async def ask() -> set[str]:
            async with over_http(inside.url, "modern", token=key) as wire:
                return names(await wire.send("tools/list"), "tools", "name") - OWN

        return anyio.run(ask)

    with raw_inside(DOCS) as docs:
        config: dict[str, Any] = {"mcpServers": {"docs": {"type": "http", "url": docs}}, "server": {"statusTool": False}}
        with gateway_inside(tmp_path, config) as inside:
            assert len(listed()) == 3
            config["access"] = {"roles": {"some": {"members": [{"key": "ann"}], "allow": ["docs/delete"]}}}
            inside.reload(tmp_path, config)
            assert listed() == {"docs__delete"}
            config["access"] = {"roles": {"some": {"members": [{"key": "ann"}], "allow": ["what:docs/delete"]}}}
            with pytest.raises(ConfigError, match=r"access\.roles\.some\.allow\[0\].*unknown kind 'what'"):
                inside.reload(tmp_path, config)
            assert listed() == {"docs__delete"}
            config["access"] = {"roles": {}}
            inside.reload(tmp_path, config)
            assert listed() == set()
            del config["access"]
            inside.reload(tmp_path, config)
            assert len(listed()) == 3
