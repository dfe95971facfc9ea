"""Waits of a call that was begun without a task: the one that needs none (`PlainWait`), and how it gets a task for all others (`own_task`).

A task, its wake-ups and a cancel scope cost more than the rest of a plain call (performance.md §4). So such a call (`server.underway`)
runs in the callbacks of its connections for as long as it waits for nothing but its server's plain answer. What may need a task on the
way of a call (a cancel scope, a task group, a stream, a lock) awaits `own_task` before; in a task that only gives others a turn.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

CANCELLED = asyncio.CancelledError
"""What a call ends with that is cancelled; anyio tells it in tasks only."""


class PlainWait(asyncio.Future[T]):
    """A future whose waiter may be called at once when it is settled, from wherever that happens."""

    then: Callable[[], None] | None = None
    """Set by a waiter without a task, and called once. A task waits as for every future."""
    is_plain = False
    """Whether what comes after it needs no task, as far as the one who settled it can tell."""

    def settle(self, value: T, *, is_plain: bool) -> None:
        """As `set_result`, unless nobody waits any more. Nothing may come after this where the caller minds what a waiter does."""
        if not self.done():
            self.is_plain = is_plain
            self.set_result(value)
            self._go_on()

    def settle_soon(self, value: T) -> None:
        """As `settle` with a plain value, but whoever waits goes on in the loop's next turn."""
        self.is_plain = True
        self.set_result(value)
        asyncio.get_running_loop().call_soon(self._go_on)

    def fail(self, error: Exception) -> None:
        """As `set_exception`, likewise."""
        if not self.done():
            self.set_exception(error)
            self._go_on()

    def _go_on(self) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()


@types.coroutine
def own_task() -> Generator[None, None, None]:
    """Have a task of one's own from here on."""
    yield
