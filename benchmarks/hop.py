"""What a hop costs: the gateway against the tuned relay, interleaved, as ratios. See README.md for the figures.

    python -m benchmarks.hop [--calls N] [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import httpx2

ACCEPT = {"accept": "application/json, text/event-stream"}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
}
CONCURRENCY = 8


def free_port() -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(*argv: str, **env: str) -> Generator[subprocess.Popen[bytes], None, None]:
    """A child of this interpreter, ended on leaving."""
    child = subprocess.Popen([sys.executable, *argv], env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(10)


def cpu_seconds(pid: int) -> float:
    """Time on a processor of all threads of a process (nanosecond counters of the scheduler)."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


class Driver:
    """A client of one contender in one era."""

    def __init__(self, http: httpx2.AsyncClient, port: int, era: str, tool: str) -> None:
        self.http, self.url, self.era, self.tool = http, f"http://127.0.0.1:{port}/mcp", era, tool
        self.headers = dict(ACCEPT)

    async def open(self) -> None:
        """Shake hands where the era has it."""
        if self.era == "modern":
            return
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
        answer = await self.post({"id": 0, "method": "initialize", "params": hello})
        self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        await self.post({"method": "notifications/initialized"})

    async def post(self, message: dict[str, Any], **headers: str) -> httpx2.Response:
        """One message."""
        return await self.http.post(self.url, headers={**self.headers, **headers}, json={"jsonrpc": "2.0", **message})

    async def request(self, method: str, params: dict[str, Any], number: int, name: str = "") -> httpx2.Response:
        """One request in the wire form of the era."""
        if self.era == "legacy":
            return await self.post({"id": number, "method": method, "params": params})
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method} | ({"mcp-name": name} if name else {})
        return await self.post({"id": number, "method": method, "params": {**params, "_meta": MODERN_META}}, **headers)

    async def call(self, number: int) -> None:
        """One `tools/call`, checked."""
        params = {"name": self.tool, "arguments": {"text": f"echo {number}"}}
        answer = await self.request("tools/call", params, number, self.tool)
        assert answer.status_code == 200 and f"echo {number}" in answer.text, answer.text[:300]

    async def calls(self, count: int) -> None:
        """Many calls, `CONCURRENCY` at a time."""

        async def worker(first: int) -> None:
            for n in range(count // CONCURRENCY):
                await self.call(first + n)

        async with anyio.create_task_group() as tasks:
            for w in range(CONCURRENCY):
                tasks.start_soon(worker, 1_000_000 + w * 100_000)


async def first_list(port: int, started: float) -> float:
    """Seconds from `started` to the first complete `tools/list` (modern era)."""
    async with httpx2.AsyncClient(timeout=30) as http:
        driver = Driver(http, port, "modern", "")
        while time.monotonic() - started < 30:
            with contextlib.suppress(httpx2.TransportError):
                answer = await driver.request("tools/list", {}, 1)
                if answer.status_code == 200 and '"tool_1"' in answer.text.replace("up__", ""):
                    return time.monotonic() - started
            await anyio.sleep(0.005)
    raise TimeoutError("no tools/list within 30 s")


def gateway_argv(folder: Path, upstream: str, port: int) -> list[str]:
    """The command of a gateway before `upstream`, names unchanged."""
    config = folder / f"gateway-{port}.json"
    settings = {"mcpServers": {"up": {"type": "http", "url": upstream}}, "policies": {"up": {"prefix": ""}}}
    config.write_text(json.dumps({**settings, "storage": {"dir": str(folder / "state")}}))
    return ["-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config)]


async def counts(port: int) -> dict[str, Any]:
    """What the upstream saw."""
    async with httpx2.AsyncClient() as http:
        return (await http.get(f"http://127.0.0.1:{port}/counts")).json()


async def cpu_per_call(http: httpx2.AsyncClient, pid: int, driver: Driver, calls: int) -> float:
    """CPU seconds of a server per call in one round."""
    before = cpu_seconds(pid)
    await driver.calls(calls)
    return (cpu_seconds(pid) - before) / calls


async def measure_hop(folder: Path, calls: int, rounds: int) -> list[tuple[str, str, str]]:
    """CPU, requests and connections per call, and the effect of the catalog's size."""
    ports = {name: free_port() for name in ("few", "same", "many", "relay", "gateway", "large")}
    few, same, many = (f"http://127.0.0.1:{ports[n]}/mcp" for n in ("few", "same", "many"))
    rows: list[tuple[str, str, str]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(process("-m", "benchmarks.upstream", str(ports["few"]), "2"))
        stack.enter_context(process("-m", "benchmarks.upstream", str(ports["same"]), "2"))
        stack.enter_context(process("-m", "benchmarks.upstream", str(ports["many"]), "2000"))
        time.sleep(1)  # noqa: ASYNC251  # nothing else runs yet
        relay = stack.enter_context(process("-m", "benchmarks.relay", str(ports["relay"]), same))
        gateway = stack.enter_context(process(*gateway_argv(folder, few, ports["gateway"])))
        large = stack.enter_context(process(*gateway_argv(folder, many, ports["large"])))
        for name in ("relay", "gateway", "large"):
            await first_list(ports[name], time.monotonic())
        async with httpx2.AsyncClient(timeout=30) as http:
            for era in ("modern", "legacy"):
                drivers = {name: Driver(http, ports[name], era, "tool_1") for name in ("relay", "gateway", "large")}
                for driver in drivers.values():
                    await driver.open()
                    await driver.calls(CONCURRENCY * 100)
                pids = {"relay": relay.pid, "gateway": gateway.pid, "large": large.pid}
                before = await counts(ports["few"])
                samples: dict[str, list[float]] = {name: [] for name in drivers}
                for turn in range(rounds):
                    for name in (list(drivers), list(reversed(drivers)))[turn % 2]:
                        samples[name].append(await cpu_per_call(http, pids[name], drivers[name], calls))
                after = await counts(ports["few"])
                made = rounds * calls
                seen = after["requests"]["tools/call"] - before["requests"]["tools/call"]
                hop = statistics.median(g / r for g, r in zip(samples["gateway"], samples["relay"], strict=True))
                size = statistics.median(b / g for b, g in zip(samples["large"], samples["gateway"], strict=True))
                rows.append((f"CPU per call, gateway / relay ({era})", f"{hop:.2f}", "<= 1.5"))
                rows.append((f"CPU per call, 2,000 tools / 2 tools ({era})", f"{size:.2f}", "<= 1.15"))
                rows.append((f"upstream requests per call ({era})", f"{seen / made:.4f}", "= 1"))
                grown = after["connections"] - before["connections"]
                rows.append((f"new upstream connections in {made} calls ({era})", str(grown), "= 0"))
            before = await counts(ports["few"])
            driver = Driver(http, ports["gateway"], "modern", "")
            for n in range(50):
                await driver.request("tools/list", {}, n)
                await driver.request("server/discover", {}, n)
            after = await counts(ports["few"])
            asked = sum(after["requests"].values()) - sum(before["requests"].values())
            rows.append(("upstream requests by 50 tools/list + 50 server/discover", str(asked), "= 0"))
    return rows


async def measure_start(folder: Path, rounds: int) -> list[tuple[str, str, str]]:
    """Process start to the first complete listing."""
    upstream = free_port()
    ratios: list[float] = []
    with process("-m", "benchmarks.upstream", str(upstream), "500"):
        time.sleep(1)  # noqa: ASYNC251  # nothing else runs yet
        url = f"http://127.0.0.1:{upstream}/mcp"
        for _ in range(rounds):
            took: list[float] = []
            for contender in ("relay", "gateway"):
                port = free_port()
                argv = ["-m", "benchmarks.relay", str(port), url] if contender == "relay" else gateway_argv(folder, url, port)
                started = time.monotonic()
                with process(*argv):
                    took.append(await first_list(port, started))
            ratios.append(took[1] / took[0])
    return [("first tools/list after start (500 tools), gateway / relay", f"{statistics.median(ratios):.2f}", "<= 1.3")]


def main() -> None:
    """Run both measurements and print one table."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--calls", type=int, default=800, help="calls per round and contender")
    cli.add_argument("--rounds", type=int, default=5)
    options = cli.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = anyio.run(measure_hop, Path(name), options.calls, options.rounds)
        rows += anyio.run(measure_start, Path(name), options.rounds)
    width = max(len(row[0]) for row in rows)
    for figure, value, target in rows:
        sys.stdout.write(f"{figure:<{width}}  {value:>8}  {target}\n")


if __name__ == "__main__":
    main()
