"""A server that sends thousands of messages at once: other tasks of the event loop run in between, and nothing is lost."""

from __future__ import annotations

import asyncio  # noqa: TID251  # callbacks of the loop are counted
import json
from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from gateway.config.models import HttpServer
from gateway.json_types import JsonObject
from gateway.upstream.carriers.carrier import OutgoingRequest
from gateway.upstream.carriers.http_carrier import open_http_carrier
from gateway.upstream.pipe import ChildLog, Pipe
from gateway.wire.framed_pipe import LINES_AT_ONCE
from tests.fakes.streams import streams

MANY = 3_000
SECONDS = 20


class Turns:
    """Counts iterations of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self._is_over = False

    def run(self) -> None:
        """Count this iteration and schedule the next count."""
        self.count += 1
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self.run)

    def stop(self) -> None:
        """Stop counting."""
        self._is_over = True


@pytest.mark.fault(32)
async def test_lines_of_one_read_are_taken_over_many_turns() -> None:
    pipe, turns, seen = Pipe("up", ChildLog(), 1 << 20), Turns(), dict[int, int]()
    heard: list[int] = []

    async def take(message: JsonObject) -> None:
        heard.append(message["params"]["n"])
        seen[turns.count] = seen.get(turns.count, 0) + 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipe.pass_on_forever, take)
        turns.run()
        await anyio.lowlevel.checkpoint()
        lines = [json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": n}}).encode() for n in range(MANY)]
        pipe.pipe_data_received(1, b"\n".join(lines))
        pipe.pipe_data_received(1, b"\n")
        with anyio.fail_after(SECONDS):
            while len(heard) < MANY:
                await anyio.sleep(0.001)
        turns.stop()
        tasks.cancel_scope.cancel()
    assert heard == list(range(MANY))
    assert max(seen.values()) <= 2 * LINES_AT_ONCE


async def test_lines_that_wait_are_taken_when_the_output_ends() -> None:
    pipe, heard = Pipe("up", ChildLog(), 1 << 20), list[int]()

    async def take(message: JsonObject) -> None:
        heard.append(message["params"]["n"])

    lines = [json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": n}}).encode() for n in range(MANY)]
    answer = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"content": []}}).encode()
    call = pipe.expect(7)
    pipe.pipe_data_received(1, b"\n".join([*lines, answer, b""]))
    pipe.pipe_connection_lost(1, None)
    with anyio.fail_after(SECONDS):
        await pipe.pass_on_forever(take)
        assert await call == {"content": []}
    assert heard == list(range(MANY))


def streaming(events: bytes) -> AbstractAsyncContextManager[str]:
    """A server that answers each request with this event stream; yields its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(events)}\r\n\r\n"
        writer.write(head.encode() + events)
        await writer.drain()

    return streams(serve)


@pytest.mark.fault(32)
async def test_events_of_one_stream_are_taken_over_many_turns() -> None:
    turns, seen = Turns(), dict[int, int]()
    reported: list[float] = []

    def progress(value: float, total: float | None, message: str | None) -> None:
        reported.append(value)
        seen[turns.count] = seen.get(turns.count, 0) + 1

    params = [{"progressToken": 1, "progress": n} for n in range(MANY)]
    messages: list[JsonObject] = [{"jsonrpc": "2.0", "method": "notifications/progress", "params": each} for each in params]
    messages.append({"jsonrpc": "2.0", "id": 1, "result": {"content": []}})
    events = "".join(f"data: {json.dumps(message)}\n\n" for message in messages).encode()
    async with streaming(events) as url:
        carrier = open_http_carrier("up", HttpServer(type="http", url=url), None, max_body_bytes=1 << 20)
        assert carrier is not None
        turns.run()
        with anyio.fail_after(SECONDS):
            assert await carrier.request(OutgoingRequest("tools/call", {}, None, (), is_modern=True, progress=progress)) == {"content": []}
        turns.stop()
        carrier.close()
    assert reported == list(range(MANY))
    assert max(seen.values()) <= LINES_AT_ONCE
