"""Connections over TLS, with both event loops: handshakes, closing, slow and hostile clients."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gateway.config.models import ServerSettings, TlsSettings
from gateway.server.certificate import ServerCertificate
from tests.fakes.certificates import make_pair
from tests.fakes.wired import served

pytestmark = pytest.mark.fleet

PAIR = make_pair()

Scenario = Callable[["Served"], Awaitable[None]]


class Served:
    """An application behind HTTPS: answers `/n` with n bytes, and any other request with the request's body."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.schemes: set[str] = set()
        self.left = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.schemes.add(scope["scheme"])
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if scope["path"] == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        if (size := scope["path"].strip("/")).isdigit():
            body = b"x" * int(size)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def connect(self) -> ssl.SSLSocket:
        """Return a new connection whose handshake is complete. Blocks."""
        return PAIR.trusted().wrap_socket(self.opened(), server_hostname="localhost")

    def opened(self) -> socket.socket:
        """Return a new connection without a handshake. Blocks."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)


def request(path: str = "/", body: bytes = b"", *, closes: bool = False) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *(["connection: close"] if closes else []), "", ""]
    return "\r\n".join(lines).encode() + body


def read_all(stream: socket.socket) -> bytes:
    """Return what the server sends until it ends the connection; a reset counts as an end."""
    found = b""
    with suppress(ConnectionResetError):
        while data := stream.recv(65_536):
            found += data
    return found


def read_response(stream: socket.socket) -> bytes:
    """Return the body of one response with a `content-length`."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += stream.recv(65_536)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += stream.recv(65_536)
    return body


@asynccontextmanager
async def serving(folder: Path, http: dict[str, Any]) -> AsyncGenerator[Served]:
    files = {key: str(folder / name) for key, name in PAIR.write(folder).items()}
    settings = ServerSettings.model_validate({"http": http})
    setup = Served(0)
    async with served(setup, None, settings, ServerCertificate(TlsSettings(**files)).context) as port:
        setup.port = port
        with anyio.fail_after(40):
            yield setup


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against a server with these HTTP settings, in an event loop of each kind."""

    def run(scenario: Scenario, **http: Any) -> None:
        async def whole() -> None:
            async with serving(tmp_path, http) as setup:
                await scenario(setup)

        anyio.run(whole, backend_options={"use_uvloop": request.param == "uvloop"})

    return run


async def in_thread(work: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(work)


def test_requests_of_one_connection_are_answered(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.connect() as stream:
                assert (stream.version(), stream.selected_alpn_protocol()) == ("TLSv1.3", None)
                for body in (b"one", b"x" * 1_000_000, b"three"):
                    stream.sendall(request(body=body))
                    assert read_response(stream) == body

        await in_thread(talk)
        assert setup.schemes == {"https"}

    run(scenario)


def test_request_that_comes_with_the_end_of_the_handshake_is_answered(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = PAIR.trusted().wrap_bio(incoming, outgoing, server_hostname="localhost")
            with setup.opened() as stream:
                while True:
                    with suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                        break
                    stream.sendall(outgoing.read())
                    incoming.write(stream.recv(65_536))
                tls.write(request(body=b"first", closes=True))
                stream.sendall(outgoing.read())
                incoming.write(read_all(stream))
            found = b""
            with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                while data := tls.read():
                    found += data
            assert found.endswith(b"first")

        await in_thread(talk)

    run(scenario)


@pytest.mark.fault(25)
def test_handshake_and_request_in_single_bytes_are_answered(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = PAIR.trusted().wrap_bio(incoming, outgoing, server_hostname="localhost")
            with setup.opened() as stream:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                def send() -> None:
                    for byte in outgoing.read():
                        stream.sendall(bytes([byte]))

                while True:
                    with suppress(ssl.SSLWantReadError):
                        tls.do_handshake()
                        break
                    send()
                    incoming.write(stream.recv(65_536))
                tls.write(request(body=b"slow", closes=True))
                send()
                incoming.write(read_all(stream))
            assert tls.read(65_536).endswith(b"slow")

        await in_thread(talk)

    run(scenario)


def test_closed_connection_ends_with_close_notify_at_once(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.connect() as stream:  # a missing `close_notify` would raise `ssl.SSLEOFError`
                stream.sendall(request(body=b"last", closes=True))
                started = time.monotonic()
                assert read_all(stream).endswith(b"last")
                assert time.monotonic() - started < 5
                stream.settimeout(5)
                raw = socket.socket(fileno=stream.detach())
                with raw:
                    assert read_all(raw) == b""  # closed without waiting for the client's `close_notify`

        await in_thread(talk)

    run(scenario)


def test_large_response_reaches_a_client_that_reads_late(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.connect() as stream:
                stream.sendall(request("/20000000", closes=True))
                time.sleep(1)
                assert read_all(stream).endswith(b"\r\n\r\n" + b"x" * 20_000_000)

        await in_thread(talk)

    run(scenario)


def test_client_that_does_not_read_is_disconnected(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.connect() as stream:
                stream.sendall(request("/50000000"))
                time.sleep(2)
                found = b""
                with suppress(OSError):
                    while data := stream.recv(65_536):
                        found += data
                assert len(found) < 50_000_000

        await in_thread(talk)

    run(scenario, unreadSeconds=0.5)


@pytest.mark.parametrize("says_goodbye", [True, False])
def test_request_of_a_client_that_leaves_is_ended(run: Callable[..., None], says_goodbye: bool) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> socket.socket:
            stream = setup.connect()
            stream.sendall(request("/wait"))
            time.sleep(0.3)
            if not says_goodbye:
                stream.close()
                return stream
            stream.settimeout(0.2)
            with suppress(OSError):
                stream.unwrap()  # sends `close_notify`; the socket stays open
            return stream

        stream = await in_thread(talk)
        await setup.left.wait()
        stream.close()

    run(scenario)


def test_plain_request_gets_an_explanation(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.opened() as stream:
                stream.sendall(request())
                assert b"begins with https://" in read_all(stream)

        await in_thread(talk)

    run(scenario)


@pytest.mark.parametrize("data", [b"\x00" * 200, b"\x16\x03\x01\xff\xff" + b"\x00" * 100_000, b"\x80\x2e\x01\x00\x02" * 100])
def test_bytes_that_are_not_tls_end_the_connection(run: Callable[..., None], data: bytes) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            with setup.opened() as stream:
                with suppress(OSError):
                    stream.sendall(data)
                    stream.shutdown(socket.SHUT_WR)
                read_all(stream)
            with setup.connect() as other:
                other.sendall(request(body=b"served"))
                assert read_response(other) == b"served"

        await in_thread(talk)

    run(scenario)


def test_tampered_record_ends_the_connection(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            stream = setup.connect()
            stream.sendall(request(body=b"good"))
            assert read_response(stream) == b"good"
            with socket.socket(fileno=stream.detach()) as raw:
                raw.settimeout(20)
                raw.sendall(b"\x17\x03\x03\x00\x20" + b"\x01" * 32)
                read_all(raw)

        await in_thread(talk)

    run(scenario)


def test_old_tls_versions_are_refused(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            context = PAIR.trusted()
            with pytest.warns(DeprecationWarning):
                context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
            with setup.opened() as stream, pytest.raises(ssl.SSLError):
                context.wrap_socket(stream, server_hostname="localhost")

        await in_thread(talk)

    run(scenario)


@pytest.mark.fault(25)
def test_unfinished_handshake_is_closed_after_head_seconds(run: Callable[..., None]) -> None:
    async def scenario(setup: Served) -> None:
        def talk() -> None:
            started = time.monotonic()
            with setup.opened() as silent, setup.opened() as half:
                half.sendall(b"\x16\x03\x01\x02\x00\x01")
                assert (read_all(silent), read_all(half)) == (b"", b"")
            assert 0.9 < time.monotonic() - started < 8

        await in_thread(talk)

    run(scenario, headSeconds=1)


@pytest.mark.attack(22)
def test_unfinished_handshakes_do_not_keep_clients_out(run: Callable[..., None]) -> None:
    """300 sockets begin a handshake and never finish it. A client is served at once, and the sockets above the limit are closed."""

    async def scenario(setup: Served) -> None:
        def talk() -> None:
            sockets = [setup.opened() for _ in range(300)]
            try:
                for one in sockets:
                    with suppress(OSError):
                        one.sendall(b"\x16\x03\x01\x02\x00\x01")
                with setup.connect() as stream:
                    stream.sendall(request(body=b"served"))
                    assert read_response(stream) == b"served"
                    closed = 0
                    for one in sockets:
                        one.setblocking(False)
                        try:
                            closed += one.recv(1) == b""
                        except BlockingIOError:
                            pass
                        except OSError:
                            closed += 1
                    assert 300 - closed <= 31, closed
            finally:
                for one in sockets:
                    one.close()

        await in_thread(talk)

    run(scenario, maxConnections=32)


def test_new_certificate_is_for_new_connections(tmp_path: Path) -> None:
    """A connection keeps the TLS context with which it began."""
    pairs = [PAIR, make_pair()]
    contexts: list[ssl.SSLContext] = []
    for number, pair in enumerate(pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        contexts.append(ServerCertificate(TlsSettings(**{k: str(folder / v) for k, v in pair.write(folder).items()})).context())

    async def whole() -> None:
        setup = Served(0)
        async with served(setup, tls=lambda: contexts[0]) as setup.port:

            def talk() -> None:
                with setup.connect() as old:
                    contexts[0] = contexts[1]
                    old.sendall(request(body=b"old"))
                    assert read_response(old) == b"old"
                    with pairs[1].trusted().wrap_socket(setup.opened(), server_hostname="localhost") as new:
                        new.sendall(request(body=b"new"))
                        assert (read_response(new), new.getpeercert(binary_form=True)) == (b"new", pairs[1].der)

            await in_thread(talk)

    anyio.run(whole)

