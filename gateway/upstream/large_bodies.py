"""`LargeBodies`: limits the bytes of large responses that the gateway processes at once, in total and for each caller.

The transports to servers claim the bytes while a large response arrives, and stop reading until the claim is granted. The claim is released
when the gate (the checks that every call passes) has processed the result, or when nothing refers to the claim any more. Therefore many
concurrent large responses take more time, but not more memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

from gateway.gate.concurrency import CallerQueues
from gateway.json_types import JsonValue
from gateway.tools.base import Releasable
from gateway.upstream.large_result_pool import HELD_BYTES, HelperPool
from gateway.wire.long_text import Decoded, decode_parts

SWITCH_SECONDS = 0.0005
"""Python's thread switch interval while large responses are processed.

The event loop gets the interpreter's lock back from a worker thread after this time, instead of after 5 ms.
"""

_WORKERS = 2
"""Number of worker threads that parse large responses at once. More threads would only compete for the interpreter's lock."""

T = TypeVar("T")


class _PendingClaim:
    """State of one claim for memory: its caller and size in bytes, and whether it is granted or ended."""

    __slots__ = ("caller", "granted", "is_granted", "is_over", "size")

    def __init__(self, caller: str, size: int, granted: Callable[[], None]) -> None:
        self.caller = caller
        self.size = size
        self.granted = granted
        self.is_granted = self.is_over = False


class Claim:
    """A claim for the memory of one large response, granted at once or later. `release` or garbage collection ends it."""

    __slots__ = ("_bodies", "_wish")

    def __init__(self, bodies: LargeBodies, wish: _PendingClaim) -> None:
        self._bodies = bodies
        self._wish = wish

    @property
    def is_granted(self) -> bool:
        """Whether the memory is granted, so that the response may be read."""
        return self._wish.is_granted

    def release(self) -> None:
        """Return the granted memory, or stop waiting for it. Callable from any thread, more than once."""
        self._bodies.end(self._wish)

    def __del__(self) -> None:
        self.release()


class LargeBodies:
    """Grants claims for the memory of large responses, for all servers of one gateway, in one event loop."""

    def __init__(self, max_bytes: int, *, used: Callable[[], None] | None = None) -> None:
        """Grant at most `max_bytes` of memory for large responses at once, and at most half of that to one caller.

        There are two exceptions. A response of more than half of `max_bytes` is granted if its caller has no other large response, and a
        response of more than `max_bytes` is granted if no caller has a large response. `used` is called in the event loop each time granted
        memory was returned.
        """
        self.max_bytes = max_bytes
        self._used = used
        self._switch_seconds = sys.getswitchinterval()
        self._loop = asyncio.get_running_loop()
        self._limiter = anyio.CapacityLimiter(_WORKERS)
        self.helpers = HelperPool()
        """Helper processes that parse the largest `tools/call` results and apply the gate's rules to them. `ChildProcesses` ends them."""
        self._bytes = 0
        self._by_caller: Counter[str] = Counter()
        self._waiting: CallerQueues[_PendingClaim] = CallerQueues()

    def claim(self, caller: str, size: int, granted: Callable[[], None]) -> Claim:
        """Claim `size` bytes of memory for a large response to `caller`.

        The claim is granted at once or later. The callback `granted` is called only if the claim is granted later.
        """
        wish = _PendingClaim(caller, size, granted)
        self._waiting.add(caller, wish)
        self._grant(quietly=wish)
        return Claim(self, wish)

    async def read(
        self, parts: list[bytes], claim: Releasable | None, is_call: Callable[[JsonValue], bool]
    ) -> tuple[Decoded, Releasable | None]:
        """Parse a JSON-RPC message in a worker thread, or in a helper process if it is very large (`HelperPool.hold`).

        `claim` is the memory granted for the message, and `is_call` returns whether an id belongs to a pending `tools/call`. Return the
        message, and the object whose `release` returns the memory: `claim`, or the `LargeResult` if a helper process has the result.

        Raises:
            ValueError: The message is not JSON.
            ToolFailed: The helper process ended, or took too long.
        """
        if sum(map(len, parts)) >= HELD_BYTES:
            return await self.helpers.hold(parts, claim, is_call)
        return await self.work(lambda: decode_parts(parts)), claim

    async def work(self, job: Callable[[], T]) -> T:
        """Run `job` in a worker thread, at most `_WORKERS` jobs at once, and return its result."""
        return await anyio.to_thread.run_sync(job, limiter=self._limiter)

    def end(self, wish: _PendingClaim) -> None:
        """End a claim: return its granted memory, or stop waiting for it. Callable from any thread."""
        if not wish.is_over:
            wish.is_over = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end, wish)

    def _end(self, wish: _PendingClaim) -> None:
        if wish.is_granted:
            self._bytes -= wish.size
            self._by_caller[wish.caller] -= wish.size
            if not self._by_caller[wish.caller]:
                del self._by_caller[wish.caller]
            if not self._bytes:
                sys.setswitchinterval(self._switch_seconds)
            if self._used is not None:
                self._used()
        else:
            self._waiting.discard(wish.caller, wish)
        self._grant()

    def _grant(self, quietly: _PendingClaim | None = None) -> None:
        """Grant the waiting claims that fit, one of each caller in turn, and call the callback `granted` of each granted claim.

        `quietly` is a claim whose callback is not called. A claim that does not fit into the total blocks all later claims, so that it is
        granted in the end.
        """
        is_moving = True
        while is_moving:
            is_moving = False
            for caller, wish in self._waiting.heads():
                own = self._by_caller.get(caller, 0)
                if own and own + wish.size > self.max_bytes // 2:
                    continue
                if self._bytes and self._bytes + wish.size > self.max_bytes:
                    return
                self._waiting.serve(caller)
                if not self._bytes:
                    sys.setswitchinterval(SWITCH_SECONDS)
                self._bytes += wish.size
                self._by_caller[caller] += wish.size
                wish.is_granted = is_moving = True
                if wish is not quietly:
                    wish.granted()
