"""Requests on one connection that begin alike: what is known of the last head never makes a request other than it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream
from starlette.types import Receive, Scope, Send

from gateway.server.head import Head
from tests.fakes.wired import served

REQUEST = b"POST /mcp HTTP/1.1\r\nHost: x\r\nX-Name: Value\r\nContent-Length: %s\r\nX-After: 17\r\n\r\n%s"
PRIMED = REQUEST % (b"4", b"[17]")
END = b"nonsense\r\n\r\n" * 20
"""Fills what is not whole, and ends the connection."""


class Told:
    """The short cut's answer to a request: what it was."""

    is_cancelled = False

    def __init__(self, head: Head, body: bytes) -> None:
        facts = head.method, head.path, repr(head.facts["headers"]), repr(sorted(head.fields.items())), repr(body)
        self.text = json.dumps(facts).encode()

    def cancel(self, msg: object = None) -> None:
        """It is over at once."""

    def when_settled(self, then: Callable[[], None]) -> None:
        then()

    def answer(self) -> tuple[list[tuple[bytes, bytes]], Sequence[bytes | memoryview]]:
        return [(b"content-length", b"%d" % len(self.text))], (self.text,)

    def forget(self) -> None:
        """Nothing is kept."""

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it is answered")


async def long_way(scope: Scope, receive: Receive, send: Send) -> None:
    """The same answer."""
    body, is_more = b"", True
    while is_more:
        message: Any = await receive()
        body, is_more = body + message.get("body", b""), message.get("more_body", False)
    text = Told(Head(scope), body).text
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def primed(stream: ByteStream) -> None:
    """Have a request answered, to the last byte."""
    await stream.send(PRIMED)
    told = b""
    while b"\r\n\r\n" not in told:
        told += await stream.receive()
    head, _, body = told.partition(b"\r\n\r\n")
    length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += await stream.receive()


async def answered(port: int, request: bytes, *, is_later: bool) -> list[bytes]:
    """The answers to a request and its end, as the first of a connection or after another, without their dates."""
    told = b""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        if is_later:
            await primed(stream)
        with suppress(anyio.BrokenResourceError):  # it may be ended early
            await stream.send(request)
            await anyio.lowlevel.checkpoint()
            await stream.send(END)
        with suppress(anyio.BrokenResourceError):
            async for part in stream:
                told += part
    return [line for line in told.split(b"\r\n") if not line.startswith(b"date:")]


def changed(chance: random.Random) -> bytes:
    """The request that is known, but for a byte or two."""
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


async def test_a_request_after_one_that_began_alike_is_read_as_the_first_of_its_connection() -> None:
    chance = random.Random(5)
    sent = [REQUEST % (length, body) for length in (*LENGTHS, TWICE) for body in BODIES]
    sent += [REQUEST % (b"%d" % len(body), body) for body in (b"x", b"x" * 10, b"x" * 12_345, b"\r\n\r\n")]
    sent += [changed(chance) for _ in range(200)]
    async with served(long_way, Told) as port:
        with anyio.fail_after(60):
            for request in sent:
                first = await answered(port, request, is_later=False)
                assert await answered(port, request, is_later=True) == first, request


async def test_what_follows_from_a_head_is_found_out_once_for_requests_that_say_the_same() -> None:
    seen: list[Head] = []

    def take(head: Head, body: bytes) -> Told:
        seen.append(head)
        return Told(head, body)

    async with served(long_way, take) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            await primed(stream)
    assert seen[0] is seen[1] is seen[2]


async def test_what_an_application_does_with_its_scope_is_not_seen_by_the_next() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append([list(scope["headers"]), "mine" in scope, dict(scope["state"])])
        scope["headers"].append((b"mine", b"1"))
        scope["mine"] = scope["state"]["mine"] = 1
        await long_way(scope, receive, send)

    def take(head: Head, body: bytes) -> Told | None:
        return Told(head, body) if turn.pop() else None

    turn = [False, False, True]  # the first is known from then on
    async with served(app, take) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        for _ in range(3):
            await primed(stream)
    assert seen[0] == seen[1]
