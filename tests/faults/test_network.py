"""What networks do to a server over HTTP: one clear error in time for that call, one execution at most, and the next call works."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.nursery import Child
from tests.fakes.running import child, free_port, gateway_http, upstream_stdio
from tests.faults.proxy import FaultProxy, Mode, fault_proxy
from tests.interaction.ways import Way, connected

MODERN = Way("http", "modern", "good")
SECONDS = 1.0


@contextmanager
def scripted(folder: Path, port: int, *options: str, step: str = "none") -> Generator[Child]:
    """A scripted server over HTTP."""
    argv = ["-m", "tests.fakes.scripted_upstream", "--http", str(port), *options, str(folder), step, "die"]
    with child(*argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening")
        yield process


def config_for(proxy: FaultProxy, **policy: Any) -> dict[str, Any]:
    servers = {"good": upstream_stdio(), "far": {"type": "http", "url": f"http://127.0.0.1:{proxy.port}/mcp"}}
    return {"mcpServers": servers, "policies": {"far": {"timeoutSeconds": SECONDS, "connectTimeoutSeconds": 5, **policy}}}


@asynccontextmanager
async def gateway_beside(folder: Path, config: dict[str, Any]) -> AsyncGenerator[str]:
    """A gateway that starts in a thread, because the proxy runs in this process's event loop."""
    running = gateway_http(folder, config)
    url = await anyio.to_thread.run_sync(running.__enter__)
    try:
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(running.__exit__, None, None, None)


def runs(folder: Path) -> list[str]:
    journal = folder / "journal"
    return journal.read_text().split() if journal.exists() else []


class Caller:
    """Makes numbered calls of the far server, each of which must end in time."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.number = 0

    async def call(self) -> tuple[str, bool]:
        self.number += 1
        name = f"call-{self.number}"
        with anyio.fail_after(SECONDS + 15):
            answer = await self.client.call_tool("far__do", {"id": name})
            near = await self.client.call_tool("good__echo", {"text": "near"})
        assert near.content[0].text == "near"
        assert answer.content[0].text
        return name, answer.is_error

    async def until_well(self) -> None:
        with anyio.fail_after(20):
            while (await self.call())[1]:
                await anyio.sleep(0.1)


async def check(tmp_path: Path, era: str, faults: list[tuple[Mode, int]]) -> None:
    """Apply the faults one after another, and check that the server works again after each fault."""
    port = free_port()
    with scripted(tmp_path, port, *(["--modern"] if era == "modern" else [])):
        async with fault_proxy(port) as proxy:
            async with gateway_beside(tmp_path, config_for(proxy)) as url:
                async with connected(MODERN, url) as (client, _):
                    caller = Caller(client)
                    await caller.until_well()
                    for mode, after in faults:
                        proxy.arm(mode, after)
                        name, is_error = await caller.call()
                        count = runs(tmp_path).count(name)
                        assert count <= 1, f"{mode} after {after} bytes: ran {count} times"
                        assert is_error or count == 1, f"{mode} after {after} bytes: answered, but never ran"
                        proxy.arm("pass")
                        await caller.until_well()
    seen = runs(tmp_path)
    assert len(seen) == len(set(seen))


SOME: list[tuple[Mode, int]] = [
    ("cut", 0),
    ("cut", 17),
    ("cut", 150),
    ("reset", 40),
    ("half-close", 100),
    ("garbage", 0),
    ("black-hole", 0),
    ("drip", 5),
]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("era", [pytest.param("legacy", marks=pytest.mark.faults), "modern"])
@pytest.mark.fault(16)
async def test_broken_network_fails_one_call_and_runs_nothing_twice(tmp_path: Path, era: str) -> None:
    await check(tmp_path, era, SOME)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("mode", ["cut", "reset", "garbage"])
@pytest.mark.fault(18)
async def test_connection_broken_after_any_byte_runs_nothing_twice(tmp_path: Path, era: str, mode: Mode) -> None:
    await check(tmp_path, era, [(mode, after) for after in range(0, 300, 3)])
