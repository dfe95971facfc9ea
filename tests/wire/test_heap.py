"""Memory freed by large messages is reused for the next, and returned to the system if no further one comes."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path

import anyio
import pytest

from gateway.wire import heap
from gateway.wire.heap import Heap

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no such settings")

BLOCK = 1_000_000
PAGE = resource.getpagesize()


def handle_messages(count: int) -> int:
    """Allocate and free eight large messages `count` times, and return the number of page faults."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        blocks = [b"x" * BLOCK for _ in range(8)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def test_large_messages_reuse_memory_and_leave_none_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "QUIET_SECONDS", 0.05)
    kept = Heap()
    kept.used()
    handle_messages(1)
    assert handle_messages(20) < 8 * BLOCK // PAGE  # the page faults of one round; without `Heap` there would be those of twenty
    while_busy = resident()
    with anyio.fail_after(5):
        while resident() > while_busy - 4 * BLOCK:
            await anyio.sleep(0.01)
    kept.used()  # the same holds after the memory was returned to the system
    handle_messages(1)
    assert handle_messages(20) < 8 * BLOCK // PAGE
