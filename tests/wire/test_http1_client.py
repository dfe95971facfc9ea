"""The lean connections of plain calls, against a server that answers byte by byte as a test tells it to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.lowlevel
import httpx2
import pytest

from gateway.egress.tcp import connector
from gateway.errors import OutcomeUnknown, TooLarge, Unreachable
from gateway.wire.http1_client import MAX_HEAD_BYTES, ConnectionPool, connect_problem
from gateway.wire.sse import SseParser
from tests.wire.byte_server import ASK, LIMIT, Site, plain, read_request, result, serving


@asynccontextmanager
async def pooled(*answers: bytes | None) -> AsyncGenerator[tuple[Site, ConnectionPool]]:
    async with serving(*answers) as site:
        pool = ConnectionPool("up", connector("127.0.0.1", site.port, None), max_body_bytes=LIMIT)
        try:
            yield site, pool
        finally:
            pool.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_sequential_requests_share_one_connection_in_every_framing() -> None:
    chunked = CHUNKED + b"1\r\nb\r\n0\r\nX-Trailer: 1\r\n\r\n"
    after_interim = b"HTTP/1.1 100 Wait\r\n\r\n" + plain(b"c")
    async with pooled(plain(b"a"), chunked, b"HTTP/1.1 204 No\r\n\r\n", after_interim) as (site, pool):
        assert [(await pool.send(ASK)).body for _ in range(4)] == [b"a", b"b", b"", b"c"]
        assert (site.connections, len(site.requests)) == (1, 4)


async def test_body_without_a_length_ends_with_its_connection() -> None:
    async with pooled() as (site, pool):

        async def once(stream: anyio.abc.SocketStream) -> None:
            await read_request(stream)
            await stream.send(b"HTTP/1.1 200 OK\r\n\r\nthe ")
            await stream.send(b"rest")

        site.handle = once
        for count in (1, 2):
            assert (await pool.send(ASK)).body == b"the rest"
            assert site.connections == count


@pytest.mark.parametrize(
    "odd",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
        b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        CHUNKED + b"zz\r\nab\r\n0\r\n\r\n",
        CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nab",
        b"220 mail ready\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (MAX_HEAD_BYTES // 6 + 1),
        CHUNKED + b"1;" + b"x" * (MAX_HEAD_BYTES + 1),
        b"HTTP/1.1 100 Wait\r\n\r\n" * (MAX_HEAD_BYTES // 20),
    ],
    ids=lambda odd: odd[:60].decode("latin-1"),
)
async def test_ambiguous_or_endless_response_is_rejected(odd: bytes) -> None:
    async with pooled(odd, plain(b"good")) as (site, pool):
        with pytest.raises(OutcomeUnknown):
            await pool.send(ASK)
        assert (await pool.send(ASK)).body == b"good"
        assert site.connections == 2


@pytest.mark.parametrize("more", [plain(b"forged"), b"x", b"HTTP/1.1 100 Wait\r\n\r\n"])
async def test_bytes_after_a_response_never_answer_the_next_request(more: bytes) -> None:
    async with pooled(plain(b"first") + more, plain(b"second")) as (site, pool):
        assert (await pool.send(ASK)).body == b"first"
        assert (await pool.send(ASK)).body == b"second"
        assert site.connections == 2


async def test_bytes_between_two_requests_never_answer_the_next() -> None:
    async with pooled() as (site, pool):
        forged = anyio.Event()

        async def forging(stream: anyio.abc.SocketStream) -> None:
            is_first = site.connections == 1
            await read_request(stream)
            await stream.send(plain(b"first" if is_first else b"second"))
            if is_first:
                await stream.send(plain(b"forged"))
                forged.set()
            await stream.receive()

        site.handle = forging
        assert (await pool.send(ASK)).body == b"first"
        await forged.wait()
        assert (await pool.send(ASK)).body == b"second"


LONG = bytes(range(256)) * 3_000


async def test_long_body_arrives_complete_and_its_connection_is_reused() -> None:
    async with pooled() as (site, pool):

        async def by_pieces(stream: anyio.abc.SocketStream) -> None:
            for size in (len(LONG) + 500, 200_000, 70_000, 65_537, 9_999):
                await read_request(stream)
                data = plain(LONG)
                for at in range(0, len(data), size):
                    await stream.send(data[at : at + size])
                    await anyio.lowlevel.checkpoint()
                await read_request(stream)
                await stream.send(plain(b"short"))

        site.handle = by_pieces
        for _ in range(5):
            answer = await pool.send(ASK)
            assert (answer.status, answer.headers[b"content-length"], answer.body) == (200, b"%d" % len(LONG), LONG)
            assert (await pool.send(ASK)).body == b"short"
        assert site.connections == 1


@pytest.mark.parametrize("more", [plain(b"forged"), b"x", plain(LONG)])
async def test_bytes_after_a_long_body_never_answer_the_next_request(more: bytes) -> None:
    async with pooled(plain(LONG) + more, plain(b"second")) as (site, pool):
        assert (await pool.send(ASK)).body == LONG
        assert (await pool.send(ASK)).body == b"second"
        assert site.connections == 2


async def test_truncated_long_body_is_lost_and_closes_its_connection() -> None:
    async with pooled() as (site, pool):

        async def half(stream: anyio.abc.SocketStream) -> None:
            await read_request(stream)
            await stream.send(plain(LONG)[:-1] if site.connections == 1 else plain(LONG, "Connection: close"))

        site.handle = half
        with pytest.raises(OutcomeUnknown):
            await pool.send(ASK)
        for count in (2, 3):
            assert (await pool.send(ASK)).body == LONG
            assert site.connections == count


async def test_request_cancelled_in_a_response_closes_its_connection() -> None:
    async with pooled(plain(LONG)[:-1]) as (site, pool):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.send, ASK)
            while not site.requests:
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
        await site.left.wait()
        site.answers[:] = [plain(b"here")]
        assert (await pool.send(ASK)).body == b"here"


async def test_connection_closed_by_the_server_meanwhile_is_not_used() -> None:
    async with pooled() as (site, pool):

        async def once(stream: anyio.abc.SocketStream) -> None:
            await read_request(stream)
            await stream.send(plain(b"once"))

        site.handle = once
        for count in (1, 2, 3):
            assert (await pool.send(ASK)).body == b"once"
            await site.closed.wait()
            site.closed = anyio.Event()
            assert site.connections == count


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "left by its server"])
async def test_pool_without_connections_is_garbage_collected(is_closed: bool) -> None:
    async with serving(plain(b"here"), None) as site:
        pool = ConnectionPool("up", connector("127.0.0.1", site.port, None), max_body_bytes=LIMIT)
        assert (await pool.send(ASK)).body == b"here"
        if is_closed:
            pool.close()
        else:
            with pytest.raises(OutcomeUnknown):
                await pool.send(ASK)
        await site.closed.wait()
        held = weakref.ref(pool)
        del pool
        while held() is not None:
            await anyio.sleep(0.01)
            gc.collect()


async def test_server_that_closes_without_a_response_gets_one_request() -> None:
    async with pooled(None) as (site, pool):
        with pytest.raises(OutcomeUnknown):
            await pool.send(ASK)
        assert len(site.requests) == 1


async def test_cancelled_request_closes_its_connection_and_no_other() -> None:
    async with pooled(b"") as (site, pool):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.send, ASK)
            while not site.requests:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        await site.left.wait()
        site.answers[:] = [plain(b"here")]
        assert (await pool.send(ASK)).body == b"here"


async def test_response_over_the_limit_is_cut_off_before_it_is_held() -> None:
    declared = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"
    grown = CHUNKED + b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    async with pooled(declared, grown) as (_, pool):
        for _ in range(2):
            with pytest.raises(TooLarge):
                await pool.send(ASK)


async def test_refused_connection_is_reported_as_not_sent() -> None:
    async with serving() as site:
        port = site.port
    pool = ConnectionPool("up", connector("127.0.0.1", port, None), max_body_bytes=LIMIT)
    with pytest.raises(Unreachable, match="All connection attempts failed"):
        await pool.send(ASK)


@pytest.mark.parametrize("cuts", [(-1,), (-2,), (-2, -1), (600_000,), (300_000, 600_000, -2, -1)])
def test_event_at_the_limit_is_accepted_in_any_chunking(cuts: Sequence[int]) -> None:
    events, data = SseParser(LIMIT), result(1, {"text": "x" * (LIMIT - 100)})
    whole = b"event: message\ndata: " + data + b"\n\n"
    for _ in range(2):
        found: list[bytes] = []
        for start, stop in zip((0, *cuts), (*cuts, None), strict=True):
            assert not events.is_too_large
            found += events.feed(whole[start:stop])
        assert found == [data]
    events.feed(b"data: " + b"x" * (LIMIT - 100))
    events.feed(b"\ndata: " + b"x" * 100)
    assert events.is_too_large


async def test_server_without_tls_is_named_from_the_type_of_the_error() -> None:
    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks, httpx2.AsyncClient() as client:
        tasks.start_soon(listener.serve, answer)
        with anyio.fail_after(10), pytest.raises(httpx2.ConnectError) as caught:
            await client.get(f"https://127.0.0.1:{port}/")
        assert "write http://" in connect_problem(caught.value)
        tasks.cancel_scope.cancel()
    assert connect_problem(OSError("WRONG_VERSION_NUMBER")) == "WRONG_VERSION_NUMBER"
