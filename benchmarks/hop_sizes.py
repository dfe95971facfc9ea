"""What a plain 2026 call costs by size: the gateway between a byte proxy and the relays. See README.md for the figures.

    python -m benchmarks.hop_sizes [--calls N] [--rounds N] [--fastmcp PYTHON]

nginx joins where it is installed, FastMCP where `PYTHON` is an interpreter that has it; what is missing is named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import anyio

from benchmarks.hop import MODERN_META, cpu_seconds, first_list, free_port, gateway_argv, process
from gateway.upstream.pool import Pool

SIZES = (100, 10_000, 1_000_000)
CONCURRENCY = 16
NGINX = """daemon off; master_process off; error_log stderr crit; pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{ access_log off; client_max_body_size 8m; client_body_buffer_size 4m; client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder}; proxy_buffers 16 256k; proxy_buffer_size 256k;
  proxy_busy_buffers_size 512k; keepalive_requests 1000000;
  upstream up {{ server {origin}; keepalive 64; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }} }} }}
"""
FASTMCP = """
import sys
from fastmcp.server import create_proxy

create_proxy(sys.argv[2]).run("http", port=int(sys.argv[1]), show_banner=False)
"""


def request(size: int, number: int, more: int = 0) -> bytes:
    """A whole `tools/call`, `size` bytes of text in its arguments, to be said back with `more` behind it."""
    arguments = {"text": "x" * size} | ({"size": more} if more else {})
    params = {"name": "tool_1", "arguments": arguments, "_meta": MODERN_META}
    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
    lines = [
        "POST /mcp HTTP/1.1",
        "host: 127.0.0.1:80",
        "accept: application/json, text/event-stream",
        "content-type: application/json",
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/call",
        "mcp-name: tool_1",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def run_calls(pool: Pool, size: int, count: int, more: int = 0) -> None:
    """Many calls at a time, each answer checked for its text, which is `more` than the call's."""
    left = count
    made = request(size, 1, more)

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            answer = await pool.send(made)
            assert answer.status == 200 and len(answer.body) > size + more and b'"isError":true' not in answer.body, answer.body[:300]

    async with anyio.create_task_group() as tasks:
        for _ in range(CONCURRENCY):
            tasks.start_soon(worker)


@contextlib.contextmanager
def other_program(*argv: str) -> Generator[subprocess.Popen[bytes]]:
    """A child that is not of this interpreter."""
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(10)


def start(name: str, folder: Path, upstream: str, port: int, fastmcp: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A contender before `upstream`."""
    if name == "nginx":
        config = folder / "nginx.conf"
        origin = upstream.removeprefix("http://").removesuffix("/mcp")
        config.write_text(NGINX.format(folder=folder, port=port, origin=origin))
        return other_program("nginx", "-c", str(config), "-e", "stderr")
    if name == "fastmcp":
        return other_program(fastmcp, "-c", FASTMCP, str(port), upstream)
    if name == "gateway":
        return process(*gateway_argv(folder, upstream, port))
    return process("-m", f"benchmarks.{name}", str(port), upstream)


async def measure(folder: Path, calls: int, rounds: int, fastmcp: str) -> list[tuple[str, ...]]:
    """Seconds of processor time per 1,000 calls, by contender and size, and what the gateway takes of each."""
    names = ["raw", "nginx", "gateway", "relay", "fastmcp"]
    missing = [name for name in names if (name == "nginx" and not shutil.which("nginx")) or (name == "fastmcp" and not fastmcp)]
    names = [name for name in names if name not in missing]
    rows: list[tuple[str, ...]] = [(f"{name}: not installed, left out",) for name in missing]
    port = free_port()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process("-m", "benchmarks.upstream", str(port), "2"))
        time.sleep(1)  # noqa: ASYNC251  # nothing else runs yet
        pids: dict[str, int] = {}
        pools: dict[str, Pool] = {}
        for name in names:
            own = free_port()
            child = stack.enter_context(start(name, folder, f"http://127.0.0.1:{port}/mcp", own, fastmcp))
            await first_list(own, time.monotonic())
            pids[name], pools[name] = child.pid, Pool(name, "127.0.0.1", own, tls=None, max_body_bytes=1 << 26)
            stack.callback(pools[name].close)
        for size in SIZES:
            count = max(calls // (1 if size <= 10_000 else 20), CONCURRENCY)
            samples: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(rounds + 1):
                for name in (names, names[::-1])[turn % 2]:
                    before = cpu_seconds(pids[name])
                    await run_calls(pools[name], size, count // (4 if name == "fastmcp" else 1))
                    spent = (cpu_seconds(pids[name]) - before) / (count // (4 if name == "fastmcp" else 1)) * 1000
                    if turn:  # the first round warms up
                        samples[name].append(spent)
            for name in names:
                ratio = statistics.median(g / c for g, c in zip(samples["gateway"], samples[name], strict=True))
                rows.append((f"{size:,} B", name, f"{statistics.median(samples[name]):.3f} s/1k", f"gateway / {name} = {ratio:.2f}"))
    return rows


def main() -> None:
    """Print one line per contender and size."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--calls", type=int, default=2_000, help="calls per round and contender; a twentieth at 1 MB")
    cli.add_argument("--rounds", type=int, default=5)
    cli.add_argument("--fastmcp", default="", help="an interpreter that has FastMCP")
    options = cli.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for row in anyio.run(measure, Path(name), options.calls, options.rounds, options.fastmcp):
            sys.stdout.write("  ".join(f"{cell:<14}" for cell in row) + "\n")


if __name__ == "__main__":
    main()
