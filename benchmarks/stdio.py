"""What a call costs from HTTP to a server over stdio: the gateway beside bridges of others, interleaved, as ratios.

    python -m benchmarks.stdio [--mcp-proxy PROGRAM] [--npm-mcp-proxy PROGRAM] [--calls N] [--rounds N]

Each program is one installed in an environment of its own; one that is not given is named and left out. All of them start the same
lean server (`stdio_server`) and are called by the same client over 16 kept connections.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httptools

from benchmarks.hop import ACCEPT, MODERN_META, cpu_seconds, free_port

SERVER = [sys.executable, "-m", "benchmarks.stdio_server"]
START_SECONDS = 30.0
CONNECTIONS = 16


class Answer:
    """One HTTP answer, while it comes (what httptools calls)."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.is_whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


@dataclass
class Client:
    """Calls one contender over one kept connection."""

    port: int
    path: str
    era: str
    tool: str
    stream: anyio.abc.SocketStream | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    async def open(self, session: str = "") -> str:
        """Connect, and begin or share a session where the era has them; returns it."""
        self.stream = await anyio.connect_tcp("127.0.0.1", self.port)
        self.headers = dict(ACCEPT)
        if self.era == "modern":
            self.headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": self.tool}
            return ""
        if not session:
            hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
            answer = await self.post({"id": 0, "method": "initialize", "params": hello})
            session = answer.headers[b"mcp-session-id"].decode()
        self.headers |= {"mcp-session-id": session, "mcp-protocol-version": "2025-06-18"}
        await self.post({"method": "notifications/initialized"})
        return session

    async def post(self, message: dict[str, Any]) -> Answer:
        """One message and its answer."""
        assert self.stream is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        lines = [f"POST {self.path} HTTP/1.1", f"host: 127.0.0.1:{self.port}", "content-type: application/json"]
        lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in self.headers.items())]
        await self.stream.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        answer = Answer()
        while not answer.is_whole:
            answer.parser.feed_data(await self.stream.receive())
        assert answer.parser.get_status_code() < 300, answer.body
        return answer

    async def calls(self, first: int, count: int) -> None:
        """So many calls, one after the other, each checked."""
        for number in range(first, first + count):
            params: dict[str, Any] = {"name": self.tool, "arguments": {"text": f"echo {number} " + "x" * 80}}
            if self.era == "modern":
                params["_meta"] = MODERN_META
            answer = await self.post({"id": number, "method": "tools/call", "params": params})
            assert b"echo %d x" % number in answer.body, answer.body


@dataclass
class Contender:
    """One bridge that runs, in one era."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    era: str
    tool: str
    path: str = "/mcp"
    per_second: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    async def wait(self) -> None:
        """Until it answers a call."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                await self.round(CONNECTIONS, 1)
                return
            except (OSError, AssertionError, KeyError, anyio.EndOfStream, BaseExceptionGroup):
                if time.monotonic() > deadline:
                    raise
                await anyio.sleep(0.2)

    async def round(self, calls: int, connections: int = CONNECTIONS) -> None:
        """So many calls over these connections; 2025 clients share a session, as one host would."""
        clients = [Client(self.port, self.path, self.era, self.tool) for _ in range(connections)]
        session = ""
        for client in clients:
            session = await client.open(session)
        before, began = cpu_seconds(self.process.pid), time.monotonic()
        async with anyio.create_task_group() as tasks:
            for n, client in enumerate(clients):
                tasks.start_soon(client.calls, 1_000_000 * (n + 1), calls // connections)
        seconds = time.monotonic() - began
        self.per_second.append(calls / seconds)
        self.cpu.append((cpu_seconds(self.process.pid) - before) / calls * 1000)
        for client in clients:
            assert client.stream is not None
            await client.stream.aclose()


@contextlib.contextmanager
def started(*argv: str) -> Generator[subprocess.Popen[bytes]]:
    """A process, ended on leaving."""
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def gateway_argv(folder: Path, port: int) -> list[str]:
    """The command of a gateway before the server, names unchanged."""
    config = folder / f"gateway-{port}.json"
    entry = {"command": SERVER[0], "args": SERVER[1:], "cwd": str(Path.cwd())}
    settings = {"mcpServers": {"up": entry}, "policies": {"up": {"prefix": ""}}, "storage": {"dir": str(folder / "state")}}
    config.write_text(json.dumps(settings))
    return [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config)]


def contenders(stack: contextlib.ExitStack, options: argparse.Namespace, folder: Path) -> list[Contender]:
    """Start all there are."""
    found: list[Contender] = []
    port = free_port()
    process = stack.enter_context(started(*gateway_argv(folder, port)))
    found += [Contender(f"gateway, {era}", process, port, era, "tool_1") for era in ("modern", "legacy")]
    if options.mcp_proxy:
        port = free_port()
        process = stack.enter_context(started(options.mcp_proxy, "--host", "127.0.0.1", "--port", str(port), "--", *SERVER))
        found.append(Contender("mcp-proxy (PyPI)", process, port, "legacy", "tool_1", "/mcp"))
    if options.npm_mcp_proxy:
        port = free_port()
        argv = [options.npm_mcp_proxy, "--host", "127.0.0.1", "--port", str(port), "--server", "stream", "--", *SERVER]
        process = stack.enter_context(started(*argv))
        found.append(Contender("mcp-proxy (npm)", process, port, "legacy", "tool_1", "/mcp"))
    return found


async def measure(options: argparse.Namespace) -> list[Contender]:
    """Interleaved rounds of all contenders."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        found = contenders(stack, options, Path(name))
        for contender in found:
            await contender.wait()
            await contender.round(options.calls // 4)
            contender.per_second.clear()
            contender.cpu.clear()
        for turn in range(options.rounds):
            for contender in (found, found[::-1])[turn % 2]:
                await contender.round(options.calls)
    return found


def main() -> None:
    """Print one line per contender."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--mcp-proxy", default=shutil.which("mcp-proxy"), help="program of the PyPI package mcp-proxy")
    cli.add_argument("--npm-mcp-proxy", help="program of the npm package mcp-proxy")
    cli.add_argument("--calls", type=int, default=1600, help="per round and contender")
    cli.add_argument("--rounds", type=int, default=5)
    options = cli.parse_args()
    os.environ["PYTHONPATH"] = str(Path.cwd())
    found = anyio.run(measure, options)
    for option, value in (("--mcp-proxy", options.mcp_proxy), ("--npm-mcp-proxy", options.npm_mcp_proxy)):
        if not value:
            sys.stdout.write(f"left out, for want of {option}\n")
    first = found[0]
    sys.stdout.write(f"{'contender':<20} {'calls/s':>8} {'gateway is':>11} {'CPU s/1k':>9} {'gateway / it':>13}\n")
    for contender in found:
        faster = statistics.median(a / b for a, b in zip(first.per_second, contender.per_second, strict=True))
        share = statistics.median(a / b for a, b in zip(first.cpu, contender.cpu, strict=True))
        rate, cpu = statistics.median(contender.per_second), statistics.median(contender.cpu)
        sys.stdout.write(f"{contender.name:<20} {rate:>8.0f} {faster:>10.1f}x {cpu:>9.3f} {share:>13.2f}\n")


if __name__ == "__main__":
    main()
