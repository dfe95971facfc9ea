"""A finished call with its result and a closed connection with its requests are freed without the garbage collector."""

from __future__ import annotations

import asyncio  # noqa: TID251  # the exception handler of its loop
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.server.deferred_caller import DeferredCaller
from gateway.server.in_flight import HAND_OVER_SECONDS, Deadlines, InFlightCall
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import LateClock
from gateway.wire.http1_exchange import Exchange
from gateway.wire.http1_server import ServerConnection
from tests.fakes.settled import settled
from tests.server.both_paths import heads, post, request, standing
from tests.wire.byte_server import ASK
from tests.wire.test_http1_client import CHUNKED, pooled


async def test_ended_call_leaves_nothing_for_the_garbage_collector() -> None:
    async def work() -> ToolOutcome:
        return Complete.text("x" * 1_000_000)

    gc.disable()
    try:
        late = DeferredCaller()
        running = InFlightCall(work(), LateClock(HAND_OVER_SECONDS), Deadlines(), late)
        await settled(running)
        await anyio.lowlevel.checkpoint()
        assert running.is_over and running.result is not None
        left = weakref.ref(late)
        del late, running
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("is_lost_first", [False, True])
async def test_cancelled_call_leaves_no_unretrieved_exception(*, is_lost_first: bool) -> None:
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with pooled(CHUNKED + b"0\r\n\r\n", b"") as (site, pool):
        await pool.send(ASK)

        async def work() -> ToolOutcome:
            await pool.send(ASK)
            return Complete.text("")

        running = InFlightCall(work(), LateClock(HAND_OVER_SECONDS), Deadlines())
        while len(site.requests) < 2:
            await anyio.sleep(0.01)
        if is_lost_first:
            pool.close()
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                running.cancel()
        await running.end()
        assert running.is_over
        await site.closed.wait()
        del running
        gc.collect()
    assert unheard == []


def connections() -> set[int]:
    """Connections and requests that are in memory."""
    kinds: Any = (ServerConnection, Exchange)
    return {id(one) for one in gc.get_objects() if isinstance(one, kinds)}


async def test_closed_connection_leaves_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    async with standing(tmp_path) as setup:
        lines, body = list(heads().items()), json.dumps(request()).encode()
        await post(setup.wired, lines, body)
        gc.collect()
        gc.disable()
        known = connections()
        try:
            for headers in (lines, [*lines, ("x-odd", "1"), ("x-odd", "2")]):  # on the connection's fast path, and not on it
                await post(setup.wired, headers, body)
            with anyio.fail_after(20):
                while connections() - known:
                    await anyio.sleep(0.05)
        finally:
            gc.enable()
