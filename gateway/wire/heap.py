"""`Heap`: makes glibc keep the freed memory of large messages for reuse, until a second passes without a large message.

By default glibc returns free memory at the end of the heap after every message of a megabyte, and requests it again for the next message.
The system then maps each page again, which took two fifths of the CPU time of a call with a large message. `Heap` has no effect with
another C library.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

KEPT_BYTES = 33_554_432
"""Maximum bytes of free memory that are kept for the next large message."""

BLOCK_BYTES = 8_388_608
"""Largest block that glibc allocates from its heap, and so from the kept memory; glibc maps a larger block separately."""

QUIET_SECONDS = 1.0
"""Seconds without a large message after which all free memory is returned to the system."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of two parameters of glibc's `mallopt`: `M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD`."""


class Heap:
    """Makes the process's C library keep freed memory until a second passes without a large message. Belongs to one event loop."""

    def __init__(self) -> None:
        """Change no settings of the C library yet; the first call of `used` changes them."""
        self._trim: Callable[[], object] | None = None
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """Keep freed memory for another `QUIET_SECONDS`, because a large message was processed."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            if self._trim is None:
                self._trim = _keep()
            self._timer = loop.call_later(QUIET_SECONDS, self._trim_if_quiet)

    def _trim_if_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last + QUIET_SECONDS - loop.time()
        self._timer = loop.call_later(left, self._trim_if_quiet) if left > 0 else None
        if self._timer is None and self._trim is not None:
            self._trim()


def _keep() -> Callable[[], object]:
    """Make the C library keep freed memory. Return a function that gives the free memory back to the system."""
    import ctypes  # only when needed, because loading it takes longer than a call

    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        trim, tune = library.malloc_trim, library.mallopt
        tune(_MMAP_THRESHOLD, BLOCK_BYTES)
        tune(_TRIM_THRESHOLD, KEPT_BYTES)
        return lambda: trim(0)
    return lambda: None
