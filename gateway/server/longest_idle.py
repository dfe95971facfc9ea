"""`LongestIdle`: finds the connection (`app.connections`) or session (`session_table`) that waits longest.

A search looks at all members once and keeps what it found in order, so that a flood of newcomers costs each of them little.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

RESCAN_SECONDS = 0.1
"""Between two searches, if the last one found only busy members."""


class Waiting(Protocol):
    """A member."""

    def waits(self) -> tuple[int, float] | None:
        """What it waits for (a lower kind gives way first) and since when; `None` while it is busy."""
        ...


W = TypeVar("W", bound=Waiting)


class LongestIdle(Generic[W]):
    """Some members, and those that waited at the last search."""

    __slots__ = ("_empty_at", "_queue", "members")

    def __init__(self) -> None:
        self.members: dict[W, None] = {}
        self._queue: list[tuple[tuple[int, float], W]] = []
        """The next one is the last."""
        self._empty_at = float("-inf")

    def find(self, now: float, *, but: W | None = None) -> W | None:
        """The member that waits longest, `but` for one; each is given once. `now` is the time that `waits` counts in."""
        found = self._next(but)
        if found is None and now - self._empty_at >= RESCAN_SECONDS:
            waiting = [(waits, member) for member in self.members if (waits := member.waits()) is not None]
            self._queue = sorted(waiting, key=lambda entry: entry[0])
            self._queue.reverse()
            found = self._next(but)
            if found is None:
                self._empty_at = now
        return found

    def _next(self, but: W | None) -> W | None:
        while self._queue:
            waited, member = self._queue.pop()
            if member is not but and member in self.members and member.waits() == waited:
                return member
        return None
