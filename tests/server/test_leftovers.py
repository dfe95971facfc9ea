"""What is over is forgotten at once, without a garbage collector: a call and its result, a connection and its requests."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import anyio
import pytest

from gateway.app.exchange import Exchange
from gateway.app.http1 import Http1
from gateway.server.underway import HAND_ON_SECONDS, LateCaller, Underway
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import LateClock
from tests.server.test_direct import heads, post, request, standing


async def test_a_call_with_a_way_back_leaves_nothing_for_the_garbage_collector() -> None:
    async def work() -> ToolOutcome:
        return Complete.text("x" * 1_000_000)

    gc.disable()
    try:
        late = LateCaller()
        running = Underway(work(), LateClock(HAND_ON_SECONDS), late)
        assert running.is_over and running.result is not None
        left = weakref.ref(late)
        del late, running
        assert left() is None
    finally:
        gc.enable()


def connections() -> set[int]:
    """Connections and requests that are in memory."""
    return {id(one) for one in gc.get_objects() if isinstance(one, Http1 | Exchange)}


async def test_a_connection_that_ended_leaves_nothing_for_the_garbage_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.direct.is_traced", lambda: False)  # tests of telemetry leave this process with a provider
    async with standing(tmp_path) as house:
        lines, body = list(heads().items()), json.dumps(request()).encode()
        await post(house.wired, lines, body)
        gc.collect()
        gc.disable()
        known = connections()
        try:
            for headers in (lines, [*lines, ("x-odd", "1"), ("x-odd", "2")]):  # by the short cut, and past it
                await post(house.wired, headers, body)
            with anyio.fail_after(20):
                while connections() - known:
                    await anyio.sleep(0.05)
        finally:
            gc.enable()
