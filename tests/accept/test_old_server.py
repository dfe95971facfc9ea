"""A published server of 2025 behind a URL: progress, requests and notifications during a call arrive."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client.client import Client

from tests.accept import clients
from tests.accept.clients import HOME, NODE
from tests.fakes.running import child, free_port, wait_until_ready, write_config

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

SERVER = HOME / "js/node_modules/@modelcontextprotocol/server-everything/dist/index.js"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The URL of a gateway in front of a 2025 server over streamable HTTP."""
    if not clients.are_installed():
        pytest.skip(f"the server is not installed in {HOME}; run `make accept`")
    folder: Path = tmp_path_factory.mktemp("old")
    behind, port, log = free_port(), free_port(), folder / "gateway.log"
    relay: dict[str, Any] = {"sampling": {"mode": "relay"}, "elicitation": {"mode": "relay"}}
    servers = {"old": {"type": "http", "url": f"http://127.0.0.1:{behind}/mcp"}}
    config = write_config(folder, {"mcpServers": servers, "policies": {"old": relay}})
    environment = {**os.environ, "PORT": str(behind)}
    with (folder / "server.log").open("wb") as said:
        server = subprocess.Popen([str(NODE), str(SERVER), "streamableHttp"], env=environment, stdout=said, stderr=said)
    try:
        until = time.monotonic() + 30
        while f"port {behind}" not in (folder / "server.log").read_text():
            assert time.monotonic() < until, "it does not start"
            time.sleep(0.1)
        with child("-m", "gateway", "run", "--config", str(config), "--http", f"127.0.0.1:{port}", log=log) as gateway:
            wait_until_ready(gateway, f"http://127.0.0.1:{port}/ready", log)
            yield f"http://127.0.0.1:{port}/mcp"
        assert "Traceback" not in log.read_text()
    finally:
        server.kill()
        server.wait()


def text_of(result: Any) -> str:
    return "\n".join(str(getattr(block, "text", block.type)) for block in result.content)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_calls_of_a_client_with_elicitation_are_answered(url: str, mode: Any) -> None:
    heard: list[float] = []

    async def sample(context: Any, params: Any) -> types.CreateMessageResult:
        return types.CreateMessageResult(role="assistant", content=types.TextContent(type="text", text="from the model"), model="m")

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with Client(url, mode=mode, cache=None, sampling_callback=sample, elicitation_callback=elicit) as client:
        assert "from the model" in text_of(await client.call_tool("old__trigger-sampling-request", {"prompt": "p", "maxTokens": 10}))
        assert "Ada" in text_of(await client.call_tool("old__trigger-elicitation-request", {}))
        slow = {"duration": 1, "steps": 3}
        assert "completed" in text_of(await client.call_tool("old__trigger-long-running-operation", slow, progress_callback=note))
        weather = await client.call_tool("old__get-structured-content", {"location": "New York"})
        assert weather.structured_content is not None and "temperature" in weather.structured_content
    assert heard == [1, 2, 3]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_many_calls_at_once_are_each_answered_with_their_own(url: str, mode: Any) -> None:
    async with Client(url, mode=mode, cache=None) as client:

        async def call(number: int) -> None:
            assert text_of(await client.call_tool("old__echo", {"message": f"m{number}"})) == f"Echo: m{number}"

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(call, number)
        assert (await client.call_tool("old__get-sum", {"a": "x", "b": 2})).is_error
