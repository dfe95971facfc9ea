"""The lean connections of plain calls, against a server that answers byte by byte as a test tells it to."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import httpx2
import pytest

from gateway.config.models import HttpServer
from gateway.egress.tcp import connector
from gateway.errors import (
    Busy,
    Malformed,
    OutcomeUnknown,
    Rejected,
    RequestFailure,
    TooLarge,
    ToolFailed,
    Unauthorized,
    Unreachable,
)
from gateway.upstream.carriers.carrier import OutgoingRequest
from gateway.upstream.carriers.http_carrier import HttpCarrier, NeedsSdk, open_http_carrier
from gateway.wire.http1_client import MAX_HEAD_BYTES, ConnectionPool, connect_problem
from gateway.wire.sse import SseParser

ASK = b"POST /mcp HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\n\r\n"
LIMIT = 1_000_000


class Site:
    """A server that answers each request on a connection with the next of `answers`, and counts both."""

    def __init__(self, *answers: bytes | None) -> None:
        """`None` closes the connection instead."""
        self.answers = list(answers)
        self.connections = 0
        self.requests: list[bytes] = []
        self.left = anyio.Event()
        self.closed = anyio.Event()
        self.handle: Callable[[anyio.abc.SocketStream], Awaitable[None]] = self.answer
        self.port = 0

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        self.connections += 1
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await self.handle(stream)
        self.closed.set()

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        try:
            while True:
                self.requests.append(await _request(stream))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    return
                await stream.send(answer)
        finally:
            self.left.set()


async def _request(stream: anyio.abc.SocketStream) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        body += await stream.receive()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncGenerator[Site]:
    site = Site(*answers)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        site.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, site.serve)
        with anyio.fail_after(20):
            yield site
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def pooled(*answers: bytes | None) -> AsyncGenerator[tuple[Site, ConnectionPool]]:
    async with serving(*answers) as site:
        pool = ConnectionPool("up", connector("127.0.0.1", site.port, None), max_body_bytes=LIMIT)
        try:
            yield site, pool
        finally:
            pool.close()


def plain(body: bytes, *fields: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """An answer with a length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def result(number: int, value: dict[str, Any] | None = None) -> bytes:
    """A JSON-RPC answer."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": value or {"ok": True}}).encode()


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
            await _request(stream)
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
            await _request(stream)
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
                await _request(stream)
                data = plain(LONG)
                for at in range(0, len(data), size):
                    await stream.send(data[at : at + size])
                    await anyio.lowlevel.checkpoint()
                await _request(stream)
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
            await _request(stream)
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
            await _request(stream)
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


# -- carriers --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def carrying(*answers: bytes | None, headers: dict[str, str] | None = None) -> AsyncGenerator[tuple[Site, HttpCarrier]]:
    async with serving(*answers) as site:
        entry = HttpServer(type="http", url=f"http://127.0.0.1:{site.port}/mcp?a=b", headers=headers or {})
        carrier = open_http_carrier("up", entry, None, max_body_bytes=LIMIT)
        assert carrier is not None
        try:
            yield site, carrier
        finally:
            carrier.close()


async def nobody(method: str, params: Any, ctx: object) -> None:
    raise AssertionError(method)


Hear = Callable[[str, Any, object], Awaitable[None]]


class Hearing:
    """A receiver of notifications."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear

    async def receive_notification(self, method: str, params: Any, ctx: object) -> None:
        await self._hear(method, params, ctx)

    async def answer_request(self, method: str, params: Any, ctx: object) -> Any:
        raise AssertionError(method)


async def ask(carrier: HttpCarrier, params: dict[str, Any] | None = None, hear: Hear = nobody) -> Any:
    carrier.receiver = Hearing(hear)
    headers = (("mcp-method", "tools/call"), ("mcp-name", "x"))
    return await carrier.request(OutgoingRequest("tools/call", params or {"name": "x"}, None, headers, is_modern=True))


async def test_request_equals_that_of_the_sdk_path() -> None:
    async with carrying(plain(result(1)), headers={"X-Key": "secret", "Accept": "text/plain"}) as (site, carrier):
        assert await ask(carrier, {"name": "x", "arguments": {"é": "\ud800"}}) == {"ok": True}
    head, _, body = site.requests[0].partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    sent = dict(field.split(": ", 1) for field in fields)
    assert first == "POST /mcp?a=b HTTP/1.1"
    assert sent["x-key"] == "secret"
    assert sent["accept"] == "application/json, text/event-stream"
    assert (sent["host"], sent["mcp-name"], sent["accept-encoding"]) == (f"127.0.0.1:{site.port}", "x", "identity")
    message = json.loads(body)
    assert message == {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {"é": "\ud800"}}}


@pytest.mark.parametrize(
    ("answer", "failure", "code"),
    [
        (plain(b"", status="401 No"), Unauthorized, None),
        (plain(b"", "Retry-After: 7", status="429 Busy"), Busy, None),
        (plain(b"", status="404 No"), Malformed, None),
        (plain(b"", status="500 No"), Malformed, None),
        (plain(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no"}}', status="400 No"), Rejected, -32602),
        (plain(json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -5, "message": "no"}}).encode()), Rejected, -5),
        (plain(json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": -5, "message": "no"}}).encode()), Rejected, -5),
        (plain(b"<html>", kind="text/html"), Malformed, None),
        (plain(b"{"), Malformed, None),
        (plain(b"[]"), Malformed, None),
        (plain(result(2)), Malformed, None),
        (plain(b"", status="202 Accepted"), Malformed, None),
        (plain(gzip.compress(b" " * (LIMIT + 1), mtime=0), "Content-Encoding: gzip"), TooLarge, None),
        (plain(b"zz", "Content-Encoding: gzip"), Malformed, None),
        (plain(b"zz", "Content-Encoding: br"), Malformed, None),
        (None, OutcomeUnknown, None),
    ],
    ids=str,
)
async def test_response_without_a_result_has_a_typed_failure(answer: bytes | None, failure: type[RequestFailure], code: int | None) -> None:
    async with carrying(answer) as (_, carrier):
        with pytest.raises(RequestFailure) as caught:
            await ask(carrier)
        assert (type(caught.value), getattr(caught.value, "code", None)) == (failure, code)


async def test_unrequested_compressed_response_is_read() -> None:
    async with carrying(plain(gzip.compress(result(1)), "Content-Encoding: gzip")) as (_, carrier):
        assert await ask(carrier) == {"ok": True}


async def test_long_response_and_long_error_are_read_in_every_coding() -> None:
    value = {"content": [{"type": "text", "text": 'Some "long" text.\n' * 20_000}]}
    error = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -5, "message": "no" * 100_000}}).encode()
    answers = [plain(result(1, value)), plain(gzip.compress(result(2, value), 0), "Content-Encoding: gzip"), plain(error, status="400 No")]
    async with carrying(*answers) as (site, carrier):
        for _ in range(2):
            answer = await ask(carrier)
            assert answer == value and answer.long_text.text == value["content"][0]["text"]
        with pytest.raises(Rejected, match="nonono"):
            await ask(carrier)
        assert site.connections == 1


async def test_redirect_is_left_to_the_sdk_path() -> None:
    async with carrying(plain(b"", "Location: /other", status="307 There")) as (_, carrier):
        with pytest.raises(NeedsSdk):
            await ask(carrier)


async def test_arguments_that_json_does_not_have_are_not_sent() -> None:
    async with carrying(plain(result(1))) as (site, carrier):
        with pytest.raises(ToolFailed):
            await ask(carrier, {"name": "x", "arguments": {"a": float("nan")}})
        assert site.requests == []


async def test_closed_port_reads_as_not_sent() -> None:
    again = open_http_carrier("up", HttpServer(type="http", url="http://127.0.0.1:1/mcp"), None, max_body_bytes=LIMIT)
    assert again is not None
    with pytest.raises(Unreachable):
        await ask(again)


def streamed(*events: bytes, end: bool = True) -> bytes:
    """An event stream in chunks."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + (b"0\r\n\r\n" if end else b"")


async def test_streamed_response_keeps_its_connection() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}'
    events = [b": ping\r\n\r\n", b"event: other\ndata: {}\n\n", b"data: " + note[:20], note[20:] + b"\r", b"\n\r\n"]
    answers = [streamed(*events, b"event: message\ndata: " + result(n) + b"\n\n") for n in (1, 2)]
    async with carrying(*answers) as (site, carrier):
        heard: list[Any] = []

        async def hear(method: str, params: Any, ctx: object) -> None:
            heard.append((method, params))

        for _ in range(2):
            assert await ask(carrier, hear=hear) == {"ok": True}
            await anyio.sleep(0.01)
        assert heard == [("notifications/message", {"data": 1})] * 2
        assert site.connections == 1


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_streamed_response_is_kept_unchanged_in_any_chunking(end: bytes) -> None:
    value = {"content": [{"type": "text", "text": 'Some "long" text.\n' * 8_000}]}
    primer = end.join([b"id: 1", b"retry: 500", b"data:", b"", b"id: 2", b"data", b"", b""])
    async with carrying() as (site, carrier):

        async def by_pieces(stream: anyio.abc.SocketStream) -> None:
            for number, size in enumerate((1_000_000, 70_000, 9_999, 1), start=1):
                await _request(stream)
                event = primer + end.join([b"id: 3", b"event:message", b"data:" + result(number, value), b"", b""])
                cut = [event[at : at + size] for at in range(0, len(event) if size > 1 else 0, size)]
                await stream.send(streamed(*(cut or [event[:-2], event[-2:-1], event[-1:]])))

        site.handle = by_pieces
        for number in range(1, 5):
            answer = await ask(carrier)
            assert answer == value and answer.long_text.text == value["content"][0]["text"]
            assert b"".join(answer.encoded) == result(number, value)
            await anyio.sleep(0.01)
        assert site.connections == 1


async def test_stream_in_an_unrequested_coding_is_bounded() -> None:
    packer = zlib.compressobj(wbits=31)
    parts = [packer.compress(b": ping\n\n") + packer.flush(zlib.Z_SYNC_FLUSH)]
    parts.append(packer.compress(b"data: " + result(1) + b"\n\n") + packer.flush())
    zipped = [streamed(*parts), streamed(gzip.compress(b" " * (LIMIT + 1), mtime=0)), streamed(b"zz")]
    answers = [answer.replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1) for answer in zipped]
    answers.append(streamed(b"zz").replace(b"\r\n", b"\r\nContent-Encoding: br\r\n", 1))
    async with carrying(*answers) as (_, carrier):
        assert await ask(carrier) == {"ok": True}
        for failure in (TooLarge, Malformed, Malformed):
            with pytest.raises(failure):
                await ask(carrier)


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


async def test_stream_that_ends_before_its_response_is_lost() -> None:
    async with carrying(streamed(b": ping\n\n"), streamed(b"data: x\n\n"), streamed(b"data: " + b"x" * (LIMIT + 1))) as (_, carrier):
        failures: list[type[RequestFailure]] = []
        for _ in range(3):
            with pytest.raises(RequestFailure) as caught:
                await ask(carrier)
            failures.append(type(caught.value))
        assert failures == [OutcomeUnknown, Malformed, TooLarge]


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://user:pass@host/mcp", {}),
        ("http://host/mcp#part", {}),
        ("http://host/m cp", {}),
        ("http://hôst/mcp", {}),
        ("ftp://host/mcp", {}),
        ("http://host:99999/mcp", {}),
        ("http://host/mcp", {"Host": "other"}),
        ("http://host/mcp", {"Transfer-Encoding": "chunked"}),
        ("http://host/mcp", {"X-Key": "a\r\nX-Other: b"}),
        ("http://host/mcp", {"X Key": "a"}),
        ("http://host/mcp", {"X-Key": "é"}),
    ],
    ids=str,
)
def test_entry_that_needs_more_than_plain_requests_has_no_fast_path(url: str, headers: dict[str, str]) -> None:
    entry = HttpServer.model_construct(type="http", url=url, headers=headers)
    assert open_http_carrier("up", entry, None, max_body_bytes=LIMIT) is None


async def test_header_that_could_break_a_line_is_left_to_the_sdk_path() -> None:
    async with carrying(plain(result(1))) as (site, carrier):
        with pytest.raises(NeedsSdk):
            await carrier.request(OutgoingRequest("tools/call", {}, None, (("mcp-name", "a\r\nx: y"),), is_modern=True))
        assert site.requests == []


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
