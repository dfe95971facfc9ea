"""A call of 2025 that is over is forgotten at once, and its result with it."""

from __future__ import annotations

import gc
import weakref

from gateway.server.underway import HAND_ON_SECONDS, LateCaller, LateClock, Underway
from gateway.tools.base import Complete, ToolOutcome


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
