"""Hostile answers to the gateway's own requests: redirects are not followed to internal hosts, and the cost of a response is bounded.

One hostile server, every way out: models, remote agents, MCP servers, and the guarded fetch that reads what peers name.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc
import pytest

from gateway import A2AAgent, AGUIChatClient, OpenAIChatClient, OpenAIChatCompletionClient
from gateway.chat.model_retry import RetryPolicy
from gateway.egress.bounded_transport import MAX_ANSWER_BYTES
from gateway.egress.guarded_fetch import GuardedFetch
from gateway.errors import GatewayError
from gateway.upstream.library.transports import MCPStreamableHTTPTool

pytestmark = pytest.mark.timeout(60)
KEY = "canary-key-of-the-operator"
HEADERS = {"Authorization": f"Bearer {KEY}"}
SECONDS = 1.0
"""Timeout of each request, in seconds."""

SPARE_BYTES = 100 << 20
"""Limit of additional memory for one response: twice the accepted size, and the clients' own memory."""


async def responses(url: str) -> object:
    client = OpenAIChatClient(model="m", api_key=KEY, base_url=url, timeout_seconds=SECONDS, retry=RetryPolicy(max_retries=0))
    try:
        return await client.get_response("hello")
    finally:
        await client.aclose()


async def streamed(url: str) -> object:
    client = OpenAIChatCompletionClient(model="m", api_key=KEY, base_url=url, timeout_seconds=SECONDS, retry=RetryPolicy(max_retries=0))
    try:
        return [update async for update in client.get_response("hello", stream=True)]
    finally:
        await client.aclose()


async def agui(url: str) -> object:
    client = AGUIChatClient(endpoint=url, headers=HEADERS, timeout=SECONDS)
    try:
        return await client.get_response("hello")
    finally:
        await client.aclose()


async def a2a(url: str) -> object:
    async with A2AAgent(url=url, headers=HEADERS, timeout=SECONDS) as agent:
        return await agent.run("hello")


async def mcp(url: str) -> object:
    async with MCPStreamableHTTPTool("far", url, headers=HEADERS, request_timeout=SECONDS) as tool:
        return tool.functions


async def guarded(url: str) -> object:
    """Fetch metadata; raise if the status is not 200."""
    answer = await GuardedFetch.for_server(url, None).send("GET", url, max_seconds=SECONDS)
    if answer.status_code != 200:
        raise GatewayError("no metadata")
    return answer


WAYS = [responses, streamed, agui, a2a, mcp, guarded]
KINDS = [*((way, "application/json") for way in WAYS), *((way, "text/event-stream") for way in (streamed, agui, mcp))]
Way = Callable[[str], Awaitable[object]]
Script = Callable[[anyio.abc.SocketStream], Awaitable[None]]


@asynccontextmanager
async def serving(script: Script) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Run a raw server that receives a request and then runs the script; yield its URL and the received requests."""
    heard: list[bytes] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                heard.append(await stream.receive())
                await script(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}", heard
        tasks.cancel_scope.cancel()


async def refused(way: Way, url: str) -> None:
    """The request fails in time with an error that does not contain the key."""
    with anyio.fail_after(20), pytest.raises(GatewayError) as caught:
        await way(url)
    assert KEY not in str(caught.value)


@pytest.mark.attack(3)
@pytest.mark.attack(2)
@pytest.mark.parametrize("status", [302, 307])
@pytest.mark.parametrize("way", WAYS)
async def test_redirect_to_another_place_is_not_followed(way: Way, status: int) -> None:
    async def never(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with serving(never) as (inside, heard):

        async def away(stream: anyio.abc.SocketStream) -> None:
            await stream.send(f"HTTP/1.1 {status} Away\r\nlocation: {inside}/latest/meta-data\r\ncontent-length: 0\r\n\r\n".encode())

        async with serving(away) as (url, asked):
            await refused(way, url)
        assert asked
        assert heard == []


@functools.cache
def bomb() -> bytes:
    """300 MB of JSON in 300 kB."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(b'{"x": "')]
    parts += [packer.compress(b"x" * (1 << 20)) for _ in range(300)]
    return b"".join([*parts, packer.compress(b'"}'), packer.flush()])


@asynccontextmanager
async def within_memory() -> AsyncGenerator[None]:
    """Fail if the process needed much more memory at any time than before the block."""
    here = Path("/proc/self")

    def peak() -> int:
        line = next(line for line in (here / "status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10

    (here / "clear_refs").write_text("5")  # resets the peak (`VmHWM`) to the current size
    before = peak()
    yield
    assert peak() - before < SPARE_BYTES, f"{(peak() - before) >> 20} MB more"


@pytest.mark.attack(21)
@pytest.mark.fault(20)
@pytest.mark.parametrize(("way", "kind"), KINDS)
async def test_compression_bomb_in_a_response_costs_little(way: Way, kind: str) -> None:
    async def unfold(stream: anyio.abc.SocketStream) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb())}\r\n\r\n"
        await stream.send(head.encode() + bomb())

    async with serving(unfold) as (url, heard), within_memory():
        await refused(way, url)
    assert all(b"accept-encoding: identity" in head.lower() for head in heard)


@pytest.mark.attack(21)
@pytest.mark.fault(20)
@pytest.mark.parametrize(("way", "kind"), KINDS)
async def test_answer_without_end_is_cut_off(way: Way, kind: str) -> None:
    sent = 0

    async def endless(stream: anyio.abc.SocketStream) -> None:
        nonlocal sent
        await stream.send(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        chunk = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        while True:
            await stream.send(chunk)
            sent += 1 << 20

    async with serving(endless) as (url, heard), within_memory():
        await refused(way, url)
    assert sent <= (MAX_ANSWER_BYTES * 2 + (16 << 20)) * len(heard)


@pytest.mark.fault(17)
@pytest.mark.parametrize("way", WAYS)
async def test_answer_that_drips_ends_in_time(way: Way) -> None:
    async def drip(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
        while True:
            await stream.send(b" ")
            await anyio.sleep(0.05)

    async with serving(drip) as (url, _):
        started = anyio.current_time()
        await refused(way, url)
        assert anyio.current_time() - started < 10


@pytest.mark.attack(21)
@pytest.mark.parametrize("way", WAYS)
async def test_response_in_an_unknown_coding_is_rejected(way: Way) -> None:
    async def odd(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: zstd\r\ncontent-length: 2\r\n\r\n{}")

    async with serving(odd) as (url, _):
        await refused(way, url)


@pytest.mark.attack(3)
async def test_agent_card_for_another_port_of_its_host_is_rejected() -> None:
    async def never(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async with serving(never) as (inside, heard):
        card = '{"name":"x","description":"x","version":"1","capabilities":{},"skills":[],"defaultInputModes":[],"defaultOutputModes":[],'
        card += f'"supportedInterfaces":[{{"url":"{inside}/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}}]}}'

        async def show(stream: anyio.abc.SocketStream) -> None:
            await stream.send(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(card)}\r\n\r\n{card}".encode())

        async with serving(show) as (url, asked):
            await refused(a2a, url)
        assert asked
        assert heard == []
