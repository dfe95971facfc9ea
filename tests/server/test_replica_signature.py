"""Forwarded requests of replicas: only a replica with the same key can sign one, for one receiver, one body and one use."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.principal import LOCAL
from gateway.errors import StorageError
from gateway.server.head import Head
from gateway.server.replica_signature import HEADER, MAX_AGE_SECONDS, Route, Signed, forwarded_headers, sign, verify
from gateway.server.replicas import Replicas
from gateway.storage.replica_rows import ReplicaRow
from tests.fakes.wired import lifespan, served
from tests.server.test_fast_sessions import BOTH, Door

KEY = bytes(range(32))
HEADERS = [(b"mcp-session-id", b"s.1"), (b"authorization", b"Bearer secret"), (b"mcp-method", b"tools/call"), (b"cookie", b"c")]
ROUTE = Route("aaaa", "bbbb", "key:1 ä")
NOW = 1_800_000_000.0


def signed(**changes: Any) -> bytes:
    given: dict[str, Any] = {"method": "POST", "headers": forwarded_headers(HEADERS), "body": b"{}", "now": NOW, **changes}
    return sign(given.pop("key", KEY), given.pop("route", ROUTE), **given)


def test_valid_signature_has_the_principal_and_the_digest_of_the_body() -> None:
    found = verify(KEY, signed(), receiver="aaaa", method="POST", headers=HEADERS, now=NOW + 10)
    assert found is not None
    assert (found.sender, found.principal, found.digest) == ("bbbb", "key:1 ä", hashlib.sha256(b"{}").hexdigest())


def test_no_credentials_are_forwarded() -> None:
    assert {name for name, _ in forwarded_headers(HEADERS)} == {b"mcp-session-id", b"mcp-method"}


@pytest.mark.parametrize(
    "check",
    [
        {"receiver": "cccc"},
        {"method": "GET"},
        {"headers": [(b"mcp-session-id", b"s.2"), (b"mcp-method", b"tools/call")]},
        {"headers": [*HEADERS, (b"last-event-id", b"x")]},
        {"now": NOW + MAX_AGE_SECONDS + 1},
        {"now": NOW - MAX_AGE_SECONDS - 1},
    ],
)
def test_signature_is_refused_for_another_request(check: dict[str, Any]) -> None:
    given: dict[str, Any] = {"receiver": "aaaa", "method": "POST", "headers": HEADERS, "now": NOW, **check}
    assert verify(KEY, signed(), **given) is None


@pytest.mark.parametrize("position", range(8))
def test_every_changed_field_is_refused(position: int) -> None:
    fields = signed().decode().split(" ")
    for changed in ("", "v2", "0", fields[position] + "0", "é"):
        forged = " ".join([*fields[:position], changed, *fields[position + 1 :]])
        assert verify(KEY, forged.encode("latin-1"), receiver="aaaa", method="POST", headers=HEADERS, now=NOW) is None


def test_signature_with_another_key_is_refused() -> None:
    assert verify(KEY, signed(key=bytes(32)), receiver="aaaa", method="POST", headers=HEADERS, now=NOW) is None


def test_receiver_judges_age_by_the_given_clock_and_accepts_no_replay() -> None:
    now = [NOW]
    replicas = Replicas(KEY, _NoStore(), "1", clock=lambda: now[0])  # far from the clock of this machine

    def head() -> Head:
        fields = [*forwarded_headers(HEADERS), (HEADER, header)]
        return Head({"type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "headers": fields})

    header = signed(route=Route(replicas.id, "bbbb", "key:1 ä"))
    found = replicas.verify(head())
    assert found is not None and replicas.uses(found) and not replicas.uses(found)
    now[0] += 29
    assert replicas.verify(head()) is not None
    assert not replicas.uses(found), "a signature is remembered for as long as it is valid"
    now[0] += 2
    assert replicas.verify(head()) is None


def test_replica_remembers_so_many_signatures_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit it refuses forwarded requests, because it could not detect a replay."""
    monkeypatch.setattr("gateway.server.replicas.MAX_NONCES", 3)
    now = [NOW]
    replicas = Replicas(KEY, _NoStore(), "1", clock=lambda: now[0])
    signatures = [Signed("bbbb", str(number), "key:1", "", NOW + number) for number in range(5)]
    assert [replicas.uses(signature) for signature in signatures] == [True, True, True, False, False]
    now[0] += 1.5
    assert [replicas.uses(signature) for signature in signatures[2:]] == [False, True, True]


class _NoStore:
    async def replicas(self) -> Any:
        raise AssertionError


PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


async def test_endpoint_accepts_a_forwarded_request_once_and_only_with_its_body(tmp_path: Path) -> None:
    door = Door(tmp_path, "auto")
    replicas = door.server.replicas = Replicas(KEY, _NoStore(), "1")
    door.rebuild()
    await door.catalog.refresh()
    async with door.server, lifespan(door.app), served(door.app, door.app.take) as port, httpx2.AsyncClient(timeout=20) as http:

        async def post(header: bytes, body: bytes = PING) -> httpx2.Response:
            given = {"accept": BOTH, "content-type": "application/json", HEADER.decode(): header.decode("latin-1")}
            return await http.post(f"http://127.0.0.1:{port}/mcp", content=body, headers=given)

        def header(body: bytes = PING, principal: str = LOCAL.id) -> bytes:
            headers = [(b"accept", BOTH.encode()), (b"content-type", b"application/json")]
            return sign(KEY, Route(replicas.id, "bbbb", principal), method="POST", headers=headers, body=body, now=time.time())

        once = header()
        assert (await post(once)).status_code == 400  # accepted; a `ping` without a session is refused by the protocol
        assert (await post(once)).status_code == 401
        assert (await post(header(), PING + b" ")).status_code == 401
        assert (await post(b"v1 x y z")).status_code == 401
        assert (await post(header(principal="key:unknown"))).status_code == 401
        door.keys.add("alice")
        assert (await post(header())).status_code == 401, "the local user has no access any more"


class _Peers:
    """A table of replicas that never change."""

    def __init__(self) -> None:
        self.rows: list[ReplicaRow] = []
        self.is_down = False

    async def replicas(self) -> Any:
        return self

    async def renew(self, own: ReplicaRow, seconds: float) -> list[ReplicaRow]:
        if self.is_down:
            raise StorageError("the database does not answer")
        return [own, *self.rows]

    async def remove(self, replica: str) -> None:
        return


@asynccontextmanager
async def answering(folder: Path, peers: _Peers) -> AsyncGenerator[Callable[[], Awaitable[httpx2.Response]]]:
    """Run a gateway one of whose peers is itself, under another id. Yield a function that answers a question of this peer."""
    door = Door(folder, "auto")
    replicas = door.server.replicas = Replicas(KEY, peers, "1")
    door.rebuild()
    await door.catalog.refresh()
    async with door.server, lifespan(door.app), served(door.app, door.app.take) as port, httpx2.AsyncClient(timeout=20) as http:
        peers.rows.append(ReplicaRow("0a1b2c3d", f"http://127.0.0.1:{port}", "/mcp", "1"))

        async def answer() -> httpx2.Response:
            message: dict[str, Any] = {"jsonrpc": "2.0", "id": "q.0a1b2c3d.x", "result": {}}
            given = {"accept": BOTH, "content-type": "application/json"}
            return await http.post(f"http://127.0.0.1:{port}/mcp", json=message, headers=given)

        async with replicas.listening(f"http://127.0.0.1:{port}", "/mcp"):
            yield answer


async def test_refusal_of_another_replica_is_a_retryable_error(tmp_path: Path) -> None:
    """The address belongs to a gateway that does not accept the signature. The client must not read that its key is invalid."""
    async with answering(tmp_path, _Peers()) as answer:
        refused = await answer()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "refused it" in refused.json()["error"]["message"]


async def test_dead_database_does_not_end_questions_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.replicas.LIVE_SECONDS", 0.2)
    monkeypatch.setattr("gateway.server.replicas.CONNECT_SECONDS", 0.2)
    peers = _Peers()
    async with answering(tmp_path, peers) as answer:
        assert (await answer()).status_code == 503
        peers.is_down = True
        await anyio.sleep(0.5)
        unknown = await answer()
        assert (unknown.status_code, "database" in unknown.json()["error"]["message"]) == (503, True)
        peers.is_down, peers.rows[:] = False, []
        await anyio.sleep(2)
        assert (await answer()).status_code == 410, "the other gateway has stopped"
