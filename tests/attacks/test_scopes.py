"""Attack 19, scopes that grow: a scoped key lists only what its scopes cover, and all else is rejected on every path."""

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
from gateway.auth.principal import Principal
from gateway.errors import StorageError
from gateway.policy.caller_rights import is_admin
from gateway.policy.decision import PASS
from gateway.policy.scopes import judge_scope, scope_problem
from gateway.storage.record_types import AuditEntry
from tests.cli.processes import moongate
from tests.fakes.inside import gateway_inside, raw_inside
from tests.interaction.wire import EXTENSION, Era, over_http
from tests.skills.on_disk import write_skill
from tests.storage.test_records import records

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
ANY: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
DOCS: dict[str, Any] = {
    "instructions": "Ask me about the docs.",
    "tools": [{"name": name, "inputSchema": ANY} for name in ("search_pages", "search_people", "delete")],
    "resources": [{"uri": f"page://{name}", "name": name} for name in ("open", "shut")],
    "templates": [{"uriTemplate": "shut://{id}", "name": "shut"}],
    "prompts": [{"name": name} for name in ("ask", "tell")],
    "reads": {f"page://{name}": {"contents": [{"uri": f"page://{name}", "text": name}]} for name in ("open", "shut")},
    "rendered": {name: {"messages": []} for name in ("ask", "tell")},
}
VAULT: dict[str, Any] = {
    "instructions": "The vault's own words.",
    "tools": [{"name": "open", "inputSchema": ANY}],
    "resources": [{"uri": "secret://one", "name": "one"}],
    "reads": {"secret://one": {"contents": [{"uri": "secret://one", "text": "gold"}]}},
}
FLOW = """\
name: fetch
description: Opens the vault.
input: {}
executors:
  one: {tool: vault/open, arguments: {}}
start: one
output: one
"""
READER = ("tools:docs/search_*", "resources:docs/page://open", "prompts:docs/ask")


@dataclass(frozen=True)
class Deployment:
    url: str
    state: Path
    keys: dict[str, str]

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/mcp")

    def get(self, name: str, path: str) -> httpx2.Response:
        return httpx2.get(self.origin + path, headers={"Authorization": f"Bearer {self.keys[name]}"})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("scopes")
    (folder / "flow.workflow.yaml").write_text(FLOW)
    (folder / "clerk.agent.md").write_text("---\nname: clerk\ndescription: Helps.\nmodel: openai:none\n---\nHelp.\n")
    write_skill(folder / "skills" / "pdf")
    state = folder / "gateway-state"
    store = KeyStore(state / "keys.json")
    scopes = {"all": None, "reader": READER, "flow": ("workflow/fetch",), "docs": ("docs",), "skill": ("skill",), "status": ("gateway",)}
    keys = {name: store.add(name, scopes=given).token for name, given in scopes.items()}
    with ExitStack() as stack:
        urls = {name: stack.enter_context(raw_inside(told)) for name, told in (("docs", DOCS), ("vault", VAULT))}
        config = {
            "mcpServers": {name: {"type": "http", "url": url} for name, url in urls.items()},
            "policies": {"docs": {"tasks": {"promote": ["delete"]}}, "vault": {"disclosure": "on-demand"}},
            "expose": {"agents": ["."], "skills": ["skills"]},
        }
        yield Deployment(stack.enter_context(gateway_inside(folder, config)).url, state, keys)


def names(answer: dict[str, Any], kind: str, key: str) -> set[str]:
    return {entry[key] for entry in answer["result"][kind]}


OWN = {
    "read_result", "list_tools", "load_tools", "unload_tools", "task_status", "task_result", "task_cancel", "session_list", "session_delete"
}  # fmt: skip


@pytest.mark.parametrize("era", ERAS)
async def test_lists_show_a_key_only_entries_in_its_scopes(deployment: Deployment, era: Era) -> None:
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        assert names(await wire.send("tools/list"), "tools", "name") - OWN == {"docs__search_pages", "docs__search_people"}
        assert names(await wire.send("resources/list"), "resources", "uri") == {"docs+page://open"}
        templates = names(await wire.send("resources/templates/list"), "resourceTemplates", "uriTemplate")
        assert not [uri for uri in templates if "shut" in uri]
        assert names(await wire.send("prompts/list"), "prompts", "name") == {"docs__ask"}
    async with over_http(deployment.url, era, token=deployment.keys["all"]) as wire:
        listed = names(await wire.send("tools/list"), "tools", "name")
        assert {"docs__delete", "workflow__fetch", "gateway_status", "search_skills"} <= listed
        assert len(names(await wire.send("prompts/list"), "prompts", "name")) >= 2


@pytest.mark.parametrize("era", ERAS)
async def test_out_of_scope_call_is_rejected_and_reaches_no_server(deployment: Deployment, era: Era) -> None:
    async with over_http(deployment.url, era, token=deployment.keys["reader"], tasks=era == "legacy") as wire:
        for tool in ("docs__delete", "vault__open", "workflow__fetch", "agent__clerk", "search_skills", "load_skill", "gateway_status"):
            refused = (await wire.send("tools/call", name=tool, arguments={}))["result"]
            assert refused["isError"] and refused["_meta"]["dev.moongate/rule"] == "scopes", tool
            assert "no scope for tool" in refused["content"][0]["text"] and "docs/search_*" in refused["content"][0]["text"]
        passed = (await wire.send("tools/call", name="docs__search_pages", arguments={"text": "x"}))["result"]
        assert passed["structuredContent"]["got"]["name"] == "search_pages"


@pytest.mark.parametrize("era", ERAS)
async def test_no_task_is_made_of_a_call_without_a_scope(deployment: Deployment, era: Era) -> None:
    task: dict[str, Any] = {"task": {}} if era == "legacy" else {}
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        refused = (await wire.send("tools/call", name="docs__delete", arguments={}, **task))["result"]
        assert refused["_meta"]["dev.moongate/rule"] == "scopes"
        assert not refused.get("task") and refused.get("resultType", "complete") == "complete"
    async with over_http(deployment.url, era, token=deployment.keys["docs"]) as wire:
        made = (await wire.send("tools/call", name="docs__delete", arguments={}, **task))["result"]
        task_id = made["task"]["taskId"] if era == "legacy" else made["taskId"]
        with anyio.fail_after(20):
            while (await wire.send("tasks/get", taskId=task_id))["result"]["status"] != "completed":
                await anyio.sleep(0.02)


@pytest.mark.parametrize("era", ERAS)
async def test_out_of_scope_reads_prompts_and_subscriptions_are_rejected(deployment: Deployment, era: Era) -> None:
    wants: list[tuple[str, dict[str, Any]]] = [
        ("resources/read", {"uri": "docs+page://shut"}),
        ("resources/read", {"uri": "vault+secret://one"}),
        ("resources/read", {"uri": "moongate://status"}),
        ("resources/read", {"uri": "skill://pdf/SKILL.md"}),
        ("prompts/get", {"name": "docs__tell"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "docs__tell"}, "argument": {"name": "a", "value": ""}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs+shut://{id}"}, "argument": {"name": "id", "value": ""}}),
        *([("resources/subscribe", {"uri": "docs+page://shut"})] if era == "legacy" else []),
    ]
    async with over_http(deployment.url, era, token=deployment.keys["reader"]) as wire:
        for method, params in wants:
            error = (await wire.send(method, **params))["error"]
            assert (error["code"], error["data"]) == (-32602, {"error": "insufficient_scope"}), (method, params)
            assert "no scope for" in error["message"]
        read = (await wire.send("resources/read", uri="docs+page://open"))["result"]
        assert read["contents"][0]["text"] == "open"
        assert "result" in await wire.send("prompts/get", name="docs__ask")


async def test_skills_extension_shows_a_key_only_skills_in_its_scopes(deployment: Deployment) -> None:
    for name, shown in (("skill", {"skill://pdf/SKILL.md"}), ("reader", set[str]())):
        async with over_http(deployment.url, "modern", token=deployment.keys[name]) as wire:
            assert names(await wire.send("skills/list"), "skills", "uri") == shown
            for method, uri in (("skills/get", "skill://pdf/SKILL.md"), ("resources/directory/read", "skill://pdf")):
                answer = await wire.send(method, uri=uri)
                assert ("result" in answer) == bool(shown), answer
                assert shown or answer["error"]["data"] == {"error": "insufficient_scope"}


async def test_tools_loaded_on_demand_are_found_within_the_scope(deployment: Deployment) -> None:
    for name, found in (("all", ["vault__open"]), ("reader", [])):
        async with over_http(deployment.url, "modern", token=deployment.keys[name], tasks=False) as wire:
            listed = (await wire.send("tools/call", name="list_tools", arguments={}))["result"]["structuredContent"]
            assert [tool["name"] for tool in listed["tools"]] == found
            loaded = (await wire.send("tools/call", name="load_tools", arguments={"names": ["vault__open"]}))["result"]
            assert bool(loaded.get("isError")) == (not found)


@pytest.mark.parametrize("era", ERAS)
async def test_scoped_source_may_use_what_it_needs_itself(deployment: Deployment, era: Era) -> None:
    """A workflow calls what its file names: the key is for the workflow, not for the vault."""
    async with over_http(deployment.url, era, token=deployment.keys["flow"], tasks=False) as wire:
        assert names(await wire.send("tools/list"), "tools", "name") - OWN == {"workflow__fetch"}
        done = (await wire.send("tools/call", name="workflow__fetch", arguments={}))["result"]
        assert not done.get("isError"), done
        assert (await wire.send("tools/call", name="vault__open", arguments={}))["result"]["isError"]


@pytest.mark.parametrize("era", ERAS)
async def test_key_sees_only_the_sources_in_its_scope(deployment: Deployment, era: Era) -> None:
    async def told(name: str) -> str:
        headers = {"Authorization": f"Bearer {deployment.keys[name]}", "Accept": "application/json, text/event-stream"}
        if era == "modern":
            async with over_http(deployment.url, era, token=deployment.keys[name]) as wire:
                return (await wire.send("server/discover"))["result"]["instructions"]
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        return httpx2.post(deployment.url, headers=headers, json=hello).text

    assert "vault" in await told("all") and "own words" in await told("all")
    shown = await told("docs")
    assert "Ask me about the docs." in shown and "vault" not in shown and "skills for" not in shown


@pytest.mark.parametrize("path", ["/", "/status.json"])
def test_the_pages_are_for_keys_that_may_see_the_gateway(deployment: Deployment, path: str) -> None:
    refused = deployment.get("reader", path)
    assert (refused.status_code, refused.json()["error"]) == (403, "insufficient_scope")
    assert refused.headers["www-authenticate"].startswith('Bearer realm="moongate", error="insufficient_scope", scope="')
    assert "vault" not in refused.text
    assert (deployment.get("all", path).status_code, deployment.get("status", path).status_code) == (200, 200)
    assert deployment.get("reader", "/ready").status_code == 200


async def refusals(deployment: Deployment, source: str, name: str) -> set[str]:
    """Return the kinds of the audit entries of scope refusals for a name; wait for one, because entries are written after the call."""

    async def refused() -> list[AuditEntry]:
        async with records(deployment.state) as made:
            entries = await (await made.audit()).read(since=0, source=source, limit=1000)
        return [entry for entry in entries if entry.name == name and entry.fields.get("rule") == "scopes"]

    with anyio.fail_after(20):
        while not (found := await refused()):
            await anyio.sleep(0.05)
    return {entry.kind for entry in found}


async def test_out_of_scope_agent_run_is_rejected_and_audited(deployment: Deployment) -> None:
    body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [], "tools": [], "context": [], "state": {}, "forwardedProps": {}}
    asked = httpx2.post(f"{deployment.origin}/agui/clerk", headers={"Authorization": f"Bearer {deployment.keys['reader']}"}, json=body)
    assert (asked.status_code, asked.json()["error"]) == (403, "insufficient_scope")
    assert 'scope="tools:agent/clerk"' in asked.headers["www-authenticate"]
    assert await refusals(deployment, "agent", "agent__clerk") == {"call.refused"}


async def test_refusal_is_in_the_audit_log_with_its_rule(deployment: Deployment) -> None:
    async with over_http(deployment.url, "modern", token=deployment.keys["flow"]) as wire:
        await wire.send("tools/call", name="docs__search_people", arguments={})
    assert await refusals(deployment, "docs", "docs__search_people") == {"call.refused"}


async def test_change_stream_shows_a_key_nothing_out_of_its_scope(deployment: Deployment) -> None:
    """The stream acknowledges only those requested subscriptions that the key may read."""
    headers = {"Authorization": f"Bearer {deployment.keys['reader']}", "Accept": "application/json, text/event-stream"}
    headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
    prefix = "io.modelcontextprotocol"
    meta: dict[str, Any] = {f"{prefix}/protocolVersion": "2026-07-28", f"{prefix}/clientCapabilities": {"extensions": {EXTENSION: {}}}}
    wanted = {"resourceSubscriptions": ["docs+page://shut", "vault+secret://one"]}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": {"_meta": meta, "notifications": wanted}}
    acknowledged: dict[str, Any] = {}
    async with httpx2.AsyncClient(timeout=20) as http, http.stream("POST", deployment.url, headers=headers, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                acknowledged = json.loads(line[6:])
                break
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert not acknowledged["params"]["notifications"].get("resourceSubscriptions")


# -- the decision ----------------------------------------------------------------------------------------------------


TABLE: list[tuple[str, str, str, str, bool]] = [
    ("docs", "tools", "docs", "delete", True),
    ("docs", "resources", "docs", "page://a/b?c", True),
    ("docs", "tools", "docs2", "delete", False),
    ("docs/*", "prompts", "docs", "ask", True),
    ("docs/search_*", "tools", "docs", "search_x", True),
    ("docs/search_*", "tools", "docs", "research_x", False),
    ("docs/search_*", "tools", "docs", "SEARCH_x", False),
    ("tools:docs/*", "resources", "docs", "page://a", False),
    ("resources:docs/page://*", "resources", "docs", "page://a/../b", False),
    ("resources:docs/page://*", "resources", "docs", "pages://a", False),
    ("prompts:*", "prompts", "any", "ask", True),
    ("prompts:*", "tools", "any", "ask", False),
    ("*", "tools", "any", "any", True),
    ("*/search", "tools", "any", "search", True),
    ("do[ck]s/a?", "tools", "docs", "ab", True),
    ("docs/", "tools", "docs", "", True),
    ("skill", "tools", "gateway", "read_result", True),
    ("skill", "tools", "gateway", "gateway_status", False),
    ("skill", "resources", "gateway", "moongate://status", False),
    ("gateway", "resources", "gateway", "moongate://status", True),
    ("tools:gateway/gateway_status", "resources", "gateway", "moongate://status", False),
    ("admin", "tools", "admin", "delete_user", False),
    ("admin", "tools", "docs", "search", False),
    ("admin", "resources", "gateway", "moongate://status", False),
    ("admin/*", "tools", "admin", "delete_user", True),
]


@pytest.mark.parametrize(("scope", "kind", "source", "name", "passes"), TABLE)
def test_scope_covers_only_the_names_in_it(scope: str, kind: Any, source: str, name: str, passes: bool) -> None:
    assert (judge_scope([scope], kind, source, name) is PASS) == passes
    assert (judge_scope(["other", scope], kind, source, name) is PASS) == passes
    assert judge_scope(None, kind, source, name) is PASS
    assert judge_scope([], kind, "docs", name) is not PASS


@pytest.mark.parametrize(
    ("scopes", "admin"),
    [
        (("admin",), True),
        (("*", "admin"), True),
        (None, False),
        ((), False),
        (("*",), False),
        (("admin/*",), False),
        (("tools:admin",), False),
        (("adm?n",), False),
        (("Admin",), False),
    ],
)
def test_only_the_exact_scope_admin_makes_an_administrator(scopes: tuple[str, ...] | None, admin: bool) -> None:
    assert is_admin(Principal("key:1", "boss", scopes)) is admin


@pytest.mark.parametrize("scope", ["", "/x", "docs/", "tool:docs", ":docs", "tools:", "a b", 'a"b', "a\\b", "a\nb", "x" * 501])
def test_malformed_scope_creates_no_key(scope: str, tmp_path: Path) -> None:
    assert scope_problem(scope)
    with pytest.raises(ValueError, match=r"(?i)scope"):
        KeyStore(tmp_path / "keys.json").add("x", scopes=[scope])
    assert not (tmp_path / "keys.json").exists()


def test_file_with_scopes_locks_out_older_versions(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    store = KeyStore(path)
    whole = store.add("whole")
    assert json.loads(path.read_text())["version"] == 1
    bound = store.add("bound", scopes=["docs", "docs", "prompts:up"])
    document = json.loads(path.read_text())
    assert document["version"] == 2
    assert [info.scopes for info in KeyStore(path).list()] == [None, ("docs", "prompts:up")]
    key = KeyStore(path).find(bound.token)
    assert key is not None
    assert key.principal.scopes == ("docs", "prompts:up")
    assert key.principal.unscoped().scopes is None
    store.revoke(bound.id)
    assert json.loads(path.read_text())["version"] == 1
    damages: list[Any] = ["docs", [1], None, {}]
    for damage in damages:
        document["keys"][1]["scopes"] = damage
        path.write_text(json.dumps(document))
        with pytest.raises(StorageError, match="damaged"):
            KeyStore(path).find(whole.token)


def test_command_line_creates_and_shows_scoped_keys(tmp_path: Path) -> None:
    made = moongate("keys", "add", "reader", "--scope", "docs/search_*", "--scope", "prompts:docs", "--json", cwd=tmp_path).data
    assert made["scopes"] == ["docs/search_*", "prompts:docs"]
    moongate("keys", "add", "whole", cwd=tmp_path)
    listed = moongate("keys", "list", "--json", cwd=tmp_path).data["keys"]
    assert [key["scopes"] for key in listed] == [["docs/search_*", "prompts:docs"], None]
    shown = moongate("keys", "list", cwd=tmp_path).out
    assert "docs/search_*, prompts:docs" in shown and "everything" in shown
    refused = moongate("keys", "add", "bad", "--scope", "tool:docs", cwd=tmp_path)
    assert refused.code == 1 and "unknown kind 'tool'" in refused.err
