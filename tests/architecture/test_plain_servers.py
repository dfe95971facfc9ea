"""Child processes and plain 2026 servers are reached without the SDK, which takes longer to load than a gateway to start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes.running import raw_http, raw_stdio

SDK = ("mcp", "mcp_types", "httpx2", "starlette", "sse_starlette")

PROGRAM = """
import json, sys
from pathlib import Path
from typing import Any
import anyio
from gateway.config.models import HttpServer, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.gateway_events import EventStream
from gateway.gate.approvals import Approvals
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.source import UpstreamSource

folder, sdk, *servers = sys.argv[1:]


async def main():
    events = EventStream()
    records = Records(StateFolder(Path(folder)), audit_days=1)
    services = InputRequestServices(events, records, Approvals(records, events))
    for server in servers:
        entry = HttpServer(url=server) if server.startswith("http") else StdioServer.model_validate_json(server)
        async with UpstreamSource("up", entry, SourcePolicy(), services, own_id="x", client={"name": "x", "version": "1"}) as source:
            await source.settled()
            for tool in await source.tools():
                outcome = await tool.call({"text": "hi"}, CallContext(CallFacts(wants_progress=True)))
                heard = outcome.result["structuredContent"]["got"]["arguments"]
                loaded = [name for name in sdk.split() if name in sys.modules]
                print(json.dumps([source.status().protocol_version, tool.definition.name, heard, loaded]))


anyio.run(main)
"""
TOLD: dict[str, Any] = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}


def test_the_sdk_is_loaded_for_a_2025_server_behind_a_url_only(tmp_path: Path) -> None:
    with raw_http(TOLD, "--modern") as url, raw_http(TOLD) as old_url:
        servers = [url, json.dumps(raw_stdio(TOLD, "--modern")), json.dumps(raw_stdio(TOLD)), old_url]
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), " ".join(SDK), *servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *plain, (_, *heard, loaded) = [json.loads(line) for line in done.stdout.splitlines()]
    assert plain == [[version, "echo", {"text": "hi"}, []] for version in ("2026-07-28", "2026-07-28", "2025-11-25")]
    assert heard == ["echo", {"text": "hi"}] and "mcp" in loaded
