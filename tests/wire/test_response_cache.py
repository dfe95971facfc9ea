"""Responses on one connection with similar heads: the cached heads never change the meaning of a later response."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a connection has its asyncio loop
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import anyio
import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.egress.tcp import connector
from gateway.errors import RequestFailure
from gateway.wire.http1_client import LONG_BYTES, ClientConnection, ConnectionPool
from gateway.wire.http1_messages import MAX_CACHED_HEAD_BYTES
from gateway.wire.message_sizes import too_large
from tests.faults.fuzz import Far

MAX_BYTES = 100_000
DATES = (b"Sun, 22 Nov 2026 15:42:09 GMT", b"Mon, 23 Nov 2026 01:00:00 GMT")


class Server:
    """The server's end of one connection at a time; returns what the pool reads from the server's bytes."""

    def __init__(self, *, forgets: bool = False, max_bytes: int = MAX_BYTES) -> None:
        self.pool = ConnectionPool("up", connector("127.0.0.1", 9, None), max_body_bytes=max_bytes)
        self._forgets = forgets
        self.connect()

    def connect(self) -> None:
        """Replace the connection with a new one."""
        self.far = Far()
        self.line = ClientConnection(self.pool, asyncio.get_running_loop())
        self.line.connection_made(cast("Any", self.far))

    async def answers(self, packets: Sequence[bytes]) -> object:
        """Return the response that one request gets from these packets, and whether the connection stays usable. If not, reconnect."""
        said = await self._answers(packets)
        is_kept = not self.far.is_closed and self.line.is_usable()
        if not is_kept:
            self.connect()
        return said, is_kept

    async def _answers(self, packets: Sequence[bytes]) -> object:
        wait = self.line.send(b"x", "caller")
        for packet in packets:
            if self.far.is_closed:
                break
            if self._forgets:
                self.pool.header_cache._heads.clear()  # pyright: ignore[reportPrivateUsage]  # that is the difference
            self.line.data_received(packet)
        if not wait.done():
            self.far.is_closed = True
            self.line.connection_lost(None)
        said: list[bytes] = []
        try:
            answer = await wait
            if answer.stream is not None:
                while answer.stream.is_ready:
                    said.append(await answer.stream.message())
                answer.stream.leave()
        except RequestFailure as error:
            return said, type(error).__name__, str(error)
        return answer.status, dict(answer.headers), answer.body, said

    async def is_parsed(self, answer: bytes) -> bool:
        """Return whether the parser reads this response, which arrives complete and has the right length."""
        fed: list[bytes] = []

        class Counting:
            def __init__(self, parser: httptools.HttpResponseParser) -> None:
                self.parser = parser

            def feed_data(self, data: bytes) -> None:
                fed.append(data)
                self.parser.feed_data(data)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.parser, name)

        parser = self.line._parser  # pyright: ignore[reportPrivateUsage]
        self.line._parser = cast("Any", Counting(parser))  # pyright: ignore[reportPrivateUsage]
        head, _, body = answer.partition(b"\r\n\r\n")
        got = cast("Any", await self.answers([answer]))
        self.line._parser = parser  # pyright: ignore[reportPrivateUsage]
        fields = [(line.partition(b":")[0].lower(), line.partition(b":")[2].strip()) for line in head.split(b"\r\n")[1:]]
        assert got == ((200, dict(fields), body, []), True)
        return bool(fed)


def plain(lines: Sequence[bytes] = (), body: bytes = b"{}", told: bytes = b"") -> bytes:
    length = told or b"%d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"content-type: application/json", b"content-length: " + length, b"", body])


OK = b"HTTP/1.1 200 OK"
FIRST = [*[OK] * 8, b"HTTP/1.1 200 Fine", b"HTTP/1.0 200 OK", b"HTTP/1.1 404 No", b"HTTP/1.1 100 Continue\r\n\r\n" + OK]
FIELDS = [b"Date: ", b"date:", b"Server:  ", b"x-id: ", b"Content-Type: ", b"mcp-session-id: ", b"set-cookie: ", b"Connection: "]
VALUES = [*DATES, b"x", b"a b", b"application/json", b"text/event-stream", b"~!", b"close"]
ODD_VALUES = [b"", b" x", b"x ", b"x\ty", b"x\t", b"x\x7f", b"x\xff", b"x\x00", b"x\r\n y", b"x\ny", b"text/event-stream", b"x" * 5_000]
ODD_LINES = [
    b"connection: close",
    b"Connection: keep-alive",
    b"transfer-encoding: chunked",
    b"content-length: 4",
    b"content-encoding: gzip",
    b"upgrade: h2c",
    b"trailer: x",
    b"x : y",
    b": y",
    b"content-type: text/event-stream",
]
LENGTHS = [b"content-length: %d"] * 8 + [b"Content-Length:%d", b"content-length: 0%d"]
ODD_LENGTHS = [b"content-length: +%d", b"content-length: %d ", b"content-length: 1%d", b"content-length: %d, %d", b"content-length: %d %d"]
MISTOLD = [b"x: %d", b"content-length: -%d", b"content-length: ", b"content-length: 0x%x", b"content-length : %d"]
BODIES = [b"{}", b"[17]", b"x" * 300, b"data: {}\n\n"]


@dataclass
class Shape:
    """The common form of responses: the first line, fields with their usual values, and the place of the length among them."""

    first: bytes
    lines: list[bytes]
    place: int

    @classmethod
    def any(cls, chance: random.Random) -> Shape:
        lines = [name + chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randrange(4))]
        return cls(chance.choice(FIRST), lines, chance.randrange(4))

    def answer(self, chance: random.Random, odd: str = "") -> bytes:
        """Return a response of this shape with some random values and one irregularity of the kind `odd`."""
        lines = [line if chance.randrange(4) else line.partition(b":")[0] + b": " + chance.choice(VALUES) for line in self.lines]
        body = chance.choice(BODIES)
        told = chance.choice([*ODD_LENGTHS, *MISTOLD] if odd == "length" else LENGTHS)
        lines.insert(self.place, told % ((len(body),) * told.count(b"%")))
        at = chance.randrange(len(lines))
        match odd:
            case "value":
                lines[at] = lines[at].partition(b":")[0] + b": " + chance.choice(ODD_VALUES)
            case "line":
                lines.insert(at, chance.choice(ODD_LINES))
            case "body":
                body = chance.choice((b"", body[1:], body + b"y", body * 2, b"2\r\n{}\r\n0\r\n\r\n"))
            case _:
                pass
        return b"\r\n".join([chance.choice(FIRST) if odd == "first" else self.first, *lines, b"", body])


def answers_of(chance: random.Random) -> list[list[bytes]]:
    """Return the responses of one server, each as a list of packets: similar responses, mostly one per packet."""
    shapes = [Shape.any(chance) for _ in range(chance.choice((1, 1, 2)))]
    oddities = [""] * 12 + ["value", "line", "length", "body", "first"]
    answers = [[shape.answer(chance)] for shape in shapes]
    answers += [[chance.choice(shapes).answer(chance, chance.choice(oddities))] for _ in range(6)]
    for answer in answers:
        match chance.randrange(12):
            case 0:
                cut = chance.randrange(1, len(answer[0]))
                answer[:] = [answer[0][:cut], answer[0][cut:]]
            case 1:
                answer.append(chance.choice((b"y", answer[0])))
            case _:
                pass
    return answers


@settings(max_examples=150)
@given(st.randoms(use_true_random=True))
def test_cached_response_head_parses_like_an_uncached_one(chance: random.Random) -> None:
    answers = answers_of(chance)

    async def told(*, forgets: bool) -> list[object]:
        server = Server(forgets=forgets)
        return [await server.answers(packets) for packets in answers]

    async def both() -> None:
        assert await told(forgets=False) == await told(forgets=True)

    anyio.run(both)


async def test_response_with_other_irrelevant_values_is_not_reparsed() -> None:
    server = Server()
    answers = [plain([b"date: " + DATES[n % 2], b"x-id: %032x" % n], b"x" * n) for n in range(1, 50)]
    assert [await server.is_parsed(answer) for answer in answers] == [True] + 48 * [False]
    assert await server.is_parsed(plain([b"date: x", b"x-more: y"])) and not await server.is_parsed(plain([b"date: z z", b"x-more: y y"]))


async def test_response_heads_are_cached_for_all_connections_of_a_server() -> None:
    server = Server()
    assert await server.is_parsed(plain())
    server.connect()
    assert not await server.is_parsed(plain(body=b"[1]"))


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([b"x-a: 1", b"x-a: 1"], b"{}"),
        ([b"x-long: " + b"x" * MAX_CACHED_HEAD_BYTES], b"{}"),
        ([], b"x" * (LONG_BYTES + 1)),
    ],
)
async def test_unusual_or_long_response_is_parsed_each_time(lines: list[bytes], body: bytes) -> None:
    server, whole = Server(), plain(lines, body)
    said = [await server.answers([whole]) for _ in range(2)]
    assert said[0] == said[1] and not server.pool.header_cache._heads  # pyright: ignore[reportPrivateUsage]


async def test_body_after_a_cached_head_is_still_limited() -> None:
    server = Server(max_bytes=100)
    assert await server.is_parsed(plain()) and not await server.is_parsed(plain(body=b"x" * 100))
    assert await server.answers([plain(body=b"x" * 101)]) == (([], "TooLarge", too_large(100)), False)


async def test_body_may_look_like_a_response() -> None:
    server = Server()
    assert await server.is_parsed(plain())
    start = plain([b"x-more: 1"], told=b"%d" % (2 * len(plain())), body=b"")
    assert await server.answers([start, plain(), plain()]) == (
        (200, {b"x-more": b"1", b"content-type": b"application/json", b"content-length": b"%d" % (2 * len(plain()))}, plain() * 2, []),
        True,
    )


async def test_unrequested_response_with_cached_head_ends_the_connection() -> None:
    server = Server()
    assert await server.is_parsed(plain())
    server.line.data_received(plain())
    assert server.far.is_closed
