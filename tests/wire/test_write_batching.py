"""Writes of connections in one turn of the event loop are sent together, in order, and before a close."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a connection has its asyncio loop
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
from starlette.types import Receive, Scope, Send

from gateway.server.head import Head
from gateway.wire.http1_messages import WriteBatch
from tests.fakes.told import Told
from tests.fakes.wired import served


class Recorder:
    def __init__(self, told: list[str], name: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._told, self._name = told, name

    def flush(self) -> None:
        self._told.append(self._name)


async def test_held_writes_of_a_loop_turn_are_sent_in_order_and_once() -> None:
    together, told = WriteBatch(), list[str]()
    for name in "abc":
        together.add(Recorder(told, name))
    assert told == []
    await anyio.lowlevel.checkpoint()
    assert told == ["a", "b", "c"]
    together.add(Recorder(told, "d"))
    await anyio.lowlevel.checkpoint()
    assert told == ["a", "b", "c", "d"]


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"long"})


SHORT = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n%s\r\n{}"
LONG = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        ((SHORT % b"", SHORT % b"", LONG, SHORT % b"", b"nonsense\r\n\r\n"), [b"POST", b"POST", b"long", b"POST"]),
        ((SHORT % b"", b"nonsense\r\n\r\n"), [b"POST", b"400 Bad Request"]),
        ((SHORT % b"connection: close\r\n",), [b"POST"]),
        ((SHORT % b"", LONG.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")), [b"POST", b"long"]),
    ],
)
async def test_responses_come_in_request_order_and_before_the_close(sent: Sequence[bytes], wanted: list[bytes]) -> None:
    def take(head: Head, body: bytes) -> Told | None:
        return Told(head, body) if head.method == "POST" else None

    async with served(plain, take) as port, await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"".join(sent))
        with anyio.fail_after(10):
            told = b"".join([part async for part in stream])
    places = [told.find(word, 0) for word in dict.fromkeys(wanted)]
    assert -1 not in places and places == sorted(places)
    assert [told.count(word) for word in dict.fromkeys(wanted)] == [wanted.count(word) for word in dict.fromkeys(wanted)]
