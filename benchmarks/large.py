"""Benchmark of large results: gateway memory and the latency of small calls while eight results of 60 MB arrive at once.

    python -m benchmarks.large [--kind NAME ...] [--at-once N] [--megabytes N] [--checkout FOLDER]

For each kind of result, the benchmark prints latency percentiles in milliseconds of small calls to another server, without other calls and
while the large results arrive. It also prints the resident memory of the gateway and its helper processes in megabytes: before the large
results, at the peak, and the growth that is left ten seconds after them.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251  # benchmarks use the same event loop as the gateway
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.contenders import Place, gateway
from benchmarks.machine import ROOT, free_ports, python, run_loop, started, wait_for_port

AFTER_SECONDS = 10.0
QUIET_SECONDS = 3.0
START_SECONDS = 30.0
EVERY_SECONDS = 0.003
"""Pause between two small calls."""

SAMPLE_SECONDS = 0.02
"""Interval between two memory readings."""

PIECE = 1_048_576

PROSE = 'Some plain text, "quoted", of a line.\n'
FOREIGN = "Näher am Wasser, 日本語 und 😀 dazu.\n"


def result_of(kind: str, size: int) -> dict[str, Any]:
    """Return a tool result of about `size` bytes of JSON. `kind` is the first item of a `KINDS` value."""
    if kind in ("foreign", "escaped"):
        return _texts(FOREIGN, size, is_escaped=kind == "escaped")
    if kind == "blocks":
        return {"content": [_texts(PROSE, size // 20)["content"][0] for _ in range(20)]}
    if kind == "rows":
        rows = [{"id": n, "name": f"row number {n}", "tags": ["a", "b"], "value": n / 7} for n in range(size // 80)]
        return {"content": [{"type": "text", "text": "rows"}], "structuredContent": {"rows": rows}}
    if kind == "image":
        data = "iVBORw0KGgoAAAANSUhEUgAA" * (size // 24)
        return {"content": [{"type": "text", "text": "a picture"}, {"type": "image", "data": data, "mimeType": "image/png"}]}
    return _texts(PROSE, size)


def _texts(line: str, size: int, *, is_escaped: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": line * (size // len(json.dumps(line, ensure_ascii=is_escaped).encode()))}]}


KINDS = {
    "text": ("prose", "sized"),
    "chunked": ("prose", "chunked"),
    "sse": ("prose", "sse"),
    "stdio": ("prose", "stdio"),
    "non-ascii": ("foreign", "sized"),
    "non-ascii stdio": ("foreign", "stdio"),
    "escaped": ("escaped", "sized"),
    "blocks": ("blocks", "sized"),
    "rows": ("rows", "sized"),
    "image": ("image", "sized"),
}
"""Kinds of results by name: the content, and the framing or transport of the response."""


# -- the servers -------------------------------------------------------------------------------------------------------


def reply(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request that is not a call of the tool `big`."""
    if method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("big", "small")]
        return {"resultType": "complete", "tools": tools, "ttlMs": 60_000, "cacheScope": "private"}
    if method == "server/discover":
        return {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "ttlMs": 0,
            "cacheScope": "private",
        }
    return {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


def body_of(message: dict[str, Any], large: bytes) -> bytes:
    """Return the JSON-RPC response to a request. `large` is the JSON of the large result, for the tool `big`."""
    start = b'{"jsonrpc":"2.0","id":%d,"result":' % message["id"]
    params: dict[str, Any] = message.get("params") or {}
    is_large = message["method"] == "tools/call" and params["name"] == "big"
    return start + (large if is_large else json.dumps(reply(message["method"], params)).encode()) + b"}"


def encoded(kind: str, size: int) -> bytes:
    """Return the JSON of the large result of a kind."""
    content = KINDS[kind][0]
    result = {"resultType": "complete", **result_of(content, size)}
    return json.dumps(result, ensure_ascii=content == "escaped", separators=(",", ":")).encode()


def serve_http(kind: str, size: int, port: int) -> None:
    """Serve MCP over HTTP until the process is killed."""
    large, way = encoded(kind, size), KINDS[kind][1]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "id" not in message:
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            body = body_of(message, large)
            is_special = len(body) > PIECE and way
            if is_special == "sse":
                body = b"event: message\ndata: " + body + b"\n\n"
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if is_special == "sse" else "application/json")
            if is_special == "chunked":
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for piece in pieces(body):
                    self.wfile.write(b"%x\r\n" % len(piece))
                    self.wfile.write(piece)
                    self.wfile.write(b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
                return
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            for piece in pieces(body):
                self.wfile.write(piece)

        def log_message(self, format: str, *args: object) -> None:
            """Disable the access log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    Server(("127.0.0.1", port), Handler).serve_forever()


def pieces(body: bytes) -> Iterator[memoryview]:
    """Split a body into parts of `PIECE` bytes without copying, because a single write would copy the whole body."""
    whole = memoryview(body)
    return (whole[start : start + PIECE] for start in range(0, len(body), PIECE))


def serve_stdio(kind: str, size: int) -> None:
    """Serve MCP over stdin and stdout until stdin ends."""
    large = encoded(kind, size)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message:
            body = body_of(message, large) + b"\n"
            for piece in pieces(body):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()


# -- measurement -------------------------------------------------------------------------------------------------------


def members(pid: int) -> Iterator[int]:
    """Yield the PIDs of the gateway and its helper processes, without the MCP servers that the gateway started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"benchmarks" not in Path(f"/proc/{child}/cmdline").read_bytes():
                yield from members(int(child))


def resident(pid: int) -> tuple[float, float]:
    """Return the resident megabytes of the gateway process, and of the gateway with its helper processes."""
    found: list[float] = []
    try:
        for member in members(pid):
            pages = int(Path(f"/proc/{member}/statm").read_text().split()[1])
            found.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    except (OSError, IndexError):  # a process has ended meanwhile
        pass
    return (found[0] if found else 0.0), sum(found)


class Client:
    """A client of the gateway that calls one tool repeatedly over one connection."""

    def __init__(self, port: int, tool: str, key: str = "") -> None:
        params = {
            "name": tool,
            "arguments": {},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: application/json, text/event-stream\r\n"
            "content-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n"
            f"mcp-name: {tool}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._port = port
        self._request = head.encode() + body
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self) -> tuple[float, bytes]:
        """Call the tool; return the seconds until the response was complete, and the last bytes of the response (at most 64 KiB)."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=4 * PIECE)
        reader, writer = self._streams
        started_at = time.perf_counter()
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].split(b"\r\n")[0]
        left = int(length) if length else 0
        end = b""
        while left > 0 or (not length and not end.endswith(b"\r\n0\r\n\r\n")):
            piece = await reader.read(min(left, PIECE) if length else PIECE)
            if not piece:
                raise SystemExit("the gateway closed a connection")
            left -= len(piece)
            end = (end + piece)[-65_536:]
        return time.perf_counter() - started_at, end


async def small_calls(client: Client, until: Callable[[], bool]) -> list[float]:
    """Make small calls one after the other until `until` returns true, and return the seconds of each call."""
    taken: list[float] = []
    while not until():
        seconds, end = await client.call()
        assert b"done" in end, end
        taken.append(seconds)
        await asyncio.sleep(EVERY_SECONDS)
    return taken


def percentile(taken: Sequence[float], part: float) -> float:
    """Return the quantile `part` (0.99 for p99) of latencies in seconds, converted to milliseconds."""
    ordered = sorted(taken)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1000


async def measure(port: int, pid: int, at_once: int) -> dict[str, float]:
    """Measure one kind of result on a running gateway, and return the figures by column title."""
    small, larges = Client(port, "small__small"), [Client(port, "big__big") for _ in range(at_once)]
    await small.call()

    async def quiet() -> list[float]:
        end = time.monotonic() + QUIET_SECONDS
        return await small_calls(small, lambda: time.monotonic() > end)

    await quiet()
    idle = resident(pid)
    before = await quiet()
    peak = [0.0, 0.0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(SAMPLE_SECONDS):
            own, together = resident(pid)
            peak[0], peak[1] = max(peak[0], own), max(peak[1], together)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started_at = time.perf_counter()
    bursts = [asyncio.ensure_future(client.call()) for client in larges]
    taken = await small_calls(small, lambda: all(burst.done() for burst in bursts))
    seconds = time.perf_counter() - started_at
    is_over.set()
    watcher.join()
    ends = [burst.result()[1] for burst in bursts]
    arrived = sum(b"moongate/shortened" in end or b"image/png" in end for end in ends)
    await asyncio.sleep(AFTER_SECONDS)
    after = resident(pid)
    still = before + await quiet()
    return {
        "quiet p99": percentile(still, 0.99),
        "p50": percentile(taken, 0.5),
        "p99": percentile(taken, 0.99),
        "max": max(taken) * 1000,
        "calls": len(taken),
        "arrived": arrived,
        "seconds": seconds,
        "idle MB": idle[1],
        "peak MB": peak[1],
        "of it gateway": peak[0],
        "kept MB": after[1] - idle[1],
    }


def run(kind: str, *, at_once: int, size: int, checkout: Path) -> dict[str, float]:
    """Start the servers and the gateway, and measure one kind of result."""
    port, big, small = free_ports(3)
    is_piped = KINDS[kind][1] == "stdio"
    own = ("-m", "benchmarks.large", "--serve", kind, "--megabytes", str(size / 1e6))
    with tempfile.TemporaryDirectory() as folder:
        place = Place(port=port, upstream=big, folder=Path(folder))
        servers: dict[str, Any] = {"small": {"type": "http", "url": f"http://127.0.0.1:{small}/mcp"}}
        if is_piped:
            servers["big"] = {"command": sys.executable, "args": list(own), "cwd": str(ROOT), "env": {"PYTHONPATH": str(ROOT)}}
        else:
            servers["big"] = {"type": "http", "url": f"http://127.0.0.1:{big}/mcp"}
        policies = {"big": {"timeoutSeconds": 240}}
        command = gateway(place, settings={"mcpServers": servers, "policies": policies}, checkout=checkout)
        tiny = python("-m", "benchmarks.large", "--serve", "image", "--megabytes", "0.001", "--port", str(small))
        with ExitStack() as stack:
            log = Path(folder) / "gateway.log"
            wait_for_port(small, stack.enter_context(started(tiny)), START_SECONDS)
            if not is_piped:
                wait_for_port(big, stack.enter_context(started(python(*own, "--port", str(big)))), START_SECONDS)
            process = stack.enter_context(started(command, log=log))
            wait_for_port(port, process, START_SECONDS)
            try:
                return run_loop(measure(port, process.pid, at_once))
            except BaseException:
                print(log.read_text()[-3000:], file=sys.stderr)  # noqa: T201
                raise


def main() -> None:
    """Measure the selected kinds and print one table row per kind."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description="Small calls and memory while large results arrive.")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--megabytes", type=float, default=60)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="the working tree of the gateway that is measured")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    size = int(given.megabytes * 1e6)
    if given.serve:
        serve_http(given.serve, size, given.port) if given.port else serve_stdio(given.serve, size)
        return
    print(f"{given.at_once} results of {given.megabytes:g} MB at once; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)  # noqa: T201
    is_first = True
    for kind in given.kind or KINDS:
        figures = run(kind, at_once=given.at_once, size=size, checkout=given.checkout)
        if is_first:
            print("kind".ljust(16) + "".join(name.rjust(14) for name in figures))  # noqa: T201
            is_first = False
        print(kind.ljust(16) + "".join(f"{value:14.1f}" for value in figures.values()), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
