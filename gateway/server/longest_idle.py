"""`LongestIdle`: finds the connection (`server.connections`) or session (`session_table`) that is idle longest.

A search visits all members once and keeps the idle ones in order for the next calls, so that many new connections in a row cost little.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

RESCAN_SECONDS = 0.1
"""Minimum time between two searches if the last one found only busy members."""


class Waiting(Protocol):
    """A connection or session (a member) that may be idle."""

    def waits(self) -> tuple[int, float] | None:
        """Return the kind of idleness and the time when it began; `None` while the member is busy. Members of lower kinds end first."""
        ...


W = TypeVar("W", bound=Waiting)


class LongestIdle(Generic[W]):
    """A set of connections or sessions (members), with those that were idle at the last search."""

    __slots__ = ("_empty_at", "_queue", "members")

    def __init__(self) -> None:
        self.members: dict[W, None] = {}
        self._queue: list[tuple[tuple[int, float], W]] = []
        """Idle members, longest idle last."""
        self._empty_at = float("-inf")

    def find(self, now: float, *, but: W | None = None) -> W | None:
        """Return the member that is idle longest, except `but`; `None` if all are busy. `now` is the time on the clock of `waits`."""
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
