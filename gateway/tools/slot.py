"""`run_within`: a source's concurrency and time limits around one piece of work. Used by the gates of calls and of reads.

A `Slot` is one place in a source's `Limiter`, given back while a person is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar, TypeVarTuple

import anyio

from gateway.errors import AskExpired
from gateway.tools.context import CallClock, CallContext
from gateway.tools.queues import CallerQueues
from gateway.tools.waits import CANCELLED, PlainWait, own_task

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Usage:
    """Counts the running calls of one source, so that it is not left while there are any."""

    __slots__ = ("_over", "_running")

    def __init__(self) -> None:
        self._running = 0
        self._over: anyio.Event | None = None

    def begin(self) -> None:
        """A call begins."""
        self._running += 1

    def end(self) -> None:
        """It ended, in whatever way."""
        self._running -= 1
        if not self._running and self._over is not None:
            self._over.set()

    async def over(self) -> None:
        """Wait until no call is running."""
        while self._running:
            self._over = anyio.Event()
            await self._over.wait()


class Limiter:
    """Limits how many calls hold a place at once to `total`. Later calls wait; callers get free places in rotation. Of one loop.

    Waiting for a place needs no task (`tools.waits`).
    """

    __slots__ = ("_total", "_waiting", "held")

    def __init__(self, total: int) -> None:
        self._total = total
        self.held = 0
        """How many are held now."""
        self._waiting: CallerQueues[PlainWait[None]] = CallerQueues()

    @property
    def total(self) -> int:
        """How many; where it becomes less, what is held stays so until it is given back."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        self._hand_out()

    def take_now(self) -> bool:
        """Hold a place, if one is free."""
        if self.held >= self._total:
            return False
        self.held += 1
        return True

    async def take(self, caller: str) -> None:
        """Hold a place for a call of the principal `caller`, as soon as one is free and it is this caller's turn."""
        if self.take_now():
            return
        wait: PlainWait[None] = PlainWait()
        self._waiting.add(caller, wait)
        try:
            await wait
        except BaseException:
            if not self._waiting.discard(caller, wait) and not wait.cancelled():  # it was given a place in the same moment
                self.give_back()
            raise

    def give_back(self) -> None:
        """Let go of one."""
        self.held -= 1
        if self._waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self.held < self._total:
            wait = self._waiting.serve_next()
            if not wait.done():  # a cancelled call is still queued until its task runs
                self.held += 1
                wait.settle_soon(None)

    @contextlib.asynccontextmanager
    async def place(self, caller: str) -> AsyncGenerator[None, None]:
        """Hold a place for a call of the principal `caller`."""
        await self.take(caller)
        try:
            yield
        finally:
            self.give_back()


class Slot:
    """One place in a source's limiter. Also an entry of `CallContext.waits`: calling it gives the place back meanwhile."""

    __slots__ = ("_caller", "_is_held", "_waiting", "limiter")

    def __init__(self, limiter: Limiter, caller: str) -> None:
        """`caller` is the id of the principal that the call belongs to."""
        self.limiter = limiter
        self._caller = caller
        self._is_held = False
        self._waiting = 0

    def take_now(self) -> bool:
        """Hold a place, if one is free; before any other use."""
        self._is_held = self.limiter.take_now()
        return self._is_held

    async def take(self) -> None:
        """Hold a place, waiting for one if need be."""
        await self.limiter.take(self._caller)
        if self._is_held or self._waiting:  # somebody else took it back first, or is asking again by now
            self.limiter.give_back()
        else:
            self._is_held = True

    def give_back(self) -> None:
        """Let go of the place, if it is held."""
        if self._is_held:
            self._is_held = False
            self.limiter.give_back()

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None, None]:
        """Without the place while a person is asked; several may ask at once."""
        self._waiting += 1
        self.give_back()
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._waiting:
            await self.take()


def slot_for(limiter: Limiter | None, ctx: CallContext) -> Slot | None:
    """A slot to take, or `None` where there is no limit or an outer call holds one of the same limiter.

    A call inside a call (agent → workflow → agent) must not wait for a place that its own caller holds.
    """
    if limiter is None:
        return None
    for wait in ctx.waits:
        if isinstance(wait, Slot) and wait.limiter is limiter:
            return None
    return Slot(limiter, ctx.principal.id)


async def run_within(
    limiter: Limiter | None, seconds: float, ctx: CallContext, work: Callable[[*Ts, CallContext], Awaitable[T]], *args: *Ts
) -> T | None:
    """The result of `work` in a slot of `limiter` within `seconds` of working time, or `None` when the time ran out.

    Waiting for the slot or for a person does not count. `work` gets `args` and the context that knows of slot and clock.

    Raises:
        AskExpired: A question of it was not answered, which ended it.
    """
    slot = slot_for(limiter, ctx)
    if slot is not None and not slot.take_now():
        await slot.take()
    clock, late = CallClock(seconds), ctx.late_clock
    try:
        if late is not None and late.takes(clock, seconds):
            try:
                return await work(*args, ctx.limited(clock, slot))
            except CANCELLED:
                if not clock.is_over:
                    raise
            finally:
                clock.is_left = True
                if late.is_entered:
                    await own_task()  # the turn in which the scope is left, before another is entered
        else:
            if late is not None:
                await own_task()
            with clock.scope:
                return await work(*args, ctx.limited(clock, slot))
    finally:
        if slot is not None:
            slot.give_back()
    if clock.ended:
        raise AskExpired(clock.ended)
    return None
