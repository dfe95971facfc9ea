"""The seam between the gateway and the operating system for the programs that the gateway starts.

`seal_descriptors` prevents these programs from inheriting open files, sockets and pipes: a program inherits only its standard streams.
`tree_of` returns an object that ends a program together with everything that the program started. On POSIX systems this is a process
group, on Windows a job object (`job_objects`).

Decided: every descriptor above 2 is marked close-on-exec before each start of a program. Because: uvloop, unlike asyncio and `subprocess`,
closes no descriptors in the child, so every server and script could read a descriptor that the gateway's own parent left open. Instead of:
closing descriptors when the gateway starts, which would not cover the library inside another program. Revisit when: uvloop implements
`close_fds`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import Protocol

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


class ProcessTree(Protocol):
    """A program that the gateway started, together with every process that the program started."""

    def kill(self) -> None:
        """Kill all processes of the tree. Does nothing if they have ended."""
        ...


class ProcessGroup:
    """The process group of a program that was started with `start_new_session=True` (POSIX systems)."""

    def __init__(self, leader: int) -> None:
        """`leader` is the process id of the program, which is also the number of its process group."""
        self._leader = leader

    def terminate(self) -> bool:
        """Send SIGTERM to every process of the group. Return whether the group still has a process."""
        return self._send(signal.SIGTERM)

    def is_alive(self) -> bool:
        """Return whether the group still has a process."""
        return self._send(0)

    def kill(self) -> None:
        """Send SIGKILL to every process of the group. Does nothing if the group has no process."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> bool:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader, number)
            return True
        return False


def tree_of(process_id: int) -> ProcessTree:
    """Return the tree of a program that was just started with `start_new_session=True`.

    On Windows, call this immediately after the start: processes that the program starts earlier do not belong to the tree. If Windows
    refuses the job, or if the program has ended already, the returned tree has no processes.
    """
    if sys.platform != "win32":
        return ProcessGroup(process_id)
    from gateway.job_objects import JobObject

    job = JobObject()
    with suppress(OSError):
        job.assign(process_id)
    return job
