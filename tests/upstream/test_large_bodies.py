"""How many bytes of large answers are worked on at once: turns of callers, sizes, and claims that are given back."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a server that sends what it likes
import gc
import json
from functools import partial

import anyio
import pytest

from gateway.config.models import HttpServer
from gateway.errors import TooLarge
from gateway.json_types import JsonObject
from gateway.upstream.carriers.carrier import OutgoingRequest
from gateway.upstream.carriers.http_carrier import open_http_carrier
from gateway.upstream.large_bodies import Claim, LargeBodies
from gateway.wire import http1_client
from gateway.wire.message_sizes import LARGE_BYTES
from tests.fakes.streams import streams

HALF = 50


class Asked:
    """Claims by name, and the names in the order in which they were granted."""

    def __init__(self, max_bytes: int = 2 * HALF) -> None:
        self.bodies = LargeBodies(max_bytes)
        self.granted: list[str] = []
        self.claims: dict[str, Claim] = {}

    def ask(self, name: str, size: int) -> None:
        """Claim bytes for the caller that is the first letter of `name`."""
        claim = self.claims[name] = self.bodies.claim(name[0], size, lambda: self.granted.append(name))
        if claim.is_granted:
            self.granted.append(name)

    async def release(self, name: str) -> None:
        """Give bytes back."""
        self.claims.pop(name).release()
        await anyio.wait_all_tasks_blocked()


@pytest.mark.fault(20)
async def test_claims_beyond_the_limit_wait_until_others_are_released() -> None:
    asked = Asked()
    for name in ("a", "b", "c"):
        asked.ask(name, HALF)
    assert asked.granted == ["a", "b"]
    await asked.release("b")
    assert asked.granted == ["a", "b", "c"]


async def test_answer_larger_than_the_limit_is_granted_alone() -> None:
    asked = Asked()
    asked.ask("a", 10 * HALF)
    asked.ask("b", 1)
    assert asked.granted == ["a"]
    await asked.release("a")
    assert asked.granted == ["a", "b"]


@pytest.mark.fault(20)
async def test_callers_take_turns() -> None:
    asked = Asked()
    for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
        asked.ask(name, 2 * HALF)
    for name in ("a1", "a2", "b1", "a3", "b2"):
        assert asked.granted[-1] == name
        await asked.release(name)
    assert asked.granted == ["a1", "a2", "b1", "a3", "b2", "a4"]


async def test_one_caller_gets_at_most_half_of_the_bytes() -> None:
    asked = Asked()
    for name in ("a1", "a2", "a3", "b1"):
        asked.ask(name, HALF // 2)
    assert asked.granted == ["a1", "a2", "b1"]
    await asked.release("b1")
    assert asked.granted == ["a1", "a2", "b1"]
    await asked.release("a1")
    assert asked.granted[-1] == "a3"


async def test_claim_that_is_released_while_it_waits_is_never_granted() -> None:
    asked = Asked()
    for name in ("a", "b", "c"):
        asked.ask(name, 2 * HALF)
    await asked.release("b")
    await asked.release("a")
    assert asked.granted == ["a", "c"]


async def test_claim_without_an_owner_is_released() -> None:
    asked = Asked()
    asked.ask("a", 2 * HALF)
    asked.ask("b", 2 * HALF)
    del asked.claims["a"]
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    assert asked.granted == ["a", "b"]


async def test_claim_that_is_released_twice_counts_once() -> None:
    asked = Asked()
    asked.ask("a", HALF)
    claim = asked.claims["a"]
    claim.release()
    claim.release()
    await anyio.wait_all_tasks_blocked()
    for name in ("b", "c", "d"):
        asked.ask(name, HALF)
    assert asked.granted == ["a", "b", "c"]


LARGE = 2 * LARGE_BYTES
HEADS = {
    "sized": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
    "chunked": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n",
    "streamed": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n",
}


class Site:
    """A server whose responses have `LARGE` bytes of text. It sends only half of the first response."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.asked = 0
        self.stalls = anyio.Event()

    def answer(self, number: int) -> bytes:
        """The whole answer to the request with this id."""
        result = {"content": [{"type": "text", "text": "näher \\ \n" * (LARGE // 10)}]}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}, ensure_ascii=False).encode()
        body = b"data: %b\n\n" % body if self.kind == "streamed" else body
        end = b"\r\n0\r\n\r\n" if self.kind == "chunked" else b""
        return HEADS[self.kind] % len(body) + body + end

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        answer = self.answer(self.asked)
        if self.asked == 1:
            writer.write(answer[: len(answer) * 3 // 4])
            self.stalls.set()
            await reader.read()
        else:
            writer.write(answer)
            await writer.drain()


@pytest.mark.fault(20)
@pytest.mark.parametrize("kind", HEADS)
async def test_cancelled_call_gives_the_bytes_of_its_answer_back(kind: str) -> None:
    site = Site(kind)
    found: list[JsonObject | None] = []
    async with streams(site.serve) as url:
        entry = HttpServer(type="http", url=url)
        carrier = open_http_carrier("up", entry, None, max_body_bytes=2 * LARGE, bodies=LargeBodies(LARGE_BYTES))
        assert carrier is not None
        send = partial(carrier.request, OutgoingRequest("tools/call", {"name": "x"}, None, (), is_modern=True))

        async def call() -> None:
            found.append(await send())

        with anyio.fail_after(20):
            async with anyio.create_task_group() as second, anyio.create_task_group() as first:
                first.start_soon(send)
                await site.stalls.wait()
                await anyio.sleep(0.05)  # its bytes arrive
                second.start_soon(call)
                while site.asked < 2:
                    await anyio.sleep(0.01)
                await anyio.sleep(0.2)
                assert found == []
                first.cancel_scope.cancel()
            assert found.pop() is not None
            result = await send()  # the claim of the second response was released with the response
            assert result is not None
            assert result["content"][0]["text"] == "näher \\ \n" * (LARGE // 10)
        carrier.close()


async def test_response_that_waits_too_long_fails_naming_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1_client, "CLAIM_WAIT_SECONDS", 0.2)
    site = Site("sized")
    async with streams(site.serve) as url:
        entry = HttpServer(type="http", url=url)
        carrier = open_http_carrier("up", entry, None, max_body_bytes=2 * LARGE, bodies=LargeBodies(LARGE_BYTES))
        assert carrier is not None
        send = partial(carrier.request, OutgoingRequest("tools/call", {"name": "x"}, None, (), is_modern=True))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as first:
                first.start_soon(send)
                await site.stalls.wait()
                await anyio.sleep(0.1)  # its bytes arrive
                with pytest.raises(TooLarge, match=r"server\.largeResultBytes"):
                    await send()
                first.cancel_scope.cancel()
        carrier.close()
