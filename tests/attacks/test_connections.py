"""A peer that is slow, or that opens many connections, costs itself only."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from gateway.config.models import HttpSettings
from gateway.server.connections import connection_limit
from tests.fakes.running import child, free_port, gateway_http, upstream_stdio, wait_until_ready, write_config
from tests.fakes.wired import served

pytestmark = pytest.mark.timeout(60)
CHUNKED = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
QUICK = {"headSeconds": 1, "bodySeconds": 1, "unreadSeconds": 1, "maxConnections": 400}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    settings = {"mcpServers": {"up": upstream_stdio()}, "server": {"http": QUICK}}
    with gateway_http(tmp_path_factory.mktemp("slow"), settings) as url:
        yield url.removesuffix("/mcp")


@contextmanager
def connected(origin: str, *, window: int | None = None) -> Generator[socket.socket]:
    """Open a raw connection; `window` is its receive buffer in bytes."""
    with socket.socket() as raw:
        if window is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        raw.settimeout(20)
        raw.connect((urlsplit(origin).hostname, urlsplit(origin).port))
        yield raw


def health(raw: socket.socket) -> bytes:
    """Receive the response to a request for `/health`, which can arrive in several pieces."""
    told = b""
    while not told.endswith(b"}"):
        part = raw.recv(4096)
        assert part, told
        told += part
    return told


def rest(raw: socket.socket) -> bytes:
    """Receive everything until the peer closes the connection."""
    told = b""
    try:
        while part := raw.recv(65536):
            told += part
    except ConnectionResetError:
        pass
    return told


@pytest.mark.attack(22)
@pytest.mark.fault(25)
def test_three_hundred_half_requests_end_while_others_are_served(origin: str) -> None:
    with ExitStack() as stack:
        slow: list[socket.socket] = []
        for number in range(300):  # the deadline of each connection began when it was opened
            slow.append(raw := stack.enter_context(connected(origin)))
            raw.sendall(b"POST /mcp HT" if number % 2 else b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        assert all(httpx2.get(f"{origin}/health").status_code == 200 for _ in range(20))
        ends = [rest(raw) for raw in slow]
    assert all(end.startswith(b"HTTP/1.1 408 ") and b"connection: close" in end.lower() for end in ends)
    assert httpx2.get(f"{origin}/ready").status_code == 200


@pytest.mark.attack(22)
def test_header_that_comes_byte_by_byte_gains_no_time(origin: str) -> None:
    started = time.monotonic()
    with connected(origin) as raw:
        raw.settimeout(0.2)
        told = b""
        for byte in b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 200:
            try:
                raw.sendall(bytes([byte]))
                told = raw.recv(100)
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert told == b"" or told.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - started < 10


@pytest.mark.attack(22)
@pytest.mark.parametrize("path", ["/mcp", "/agui/nobody"])
def test_body_that_does_not_arrive_ends_its_request(origin: str, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
    with connected(origin) as raw:
        raw.sendall(head.encode() + b'Content-Length: 1000\r\n\r\n{"jsonrpc"')
        answer = rest(raw)
    assert answer.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 404 "))


@pytest.mark.attack(22)
def test_early_response_announces_connection_close(origin: str) -> None:
    """RFC 9112 §9.6: else the client sends its next request, such as one that follows this redirect, on a connection that ends."""
    with connected(origin) as raw:
        raw.sendall(b"POST /mcp/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n")
        head = rest(raw).partition(b"\r\n\r\n")[0]
        assert head.startswith(b"HTTP/1.1 307") and b"\r\nconnection: close" in head.lower(), head


def test_later_request_on_a_kept_connection_has_the_same_deadline(origin: str) -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(origin) as raw:
        raw.sendall(whole)
        assert health(raw).startswith(b"HTTP/1.1 200 ")
        time.sleep(1.5)  # longer than a header may take: an idle connection is not a slow one
        raw.sendall(whole)
        assert health(raw).startswith(b"HTTP/1.1 200 ")
        raw.sendall(whole[:20])
        assert rest(raw).startswith(b"HTTP/1.1 408 ")


@pytest.mark.attack(22)
@pytest.mark.parametrize("endless", [b"GET /health HTTP/1.1\r\nX: ", b"GET /health HTTP/1.1\r\n", b"GET /", CHUNKED + b"5;"])
def test_endless_or_malformed_body_is_rejected(origin: str, endless: bytes) -> None:
    with connected(origin) as raw:
        raw.sendall(endless)
        with contextlib.suppress(ConnectionError):
            for _ in range(20):
                raw.sendall(b"a: a\r\n" * 1_000 if endless.endswith(b"1.1\r\n") else b"a" * 6_000)
        assert rest(raw)[:13] in (b"", b"HTTP/1.1 400 ")  # empty if a TCP reset arrived before the response


def test_requests_that_come_at_once_are_answered_in_order(origin: str) -> None:
    with connected(origin) as raw:
        raw.sendall(b"".join(b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path for path in (b"/health", b"/none", b"/health") * 10))
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        found = re.findall(rb"HTTP/1.1 (\d+) ", rest(raw))
    assert found == [b"200", b"404", b"200"] * 10 + [b"200"]


def test_client_that_offers_http_2_is_answered_by_http_1(origin: str) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"}
    accept = {"accept": "application/json, text/event-stream"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "java", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    with httpx2.Client() as http:
        for _ in range(2):
            answer = http.post(f"{origin}/mcp", headers={**accept, **offer}, json=message)
            assert answer.status_code == 200 and '"protocolVersion":"2025-11-25"' in answer.text


async def test_fields_after_a_body_are_not_headers_of_its_request() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.extend(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body"})

    async with served(app) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(CHUNKED + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\n\r\n")
        with anyio.fail_after(25):
            assert (await stream.receive()).startswith(b"HTTP/1.1 204 ")
    assert seen == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("coding", ["gzip, chunked", "x, chunked", "identity, chunked", "gzip\r\nTransfer-Encoding: chunked"])
def test_unknown_content_coding_is_rejected(origin: str, coding: str) -> None:
    with connected(origin) as raw:
        raw.sendall(CHUNKED.replace(b"chunked", coding.encode()) + b"1\r\na\r\n0\r\n\r\n")
        assert rest(raw).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1/", "evil.example", 200),
        ("http://evil.example/", "127.0.0.1", 421),
        ("http://evil.example:80/mcp", "127.0.0.1", 421),
        ("http://[::1]:1/", "127.0.0.1", 200),
        ("http://[::2]/", "127.0.0.1", 421),
        ("http://localhost", "localhost", 200),
    ],
)
def test_target_that_names_its_host_is_for_that_host(origin: str, target: str, host: str, status: int) -> None:
    with connected(origin) as raw:
        raw.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert rest(raw).startswith(b"HTTP/1.1 %d " % status)


async def test_client_that_leaves_during_its_body_is_not_an_error(caplog: pytest.LogCaptureFixture) -> None:
    failed = anyio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            while (message := await receive()).get("more_body"):
                pass
            raise RuntimeError(message["type"])  # as an application that needs the body would
        finally:
            failed.set()

    async with served(app) as port:
        with anyio.fail_after(25):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(CHUNKED + b"1\r\na\r\n")
                await anyio.sleep(0.05)
            await failed.wait()
            await anyio.sleep(0.05)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_space_around_a_header_is_not_part_of_its_value() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        await send({"type": "http.response.start", "status": 204, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body"})

    async with served(app) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET / HTTP/1.1\r\nHost: a\r\nMcp-Name:  \t two words \t \r\nEmpty: \t\r\n\r\n")
        with anyio.fail_after(25):
            assert (await stream.receive()).startswith(b"HTTP/1.1 204 ")
    assert seen == [(b"host", b"a"), (b"mcp-name", b"two words"), (b"empty", b"")]


async def test_http_1_0_client_gets_no_chunks_and_the_connection_closes() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for part in (b"data: 1\n\n", b"", b"data: 2\n\n"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with served(app) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        with anyio.fail_after(25):
            told = b"".join([part async for part in stream])
    head, _, body = told.partition(b"\r\n\r\n")
    assert body == b"data: 1\n\ndata: 2\n\n"
    assert b"transfer-encoding" not in head and b"connection: close" in head


async def test_all_waiters_for_the_end_of_a_request_are_woken() -> None:
    ends: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

        async def wait() -> None:
            ends.append((await receive())["type"])

        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(wait)
            with anyio.move_on_after(0.01):
                await receive()
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})

    async with served(app) as port, httpx2.AsyncClient() as http:
        with anyio.fail_after(25):
            assert (await http.get(f"http://127.0.0.1:{port}/")).status_code == 204
            while len(ends) < 2:
                await anyio.sleep(0.01)
    assert ends == ["http.disconnect"] * 2


def ended_while_sending(raw: socket.socket, requests: bytes, seconds: float) -> bool:
    """Sends whole `requests` again and again and reads nothing: whether the other side ends the connection in time.

    Counted in time and not in requests, since what the system's buffers take differs from machine to machine.
    """
    raw.settimeout(0.5)
    until, left = time.monotonic() + seconds, b""
    while time.monotonic() < until:
        left = left or requests
        try:
            left = left[raw.send(left) :]
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.fault(25)
def test_unread_responses_are_cut_off(origin: str) -> None:
    with connected(origin, window=4096) as raw:
        assert ended_while_sending(raw, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50, 50)
    assert httpx2.get(f"{origin}/ready").status_code == 200


@pytest.mark.attack(22)
@pytest.mark.fault(27)
@pytest.mark.faults
def test_connections_leave_descriptors_for_the_rest(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "gateway.log"
    config = write_config(tmp_path, {"server": {"reload": False}})
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80)); runpy.run_module('gateway', None, '__main__')"
    with child("-c", limited, "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        origin = f"http://127.0.0.1:{port}"
        wait_until_ready(process, f"{origin}/ready", log)
        with ExitStack() as stack:
            for _ in range(60):
                raw = stack.enter_context(connected(origin))
                raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert raw.recv(4096)[:12] == b"HTTP/1.1 200"
                assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 80
            for _ in range(100):  # more than there are descriptors
                stack.enter_context(connected(origin))
        wait_until_ready(process, f"{origin}/ready", log)
        assert process.poll() is None


@pytest.mark.parametrize(("open_files", "expected"), [(1024, 512), (64, 32), (1_000_000, 4096), (1, 1)])
def test_low_limit_of_open_files_lowers_the_bound_on_connections(open_files: int, expected: int) -> None:
    assert connection_limit(HttpSettings(), open_files) == expected
