"""Load for a long time with faults in between: memory, descriptors and children stay flat, and nothing is answered wrongly.

`make soak` takes 30 minutes; `HOURS=8 make soak` the long one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.attacks.test_envelopes import odd_bodies, odd_headers
from tests.fakes.running import child, free_port, upstream_http, upstream_stdio, wait_until_ready, write_config
from tests.interaction.ways import Way, connected

HOURS = float(os.environ.get("HOURS", "0.5"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(int(HOURS * 3600) + 600)]
CALLERS = 8
SETTLED = 0.15
"""Fraction of the run after which memory use should be stable; growth is measured from this point."""


def resident(pid: int) -> float:
    """Return the resident memory of a process in megabytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> list[int]:
    return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]


class Soak:
    """A gateway under load until `ends`, what disturbs it, and what was measured."""

    def __init__(self, pid: int, port: int, ends: float) -> None:
        self.pid, self.port, self.ends = pid, port, ends
        self.url = f"http://127.0.0.1:{port}/mcp"
        self.samples: list[tuple[float, float, int, int]] = []
        self.answered = 0

    def goes_on(self) -> bool:
        return time.monotonic() < self.ends

    async def call(self, number: int) -> None:
        """Connect and call repeatedly as one caller, which must receive only the results of its own calls."""
        era: Any = ("legacy", "modern")[number % 2]
        while self.goes_on():
            async with connected(Way("http", era, "pipe"), self.url) as (client, _):
                for turn in range(200):
                    for server in ("pipe", "far"):
                        self.answered += await self.echoed(client, f"{server}__echo", f"{number} {turn}")
                    await anyio.sleep(0.01)

    async def echoed(self, client: Any, tool: str, words: str) -> bool:
        """Return whether the call returned a result. A result must contain the text that the call sent."""
        with suppress(MCPError):
            answer = await client.call_tool(tool, {"text": words})
            if not answer.is_error:
                assert answer.content[0].text == words
                return True
        return False

    async def disturb(self) -> None:
        """One fault after the other."""
        dice = random.Random(1)
        while self.goes_on():
            await anyio.sleep(min(20, HOURS * 360))
            await dice.choice([self.kill_a_server, self.be_malformed, self.be_slow, self.give_up])(dice)

    async def kill_a_server(self, dice: random.Random) -> None:
        for pid in children(self.pid)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def be_malformed(self, dice: random.Random) -> None:
        async with httpx2.AsyncClient(timeout=0.3) as raw:
            for body in odd_bodies(dice.randrange(1000), 30):
                with suppress(httpx2.HTTPError):
                    await raw.post(self.url, headers=odd_headers(dice), content=body)

    async def be_slow(self, dice: random.Random) -> None:
        streams = [await anyio.connect_tcp("127.0.0.1", self.port) for _ in range(50)]
        for stream in streams:
            await stream.send(b"POST /mcp HT")
        for stream in streams:
            await stream.aclose()

    async def give_up(self, dice: random.Random) -> None:
        async with connected(Way("http", "modern", "pipe"), self.url) as (client, _):
            with anyio.move_on_after(1):
                await client.call_tool("pipe__hang")

    async def watch(self) -> None:
        """Measure."""
        while self.goes_on():
            await anyio.sleep(min(10, HOURS * 60))
            self.samples.append((time.monotonic(), resident(self.pid), descriptors(self.pid), len(children(self.pid))))


@pytest.mark.fault(31)
async def test_hours_of_calls_and_faults_cost_nothing_that_stays(tmp_path: Path) -> None:
    begins = time.monotonic() + HOURS * 3600 * SETTLED
    with upstream_http() as far:
        config = write_config(tmp_path, {"mcpServers": {"pipe": upstream_stdio("--legacy"), "far": {"url": far}}})
        port, log = free_port(), tmp_path / "gateway.log"
        with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            soak = Soak(process.pid, port, time.monotonic() + HOURS * 3600)
            async with anyio.create_task_group() as tasks:
                for number in range(CALLERS):
                    tasks.start_soon(soak.call, number)
                tasks.start_soon(soak.disturb)
                tasks.start_soon(soak.watch)
            await anyio.sleep(5)
            assert descriptors(process.pid) < 100
    settled = [sample for sample in soak.samples if sample[0] > begins]
    hours = (settled[-1][0] - settled[0][0]) / 3600
    third = max(1, len(settled) // 3)
    growth = min(s[1] for s in settled[-third:]) - min(s[1] for s in settled[:third])
    (tmp_path / "soak.txt").write_text(
        f"{soak.answered} answers in {HOURS} h; {settled[0][1]:.0f} MB then, {settled[-1][1]:.0f} MB now, floor + {growth:.1f} MB"
    )
    assert soak.answered > HOURS * 3600
    assert growth < max(4.0, 1.0 * hours)
    assert max(s[2] for s in settled) < 300
    assert max(s[3] for s in settled) <= 4
    assert "Traceback" not in log.read_text()
