"""Requests of the fast path over HTTP: what the carrier sends, how it reads responses and streams, and what it leaves to the SDK path."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from gateway.config.models import HttpServer
from gateway.errors import Busy, Malformed, OutcomeUnknown, Rejected, RequestFailure, TooLarge, ToolFailed, Unauthorized, Unreachable
from gateway.upstream.carriers.carrier import OutgoingRequest
from gateway.upstream.carriers.http_carrier import HttpCarrier, NeedsSdk, open_http_carrier
from tests.wire.byte_server import LIMIT, Site, plain, read_request, result, serving


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
                await read_request(stream)
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
