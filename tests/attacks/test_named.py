"""Attack 19, resources that a caller names: they are read with the caller's scopes, also if an agent or a workflow reads them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.inside import raw_inside
from tests.fakes.openai_server import ScriptedServer, openai_server
from tests.fakes.running import gateway_http
from tests.interaction.wire import Era, HttpWire, over_http
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
PAGES = {"page://open": "the open page", "page://shut": "the shut page"}
DOCS: dict[str, Any] = {
    "resources": [{"uri": uri, "name": uri} for uri in PAGES],
    "reads": {uri: {"contents": [{"uri": uri, "text": text}]} for uri, text in PAGES.items()},
}
CLERK = "---\nname: clerk\ndescription: Reads what it is given.\nmodel: openai-chat:scripted\n---\nRead.\n"
BOSS = "---\nname: boss\ndescription: Lets the clerk work.\nmodel: openai-chat:boss\ntools: [agent/clerk]\n---\nDelegate.\n"
FLOW = """\
name: {name}
description: Gives the clerk a page.
input: {{links: {{type: array, items: {{type: object}}, default: []}}, page: {{type: string, default: ""}}{more}}}
executors:
  one: {step}
start: one
output: one
"""
LINK = '{type: resource_link, uri: "docs+page://shut"}'
FALLBACK = f", fallback: {{type: array, items: {{type: object}}, default: [{LINK}]}}"
FLOWS = {
    "given": '{tool: agent/clerk, arguments: {task: go, attachments: "{{links}}"}}',
    "fixed": f"{{tool: agent/clerk, arguments: {{task: go, attachments: [{LINK}]}}}}",
    "mixed": '{tool: agent/clerk, arguments: {task: go, attachments: [{type: resource_link, uri: "docs+page://{{page}}"}]}}',
    "default": '{tool: agent/clerk, arguments: {task: go, attachments: "{{fallback}}"}}',
    "outer": f"{{workflow: given, arguments: {{links: [{LINK}]}}}}",
    "passed": '{workflow: given, arguments: {links: "{{links}}"}}',
    "beside": '{tool: agent/clerk, arguments: {task: "docs+page://shut", attachments: "{{links}}"}}',
}
SCOPES: dict[str, tuple[str, ...]] = {
    "clerk": ("agent/clerk", "agent/boss", "workflow"),
    "reader": ("agent/clerk", "agent/boss", "workflow", "resources:docs/page://open"),
    "flow": ("workflow",),
    "all": ("*",),
}


@dataclass(frozen=True)
class Deployment:
    url: str
    keys: dict[str, str]
    model: ScriptedServer

    async def shown(self) -> str:
        """Return all requests that any model received, as text."""
        return str(await self.model.requests())


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("named")
    (folder / "clerk.agent.md").write_text(CLERK)
    (folder / "boss.agent.md").write_text(BOSS)
    for name, step in FLOWS.items():
        (folder / f"{name}.workflow.yaml").write_text(FLOW.format(name=name, step=step, more=FALLBACK if name == "default" else ""))
    store = KeyStore(folder / "gateway-state" / "keys.json")
    keys = {name: store.add(name, scopes=scopes).token for name, scopes in SCOPES.items()}
    with ExitStack() as stack:
        model = stack.enter_context(openai_server())
        docs = stack.enter_context(raw_inside(DOCS))
        config = {"mcpServers": {"docs": {"type": "http", "url": docs}}, "expose": {"agents": ["."]}}
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        yield Deployment(stack.enter_context(gateway_http(folder, config, env=env)), keys, model)


def link(uri: str) -> list[dict[str, Any]]:
    return [{"type": "resource_link", "uri": uri, "name": "page"}]


async def result_of(wire: HttpWire, tool: str, arguments: dict[str, Any], *, as_task: bool) -> dict[str, Any]:
    """Call a tool and return its result; wait for the task if the call is a task."""
    asked: dict[str, Any] = {"task": {}} if as_task and wire.era == "legacy" else {}
    made = (await wire.send("tools/call", name=tool, arguments=arguments, **asked))["result"]
    if not as_task:
        return made
    task_id = made["task"]["taskId"] if wire.era == "legacy" else made["taskId"]
    with anyio.fail_after(20):
        while (state := (await wire.send("tasks/get", taskId=task_id))["result"])["status"] == "working":
            await anyio.sleep(0.02)
    return (await wire.send("tasks/result", taskId=task_id))["result"] if wire.era == "legacy" else state["result"]


@pytest.mark.parametrize("as_task", [False, True], ids=["call", "task"])
@pytest.mark.parametrize("era", ERAS)
async def test_attachment_link_is_read_with_callers_scopes(deployment: Deployment, era: Era, as_task: bool) -> None:
    for key, uri, is_read in (
        ("clerk", "docs+page://shut", False),
        ("clerk", "moongate://status", False),
        ("clerk", "agent://boss", False),
        ("reader", "docs+page://shut", False),
        ("reader", "docs+page://open", True),
        ("all", "docs+page://shut", True),
    ):
        await deployment.model.play({"text": "read"})
        async with over_http(deployment.url, era, token=deployment.keys[key], tasks=as_task) as wire:
            result = await result_of(wire, "agent__clerk", {"task": "go", "attachments": link(uri)}, as_task=as_task)
        shown = await deployment.shown()
        assert bool(result.get("isError")) != is_read, (key, uri, result)
        assert is_read or (shown == "[]" and "no scope for resource" in result["content"][0]["text"]), (key, uri, result)
        assert not is_read or PAGES[uri.removeprefix("docs+")] in shown


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("flow", ["given", "passed"])
async def test_link_in_workflow_input_is_read_with_callers_scopes(deployment: Deployment, era: Era, flow: str) -> None:
    for key, uri, is_read in (("clerk", "page://shut", False), ("reader", "page://shut", False), ("reader", "page://open", True)):
        await deployment.model.play({"text": "read"})
        async with over_http(deployment.url, era, token=deployment.keys[key], tasks=False) as wire:
            result = (await wire.send("tools/call", name=f"workflow__{flow}", arguments={"links": link(f"docs+{uri}")}))["result"]
        assert bool(result.get("isError")) != is_read, (key, uri, result)
        assert (PAGES[uri] in await deployment.shown()) == is_read


async def test_uri_with_callers_part_is_read_with_callers_scopes(deployment: Deployment) -> None:
    for page, is_read in (("shut", False), ("open", True)):
        await deployment.model.play({"text": "read"})
        async with over_http(deployment.url, "modern", token=deployment.keys["reader"], tasks=False) as wire:
            result = (await wire.send("tools/call", name="workflow__mixed", arguments={"page": page}))["result"]
        assert bool(result.get("isError")) != is_read, result
        assert (PAGES[f"page://{page}"] in await deployment.shown()) == is_read


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("flow", ["fixed", "default", "outer"])
async def test_link_in_workflow_file_is_read_with_files_rights(deployment: Deployment, era: Era, flow: str) -> None:
    await deployment.model.play({"text": "read"})
    async with over_http(deployment.url, era, token=deployment.keys["clerk"], tasks=False) as wire:
        result = (await wire.send("tools/call", name=f"workflow__{flow}", arguments={}))["result"]
    assert not result.get("isError"), result
    assert PAGES["page://shut"] in await deployment.shown()


ASKED = """\
name: asked
description: Asks, then gives the clerk a page.
input: {links: {type: array, items: {type: object}}}
executors:
  sure: {ask: "Go on?"}
  one: {tool: agent/clerk, arguments: {task: go, attachments: "{{links}}"}}
start: sure
edges: [{from: sure, to: one}]
output: one
"""


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("key", "is_read"), [("flow", False), pytest.param("all", True, marks=pytest.mark.faults)])
async def test_resumed_task_reads_with_callers_scopes(tmp_path: Path, era: Era, key: str, is_read: bool) -> None:
    """The gateway is killed while the task waits for its answer; the next one calls the clerk as the file says and reads the link."""
    (tmp_path / "clerk.agent.md").write_text(CLERK)
    (tmp_path / "asked.workflow.yaml").write_text(ASKED)
    token = KeyStore(tmp_path / "gateway-state" / "keys.json").add(key, scopes=SCOPES[key]).token
    with openai_server() as model, raw_inside(DOCS) as docs:
        await model.play({"text": "read"})
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        config = {"mcpServers": {"docs": {"type": "http", "url": docs}}, "expose": {"agents": ["."]}}
        first, url = start_gateway(tmp_path, "gateway", config, **env)
        try:
            async with over_http(url, era, token=token) as wire:
                params: dict[str, Any] = {"name": "workflow__asked", "arguments": {"links": link("docs+page://shut")}}
                made = (await wire.send("tools/call", **params, **({"task": {}} if era == "legacy" else {})))["result"]
                task_id = made["task"]["taskId"] if era == "legacy" else made["taskId"]
                await until(wire, task_id, "input_required")
        finally:
            stop(first)
        second, url = start_gateway(tmp_path, "gateway", config, **env)
        try:
            async with over_http(url, "modern", token=token) as wire:
                asked = (await until(wire, task_id, "input_required"))["inputRequests"]
                answers = {one: {"action": "accept", "content": {"answer": "yes"}} for one in asked}
                await wire.send("tasks/update", taskId=task_id, inputResponses=answers)
                ended = await until(wire, task_id, "completed")
        finally:
            stop(second)
        shown = str(await model.requests())
    assert bool(ended["result"].get("isError")) != is_read, ended
    assert (PAGES["page://shut"] in shown) == is_read
    assert is_read or "no scope for resource" in str(ended["result"]["content"])


async def test_text_of_workflow_file_beside_links_grants_no_link(deployment: Deployment) -> None:
    await deployment.model.play({"text": "read"})
    async with over_http(deployment.url, "modern", token=deployment.keys["clerk"], tasks=False) as wire:
        result = (await wire.send("tools/call", name="workflow__beside", arguments={"links": link("docs+page://shut")}))["result"]
    assert result["isError"], result
    assert PAGES["page://shut"] not in await deployment.shown()


@pytest.mark.parametrize("era", ERAS)
async def test_agent_inside_agent_reads_no_links(deployment: Deployment, era: Era) -> None:
    """A key for everything does not help: the boss's model named the link, and the boss's file lists no resource."""
    call = {"name": "agent__clerk", "arguments": {"task": "go", "attachments": link("docs+page://shut")}}
    await deployment.model.play(
        {"when": {"model": "boss", "last_role": "user"}, "tool_calls": [call]},
        {"when": {"model": "boss", "last_role": "tool"}, "text": "It said: {last_tool}"},
        {"when": {"model": "scripted"}, "text": "read"},
    )
    async with over_http(deployment.url, era, token=deployment.keys["all"], tasks=False) as wire:
        result = (await wire.send("tools/call", name="agent__boss", arguments={"task": "go"}))["result"]
    assert "attach its content" in result["content"][0]["text"]
    assert PAGES["page://shut"] not in await deployment.shown()
