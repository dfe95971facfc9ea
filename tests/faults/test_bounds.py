"""What a gateway holds stays bounded, whatever its servers and clients do over and over: memory, descriptors, children."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.fakes.running import raw_stdio, upstream_stdio
from tests.faults.bounds import metered
from tests.faults.far import far_server
from tests.faults.walk import Era, Row, Transport, servers
from tests.interaction.ways import Way, connected

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
MODERN = Way("http", "modern", "good")
LEGACY = Way("http", "legacy", "good")
WARM = 100
"""Rounds before the first measurement, in which modules are imported and pools and caches fill."""

ROUNDS = 1_000
AT_ONCE = 40
FAST: dict[str, Any] = {"timeoutSeconds": 0.5, "connectTimeoutSeconds": 5}


async def many(count: int, client: Any, name: str, arguments: dict[str, Any], *, at_once: int = AT_ONCE) -> int:
    """Make `count` calls, at most `at_once` at the same time, and return the number of errors."""
    errors = 0
    numbers = iter(range(count))

    async def work() -> None:
        nonlocal errors
        for number in numbers:
            try:
                failed = (await client.call_tool(name, {**arguments, "id": f"{number}"})).is_error
            except MCPError:
                failed = True
            errors += failed

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return errors


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("kind", ["error", "type", "half", "hang", "stranger"])
async def test_thousand_failing_http_calls_leave_nothing_behind(tmp_path: Path, era: Era, kind: str) -> None:
    row = Row("http", era, "after", kind)
    with servers(tmp_path, [row]) as entries:
        config = {"mcpServers": {"good": upstream_stdio(), **entries}, "policies": {row.name: {**FAST, "maxConcurrency": 100}}}
        with metered(tmp_path, config) as meter:
            async with connected(MODERN, meter.url) as (client, _), connected(LEGACY, meter.url) as (other, _):
                for use in (client, other):
                    assert await many(WARM, use, f"{row.name}__do", {}) == WARM
                before = meter.now()
                for use in (client, other):
                    assert await many(ROUNDS // 2, use, f"{row.name}__do", {}) == ROUNDS // 2
                # The clients may have opened more connections to the gateway, and the gateway more connections to a 2025 server.
                await meter.until_back(before, pooled=AT_ONCE * (2 if era == "legacy" else 1))


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_two_hundred_lost_connections_leave_nothing_behind(tmp_path: Path, transport: Transport) -> None:
    row = Row(transport, "legacy", "after", "once")
    with servers(tmp_path, [row]) as entries:
        with metered(tmp_path, {"mcpServers": {"good": upstream_stdio(), **entries}}) as meter:
            async with connected(MODERN, meter.url) as (client, _):

                async def rounds(count: int) -> None:
                    for number in range(count):
                        (tmp_path / row.name / "fault").touch()
                        with anyio.fail_after(30):
                            assert (await client.call_tool(f"{row.name}__do", {"id": f"lost-{number}"})).is_error
                            while (await client.call_tool(f"{row.name}__do", {"id": f"{number}"})).is_error:
                                await anyio.sleep(0.02)

                await rounds(10)
                before = meter.now()
                await rounds(40 if transport == "stdio" else 200)
                await meter.until_back(before)


PREFIX = "io.modelcontextprotocol"
ACCEPT = {"accept": "application/json, text/event-stream"}


def call_of(name: str, era: Era, capabilities: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """Body and headers of a bare call, without arguments."""
    params: dict[str, Any] = {"name": name, "arguments": {}}
    headers = {**ACCEPT, "mcp-protocol-version": "2025-11-25"}
    if era == "modern":
        meta: dict[str, Any] = {f"{PREFIX}/clientCapabilities": capabilities or {}, f"{PREFIX}/clientInfo": {"name": "raw", "version": "1"}}
        params["_meta"] = {f"{PREFIX}/protocolVersion": "2026-07-28", **meta}
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, headers


async def introduced(raw: httpx2.AsyncClient, url: str) -> dict[str, str]:
    """The session header of a new 2025 session."""
    hello: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    made = await raw.post(url, json={"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}, headers=ACCEPT)
    session = {"mcp-session-id": made.headers["mcp-session-id"]}
    await raw.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers={**ACCEPT, **session})
    return session


async def in_groups(count: int, work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Call the function `count` times, 25 calls at once."""
    for _ in range(count // 25):
        async with anyio.create_task_group() as tasks:
            for number in range(25):
                tasks.start_soon(work, number)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.fault(24)
async def test_five_hundred_vanished_clients_leave_nothing_behind(tmp_path: Path, era: Era) -> None:
    config = {"mcpServers": {"good": upstream_stdio("--legacy")}, "policies": {"good": {"maxConcurrency": 1_000, "timeoutSeconds": 5}}}
    with metered(tmp_path, config) as meter:

        async def vanish(_: int) -> None:
            async with httpx2.AsyncClient() as raw:
                body, headers = call_of("good__hang", era)
                if era == "legacy":
                    headers |= await introduced(raw, meter.url)
                with suppress(httpx2.TimeoutException):
                    await raw.post(meter.url, json=body, headers=headers, timeout=0.3)
                if era == "legacy":
                    await raw.delete(meter.url, headers=headers)

        await in_groups(100, vanish)
        before = meter.now()
        await in_groups(500, vanish)
        await meter.until_back(before)
        async with connected(MODERN, meter.url) as (client, _):
            answer: Any = await client.call_tool("good__echo", {"text": "fine"})
            assert answer.content[0].text == "fine"


async def test_unanswered_elicitations_leave_nothing_behind(tmp_path: Path) -> None:
    asks: dict[str, Any] = {"a": {"method": "roots/list", "params": {}}}
    told: dict[str, Any] = {
        "tools": [{"name": "q", "inputSchema": {"type": "object"}}],
        "results": {"q": {"resultType": "input_required", "inputRequests": asks, "requestState": "s" * 500}},
    }
    policies = {"old": {"callers": "separate"}, "new": {"roots": {"mode": "relay"}}}
    entries = {"old": upstream_stdio("--legacy"), "new": raw_stdio(told, "--modern")}
    server = {"askTimeoutSeconds": 1, "maxChildProcesses": 10}
    with metered(tmp_path, {"mcpServers": entries, "policies": policies, "server": server}) as meter:
        async with httpx2.AsyncClient() as raw:

            async def ask(number: int) -> None:
                body, headers = call_of(("old__ask_name", "new__q")[number % 2], "modern", {"elicitation": {}, "roots": {}})
                await raw.post(meter.url, json=body, headers=headers, timeout=30)

            # The gateway sends the server one call at a time while a call waits for input, so each call takes the full timeout of 1 s.
            await in_groups(50, ask)
            before = meter.now()
            await in_groups(200, ask)
            await meter.until_back(before)


async def test_five_hundred_forgotten_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    with far_server(modern=False) as far:
        with metered(tmp_path, {"mcpServers": {"far": {"type": "http", "url": far.url}}}) as meter:
            async with connected(MODERN, meter.url) as (client, _):

                async def rounds(count: int, name: str) -> None:
                    for number in range(count):
                        far.restart()
                        assert not (await client.call_tool("far__do", {"id": f"{name}-{number}"})).is_error

                await rounds(50, "warm")
                before = meter.now()
                await rounds(500, "round")
                await meter.until_back(before)
    assert len(far.runs) == len(set(far.runs)) == 550


@pytest.mark.fault(24)
async def test_five_hundred_listeners_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    with metered(tmp_path, {"mcpServers": {"good": upstream_stdio("--legacy")}}) as meter:
        async with connected(MODERN, meter.url) as (client, _):

            async def listen(_: int) -> None:
                async with client.listen(tools_list_changed=True, resource_subscriptions=["good+data://watched"]):
                    pass

            await in_groups(50, listen)
            before = meter.now()
            await in_groups(500, listen)
            await meter.until_back(before)
