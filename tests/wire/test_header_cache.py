"""Requests on one connection with similar heads: the cached head never changes the meaning of a later request."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
import uvicorn
from anyio.abc import ByteStream
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.config.models import ServerSettings
from gateway.server.head import VARYING, Head
from gateway.server.http_protocol import http_protocol
from gateway.wire.http1_messages import MAX_CACHED_HEAD_BYTES, MAX_HEADS, HeaderCache
from gateway.wire.http1_server import ServerConnection
from tests.fakes.told import Told, sdk_path
from tests.fakes.wired import served

REQUEST = b"POST /mcp HTTP/1.1\r\nHost: x\r\nTraceParent: 00-17\r\nX-Name: Value\r\nContent-Length: %s\r\nMcp-Name: 17\r\n\r\n%s"
PRIMED = REQUEST % (b"4", b"[17]")
END = b"nonsense\r\n\r\n" * 20
"""Bytes that complete an incomplete request and then make the server close the connection."""


async def primed(stream: ByteStream) -> None:
    """Send `PRIMED` and read the whole response, so that the connection caches the head."""
    await stream.send(PRIMED)
    told = b""
    while b"\r\n\r\n" not in told:
        told += await stream.receive()
    head, _, body = told.partition(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += await stream.receive()


async def answered(port: int, request: bytes, *, is_later: bool) -> list[bytes]:
    """Return the response lines to a request and `END`, without dates. If `is_later`, `PRIMED` is sent on the connection first."""
    told = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        if is_later:
            await primed(stream)
        with suppress(anyio.BrokenResourceError):  # the server may close the connection early
            await stream.send(request)
            await anyio.lowlevel.checkpoint()
            await stream.send(END)
        with suppress(anyio.BrokenResourceError):
            async for part in stream:
                told += part
    return [line for line in told.split(b"\r\n") if not line.startswith(b"date:")]


def changed(chance: random.Random) -> bytes:
    """Return `PRIMED` with one or two random changes."""
    request = bytearray(PRIMED)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(request))
        match chance.randrange(3):
            case 0:
                request[at] = chance.choice(b" \r\n\t:0179aZ/\x00\xff")
            case 1:
                request.insert(at, chance.choice(b" \r\n\t:0179aZ/\x00\xff"))
            case _:
                del request[at]
    return bytes(request)


LENGTHS = (b"0", b"3", b"5", b"04", b"004", b"+4", b"-4", b"4 ", b" 4", b"4a", b"0x4", b"4_0", b"", b"4, 4", b"4\nX: y")
TWICE = b"4\r\nContent-Length: 4"
BODIES = (b"[17]", b"[1]", b"[1777]", b"", b"[17]" + PRIMED, PRIMED)


async def test_request_that_begins_like_the_last_reads_as_the_first_would() -> None:
    chance = random.Random(5)
    sent = [REQUEST % (length, body) for length in (*LENGTHS, TWICE) for body in BODIES]
    sent += [REQUEST % (b"%d" % len(body), body) for body in (b"x", b"x" * 10, b"x" * 12_345, b"\r\n\r\n")]
    sent += [changed(chance) for _ in range(200)]
    async with served(sdk_path, Told) as port:
        with anyio.fail_after(60):
            for request in sent:
                first = await answered(port, request, is_later=False)
                assert await answered(port, request, is_later=True) == first, request


async def test_facts_of_a_head_are_computed_once_for_equal_requests() -> None:
    seen: list[Head] = []

    def take(head: Head, body: bytes) -> Told:
        seen.append(head)
        return Told(head, body)

    async with served(sdk_path, take) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            await primed(stream)
    assert seen[0] is seen[1] is seen[2]


async def test_scope_changed_by_an_application_stays_in_its_request() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([list(scope["headers"]), "mine" in scope, dict(scope["state"])])
        scope["headers"].append((b"mine", b"1"))
        scope["mine"] = scope["state"]["mine"] = 1
        await sdk_path(scope, receive, send)

    def take(head: Head, body: bytes) -> Told | None:
        return Told(head, body) if turn.pop() else None

    turn = [False, False, True]  # the first head is cached from then on
    async with served(app, take) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            await primed(stream)
    assert seen[0] == seen[1]


class Peer:
    """A server connection without a socket, and the results of its requests."""

    def __init__(self, take: Callable[[Head, bytes], Told | None], *, forgets: bool = False) -> None:
        """If `forgets`, the connection does not cache heads and gives each request to the parser."""
        self.sent = b""
        self.is_closed = False
        protocol = http_protocol(ServerSettings(), take)
        config = uvicorn.Config(cast("Any", sdk_path), http=protocol, lifespan="off", log_config=None)
        config.loaded, config.loaded_app = True, cast("Any", sdk_path)
        self._line = protocol(config, ServerState(), {})
        self._line.connection_made(cast("Any", self))
        self._forgets = forgets

    async def hears(self, data: bytes) -> None:
        """Deliver one packet to the connection, and return when the packet is handled."""
        if self._forgets:
            self._line._header_cache = None  # pyright: ignore[reportPrivateUsage]  # that is the difference
        self._line.data_received(data)
        for _ in range(8):
            await anyio.lowlevel.checkpoint()

    def leaves(self) -> None:
        self._line.connection_lost(None)

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.sent += b"".join(parts)

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        """Do nothing: the protocol under test receives data in any case."""

    resume_reading = pause_reading


def request(lines: Sequence[bytes], body: bytes) -> bytes:
    return b"\r\n".join([b"POST /mcp HTTP/1.1", b"host: x", *lines, b"", body])


USUAL = [b"echo", b"x", b"~!", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
ODD_TEXTS = (
    b"",
    b" x",
    b"x ",
    b"x y",
    b"\tx",
    b"x\t",
    b"x\x00",
    b"x\x7f",
    b"x\xff",
    b"x:y",
    b"=?base64?eA==?=",
    b"x\r\n y",
    b"x\ry",
    b"x\ny",
)
INJECTED = (b"mcp-name: y", b"x-more: y", b"content-length: 4", b"transfer-encoding: chunked", b"")
ODD_VALUES = [*ODD_TEXTS, b"1" * 5_000, *(b"x\r\n" + line for line in INJECTED)]
FIELDS = [b"Mcp-Name: ", b"traceparent:", b"TraceState:  ", b"X-Request-Id: ", b"x-other: ", b"mcp-method: "]
ODD_FIELDS = [b"mcp-name: ", b"mcp-name : ", b" mcp-name: ", b"connection: close, ", b"content-length: ", b"expect: 100-continue, ", b": "]
LENGTHS_TOLD = [b"content-length: %d"] * 6 + [b"Content-Length:%d", b"content-length: 0%d"]
ODD_FORMS = (b"+%d", b"%d ", b"%d,4", b"1%d", b"-%d", b"%d_0", b"%d\r\ncontent-length: 4", b"", b"0x%x")
ODD_LENGTHS = [*(b"content-length: " + form for form in ODD_FORMS), b"content-length : %d", b"x: %d"]
ODD_LENGTHS.append(b"transfer-encoding: chunked\r\ncontent-length: %d")
TOLD_BODIES = [b"[17]", b"{}", b"x" * 100]


def shaped(chance: random.Random, names: Sequence[bytes], place: int, odd: str = "") -> bytes:
    """Return a request with these fields, `Content-Length` at index `place`, and one irregularity of the kind `odd`."""
    lines = [name + chance.choice(USUAL) for name in names]
    body = chance.choice(TOLD_BODIES)
    told = chance.choice(LENGTHS_TOLD if odd != "length" else ODD_LENGTHS)
    lines.insert(place, told % len(body) if b"%" in told else told)
    at = chance.randrange(len(lines))
    if odd == "value":
        lines[at] = lines[at].partition(b":")[0] + b": " + chance.choice(ODD_VALUES)
    elif odd == "field":
        lines.insert(at, chance.choice(ODD_FIELDS) + chance.choice(USUAL))
    elif odd == "body":
        body = chance.choice((b"", body[1:], body + b"y", body * 2, b"\r\n\r\n"))
    return request(lines, body)


def packets_of(chance: random.Random) -> list[bytes]:
    """Return the packets of one peer: similar requests, mostly one per packet."""
    shapes = [(chance.sample(FIELDS, chance.randrange(4)), chance.randrange(4)) for _ in range(chance.choice((1, 1, 2)))]
    oddities = [""] * 12 + ["value", "value", "field", "length", "body"]
    packets = [shaped(chance, *shape) for shape in shapes]
    packets += [shaped(chance, *chance.choice(shapes), chance.choice(oddities)) for _ in range(6)]
    for n in range(len(packets) - 1, 0, -1):
        match chance.randrange(12):
            case 0:
                packets[n - 1 : n + 1] = [packets[n - 1] + packets[n]]
            case 1:
                cut = chance.randrange(1, len(packets[n]))
                packets[n : n + 1] = [packets[n][:cut], packets[n][cut:]]
            case _:
                pass
    return packets


@settings(max_examples=150)
@given(st.randoms(use_true_random=True))
def test_cached_request_head_parses_like_an_uncached_one(chance: random.Random) -> None:
    packets = packets_of(chance)

    async def told(*, forgets: bool) -> tuple[list[str], bytes, bool]:
        seen: list[str] = []

        def take(head: Head, body: bytes) -> Told | None:
            seen.append(Told(head, body).text.decode() + f"{head.length} {head.is_single} {head.version} {head.scope()}")
            return None if body == b"{}" and len(seen) > 2 else Told(head, body)

        peer = Peer(take, forgets=forgets)
        for packet in packets:
            if not peer.is_closed:
                await peer.hears(packet)
        peer.leaves()
        return seen, peer.sent, peer.is_closed

    async def both() -> None:
        assert await told(forgets=False) == await told(forgets=True)

    anyio.run(both)


def plain(name: bytes = b"echo", more: Sequence[bytes] = (), body: bytes = b"[17]") -> bytes:
    return request([b"mcp-name: " + name, *more, b"content-length: %d" % len(body)], body)


async def parsed(*sent: bytes) -> list[bool]:
    """Return for each of these requests on one connection whether the parser read it."""
    read: list[bytes] = []
    peer = Peer(Told)
    with pytest.MonkeyPatch.context() as patch:
        connection: Any = ServerConnection
        feed = connection._feed

        def counted(self: ServerConnection[Head], data: bytes) -> None:
            read.append(bytes(data))
            feed(self, data)

        patch.setattr(connection, "_feed", counted)
        went: list[bool] = []
        for packet in sent:
            read.clear()
            await peer.hears(packet)
            went.append(bool(read))
    peer.leaves()
    assert peer.sent.count(b"200 OK") == len(sent)
    return went


async def test_request_with_other_irrelevant_values_is_not_reparsed() -> None:
    assert await parsed(*(plain(b"tool_%d" % n, body=b"x" * n) for n in range(1, 50))) == [True] + 48 * [False]
    traces = [[b"traceparent: 00-%032x-%016x-01" % (n, n), b"tracestate: a=%d" % n, b"baggage: user=%d,b=2;c" % n] for n in range(9)]
    assert await parsed(*(plain(b"t", trace) for trace in traces)) == [True] + 8 * [False]
    assert await parsed(*(plain(more=[b"x-request-id: %032x" % n]) for n in range(9))) == [True] + 8 * [False]
    assert await parsed(plain(more=[b"x-more: 1"]), plain(more=[b"x-more: 2"])) == [True, True]


async def test_few_heads_are_cached_and_the_least_recently_used_is_dropped() -> None:
    kinds = [plain(more=[b"x-kind: %d" % n]) for n in range(MAX_HEADS + 1)]
    assert await parsed(*kinds[:MAX_HEADS], *kinds[:MAX_HEADS]) == MAX_HEADS * [True] + MAX_HEADS * [False]
    assert await parsed(*kinds[:MAX_HEADS], kinds[0], kinds[MAX_HEADS], kinds[0], kinds[1]) == MAX_HEADS * [True] + [
        False,
        True,
        False,
        True,
    ]


async def test_long_or_growing_head_is_not_cached() -> None:
    assert await parsed(*[plain(b"x" * MAX_CACHED_HEAD_BYTES)] * 2) == [True, True]
    assert await parsed(plain(), plain(b"x" * MAX_CACHED_HEAD_BYTES), plain()) == [True, True, False]
    longest = MAX_CACHED_HEAD_BYTES - len(plain(b"", body=b""))
    assert await parsed(plain(), plain(b"x" * longest), plain(b"x" * (longest + 1))) == [True, False, True]


async def test_head_with_a_repeated_field_is_not_cached() -> None:
    assert await parsed(*[plain(more=[b"x-a: 1", b"x-a: 1"])] * 2) == [True, True]


async def test_head_with_other_values_keeps_all_others_unchanged() -> None:
    seen: list[Head] = []

    def take(head: Head, body: bytes) -> Told:
        seen.append(head)
        head.has_accepted_origin, head.is_plain, head.named = True, True, "echo"
        return Told(head, body)

    peer = Peer(take)
    for name, length in ((b"echo", 4), (b"other", 5)):
        await peer.hears(plain(name, [b"x-a: 1", b"traceparent: %d" % length], b"x" * length))
    peer.leaves()
    first, second = seen
    assert first.named == "echo" and (second.length, second.has_accepted_origin) == (5, True)
    fields = dict(first.headers) | {b"mcp-name": b"other", b"traceparent": b"5", b"content-length": b"5"}
    assert second.headers == list(fields.items()) == second.scope()["headers"]


def test_cache_of_a_connection_is_bounded() -> None:
    repeats: HeaderCache[Head] = HeaderCache(VARYING.__contains__, 1_000)
    for n in range(100):
        sent = plain(b"t%d" % n, [b"x-%d: %s" % (n, b"y" * 3_900)])
        head = Head({"method": "POST", "path": "/mcp", "headers": [(b"content-length", b"4"), (b"mcp-name", b"t%d" % n)]})
        repeats.keep(sent, head)
    assert len(repeats._heads) == MAX_HEADS  # pyright: ignore[reportPrivateUsage]
    assert {b"content-length", b"mcp-name"} < VARYING
