"""What programs that the gateway starts get from it: `seal_descriptors` keeps open files, sockets and pipes from them.

No program that the gateway starts inherits an open file, socket or pipe except its standard streams.

Decided: every descriptor above 2 of this process is marked close-on-exec before each start of a program. Because uvloop, unlike
asyncio and `subprocess`, closes nothing in the child, so a descriptor that the gateway's own parent left open was readable in every
server and script. Instead of: closing them when the gateway starts, which would not cover the library inside another program.
Revisit when: uvloop implements `close_fds`.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLOSE_RANGE_CLOEXEC = 4
"""Flag of `close_range(2)` since Linux 5.11 (linux/close_range.h)."""

FIRST_SEALED = 3
"""The lowest descriptor that is no standard stream."""

_FOLDERS = ("/proc/self/fd", "/dev/fd")
"""Where a system lists the descriptors of the process that asks: Linux, and macOS and the BSDs."""


def seal_descriptors() -> None:
    """Mark every descriptor above 2 close-on-exec; call it right before a program is started. Costs one system call on Linux.

    A descriptor that the program is meant to inherit is passed as one of its standard streams.
    """
    if sys.platform != "win32" and not _close_range():
        _seal_one_by_one()


def _close_range() -> bool:
    """Whether the kernel marked them all at once."""
    try:
        function = ctypes.CDLL(None).close_range
    except AttributeError:
        return False
    return function(FIRST_SEALED, ctypes.c_uint(0xFFFFFFFF), CLOSE_RANGE_CLOEXEC) == 0


def _seal_one_by_one() -> None:
    for folder in _FOLDERS:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if name.isdigit() and int(name) >= FIRST_SEALED:
                _seal(int(name))
        return


def _seal(number: int) -> None:
    try:
        os.set_inheritable(number, False)
    except OSError:
        pass  # not open, or closed since it was listed
