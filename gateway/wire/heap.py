"""`Heap`: memory of large messages is kept for the next one, and given back to the system when none comes.

Of its own the C library gives back what it has free at its end, and takes it again, with every message of a megabyte: the system
hands out each page anew, which took two fifths of the processor time of such a call. Where the library has no such settings (it is
not glibc) nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

KEPT_BYTES = 33_554_432
"""Free memory up to this is kept meanwhile."""

BLOCK_BYTES = 8_388_608
"""A block up to this is taken from what is kept; a larger one is the system's."""

QUIET_SECONDS = 1.0
"""Without a large message; then all that is free is given back."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`."""


class Heap:
    """Of the process; belongs to one event loop."""

    def __init__(self) -> None:
        """Nothing is changed before the first large message."""
        self._trim: Callable[[], object] | None = None
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """A large message was here."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            if self._trim is None:
                self._trim = _keep()
            self._timer = loop.call_later(QUIET_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last + QUIET_SECONDS - loop.time()
        self._timer = loop.call_later(left, self._look) if left > 0 else None
        if self._timer is None and self._trim is not None:
            self._trim()


def _keep() -> Callable[[], object]:
    """Have the C library keep what is freed; what gives it back."""
    import ctypes  # not before it is needed: it takes longer to load than a call

    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        trim, tune = library.malloc_trim, library.mallopt
        tune(_MMAP_THRESHOLD, BLOCK_BYTES)
        tune(_TRIM_THRESHOLD, KEPT_BYTES)
        return lambda: trim(0)
    return lambda: None
