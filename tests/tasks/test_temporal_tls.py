"""The connection to Temporal over TLS: a proxy that terminates TLS and requires a client certificate is in front of the server."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener

from tests.fakes.certificates import Pair, make_pair, make_signed
from tests.fakes.running import ROOT, free_port, write_config
from tests.fakes.temporal import TemporalServer
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.temporal]

KEY = "tmprl-key-in-no-output"
FUNCTIONS = "def work(x: str) -> str:\n    return x + '!'\n"
FLOW = """\
name: flow
description: One function.
input: {x: {type: string}}
task: required
executors: {one: {python: "tls_functions:work", arguments: {x: "{{x}}"}}}
start: one
"""


@asynccontextmanager
async def tls_proxy(server: TemporalServer, folder: Path, own: Pair, clients: Pair) -> AsyncGenerator[int]:
    """Forward connections with a client certificate that `clients` signed to the server; yields the port."""
    own.write(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.load_verify_locations(cadata=clients.certificate.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])

    async def copy(source: ByteStream, target: ByteStream, scope: anyio.CancelScope) -> None:
        try:
            async for data in source:
                await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        scope.cancel()

    async def forward(client: ByteStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", server.port) as there, anyio.create_task_group() as group:
            group.start_soon(copy, client, there, group.cancel_scope)
            group.start_soon(copy, there, client, group.cancel_scope)

    port = free_port()
    listener = TLSListener(await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port), context, standard_compatible=False)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, forward)
        yield port
        group.cancel_scope.cancel()


def temporal_section(folder: Path, port: int, **tls: str) -> dict[str, Any]:
    return {
        "engine": "temporal",
        "temporal": {"address": f"127.0.0.1:{port}", "taskQueue": f"tls-{folder}", "apiKey": "${env:TEMPORAL_KEY}", "tls": tls},
    }


def lay_out(folder: Path, authority: Pair, client: Pair) -> dict[str, str]:
    """Write the workflow and the gateway's certificates, and return the section `tls`."""
    (folder / "tls_functions.py").write_text(FUNCTIONS)
    (folder / "flow.workflow.yaml").write_text(FLOW)
    for name, data in (("ca.pem", authority.certificate), ("client.pem", client.certificate), ("client.key", client.key)):
        (folder / name).write_bytes(data)
    return {"ca": str(folder / "ca.pem"), "cert": str(folder / "client.pem"), "key": str(folder / "client.key")}


def logged(folder: Path) -> str:
    """Return the logs of the gateways."""
    return "".join(path.read_text() for path in folder.glob("*.log"))


async def refused(folder: Path, tasks: dict[str, Any]) -> tuple[str, float]:
    """Run a gateway that cannot start, and return its output and the seconds that it took."""
    path = write_config(folder, {"tasks": tasks})
    argv = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{free_port()}", "--config", str(path)]
    began = time.monotonic()
    env = {**os.environ, "TEMPORAL_KEY": KEY}
    ended = await anyio.run_process(argv, cwd=ROOT, check=False, stderr=subprocess.STDOUT, env=env)
    assert ended.returncode != 0
    return ended.stdout.decode(), time.monotonic() - began


async def test_task_runs_over_tls_with_a_client_certificate(temporal_server: TemporalServer, tmp_path: Path) -> None:
    authority = make_pair(name="Authority")
    tls = lay_out(tmp_path, authority, make_signed(authority, name="gateway"))
    (tmp_path / "proxy").mkdir()
    async with tls_proxy(temporal_server, tmp_path / "proxy", make_signed(authority), authority) as port:
        config = {"expose": {"agents": ["."]}, "tasks": temporal_section(tmp_path, port, **tls)}
        process, url = await anyio.to_thread.run_sync(lambda: start_gateway(tmp_path, "gateway", config, TEMPORAL_KEY=KEY))
        try:
            async with over_http(url, "modern") as wire:
                started = await wire.send("tools/call", name="workflow__flow", arguments={"x": "over"})
                done = await until(wire, started["result"]["taskId"], "completed", "failed")
                assert done["result"]["content"] == [{"type": "text", "text": "over!"}]
        finally:
            stop(process)
    assert KEY not in logged(tmp_path)


@pytest.mark.parametrize("wrong", ["authority", "certificate", "name"])
async def test_wrong_certificate_ends_the_start_with_host_and_reason(temporal_server: TemporalServer, tmp_path: Path, wrong: str) -> None:
    authority, stranger = make_pair(name="Authority"), make_pair(name="Stranger")
    client = make_signed(stranger if wrong == "certificate" else authority, name="gateway")
    tls = lay_out(tmp_path, stranger if wrong == "authority" else authority, client)
    tls |= {"serverName": "temporal.example.com"} if wrong == "name" else {}
    (tmp_path / "proxy").mkdir()
    async with tls_proxy(temporal_server, tmp_path / "proxy", make_signed(authority), authority) as port:
        output, seconds = await refused(tmp_path, temporal_section(tmp_path, port, **tls))
    assert f"Temporal at 127.0.0.1:{port} cannot be used" in output
    assert KEY not in output
    assert seconds < 10 + 4, "8 s for the connection, and the start of Python"
