"""`CallerQueues`: queues of waiting calls, one per caller, served in rotation.

The queues have no lock and wake no waiter: `gate.slot`, `upstream.turns` and `upstream.large` decide when a call is served.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class CallerQueues(Generic[T]):
    """Waiters by caller. Callers are served in rotation, the waiters of one caller first come, first served.

    A caller without waiters is not kept. A new caller is served after those that wait already.
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}
        """Ordered by turn: the next caller is first."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        """Number of waiters."""
        return sum(map(len, self._queues.values()))

    def add(self, caller: str, waiter: T) -> None:
        """Add a waiter behind all others of its caller."""
        queue = self._queues.get(caller)
        if queue is None:
            queue = self._queues[caller] = deque()
        queue.append(waiter)

    def discard(self, caller: str, waiter: T) -> bool:
        """Remove a waiter that gave up. Returns whether it was waiting."""
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
        """Remove and return the waiter whose turn it is. There must be one."""
        return self.serve(next(iter(self._queues)))
