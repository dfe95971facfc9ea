"""Callers take turns at a server: a caller with hundreds of waiting calls does not delay the call of another caller."""

from __future__ import annotations

import select
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.attacks.test_quotas import PATHS, legacy, raw_post, reply, session_of
from tests.fakes.crowd import Besieged, besieged, call, connections, until
from tests.fakes.running import upstream_stdio

pytestmark = [pytest.mark.timeout(120), pytest.mark.attack(42)]

CALLS = 20
"""Waiting calls of each caller."""

WAYS = {
    "concurrency": {"maxConcurrency": 2},
    "serial": {"maxConcurrency": 500, "callers": "serial"},
}
"""What the calls wait for."""


def config(folder: Path, policy: dict[str, Any], path: str = "auto") -> dict[str, Any]:
    held = upstream_stdio(str(folder), module="tests.fakes.held_upstream")
    server = {"http": {"directPath": path}, "limits": {"callsPerCaller": CALLS}}
    return {"mcpServers": {"up": held}, "policies": {"up": policy}, "server": server}


def send(at: Besieged, caller: str, raws: list[socket.socket], name: str = "up__work") -> None:
    """Send one call on each connection."""
    for number, raw in enumerate(raws):
        body, headers = call(name, number, who=caller)
        raw_post(at, raw, body, {**headers, **at.key_of(caller)})


def wait_at_bound(at: Besieged, caller: str, raws: list[socket.socket]) -> None:
    """Make one call more than the caller may, and wait until it is refused: then the gateway has all the others."""
    send(at, caller, raws)
    refused, _, _ = select.select(raws, [], [], 20)
    assert [b"server.limits.callsPerCaller" in raw.recv(4096) for raw in refused] == [True]


def seen(folder: Path) -> list[str]:
    """Return the caller of each call, in the order in which the calls reached the server."""
    path = folder / "seen"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", WAYS)
def test_callers_take_turns_at_server(tmp_path: Path, way: str, path: str) -> None:
    with besieged(tmp_path, config(tmp_path, WAYS[way], path)) as at, connections(at, 2 * CALLS + 2) as raws:
        wait_at_bound(at, "weak", raws[: CALLS + 1])
        wait_at_bound(at, "honest", raws[CALLS + 1 :])
        assert set(seen(tmp_path)) == {"weak"}
        (tmp_path / "go").touch()
        until(lambda: len(seen(tmp_path)) >= 16)
        assert seen(tmp_path)[:16].count("honest") >= 6


def test_calls_of_clients_that_leave_do_not_run(tmp_path: Path) -> None:
    with besieged(tmp_path, config(tmp_path, WAYS["concurrency"])) as at, connections(at, 1) as (honest,):
        with connections(at, CALLS + 1) as weak:
            send(at, "weak", weak[:2])
            until(lambda: seen(tmp_path) == ["weak", "weak"])  # else the calls of other connections may run first
            wait_at_bound(at, "weak", weak[2:])
            for raw in weak[2:]:
                raw.close()
            assert httpx2.get(f"{at.origin}/health").status_code == 200  # the gateway knows that the waiting clients left
        send(at, "honest", [honest])
        until(lambda: "honest" in seen(tmp_path))
        (tmp_path / "go").touch()
        assert honest.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert seen(tmp_path) == ["weak", "weak", "honest"]


def test_busy_session_leaves_serial_server_to_others(tmp_path: Path) -> None:
    """A serial server runs calls of one session together; a session whose calls never stop must still end its turn."""
    most = 150
    (tmp_path / "go").touch()
    with besieged(tmp_path, config(tmp_path, WAYS["serial"])) as at, connections(at, 1) as (honest,):
        headers = session_of(at, "weak")

        def call_again(thread: int) -> None:
            with httpx2.Client(timeout=60) as client:
                while "honest" not in seen(tmp_path) and len(seen(tmp_path)) < most:
                    body = legacy("tools/call", thread, name="up__work", arguments={"who": "weak"})
                    assert "result" in reply(client.post(at.url, content=body, headers=headers))

        with ThreadPoolExecutor(12) as threads:
            running = [threads.submit(call_again, thread) for thread in range(12)]
            until(lambda: len(seen(tmp_path)) > 20)
            send(at, "honest", [honest])
            for thread in running:
                thread.result()
        assert "honest" in seen(tmp_path)[:most]


@pytest.mark.faults
@pytest.mark.parametrize("callers", ["serial", "auto"])
def test_unanswered_question_does_not_keep_serial_server(tmp_path: Path, callers: str) -> None:
    (tmp_path / "go").touch()
    with besieged(tmp_path, config(tmp_path, {"callers": callers})) as at, connections(at, 2) as (weak, honest):
        headers = session_of(at, "weak", capabilities={"elicitation": {}})
        raw_post(at, weak, legacy("tools/call", 1, name="up__ask", arguments={"who": "weak"}), headers)
        until(lambda: seen(tmp_path) == ["weak"])
        send(at, "honest", [honest])
        honest.settimeout(90)
        assert honest.recv(4096).startswith(b"HTTP/1.1 200 ")
        told = b""
        while b"callers: separate" not in told:
            part = weak.recv(4096)
            assert part, told
            told += part
