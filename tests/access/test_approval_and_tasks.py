"""Roles and approvals, tasks and sessions: on both server paths and in both protocol eras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.inside import gateway_inside, raw_inside
from tests.fakes.openai_server import openai_server
from tests.fakes.running import gateway_http
from tests.interaction.wire import Era, over_http

pytestmark = [pytest.mark.attack(19), pytest.mark.timeout(60)]
ERAS: tuple[Era, ...] = ("legacy", "modern")
ANY: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
DOCS: dict[str, Any] = {"tools": [{"name": name, "inputSchema": ANY} for name in ("read", "merge")]}


def folder_with(tmp_path: Path, *names: str) -> dict[str, str]:
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    return {name: store.add(name).token for name in names}


@pytest.mark.parametrize("direct_path", ["auto", "off"])
@pytest.mark.parametrize("era", ERAS)
async def test_role_requires_an_approval_on_both_paths(tmp_path: Path, era: Era, direct_path: str) -> None:
    keys = folder_with(tmp_path, "ann", "boss", "chief")
    roles: dict[str, Any] = {
        "staff": {"members": [{"key": "ann"}], "allow": ["docs"], "approval": ["docs/merge"]},
        "boss": {"members": [{"key": "boss"}], "allow": ["docs"]},
        "chief": {"members": [{"key": "chief"}], "allow": ["docs"], "operator": True},
    }
    with raw_inside(DOCS) as docs:
        config: dict[str, Any] = {
            "mcpServers": {"docs": {"type": "http", "url": docs}},
            "policies": {"docs": {"approval": {"by": "operator"}}},
            "server": {"http": {"directPath": direct_path}},
            "access": {"roles": roles},
        }

        async def outcomes(url: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            async with over_http(url, era, token=keys["boss"], tasks=False) as wire:
                found.append((await wire.send("tools/call", name="docs__merge", arguments={}))["result"])
            async with over_http(url, era, token=keys["ann"], tasks=False) as wire:
                found.append((await wire.send("tools/call", name="docs__read", arguments={}))["result"])
                with anyio.move_on_after(1):
                    found.append((await wire.send("tools/call", name="docs__merge", arguments={}))["result"])
            return found

        with gateway_inside(tmp_path, config) as inside:
            found = await anyio.to_thread.run_sync(lambda: anyio.run(outcomes, inside.url))
    assert len(found) == 2 and not any(result.get("isError") for result in found)


async def test_task_of_a_hidden_tool_is_unknown_after_a_reload(tmp_path: Path) -> None:
    keys = folder_with(tmp_path, "ann")
    with raw_inside(DOCS) as docs:
        config: dict[str, Any] = {
            "mcpServers": {"docs": {"type": "http", "url": docs}},
            "policies": {"docs": {"tasks": {"promote": ["read"]}}},
            "access": {"roles": {"staff": {"members": [{"key": "ann"}], "allow": ["docs"]}}},
        }

        async def started() -> str:
            async with over_http(inside.url, "modern", token=keys["ann"]) as wire:
                task_id = (await wire.send("tools/call", name="docs__read", arguments={}))["result"]["taskId"]
                with anyio.fail_after(20):
                    while (await wire.send("tasks/get", taskId=task_id))["result"]["status"] != "completed":
                        await anyio.sleep(0.02)
                return task_id

        async def asked(task_id: str) -> list[dict[str, Any]]:
            async with over_http(inside.url, "modern", token=keys["ann"]) as wire:
                of_tool = [(await wire.send("tasks/get", taskId=name)) for name in (task_id, "no-such-task")]
            async with over_http(inside.url, "legacy", token=keys["ann"]) as wire:
                listed = await wire.send("tasks/list")
                calls = [await wire.send("tools/call", name="task_status", arguments={"task_id": name}) for name in (task_id, "nope")]
            return [*of_tool, listed, *calls]

        with gateway_inside(tmp_path, config) as inside:
            task_id = await anyio.to_thread.run_sync(lambda: anyio.run(started))
            config["access"]["roles"]["staff"]["allow"] = ["docs/merge"]
            await anyio.to_thread.run_sync(inside.reload, tmp_path, config)
            known, unknown, listed, status, nothing = await anyio.to_thread.run_sync(lambda: anyio.run(asked, task_id))
    assert known["error"] == unknown["error"] and listed["result"]["tasks"] == []
    assert status["result"] == nothing["result"] and status["result"]["isError"]


async def test_sessions_with_a_hidden_agent_are_not_listed(tmp_path: Path) -> None:
    for name in ("clerk", "scribe"):
        (tmp_path / f"{name}.agent.md").write_text(f"---\nname: {name}\ndescription: Helps.\nmodel: openai:m\n---\nHelp.\n")
    keys = folder_with(tmp_path, "ann")
    config: dict[str, Any] = {
        "expose": {"agents": ["."]},
        "access": {"roles": {"staff": {"members": [{"key": "ann"}], "allow": ["agent"]}}},
    }

    async def sessions(url: str, *, talks: bool) -> set[str]:
        async with over_http(url, "modern", token=keys["ann"], tasks=False) as wire:
            for name in ("clerk", "scribe") if talks else ():
                done = await wire.send("tools/call", name=f"agent__{name}", arguments={"task": "go", "session_id": "new"})
                assert not done["result"].get("isError"), done
            listed = (await wire.send("tools/call", name="session_list", arguments={}))["result"]["structuredContent"]
            return {session["agent"] for session in listed["sessions"]}

    with openai_server({"text": "hi", "repeat": True}) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        with gateway_http(tmp_path, config, env=env) as url:
            assert await sessions(url, talks=True) == {"clerk", "scribe"}
        config["access"]["roles"]["staff"]["allow"] = ["agent/clerk"]
        with gateway_http(tmp_path, config, env=env) as url:
            assert await sessions(url, talks=False) == {"clerk"}
