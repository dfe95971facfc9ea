"""`run_within`: a source's concurrency and time limits around one piece of work. Used by the gates of calls and of reads.

A `Slot` is one place in a source's limiter, given back while a person is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import anyio

from gateway.errors import AskExpired, GatewayError
from gateway.tools.context import CallClock, CallContext
from gateway.tools.waits import CANCELLED, own_task

T = TypeVar("T")


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


class Slot:
    """One place in a source's limiter. Also an entry of `CallContext.waits`: calling it gives the place back meanwhile."""

    __slots__ = ("_borrower", "_waiting", "limiter")

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self.limiter = limiter
        self._borrower: object | None = None
        self._waiting = 0

    def takes(self) -> bool:
        """Hold a place if one is free, for the first time; whether it was."""
        borrower = object()
        try:
            self.limiter.acquire_on_behalf_of_nowait(borrower)
        except anyio.WouldBlock:
            return False
        self._borrower = borrower
        return True

    async def take(self) -> None:
        """Hold a place, waiting for one if need be. A limiter refuses a second place to one borrower, so each take is its own."""
        await own_task()
        borrower = object()
        await self.limiter.acquire_on_behalf_of(borrower)
        if self._borrower is None and not self._waiting:
            self._borrower = borrower
        else:  # somebody else took it back first, or is asking again by now
            self.limiter.release_on_behalf_of(borrower)

    def give_back(self) -> None:
        """Let go of the place, if it is held."""
        if self._borrower is not None:
            self.limiter.release_on_behalf_of(self._borrower)
            self._borrower = None

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


def slot_for(limiter: anyio.CapacityLimiter | None, ctx: CallContext) -> Slot | None:
    """A slot to take, or `None` where there is no limit or an outer call holds one of the same limiter.

    A call inside a call (agent → workflow → agent) must not wait for a place that its own caller holds.
    """
    if limiter is None:
        return None
    for wait in ctx.waits:
        if isinstance(wait, Slot) and wait.limiter is limiter:
            return None
    return Slot(limiter)


async def run_within(
    limiter: anyio.CapacityLimiter | None, seconds: float, ctx: CallContext, work: Callable[[CallContext], Awaitable[T]]
) -> T | None:
    """The result of `work` in a slot of `limiter` within `seconds` of working time, or `None` when the time ran out.

    Waiting for the slot or for a person does not count. `work` gets the context that knows of slot and clock.

    Raises:
        AskExpired: A question of it was not answered, which ended it.
    """
    slot = slot_for(limiter, ctx)
    if slot is not None and not slot.takes():
        await slot.take()
    clock, late = CallClock(seconds), ctx.late_clock
    try:
        if late is not None and late.takes(clock, seconds):
            try:
                outcome = await work(ctx.limited(clock, slot))
            except CANCELLED:
                if not clock.is_over:
                    raise
            except GatewayError:
                clock.is_left = True
                if late.is_entered:
                    await own_task()  # the turn in which the scope is left, before another is entered
                raise
            else:
                clock.is_left = True
                if late.is_entered:
                    await own_task()  # the turn in which the scope is left, before another is entered
                return outcome
            finally:
                clock.is_left = True
        else:
            if late is not None:
                await own_task()
            with clock.scope:
                return await work(ctx.limited(clock, slot))
    finally:
        if slot is not None:
            slot.give_back()
    if clock.ended:
        raise AskExpired(clock.ended)
    return None
