"""Limits how many calls run at once, and how long: `ActiveCalls`, `CallerQueues`, `Limiter`, `Slot` and `run_within`.

`gate.pipeline` runs every call within these limits. `upstream` uses `CallerQueues` for the calls that wait for a server.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

import anyio

from gateway.errors import AskExpired
from gateway.tools.context import CallClock, CallContext

T = TypeVar("T")


class ActiveCalls:
    """Counts the running calls and reads of one source, so that the source is not closed before they end."""

    __slots__ = ("_over", "_running")

    def __init__(self) -> None:
        self._running = 0
        self._over: anyio.Event | None = None

    def begin(self) -> None:
        """Count a call or read that begins."""
        self._running += 1

    def end(self) -> None:
        """Stop counting a call or read, because it ended."""
        self._running -= 1
        if not self._running and self._over is not None:
            self._over.set()

    async def over(self) -> None:
        """Wait until no call or read of the source is running."""
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()


class CallerQueues(Generic[T]):
    """Queues of waiting calls, one queue per caller. Callers are served in rotation; the waiters of one caller in order of arrival.

    A new caller's turn comes after those of the callers that wait already. A caller without waiters is forgotten.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}
        """Waiters by caller, ordered by the turns of the callers: the caller to serve next is first."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        """Return the number of waiters of all callers."""
        return sum(map(len, self._queues.values()))

    def add(self, caller: str, waiter: T) -> None:
        """Add a waiter behind all other waiters of its caller."""
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = deque()
        queue.append(waiter)

    def discard(self, caller: str, waiter: T) -> bool:
        """Remove a waiter that gave up. Return whether the waiter was still in its queue."""
        queue = self._queues.get(caller)
        if queue is None or waiter not in queue:
            return False
        queue.remove(waiter)
        if not queue:
            del self._queues[caller]
        return True

    def heads(self) -> Iterator[tuple[str, T]]:
        """Yield each caller with its first waiter, the caller whose turn is next first. Waiters may be served or leave meanwhile."""
        for caller in list(self._queues):
            if queue := self._queues.get(caller):
                yield caller, queue[0]

    def of(self, caller: str) -> list[T]:
        """Return a copy of the waiters of one caller."""
        return list(self._queues.get(caller, ()))

    def serve(self, caller: str) -> T:
        """Remove and return the first waiter of `caller`, whose next turn comes after those of all other callers."""
        queue = self._queues.pop(caller)
        waiter = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return waiter

    def serve_next(self) -> T:
        """Remove and return the waiter whose turn it is. At least one waiter must be waiting."""
        return self.serve(next(iter(self._queues)))


class Limiter:
    """A semaphore of `total` slots whose waiters are served in rotation by caller. Use it in one event loop only."""

    __slots__ = ("_total", "_waiting", "held")

    def __init__(self, total: int) -> None:
        self._total = total
        self.held = 0
        """Number of slots in use."""
        self._waiting: CallerQueues[anyio.Event] = CallerQueues()

    def acquire_now(self) -> bool:
        """Take a slot, if one is free. Return whether it was."""
        if self.held >= self._total:
            return False
        self.held += 1
        return True

    async def acquire(self, caller: str) -> None:
        """Take a slot for a call of the principal `caller`, waiting until one is free and it is this caller's turn."""
        if self.acquire_now():
            return
        granted = anyio.Event()
        self._waiting.add(caller, granted)
        try:
            await granted.wait()
        except BaseException:
            if not self._waiting.discard(caller, granted):  # cancelled at the moment when the slot was granted
                self.release()
            raise

    def release(self) -> None:
        """Release a slot, and grant the slot to the next waiter, if there is one."""
        self.held -= 1
        while self._waiting and self.held < self._total:
            self.held += 1
            self._waiting.serve_next().set()

    @contextlib.asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None, None]:
        """Hold a slot for a call of the principal `caller`."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release()


class Slot:
    """The concurrency slot of one call. In `CallContext.waits` it surrounds each wait for a person, during which it is released."""

    __slots__ = ("_caller", "_is_held", "_waiting", "limiter")

    def __init__(self, limiter: Limiter, caller: str) -> None:
        """`caller` is the id of the principal that the call belongs to."""
        self.limiter = limiter
        self._caller = caller
        self._is_held = False
        self._waiting = 0

    def acquire_now(self) -> bool:
        """Take a slot of the limiter, if one is free, and return whether it was. Call it before any other method."""
        self._is_held = self.limiter.acquire_now()
        return self._is_held

    async def acquire(self) -> None:
        """Take the slot, waiting until one is free."""
        await self.limiter.acquire(self._caller)
        if self._is_held or self._waiting:  # another question of this call acquired the slot first, or a new question is pending
            self.limiter.release()
        else:
            self._is_held = True

    def release(self) -> None:
        """Release the slot, if the call has it now."""
        if self._is_held:
            self._is_held = False
            self.limiter.release()

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None, None]:
        """Release the slot inside the context, while a person is asked. It is taken again when no question of the call is pending."""
        self._waiting += 1
        self.release()
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._waiting:
            await self.acquire()


def _slot_for(limiter: Limiter | None, ctx: CallContext) -> Slot | None:
    """Return the slot that a call must acquire; `None` without a limit, or if a call around it has a slot of the same limiter.

    A call inside a call (agent → workflow → agent) must not wait for a slot that an outer call holds.
    """
    if limiter is None:
        return None
    for wait in ctx.limits.waits:
        if isinstance(wait, Slot) and wait.limiter is limiter:
            return None
    return Slot(limiter, ctx.facts.principal.id)


async def run_within(limiter: Limiter | None, seconds: float, ctx: CallContext, work: Callable[[CallContext], Awaitable[T]]) -> T | None:
    """Run `work` in a slot of `limiter`, and return its result, or `None` if `seconds` of working time are over.

    Waiting for the slot or for a person is not working time. `work` receives a context that contains the slot and the deadline.

    Raises:
        AskExpired: A question of the work was not answered in time, which ended the work.
    """
    slot = _slot_for(limiter, ctx)
    if slot is not None and not slot.acquire_now():
        await slot.acquire()
    clock, late = CallClock(seconds), ctx.limits.late_clock
    try:
        if late is not None and late.takes(clock, seconds):
            try:
                return await work(ctx.limited(clock, slot))
            except anyio.get_cancelled_exc_class():
                if not clock.is_over:
                    raise
            finally:
                clock.is_left = True
        else:
            with clock.scope:
                return await work(ctx.limited(clock, slot))
    finally:
        if slot is not None:
            slot.release()
    if clock.ended:
        raise AskExpired(clock.ended)
    return None
