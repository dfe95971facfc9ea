"""The clock by which processes that share a database judge the times in it, because the clocks of their machines may differ by minutes.

Without a shared database, it is the clock of this machine. With one (`storage.url`), it is the clock of the database, as last measured by
`Records` when it opened the database, and by the `ChangeFeed` each second since. Between two measurements it follows this machine's
monotonic clock, so that setting the machine's clock changes nothing.

Decided: one clock per process. Because: a process uses one shared database, and times pass through many functions that know none. Instead
of: a clock in each store. Revisit when: a process serves several gateways with databases of their own.
"""

from __future__ import annotations

import time

_measured: list[tuple[float, float]] = []
"""The last measured time of the database, and the monotonic time at which it was measured; empty without a shared database."""


def shared_now() -> float:
    """Return the current time in seconds since the epoch, to store in the database or to compare with a time in it."""
    if not _measured:
        return time.time()
    clock, at = _measured[0]
    return clock + time.monotonic() - at


def note_shared_clock(clock: float, at: float) -> None:
    """Use the database's clock from now on. `clock` is its time at the monotonic time `at` of this process."""
    _measured[:] = [(clock, at)]


def forget_shared_clock() -> None:
    """Use this machine's clock from now on, because the shared database was closed."""
    _measured.clear()
