"""Caps and deadlines that keep one server, or one client, from costing everybody else."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types import PromptReference

from gateway.json_types import JsonMapping, JsonObject
from gateway.upstream.listing import MAX_ENTRIES, MAX_LISTING_CHARS, MAX_PAGES, list_all
from gateway.upstream.server_session import PLAIN, Envelope
from tests.fakes.running import child, free_port, upstream_stdio, wait_until_ready, write_config
from tests.faults.bounds import Meter, metered
from tests.faults.far import Far, far_server
from tests.interaction.test_faults import bad
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(60)
MODERN = Way("http", "modern", "good")
LEGACY = Way("http", "legacy", "good")
CALL_SECONDS = 1.0

# -- listings --------------------------------------------------------------------------------------------------------


class Pages:
    """A server whose pages of `tools/list` come from the function `page`."""

    server = "endless"

    def __init__(self, page: Callable[[int], JsonObject]) -> None:
        self.page = page
        self.asked = 0

    async def request(self, method: str, params: JsonMapping, envelope: Envelope) -> JsonObject:
        """The next page."""
        self.asked += 1
        return self.page(self.asked)


async def listed(page: Callable[[int], JsonObject]) -> tuple[int, int]:
    """How many entries were kept, and how many pages were asked for."""
    pages = Pages(page)
    return len((await list_all(pages, "tools", PLAIN)).entries), pages.asked


def tools(count: int, size: int = 0) -> list[Any]:
    return [{"name": f"t{n}", "description": "x" * size} for n in range(count)]


@pytest.mark.attack(21)
async def test_listing_with_cyclic_cursors_ends_where_it_began() -> None:
    assert await listed(lambda n: {"tools": tools(2), "nextCursor": "same"}) == (4, 2)
    assert await listed(lambda n: {"tools": tools(1), "nextCursor": str(n % 3)}) == (4, 4)


@pytest.mark.attack(21)
@pytest.mark.fault(20)
async def test_endless_listing_is_cut_off() -> None:
    assert await listed(lambda n: {"tools": tools(1), "nextCursor": str(n)}) == (MAX_PAGES, MAX_PAGES)
    assert await listed(lambda n: {"tools": [], "nextCursor": str(n)}) == (0, MAX_PAGES)
    assert await listed(lambda n: {"tools": tools(30_000), "nextCursor": str(n)}) == (MAX_ENTRIES, 2)
    assert await listed(lambda _: {"tools": tools(60_000)}) == (MAX_ENTRIES, 1)
    kept, asked = await listed(lambda n: {"tools": tools(1, 10_000_000), "nextCursor": str(n)})
    assert kept == asked == MAX_LISTING_CHARS // 10_000_000 + 1


async def test_malformed_pages_are_not_a_listing() -> None:
    odd: list[Any] = [{}, {"tools": None}, {"tools": {"a": 1}}, {"tools": [1, None, {}, {"name": 5}]}, {"tools": [], "nextCursor": 7}]
    for page in odd:
        assert await listed(lambda _, page=page: dict(page)) == (0, 1)


# -- one gateway with servers that misbehave ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    meter: Meter
    far: Far


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Generator[Setup]:
    with ExitStack() as stack:
        far = stack.enter_context(far_server(modern=False))
        entries = {"good": upstream_stdio(), "noisy": bad("stderr"), "far": {"type": "http", "url": far.url}}
        config = {"mcpServers": entries, "policies": {"far": {"timeoutSeconds": CALL_SECONDS}}}
        yield Setup(stack.enter_context(metered(tmp_path_factory.mktemp("limits"), config)), far)


@pytest.mark.fault(23)
async def test_server_that_floods_stderr_serves_and_costs_no_memory(setup: Setup) -> None:
    async with connected(MODERN, setup.meter.url) as (client, _):
        before = setup.meter.now()
        with anyio.fail_after(20):
            for number in range(20):
                answer: Any = await client.call_tool("noisy__echo", {"text": str(number)})
                assert answer.content[0].text == str(number)
    assert setup.meter.now().resident < before.resident + (32 << 20)


async def test_completion_and_subscription_time_out(setup: Setup) -> None:
    setup.far.gate.clear()
    try:
        async with connected(MODERN, setup.meter.url) as (client, _), connected(LEGACY, setup.meter.url) as (other, _):
            with anyio.fail_after(CALL_SECONDS + 20):
                with pytest.raises(MCPError):
                    await client.complete(PromptReference(name="far__ask"), {"name": "city", "value": "P"})
                with pytest.raises(MCPError):
                    await other.subscribe_resource("far+page://one")  # pyright: ignore[reportDeprecated]  # the legacy wire is what is tested
                async with client.listen(resource_subscriptions=["far+page://one"], tools_list_changed=True):
                    near: Any = await client.call_tool("good__echo", {"text": "near"})
            assert near.content[0].text == "near"
    finally:
        setup.far.gate.set()


@pytest.mark.fault(25)
@pytest.mark.faults
async def test_clients_that_read_no_responses_delay_no_other_client(setup: Setup) -> None:
    """Ten of them, with 5 MB each, over connections that stay open and unread."""
    parts = urlsplit(setup.meter.url)
    prefix = "io.modelcontextprotocol"
    info: dict[str, Any] = {f"{prefix}/clientCapabilities": {}, f"{prefix}/clientInfo": {"name": "deaf", "version": "1"}}
    params: dict[str, Any] = {"name": "good__big", "arguments": {"bytes": 5_000_000}}
    params["_meta"] = {f"{prefix}/protocolVersion": "2026-07-28", **info}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = [
        f"POST {parts.path} HTTP/1.1",
        f"Host: {parts.netloc}",
        "Accept: application/json, text/event-stream",
        "Content-Type: application/json",
        "Mcp-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        "Mcp-Name: good__big",
        f"Content-Length: {len(body)}",
    ]

    async def beside_deaf_ones() -> None:
        with ExitStack() as stack:
            for _ in range(10):
                deaf = stack.enter_context(closing(socket.create_connection((parts.hostname or "", parts.port or 0))))
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            async with connected(MODERN, setup.meter.url) as (client, _):
                with anyio.fail_after(20):
                    for number in range(20):
                        answer: Any = await client.call_tool("good__echo", {"text": str(number)})
                        assert answer.content[0].text == str(number)

    await beside_deaf_ones()  # before the measurement, because the interpreter keeps its heap's peak size
    before = setup.meter.now()
    await beside_deaf_ones()
    await setup.meter.until_back(before)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.faults
async def test_stop_waits_a_set_time_for_calls_only(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "gateway.log"
    config = write_config(tmp_path, {"mcpServers": {"good": upstream_stdio("--legacy")}})
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, f"{url}/ready", log)
        async with connected(MODERN, f"{url}/mcp") as (client, _), connected(LEGACY, f"{url}/mcp") as (other, _):

            async def hang(each: Any) -> None:
                with suppress(MCPError):
                    await each.call_tool("good__hang")

            async def listen() -> None:
                with suppress(MCPError, SubscriptionLost):
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                for each in (client, other):
                    tasks.start_soon(hang, each)
                answer: Any = await client.call_tool("good__echo", {"text": "still here"})
                assert answer.content[0].text == "still here"
                process.terminate()
                with anyio.fail_after(20):
                    while process.poll() is None:
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
    assert process.returncode == 0
    assert " ERROR gateway" not in log.read_text()
