"""Deadlines of calls: `CallClock` counts working time, `LateClock` defers its enforcement on the server's fast path."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator

import anyio


class CallClock:
    """The deadline of one call, which stops while a person is asked. The gate runs the work inside `scope`."""

    __slots__ = ("_ends_at", "_is_abandoned", "_left", "_paused", "_scope", "ended", "is_left")

    def __init__(self, seconds: float) -> None:
        """The deadline is after `seconds` of working time from now; infinite is allowed."""
        self._ends_at = time.monotonic() + seconds
        self._scope: anyio.CancelScope | None = None
        self._paused = 0
        self._left = seconds
        self._is_abandoned = False
        self.is_left = False
        """Whether the work ended; set only for a clock in a `LateClock`."""
        self.ended = ""
        """Why the call was ended before its deadline; empty if it was not."""

    @property
    def scope(self) -> anyio.CancelScope:
        """The cancel scope that ends the work at the deadline."""
        if self._scope is None:
            self._scope = anyio.CancelScope(deadline=self._ends_at)
        return self._scope

    @property
    def is_over(self) -> bool:
        """Whether the clock cancelled the work, and not the caller."""
        return self._scope is not None and self._scope.cancel_called and not self._is_abandoned

    def abandon(self) -> None:
        """Note that the caller cancels the call."""
        self._is_abandoned = True

    def end(self, reason: str) -> None:
        """End the call now, because a question of it was not answered. The server that asked may not notice that itself."""
        self.ended = reason
        self.scope.cancel()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncGenerator[None, None]:
        """Stop the clock while a person is asked. Several questions may overlap."""
        self._paused += 1
        if self._paused == 1:
            self._left = self._ends_at - time.monotonic()
            self._ends_at = self.scope.deadline = float("inf")
        try:
            yield
        finally:
            self._paused -= 1
            if self._paused == 0:
                self._ends_at = self.scope.deadline = time.monotonic() + self._left


class LateClock:
    """Holds the clock of a call on the server's fast path, whose deadline is enforced from outside if the call is slow.

    Because: entering a cancel scope with a deadline takes 6 µs, 5 % of a plain call, and most calls end long before their deadline.
    """

    __slots__ = ("_is_closed", "_seconds", "clock")

    def __init__(self, seconds: float) -> None:
        """`seconds` is when the server starts to enforce the deadline; a shorter deadline is enforced by the call itself."""
        self._seconds = seconds
        self._is_closed = False
        self.clock: CallClock | None = None
        """The clock that the server enforces."""

    def takes(self, clock: CallClock, seconds: float) -> bool:
        """Return whether the server enforces `clock`, a deadline after `seconds`. True for the first clock of a call only."""
        if self._is_closed or self.clock is not None or seconds <= self._seconds:
            return False
        self.clock = clock
        return True

    def close(self) -> None:
        """Take no clock from now on: the server has begun to enforce."""
        self._is_closed = True
