"""`seal_descriptors`: prevents programs that the gateway starts from inheriting open files, sockets and pipes.

A program that the gateway starts inherits only its standard streams.

Decided: every descriptor above 2 is marked close-on-exec before each start of a program. Because: uvloop, unlike asyncio and `subprocess`,
closes no descriptors in the child, so every server and script could read a descriptor that the gateway's own parent left open. Instead of:
closing descriptors when the gateway starts, which would not cover the library inside another program. Revisit when: uvloop implements
`close_fds`.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLOSE_RANGE_CLOEXEC = 4
"""Flag of `close_range(2)` since Linux 5.11 (linux/close_range.h)."""

FIRST_SEALED = 3
"""The lowest file descriptor that is marked close-on-exec; lower descriptors are the standard streams."""

_FOLDERS = ("/proc/self/fd", "/dev/fd")
"""Folders that list the open file descriptors of the process that reads them, on Linux, and on macOS and the BSDs."""


def seal_descriptors() -> None:
    """Mark every file descriptor above 2 close-on-exec. Call it immediately before starting a program.

    On Linux 5.11 or later this takes one system call; on Windows the function does nothing.

    To let the program inherit a descriptor, pass the descriptor as one of the program's standard streams.
    """
    if sys.platform != "win32" and not _close_range():
        _seal_one_by_one()


def _close_range() -> bool:
    """Mark all file descriptors above 2 close-on-exec with one system call (Linux 5.11 or later). Return whether the call succeeded."""
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
        pass  # not open, or closed in the meantime
