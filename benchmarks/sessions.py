"""What an idle 2025 session costs in memory, each with a listening GET parked: the gateway, the same over the SDK, the relay.

    python -m benchmarks.sessions [--sessions N] [--json]

PSS of the contender's process before and after N sessions, each on one connection of its own (handshake, then the GET, answered and
left open); and what is left once all clients went away.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.json_types import JsonObject

VERSION = "2025-11-25"
WARM_UP = 50
"""Sessions opened and left before the first measurement: what a first session brings along is not part of each."""

START_SECONDS = 30.0


@dataclass(frozen=True)
class Cost:
    """Of one contender, in KiB."""

    contender: str
    idle: float
    """Before the sessions."""
    per_session: float
    left_over: float
    """Of the growth, after all clients closed their connections without a word."""


def pss_kib(pid: int) -> float:
    """Memory of a process, shared pages counted by their share."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:")))


def settled_kib(pid: int) -> float:
    """`pss_kib` once it stands still, at most three seconds later."""
    last = pss_kib(pid)
    for _ in range(6):
        time.sleep(0.5)
        now = pss_kib(pid)
        if abs(now - last) < 16:
            return now
        last = now
    return last


def _post(port: int, connection: socket.socket, message: JsonObject, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    fields = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connection.sendall(f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer


def open_session(port: int) -> socket.socket:
    """Shake hands and park the listening GET; the connection on which it waits."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    hello: JsonObject = {"protocolVersion": VERSION, "capabilities": {"roots": {}}, "clientInfo": {"name": "bench", "version": "1"}}
    opened = _post(port, connection, {"id": 0, "method": "initialize", "params": hello}, {})
    session = opened.getheader("mcp-session-id")
    if opened.status != 200 or session is None:
        raise RuntimeError(f"no session: {opened.status}")
    mine = {"mcp-session-id": session, "mcp-protocol-version": VERSION}
    told = _post(port, connection, {"method": "notifications/initialized"}, mine)
    head = "".join(f"{name}: {value}\r\n" for name, value in mine.items())
    connection.sendall(f"GET /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: text/event-stream\r\n{head}\r\n".encode())
    first = connection.recv(4096)
    if told.status != 202 or b" 200 " not in first.partition(b"\r\n")[0]:
        raise RuntimeError(f"the stream is not open: {told.status}, {first[:200]!r}")
    return connection


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(*argv: str) -> Generator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _gateway(folder: Path, upstream: str, port: int, direct_path: str) -> list[str]:
    path = folder / f"gateway-{port}.json"
    server = {"server": {"http": {"directPath": direct_path}}, "storage": {"dir": str(folder / f"state-{port}")}}
    path.write_text(json.dumps({"mcpServers": {"up": {"type": "http", "url": upstream}}, **server}))
    return ["-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path)]


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            open_session(port).close()
            return
        except (OSError, RuntimeError, http.client.HTTPException):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def cost_of(name: str, pid: int, port: int, sessions: int) -> Cost:
    """Open that many sessions at a contender that is up, and leave them again."""
    _wait_for(port)
    for connection in [open_session(port) for _ in range(WARM_UP)]:
        connection.close()
    idle = settled_kib(pid)
    parked = [open_session(port) for _ in range(sessions)]
    full = settled_kib(pid)
    for connection in parked:
        connection.close()
    time.sleep(1)
    return Cost(name, idle, (full - idle) / sessions, settled_kib(pid) - idle)


def measure(folder: Path, sessions: int) -> list[Cost]:
    """All contenders, one after the other."""
    upstream = _free_port()
    url = f"http://127.0.0.1:{upstream}/mcp"
    costs: list[Cost] = []
    with _process("-m", "benchmarks.upstream", str(upstream), "2"):
        for name in ("gateway", "gateway over the SDK", "relay"):
            port = _free_port()
            direct_path = "auto" if name == "gateway" else "off"
            argv = ["-m", "benchmarks.relay", str(port), url] if name == "relay" else _gateway(folder, url, port, direct_path)
            with _process(*argv) as child:
                costs.append(cost_of(name, child.pid, port, sessions))
            gc.collect()
    return costs


def main() -> None:
    """Measure and print."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--sessions", type=int, default=1_000)
    cli.add_argument("--json", action="store_true")
    options = cli.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard != resource.RLIM_INFINITY else 65_536, hard))
    os.environ.setdefault("PYTHONHASHSEED", "0")
    with tempfile.TemporaryDirectory() as name:
        costs = measure(Path(name), options.sessions)
    if options.json:
        sys.stdout.write(json.dumps([asdict(cost) for cost in costs]) + "\n")
        return
    for cost in costs:
        sys.stdout.write(f"{cost.contender:<22} idle {cost.idle / 1024:7.1f} MiB   per session {cost.per_session:7.1f} KiB   ")
        sys.stdout.write(f"left over {cost.left_over / 1024:6.1f} MiB\n")


if __name__ == "__main__":
    main()
