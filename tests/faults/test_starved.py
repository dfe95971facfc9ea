"""A gateway that gets no processor time for a while loses no session and no request for it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.attacks.test_quotas import legacy, ping, raw_post, session_of
from tests.fakes.crowd import besieged, call, connections, status_of
from tests.fakes.running import upstream_stdio

pytestmark = [pytest.mark.timeout(120), pytest.mark.fault(33), pytest.mark.faults]

LARGE = 1_500_000
"""Size of a request in bytes, large enough that the event loop reads the request in several iterations."""

STOPPED_SECONDS = 12.0
"""Longer than every timeout that this test is about."""


def test_stopped_gateway_keeps_sessions_and_requests(tmp_path: Path) -> None:
    config = {"mcpServers": {"up": upstream_stdio()}, "server": {"http": {"headSeconds": 5, "bodySeconds": 5}}}
    with besieged(tmp_path, config) as at, ExitStack() as stack:
        sessions = [session_of(at, "honest") for _ in range(100)]
        moving, heads, bodies, large = (stack.enter_context(connections(at, count)) for count in (100, 20, 20, 5))
        long, fields = call(text="x" * LARGE)
        long_request = at.head("honest", len(long), **fields) + long.encode()
        body, fields = call()
        request = at.head("honest", len(body), **fields) + body.encode()
        for raw, session in zip(moving, sessions, strict=True):
            raw_post(at, raw, legacy("prompts/get", name="none"), session)
        for raw in heads:
            raw.sendall(request[:40])
        for raw in bodies:
            raw.sendall(request[:-20])
        for raw in large:
            raw.sendall(long_request[:1000])
        time.sleep(0.2)
        os.kill(at.process.pid, signal.SIGSTOP)
        try:
            for raw in heads:
                raw.sendall(request[40:])
            for raw in bodies:
                raw.sendall(request[-20:])
            for raw in large:
                raw.sendall(long_request[1000:])
            time.sleep(STOPPED_SECONDS)
        finally:
            os.kill(at.process.pid, signal.SIGCONT)
        for name, group in (("sessions", moving), ("heads", heads), ("bodies", bodies), ("large", large)):
            assert {status_of(raw) for raw in group} == {200}, name
        assert {ping(at, session) for session in sessions} == {200}
