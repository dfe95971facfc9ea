"""`LongestIdle`: finds the connection or session that has been idle longest. Used by `server.connections` and `server.session_table`.

A search visits all members once, and stores the idle members in order for the next calls, so that many new connections in a row cost
little.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

RESCAN_SECONDS = 0.1
"""Minimum seconds between two searches for an idle connection or session, if the last search found only busy ones."""


class Waiting(Protocol):
    """Interface of a connection or session that may be idle, as `LongestIdle` uses it."""

    def waits(self) -> tuple[int, float] | None:
        """Return the kind of idleness (a number) and the time when it began; `None` while the connection or session is busy.

        Connections or sessions with a lower number are ended first.
        """
        ...


W = TypeVar("W", bound=Waiting)


class LongestIdle(Generic[W]):
    """A set of connections or sessions, in which `find` finds the one that has been idle longest."""

    __slots__ = ("_empty_at", "_queue", "members")

    def __init__(self) -> None:
        self.members: dict[W, None] = {}
        self._queue: list[tuple[tuple[int, float], W]] = []
        """The members that were idle at the last search and were not returned yet, with their idle times; the longest idle is last."""
        self._empty_at = float("-inf")

    def find(self, now: float, *, but: W | None = None) -> W | None:
        """Return the member that has been idle longest, among those with the lowest kind of idleness (`Waiting.waits`).

        Return `None` if all members are busy, or were busy less than `RESCAN_SECONDS` ago. The member `but` is never returned. `now` is the
        current time on the clock that the members' `waits` use.
        """
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
