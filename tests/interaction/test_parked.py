"""Parked calls of 2026 clients: the answer is late, never arrives, or arrives at another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as t
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from gateway.auth.api_keys import KeyStore
from tests.fakes.nursery import Child
from tests.fakes.running import child, free_port, gateway_http, upstream_http, upstream_stdio, wait_until_ready, write_config
from tests.interaction.ways import Era, Way, connected

pytestmark = pytest.mark.timeout(60)
MODERN = Way("http", "modern", "up")
ADA = t.ElicitResult(action="accept", content={"name": "Ada"})


async def leg(client: Client, tool: str, before: t.InputRequiredResult | None = None) -> Any:
    """Send one request of a call: the first, or the request that answers all questions of the result `before`."""
    answers: Any = dict.fromkeys(before.input_requests or {}, ADA) if before else None
    state = before.request_state if before else None
    return await client.session.call_tool(tool, {}, input_responses=answers, request_state=state, allow_input_required=True)


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_unanswered_elicitation_ends_upstream_call_at_its_deadline(tmp_path: Path, transport: str) -> None:
    with ExitStack() as stack:
        over_http = {"type": "http", "url": stack.enter_context(upstream_http("--legacy"))} if transport == "http" else None
        config = {"mcpServers": {"up": over_http or upstream_stdio("--legacy")}, "server": {"askTimeoutSeconds": 1}}
        url = stack.enter_context(gateway_http(tmp_path, config))
        async with connected(MODERN, url) as (client, _):
            asked = await leg(client, "up__ask_then_hang")
            assert isinstance(asked, t.InputRequiredResult)
            with anyio.fail_after(20):
                while True:
                    stats: Any = (await client.call_tool("up__stats", {})).structured_content
                    if stats["cancelled"].get("ask_then_hang"):
                        break
                    await anyio.sleep(0.05)
            try:
                late = await leg(client, "up__ask_then_hang", asked)
            except MCPError as error:
                assert error.error.code == -32602
            else:
                assert late.is_error
            after: Any = (await client.call_tool("up__stats", {})).structured_content
    assert after["calls"]["ask_then_hang"] == 1


@pytest.mark.faults
async def test_answer_survives_gateway_restart_without_replaying_held_call(
    tmp_path: Path,
) -> None:
    port = free_port()
    with ExitStack() as stack:
        new, old = (stack.enter_context(upstream_http(*options)) for options in ((), ("--legacy",)))
        servers = {"new": {"type": "http", "url": new}, "old": {"type": "http", "url": old}}
        path = write_config(tmp_path, {"mcpServers": servers})
        log = tmp_path / "log"
        url = f"http://127.0.0.1:{port}"

        def start() -> Child:
            process = stack.enter_context(child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log))
            wait_until_ready(process, f"{url}/ready", log)
            return process

        first = start()
        async with connected(MODERN, f"{url}/mcp") as (client, _):
            relayed, held = await leg(client, "new__ask_name"), await leg(client, "old__ask_name")
        first.kill()
        first.wait(10)
        start()
        async with connected(MODERN, f"{url}/mcp") as (client, _):
            answered = await leg(client, "new__ask_name", relayed)
            gone = await leg(client, "old__ask_name", held)
            stats: Any = (await client.call_tool("old__stats", {})).structured_content
    assert answered.content[0].text == "accept: Ada"
    assert gone.is_error
    assert "no longer waits" in gone.content[0].text
    assert stats["calls"]["ask_name"] == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.attack(5)
async def test_holder_of_another_key_cannot_answer_an_elicitation(tmp_path: Path, era: Era) -> None:
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    keys = {name: store.add(name).token for name in ("ada", "bob")}
    with upstream_http(*(("--legacy",) if era == "legacy" else ())) as up:
        with gateway_http(tmp_path, {"mcpServers": {"up": {"type": "http", "url": up}}}) as url:

            @asynccontextmanager
            async def client_of(name: str) -> AsyncGenerator[Client]:
                headers = {"Authorization": f"Bearer {keys[name]}"}
                async with httpx2.AsyncClient(headers=headers) as http:
                    transport = streamable_http_client(url, http_client=http)
                    async with connected(MODERN, transport) as (client, _):
                        yield client

            async with client_of("ada") as ada, client_of("bob") as bob:
                asked = await leg(ada, "up__ask_name")
                with pytest.raises(MCPError) as stolen:
                    await leg(bob, "up__ask_name", asked)
                answered = await leg(ada, "up__ask_name", asked)
    assert stolen.value.error.code == -32602
    assert answered.content[0].text == "accept: Ada"
