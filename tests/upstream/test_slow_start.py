"""A server over stdio that takes longer to start than the gateway waits for the answer to its first request."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from gateway.config.models import StdioServer
from gateway.config.policies import SourcePolicy
from gateway.gate.approvals import Approvals
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.telemetry.gateway_events import EventStream
from gateway.upstream import server_session
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.source import UpstreamSource
from tests.fakes.running import ROOT


@pytest.mark.parametrize(("option", "version"), [("--stdio", "2026-07-28"), ("--legacy", "2025-11-25")])
async def test_slow_server_connects_at_first_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, version: str) -> None:
    monkeypatch.setattr(server_session, "PROBE_TIMEOUT_SECONDS", 1.0)
    program = f"sleep 1.2; exec {sys.executable} -m tests.fakes.upstream --stdio {option}"
    entry = StdioServer(command="sh", args=["-c", program], cwd=str(ROOT))
    events, records = EventStream(), Records(StateFolder(tmp_path), audit_days=1)
    services = InputRequestServices(events, records, Approvals(records, events))
    async with UpstreamSource("up", entry, SourcePolicy(), services, own_id="x", client={"name": "x", "version": "1"}) as source:
        with anyio.fail_after(25):
            await source.settled()
        status = source.status()
    assert (status.state, status.protocol_version, status.error) == ("ready", version, None)
