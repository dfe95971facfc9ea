"""Two gateways behind a real nginx with `docs/nginx.conf`: streams, long calls, large bodies, lost clients, sessions and a lost gateway.

The answer for a gateway that stopped in the middle of a request is tested with every configuration of nginx in this repository.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from benchmarks.fleet.site import CONF
from gateway.protocol import INTERNAL_ERROR
from tests.cli.processes import environment, moongate, write_gateway
from tests.fakes.certificates import make_pair
from tests.fakes.nursery import Child
from tests.fakes.running import ROOT, child, free_port, listens, until, upstream_http, wait_until_ready
from tests.packaging.test_compose_names import nginx_version

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = [pytest.mark.nginx, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]

MODERN = "2026-07-28"
PAIR = make_pair()
READ_SECONDS = 20
"""nginx's timeout for a silent gateway, shorter than in the documentation, so that a call can outlast it."""

CALL_SECONDS = 30
"""Seconds after which the gateway ends a call of the server `slow`."""


@dataclass(frozen=True)
class Proxied:
    """Two gateways behind nginx."""

    folder: Path
    url: str
    upstream: str
    keys: list[str]
    gateways: list[tuple[int, Child]]

    @asynccontextmanager
    async def client(self, mode: Any, key: int = 0) -> AsyncGenerator[Client]:
        headers = {"authorization": f"Bearer {self.keys[key]}"}
        async with (
            httpx2.AsyncClient(verify=PAIR.trusted(), headers=headers, timeout=60) as http,
            Client(streamable_http_client(self.url, http_client=http), mode=mode, cache=None) as client,
        ):
            yield client

    async def stats(self) -> dict[str, Any]:
        """Return what the server behind the gateways has counted."""
        async with Client(self.upstream, mode=MODERN) as client:
            return (await client.call_tool("stats", {})).structured_content or {}


def text_of(result: Any) -> str:
    return result.content[0].text


def documented(folder: Path, port: int, ports: list[int]) -> str:
    """Return `docs/nginx.conf` with the ports and files of the test."""
    text = (ROOT / "docs/nginx.conf").read_text()
    changes = {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "127.0.0.1:8765;": f"127.0.0.1:{ports[0]};",
        "127.0.0.1:8766;": f"127.0.0.1:{ports[1]};",
        "server_name hub.example.com;": "server_name localhost;",
        "/etc/ssl/hub.example.com/fullchain.pem": str(folder / "cert.pem"),
        "/etc/ssl/hub.example.com/privkey.pem": str(folder / "key.pem"),
        "proxy_read_timeout 1h;": f"proxy_read_timeout {READ_SECONDS}s;",
    }
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def write_nginx(folder: Path, server: str) -> Path:
    """Write a whole configuration of nginx around `server`, with all files in `folder`."""
    user = "user root;" if os.geteuid() == 0 else ""  # else the worker processes cannot use the folder
    places = "".join(f"{name}_temp_path {folder / name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = folder / "nginx.conf"
    main = f"{user}\ndaemon off;\npid {folder / 'pid'};\nerror_log {folder / 'nginx.log'};\nevents {{}}\n"
    path.write_text(f"{main}http {{\nlog_format places '$upstream_addr';\naccess_log {folder / 'access.log'} places;\n{places}{server}}}\n")
    return path


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Generator[Proxied]:
    folder = tmp_path_factory.mktemp("nginx")
    ports, port = [free_port(), free_port()], free_port()
    PAIR.write(folder)
    assert NGINX is not None
    with upstream_http() as upstream:
        servers, policies = {"up": {"url": upstream}, "slow": {"url": upstream}}, {"slow": {"timeoutSeconds": CALL_SECONDS}}
        config = write_gateway(folder, storage={"dir": "state"}, mcpServers=servers, policies=policies)
        keys = [str(moongate("keys", "add", f"person-{number}", "--json", cwd=folder).data["key"]) for number in range(20)]
        running: list[tuple[int, Child]] = []
        first = child("-m", "gateway", "run", "--http", f":{ports[0]}", "-c", str(config), env=environment(folder), log=folder / "1.log")
        second = child("-m", "gateway", "run", "--http", f":{ports[1]}", "-c", str(config), env=environment(folder), log=folder / "2.log")
        with first as one, second as two:
            for number, process in zip(ports, (one, two), strict=True):
                wait_until_ready(process, f"http://127.0.0.1:{number}/ready", folder / "1.log")
                running.append((number, process))
            settings = write_nginx(folder, documented(folder, port, ports))
            nginx = subprocess.Popen([NGINX, "-e", str(folder / "nginx.log"), "-p", str(folder), "-c", str(settings)])
            try:
                wait_until_ready(nginx, f"https://127.0.0.1:{port}/ready", folder / "nginx.log", tls=PAIR.trusted())
                yield Proxied(folder, f"https://localhost:{port}/mcp", upstream, keys, running)
            finally:
                nginx.terminate()
                nginx.wait(10)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_events_arrive_one_by_one(proxied: Proxied, mode: str) -> None:
    """Progress reaches the client while the call still runs."""
    first = anyio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        first.set()

    async with proxied.client(mode) as client, anyio.create_task_group() as tasks:

        async def hang() -> None:
            await client.call_tool("up__hang", {}, progress_callback=report)

        tasks.start_soon(hang)
        with anyio.fail_after(10):
            await first.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_body_of_a_megabyte_passes_both_ways(proxied: Proxied, mode: str) -> None:
    async with proxied.client(mode) as client:
        assert text_of(await client.call_tool("up__echo", {"text": "x" * 1_000_000}))
        assert len(text_of(await client.call_tool("up__big", {"bytes": 50_000}))) >= 50_000


async def test_lost_client_cancels_the_call(proxied: Proxied) -> None:
    before = (await proxied.stats())["cancelled"].get("hang", 0)
    async with proxied.client(MODERN) as client:
        with anyio.move_on_after(2):
            await client.call_tool("up__hang", {})
    with anyio.fail_after(20):
        while (await proxied.stats())["cancelled"].get("hang", 0) == before:
            await anyio.sleep(0.1)


async def test_sessions_of_several_keys_stay_at_their_gateway(proxied: Proxied) -> None:
    async with anyio.create_task_group() as tasks:

        async def use(key: int) -> None:
            async with proxied.client("legacy", key) as client:
                for number in range(10):
                    assert text_of(await client.call_tool("up__add", {"a": key, "b": number})) == str(key + number)

        for key in range(len(proxied.keys)):
            tasks.start_soon(use, key)
    used = (proxied.folder / "access.log").read_text().split()
    assert {f"127.0.0.1:{port}" for port, _ in proxied.gateways} == set(used)


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_call_outlasts_the_timeout_of_silent_streams(proxied: Proxied, mode: str) -> None:
    """The gateway sends comments on the stream of a silent call, so nginx does not close it."""
    assert CALL_SECONDS > READ_SECONDS
    async with proxied.client(mode) as client:
        ended = await client.call_tool("slow__hang", {})
    assert (ended.is_error, f"Timed out after {CALL_SECONDS} s" in text_of(ended)) == (True, True), ended


def retryable(answer: httpx2.Response) -> str:
    """Return the message of the error that nginx answers for a gateway that stopped, after a check of everything around it."""
    head = (answer.status_code, answer.headers["content-type"], answer.headers.get("retry-after"))
    assert head == (503, "application/json", "1"), answer.text
    body = answer.json()
    assert (body["jsonrpc"], body["id"], body["error"]["code"]) == ("2.0", None, INTERNAL_ERROR)
    return body["error"]["message"]


STOPPED = "The gateway stopped or could not be reached. The request may have run. Send it again if running it twice does no harm."


async def test_killed_gateway_leaves_retryable_errors(proxied: Proxied) -> None:
    """Each client with a call at the killed gateway gets the same error: one without an SDK, and SDK clients of both eras."""
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN, "mcp-method": "tools/call"}
    meta: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "up__hang", "arguments": {}, "_meta": meta}}
    before = (await proxied.stats())["calls"].get("hang", 0)
    errors: dict[str, str] = {}
    with anyio.fail_after(40):
        async with anyio.create_task_group() as tasks:

            async def plain() -> None:
                signed = {**headers, "mcp-name": "up__hang", "authorization": f"Bearer {proxied.keys[0]}"}
                async with httpx2.AsyncClient(verify=PAIR.trusted(), headers=signed, timeout=40) as http:
                    errors["plain"] = retryable(await http.post(proxied.url, json=call))

            async def sdk(mode: str) -> None:
                async with proxied.client(mode) as client:
                    with pytest.raises(MCPError) as raised:
                        await client.call_tool("up__hang", {})
                    errors[mode] = str(raised.value)

            tasks.start_soon(plain)
            tasks.start_soon(sdk, "legacy")
            tasks.start_soon(sdk, MODERN)
            while (await proxied.stats())["calls"].get("hang", 0) < before + 3:
                await anyio.sleep(0.05)
            port = int((proxied.folder / "access.log").read_text().split()[-1].rpartition(":")[2])
            _, process = next(one for one in proxied.gateways if one[0] == port)
            process.kill()
            process.wait()
    assert list(errors.values()) == [STOPPED] * 3 and len(errors) == 3, errors


async def test_requests_continue_when_a_gateway_is_lost(proxied: Proxied) -> None:
    """The last test with two gateways, because at most one of them is left."""
    if all(process.poll() is None for _, process in proxied.gateways):
        proxied.gateways[0][1].kill()
        proxied.gateways[0][1].wait()
    for key in range(len(proxied.keys)):
        async with proxied.client(MODERN, key) as client:
            assert text_of(await client.call_tool("up__add", {"a": 1, "b": 2})) == "3"


def configurations(folder: Path, port: int, gateway: int) -> dict[str, str]:
    """Return the `http` blocks of all configurations of nginx in this repository, with ports and files of the test."""
    page = (ROOT / "docs/three-gateways.md").read_text()
    (tutorial,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    whole = {
        "deploy/nginx.conf": (ROOT / "deploy/nginx.conf").read_text(),
        "docs/three-gateways.md": tutorial,
        "benchmarks/fleet/site.py": CONF.format(folder=folder, user="", servers="server 127.0.0.1:8765;", port=port, header="http_x"),
    }
    found = {"docs/nginx.conf": documented(folder, port, [gateway, gateway])}
    for name, text in whole.items():
        inner = re.search(r"\nhttp \{\n(.*)\n\}\n", text, re.DOTALL)
        assert inner is not None, name
        inside = "\n".join(line for line in inner[1].splitlines() if "_temp_path" not in line and "access_log" not in line)
        inside = re.sub(r"(?:127\.0\.0\.1|gateway-\d):876[5-7]", f"127.0.0.1:{gateway}", inside)
        inside = re.sub(r"listen (127\.0\.0\.1:)?8443 ssl;", f"listen 127.0.0.1:{port} ssl;", inside)
        inside = re.sub(r"ssl_certificate +\S+;", f"ssl_certificate {folder}/cert.pem;", inside)
        found[name] = re.sub(r"ssl_certificate_key +\S+;", f"ssl_certificate_key {folder}/key.pem;", inside)
    return found


@pytest.mark.parametrize("name", ["docs/nginx.conf", "deploy/nginx.conf", "docs/three-gateways.md", "benchmarks/fleet/site.py"])
def test_every_configuration_answers_for_a_stopped_gateway(name: str, tmp_path: Path) -> None:
    """A server that closes the connection after the whole request stands for the gateway. Without it, the answer is the same."""
    if name == "deploy/nginx.conf" and nginx_version() < (1, 27, 3):
        pytest.skip("nginx is older than 1.27.3, which `resolve` in deploy/nginx.conf needs")
    PAIR.write(tmp_path)
    port, received = free_port(), list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as stopping:

        def stop_after_one_request() -> None:
            connection, _ = stopping.accept()
            with connection:
                while not b"".join(received).endswith(b"}"):
                    received.append(connection.recv(65536))

        thread = threading.Thread(target=stop_after_one_request, daemon=True)
        thread.start()
        settings = write_nginx(tmp_path, configurations(tmp_path, port, stopping.getsockname()[1])[name])
        scheme = "http" if name.startswith("benchmarks") else "https"
        assert NGINX is not None
        nginx = subprocess.Popen([NGINX, "-e", str(tmp_path / "nginx.log"), "-p", str(tmp_path), "-c", str(settings)])
        try:
            until(lambda: listens(str(port)))
            with httpx2.Client(verify=PAIR.trusted(), timeout=20) as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                assert retryable(http.post(f"{scheme}://localhost:{port}/mcp", json=body)) == STOPPED
                thread.join(10)
                stopping.close()
                assert retryable(http.post(f"{scheme}://localhost:{port}/mcp", json=body)) == STOPPED
        finally:
            nginx.terminate()
            nginx.wait(10)
    assert b"".join(received).count(b"POST /mcp") == 1
