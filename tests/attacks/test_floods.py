"""One caller or one address takes a bounded share: the honest clients of others, health checks and administrators are served meanwhile."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.policy.quotas import ConnectionQuotas
from gateway.server.connections import Connections
from tests.fakes.crowd import ACCEPT, Besieged, Watch, besieged, call, connections, is_open, status_of, until
from tests.fakes.running import upstream_stdio

pytestmark = [pytest.mark.timeout(120), pytest.mark.attack(42)]

BODY = 250_000


def config(*, limits: dict[str, Any] | None = None, **http: Any) -> dict[str, Any]:
    return {"mcpServers": {"up": upstream_stdio()}, "server": {"http": http, "limits": limits or {}}}


def half_bodies(at: Besieged, count: int, most_bytes: int) -> None:
    """Connections without a key that each send most of a body and then nothing."""
    with Watch(at) as honest:
        honest.is_served()
        before = at.resident()
        with connections(at, count, source="127.0.0.2") as flood:
            for raw in flood:
                raw.sendall(at.head(None, BODY) + b"{" * 1_000)
            honest.is_served()
            began = time.monotonic()
            assert {status_of(raw) for raw in flood} == {401}
            assert time.monotonic() - began < 10
            honest.is_served()
        grown = at.resident() - before
        assert grown < most_bytes, grown
        honest.is_served()


def test_request_without_key_is_refused_before_its_body(tmp_path: Path) -> None:
    with besieged(tmp_path, config()) as at:
        half_bodies(at, 200, 24 << 20)


@pytest.mark.faults
def test_thousand_half_bodies_without_key_hold_nothing(tmp_path: Path) -> None:
    with besieged(tmp_path, config()) as at:
        half_bodies(at, 990, 40 << 20)


REFUSED: list[tuple[dict[str, str], int]] = [
    ({"host": "evil.example"}, 421),
    ({"origin": "http://evil.example"}, 403),
    ({"content-type": "application/json; charset=utf-16"}, 415),
    ({"content-length": "5000000"}, 413),
    ({"authorization": "Bearer wrong"}, 401),
]


def test_request_is_refused_by_its_head(tmp_path: Path) -> None:
    with besieged(tmp_path, config()) as at:
        for fields, status in REFUSED:
            given = {**ACCEPT, **at.key_of("weak"), "host": "127.0.0.1", "content-length": "250000", **fields}
            head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
            for path in ("/mcp", "/agui/nobody"):
                with connections(at, 2) as (plain, expecting):
                    plain.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n{{".encode())
                    expecting.sendall(f"POST {path} HTTP/1.1\r\n{head}expect: 100-continue\r\n\r\n".encode())
                    assert (status_of(plain), status_of(expecting)) == (status, status)


def test_unknown_path_is_refused_before_its_body(tmp_path: Path) -> None:
    with besieged(tmp_path, config(), callers={}) as at, connections(at, 1) as (raw,):
        raw.sendall(at.head(None, BODY).replace(b"/mcp", b"/none") + b"{")
        assert status_of(raw) == 404


def test_client_reads_refusal_of_large_body(tmp_path: Path) -> None:
    """A server that closes at once resets the connection under a client that still sends, which then does not get to read the answer."""
    with besieged(tmp_path, config()) as at:
        for size in (10_000, 300_000, 900_000):
            assert httpx2.post(at.url, content=b"{" * size, headers=ACCEPT).status_code == 401
        with connections(at, 1) as (raw,):
            raw.sendall(at.head(None, 900_000) + b"{" * 900_000)
            assert status_of(raw) == 401


def test_refused_connection_is_cut_if_it_sends_on(tmp_path: Path) -> None:
    with besieged(tmp_path, config()) as at, connections(at, 1) as (raw,):
        raw.sendall(at.head(None, 1 << 30))
        with pytest.raises(ConnectionError):
            for _ in range(1_000):
                raw.sendall(b"{" * 65_536)


@pytest.mark.parametrize("sent", [pytest.param(b"", marks=pytest.mark.faults), b"POST /mcp HTTP/1.1\r\nX-Slow: "])
def test_idle_connections_are_evicted_for_new_ones(tmp_path: Path, sent: bytes) -> None:
    with besieged(tmp_path, config(maxConnections=200)) as at, Watch(at) as kept, Watch(at, is_kept=False) as fresh:
        kept.is_served()
        with ExitStack() as flood:
            opened: list[socket.socket] = []
            for _ in range(16):  # each time far fewer than push out an honest connection that has not sent its request yet
                group = flood.enter_context(connections(at, 25))
                for raw in group:
                    with suppress(ConnectionError):
                        raw.send(sent)
                opened += group
                kept.is_served(calls=1)
                fresh.is_served(calls=1)
            kept.is_served()
            fresh.is_served()
            assert sum(map(is_open, opened)) <= 200
        kept.is_served()


def test_connection_idle_longest_is_evicted_after_silent_ones(tmp_path: Path) -> None:
    with besieged(tmp_path, config(maxConnections=40), callers={}) as at:
        with connections(at, 10) as idle, connections(at, 20) as silent:
            for raw in idle:
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert status_of(raw) == 200
            with connections(at, 25) as later:
                for raw in later:
                    raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                    assert status_of(raw) == 200
                assert not is_open(silent[0]) and all(map(is_open, idle))
                with connections(at, 8) as last:
                    for raw in last:
                        raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                        assert status_of(raw) == 200
                    assert not any(map(is_open, silent)) and not is_open(idle[0]) and is_open(idle[9])
                    assert all(map(is_open, later))


@pytest.mark.faults
def test_two_thousand_idle_connections_delay_no_other_client(tmp_path: Path) -> None:
    with besieged(tmp_path, config(maxConnections=1500)) as at, Watch(at) as kept, Watch(at, is_kept=False) as fresh:
        kept.is_served()
        with connections(at, 2000, source="127.0.0.2"):
            kept.is_served(calls=20)
            fresh.is_served(calls=20)


def test_address_has_bounded_share_of_connections(tmp_path: Path) -> None:
    with besieged(tmp_path, config(limits={"connectionsPerAddress": 20}), callers={}) as at, Watch(at, is_kept=False) as honest:
        with connections(at, 20, source="127.0.0.2") as busy:
            body, headers = call("up__hang")
            for raw in busy:
                raw.sendall(at.head(None, len(body), **headers) + body.encode())
            time.sleep(0.5)
            with connections(at, 5, source="127.0.0.2") as more:
                assert {status_of(raw) for raw in more} == {503}
            assert all(map(is_open, busy))
            honest.is_served()


@pytest.mark.fault(27)
def test_health_and_administrators_are_served_on_full_connections(tmp_path: Path) -> None:
    with besieged(tmp_path, config(limits={"callsPerCaller": 30}, maxConnections=30)) as at, connections(at, 30) as busy:
        body, headers = call("up__hang")
        for raw in busy:
            raw.sendall(at.head("weak", len(body), **headers) + body.encode())
        time.sleep(0.5)
        plain, fields = call()
        for _ in range(5):
            assert httpx2.get(f"{at.origin}/health").status_code == 200
            assert httpx2.get(f"{at.origin}/ready").status_code == 200
            refused = httpx2.post(at.url, content=plain, headers={**fields, **at.key_of("honest")})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "server.http.maxConnections" in refused.json()["error"]["message"]
            assert "hello" in httpx2.post(at.url, content=plain, headers={**fields, **at.key_of("boss")}).text
        assert all(map(is_open, busy))
        with connections(at, 100):  # waiting for the reserve
            assert httpx2.get(f"{at.origin}/health").status_code == 200


@pytest.mark.parametrize("kind", ["head", "body"])
def test_incomplete_requests_hold_bounded_memory(tmp_path: Path, kind: str) -> None:
    """The gateway closes the oldest incomplete requests first and keeps the newest."""
    limits = {"incompleteBytes": 4_194_304}
    with besieged(tmp_path, config(limits=limits)) as at, Watch(at) as honest:
        honest.is_served()
        before = at.resident()
        head = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " if kind == "head" else at.head("weak", BODY)
        with connections(at, 300) as flood:
            for raw in flood:
                raw.sendall(head + b"{" * 60_000)
            honest.is_served()
            until(lambda: sum(map(is_open, flood)) <= 4_194_304 // 60_000)
            assert at.resident() - before < 24 << 20
            assert is_open(flood[-1]) and not is_open(flood[0])
        honest.is_served()


class LostPeer:
    """A connection that was lost before its address could be read."""

    address: str | None = None
    is_cut = False

    def waits(self) -> None:
        return None

    def evict(self) -> None:
        self.is_cut = True


@pytest.mark.timeout(10)
def test_completed_request_of_unknown_address_is_counted_no_longer() -> None:
    table = Connections(ConnectionQuotas(10, 1, None, incomplete_bytes=1_000, max_request_bytes=1_000))
    first, second = LostPeer(), LostPeer()
    table.incomplete(first, None, 900)
    table.completed(first)
    table.incomplete(second, None, 900)
    assert not second.is_cut
    table.incomplete(first, None, 200)
    assert second.is_cut and not first.is_cut
