"""Reload of the files that `expose` names, and of rules that affect more than a policy: real processes, files and sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.processes import moongate
from tests.cli.test_reload import File, Running, gateway, until
from tests.fakes.openai_server import openai_server
from tests.fakes.running import auth_server, upstream_stdio
from tests.skills.on_disk import write_skill
from tests.upstream.signing import ENV, config, credentials

pytestmark = pytest.mark.timeout(90)

FUNCTIONS = """
import time
from pathlib import Path
from gateway import tool

@tool
def wait() -> str:
    \"\"\"Wait until it may go on.\"\"\"
    Path("running").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return "waited"
"""

AGENT = "---\nname: helper\ndescription: Helps.\nmodel: openai:m\n---\nHelp.\n"


async def listed(running: Running) -> set[str]:
    return {tool.name for tool in (await running.client.list_tools()).tools} - {"gateway_status", "read_result"}


async def test_own_sources_come_and_go_and_running_calls_complete(tmp_path: Path) -> None:
    functions = FUNCTIONS.replace('Path("', f'Path("{tmp_path}/')
    (tmp_path / "chores.py").write_text(functions)
    write_skill(tmp_path / "skills" / "pdf")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "helper.agent.md").write_text(AGENT)
    file = File(tmp_path)
    file.write({}, expose={"functions": ["chores"]})
    async with gateway(file, "http", "2026-07-28") as running:
        assert await listed(running) == {"function__wait"}
        answers: list[str] = []
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                answers.append(await running.text("function__wait"))

            tasks.start_soon(call)

            async def is_running() -> bool:
                return (tmp_path / "running").exists()

            await until(is_running)
            file.write({}, expose={"skills": ["skills"], "agents": ["agents"]})

            async def are_others() -> bool:
                names = await listed(running)
                return {"search_skills", "load_skill", "agent__helper"} <= names and "function__wait" not in names

            await until(are_others)
            assert {"skill", "agent", "workflow"} == {source["name"] for source in (await running.status())["sources"]}
            assert "skill://pdf/SKILL.md" in {str(found.uri) for found in (await running.client.list_resources()).resources}
            assert answers == []
            (tmp_path / "go").touch()
        assert answers == ["waited"]
        # Skills stay as they are when only the agents change.
        (tmp_path / "agents" / "second.agent.md").write_text(AGENT.replace("helper", "second"))
        file.write({}, expose={"skills": ["skills"], "agents": ["agents/second.agent.md"]})

        async def is_second() -> bool:
            return "agent__second" in await listed(running) and "agent__helper" not in await listed(running)

        await until(is_second)
        assert "started=agent,workflow stopped=agent,workflow" in running.log.read_text()
        file.write({})

        async def nothing() -> bool:
            return not await listed(running)

        await until(nothing)


async def test_sampling_prompt_tools_and_credentials_apply_on_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    file = File(tmp_path)
    with openai_server({"text": "Paris", "repeat": True}) as model, auth_server() as origin:
        monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
        servers: dict[str, Any] = {"up": upstream_stdio("--legacy"), **config(origin, credentials(origin))["mcpServers"]}
        file.write(servers)
        async with gateway(file, "http", "legacy") as running:
            result: Any = await running.client.call_tool("up__ask_model", {})
            assert result.is_error
            assert {s["name"]: s["state"] for s in (await running.status())["sources"]}["docs"] == "auth needed"
            policies = config(origin, credentials(origin))["policies"]
            policies["up"] = {"promptsAsTools": True, "sampling": {"mode": "answer", "model": "openai:m"}}
            file.write(servers, policies=policies)

            async def has_prompt() -> bool:
                return {"up__greet", "docs__echo"} <= await listed(running)

            await until(has_prompt)
            assert await running.text("up__ask_model") == "Paris"
            said: Any = await running.client.call_tool("docs__echo", {"text": "hi"})
            assert said.content[0].text == "hi"


async def test_broken_lock_file_is_reported_until_it_is_fixed(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write({"up": upstream_stdio("--legacy")})
    lock = tmp_path / "gateway.lock.json"
    good = json.dumps({"version": 1, "servers": {}})
    lock.write_text(good)
    async with gateway(file, "http", "legacy") as running:
        assert "problems" not in await running.status()
        lock.write_text("{")

        async def is_told() -> bool:
            return any("lock file is not applied" in problem for problem in (await running.status()).get("problems", []))

        await until(is_told)
        url = f"http://127.0.0.1:{running.port}/mcp"
        file.write({"up": upstream_stdio("--legacy")})
        lock.write_text("[")
        shown = await anyio.to_thread.run_sync(lambda: moongate("list", "servers", "--url", url, cwd=tmp_path))
        assert shown.code == 0
        assert "gateway.lock.json" in shown.err
        lock.write_text(good)

        async def is_mended() -> bool:
            return "problems" not in await running.status()

        await until(is_mended)
