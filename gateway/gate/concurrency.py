"""Limits how many tool calls and reads of a source run at once (`Limiter`, `Slot`), and how long they run (`run_within`).

`gate.pipeline` runs every call within these limits. `CallerQueues` queues the waiting calls fairly; `upstream` uses it too, for calls that
wait for a server. `ActiveCalls` counts running calls.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, TypeVar

import anyio

from gateway.errors import InputExpired
from gateway.tools.context import CallClock, CallContext

T = TypeVar("T")


class ActiveCalls:
    """Counts the running tool calls and reads of one source of tools, so that the source is closed only after all of them have ended."""

    __slots__ = ("_over", "_running")

    def __init__(self) -> None:
        self._running = 0
        self._over: anyio.Event | None = None

    def begin(self) -> None:
        """Increase the number of running calls and reads, because a call or read begins."""
        self._running += 1

    def end(self) -> None:
        """Decrease the number of running calls and reads, because a call or read ended."""
        self._running -= 1
        if not self._running and self._over is not None:
            self._over.set()

    async def over(self) -> None:
        """Wait until no call or read of the source is running."""
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()


class CallerQueues(Generic[T]):
    """Fair queues: one queue of waiting calls ("waiters") per caller.

    Callers are served in rotation, one waiter at a time; the waiters of one caller in order of arrival. A new caller is added at the end of
    the rotation. A caller without waiters is removed.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}
        """The waiting calls ("waiters") of each caller. The callers are in the order of rotation: the caller to serve next is first."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        """Return the number of waiting calls ("waiters") of all callers together."""
        return sum(map(len, self._queues.values()))

    def add(self, caller: str, waiter: T) -> None:
        """Add `waiter`, a call that begins to wait, to the end of the queue of `caller`."""
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = deque()
        queue.append(waiter)

    def discard(self, caller: str, waiter: T) -> bool:
        """Remove `waiter`, a call that stopped waiting, from the queue of `caller`. Return whether it was still in the queue."""
        queue = self._queues.get(caller)
        if queue is None or waiter not in queue:
            return False
        queue.remove(waiter)
        if not queue:
            del self._queues[caller]
        return True

    def heads(self) -> Iterator[tuple[str, T]]:
        """Yield each caller with its first waiting call, in the order of rotation. Calls may be served or removed during the iteration."""
        for caller in list(self._queues):
            if queue := self._queues.get(caller):
                yield caller, queue[0]

    def of(self, caller: str) -> list[T]:
        """Return the waiting calls of `caller` in the order of its queue, as a new list."""
        return list(self._queues.get(caller, ()))

    def serve(self, caller: str) -> T:
        """Remove and return the first waiting call of `caller`, and move the caller to the end of the rotation."""
        queue = self._queues.pop(caller)
        waiter = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return waiter

    def serve_next(self) -> T:
        """Remove and return the first waiting call of the caller that is next in the rotation. The queues must not be empty."""
        return self.serve(next(iter(self._queues)))


class Limiter:
    """A fair semaphore with `total` slots: calls that wait for a slot are served in rotation by caller. Use it in one event loop only."""

    __slots__ = ("_total", "_waiting", "held")

    def __init__(self, total: int) -> None:
        self._total = total
        self.held = 0
        """Number of slots in use: of calls that run now."""
        self._waiting: CallerQueues[anyio.Event] = CallerQueues()

    @property
    def waiting(self) -> int:
        """Number of calls that wait for a slot."""
        return len(self._waiting)

    def acquire_now(self) -> bool:
        """Take one of the slots for running calls without waiting, and return true; return false if no slot is free."""
        if self.held >= self._total:
            return False
        self.held += 1
        return True

    async def acquire(self, caller: str) -> None:
        """Take a slot for a call of the principal with the id `caller`. Wait until a slot is free and the caller is next in rotation."""
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
        """Release a slot because its call ended, and give it to the next waiting call, if there is one."""
        self.held -= 1
        while self._waiting and self.held < self._total:
            self.held += 1
            self._waiting.serve_next().set()

    @contextlib.asynccontextmanager
    async def slot(self, caller: str) -> AsyncGenerator[None, None]:
        """Take a slot for a call of the principal with the id `caller`, and release it at the end of the context."""
        await self.acquire(caller)
        try:
            yield
        finally:
            self.release()


class Slot:
    """The slot of a `Limiter` that one call occupies while it works. It is released while the call waits for a person's answer.

    Calling the object returns an async context manager that releases the slot while it is entered. The object is an entry of
    `CallContext.limits.waits`, so that every wait of the call for an answer enters the context manager.
    """

    __slots__ = ("_caller", "_is_held", "_waiting", "limiter")

    def __init__(self, limiter: Limiter, caller: str) -> None:
        """`caller` is the id of the principal that made the call."""
        self.limiter = limiter
        self._caller = caller
        self._is_held = False
        self._waiting = 0

    def acquire_now(self) -> bool:
        """Take a slot of the limiter without waiting, and return true; return false if no slot is free.

        Call this only while the call does not have a slot.
        """
        self._is_held = self.limiter.acquire_now()
        return self._is_held

    async def acquire(self) -> None:
        """Take a slot of the limiter for the call; wait until a slot is free."""
        await self.limiter.acquire(self._caller)
        if self._is_held or self._waiting:  # another question of this call acquired the slot first, or a new question is pending
            self.limiter.release()
        else:
            self._is_held = True

    def release(self) -> None:
        """Release the slot, if the call occupies it now."""
        if self._is_held:
            self._is_held = False
            self.limiter.release()

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None, None]:
        """Release the slot while this context is entered, because the call waits for a person's answer.

        Several questions of a call may overlap; the slot is taken again when all have been answered.
        """
        self._waiting += 1
        self.release()
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._waiting:
            await self.acquire()


def _slot_for(limiter: Limiter | None, ctx: CallContext) -> Slot | None:
    """Return the slot that a call with the context `ctx` must acquire; `None` if it needs no slot.

    A call needs no slot if `limiter` is `None`, or if one of the calls that led to it (agent → workflow → agent) has a slot of the limiter.
    In the second case, waiting for another slot could deadlock.
    """
    if limiter is None:
        return None
    for wait in ctx.limits.waits:
        if isinstance(wait, Slot) and wait.limiter is limiter:
            return None
    return Slot(limiter, ctx.facts.principal.id)


async def run_within(limiter: Limiter | None, seconds: float, ctx: CallContext, work: Callable[[CallContext], Awaitable[T]]) -> T | None:
    """Run `work` in a slot of `limiter`, and return its result; cancel it and return `None` after `seconds` of working time.

    Waiting for the slot or for a person's answer is not working time. `work` receives a context that contains the slot and the deadline.

    Raises:
        InputExpired: `work` asked a person a question, and ended because nobody answered in time.
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
        raise InputExpired(clock.ended)
    return None
