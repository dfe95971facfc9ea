"""`JobObject`: a Windows job object, which ends a program together with every process that the program started.

`processes` imports this module, and only on Windows. Tests on other systems check the layout of the structures and the order of the calls;
no test runs the calls themselves.

Decided: the functions of kernel32 are called with `ctypes`. Because: six functions are needed, and Windows has no process groups that can
be killed. Instead of: `pywin32`, which has no types and is a dependency of the MCP SDK, not of Moongate. Revisit when: a dependency of
Moongate offers job objects.
"""

from __future__ import annotations

import ctypes
from typing import Any

KILL_ON_JOB_CLOSE = 0x2000
"""Flag `JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE`: the system ends the job's processes when the last handle of the job is closed.

The system closes the handles of a process that ends, also if the process was killed.
"""

EXTENDED_LIMIT_INFORMATION = 9
"""Value of `JOBOBJECTINFOCLASS` for the structure `ExtendedLimits`."""

_SET_QUOTA_AND_TERMINATE = 0x0100 | 0x0001
"""Rights to a process that `AssignProcessToJobObject` needs: `PROCESS_SET_QUOTA` and `PROCESS_TERMINATE`."""

_windows: Any = ctypes
"""The module `ctypes` with the functions that it has only on Windows."""

_EXIT_CODE = 1
"""Exit code of processes that are ended with their job, as of `TerminateProcess` in Python's `Popen.kill`."""


class BasicLimits(ctypes.Structure):
    """The structure `JOBOBJECT_BASIC_LIMIT_INFORMATION` of winnt.h: 64 bytes on 64-bit systems. Only `flags` is set."""

    _fields_ = (
        ("process_user_time", ctypes.c_int64),
        ("job_user_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("minimum_working_set", ctypes.c_size_t),
        ("maximum_working_set", ctypes.c_size_t),
        ("active_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_class", ctypes.c_uint32),
        ("scheduling_class", ctypes.c_uint32),
    )


class ExtendedLimits(ctypes.Structure):
    """The structure `JOBOBJECT_EXTENDED_LIMIT_INFORMATION` of winnt.h: 144 bytes on 64-bit systems. Only `basic` is set."""

    _fields_ = (
        ("basic", BasicLimits),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


def kill_on_close() -> ExtendedLimits:
    """Return the limits of a job whose processes end when the last handle of the job is closed."""
    return ExtendedLimits(basic=BasicLimits(flags=KILL_ON_JOB_CLOSE))


class JobObject:
    """A job: processes that end together. A process that a process of the job starts belongs to the job, too.

    A process that was started before its parent was assigned stays outside. The job's processes end when this object is released.
    """

    def __init__(self) -> None:
        """Prepare a job without processes. The system creates it at the first `assign`."""
        self._kernel = _kernel32()
        self._handle = 0

    def assign(self, process_id: int) -> None:
        """Add a running process to the job.

        Raises:
            OSError: The system refuses the job, or the process has ended or belongs to another user.
        """
        if not self._handle:
            self._create()
        process = _checked(self._kernel.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, process_id))
        try:
            _checked(self._kernel.AssignProcessToJobObject(self._handle, process))
        finally:
            self._kernel.CloseHandle(process)

    def _create(self) -> None:
        self._handle = _checked(self._kernel.CreateJobObjectW(None, None))
        limits = kill_on_close()
        size = ctypes.sizeof(limits)
        try:
            _checked(self._kernel.SetInformationJobObject(self._handle, EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size))
        except OSError:
            self.close()
            raise

    def kill(self) -> None:
        """End every process of the job."""
        if self._handle:
            self._kernel.TerminateJobObject(self._handle, _EXIT_CODE)

    def close(self) -> None:
        """Close the handle of the job, which ends its processes."""
        handle, self._handle = self._handle, 0
        if handle:
            self._kernel.CloseHandle(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()


def _kernel32() -> Any:
    """Load kernel32, and declare the functions whose arguments or results are handles, because `ctypes` would cut them to 32 bits."""
    kernel: Any = _windows.WinDLL("kernel32", use_last_error=True)
    handle, number = ctypes.c_void_p, ctypes.c_uint32
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "CreateJobObjectW": (handle, (ctypes.c_void_p, ctypes.c_wchar_p)),
        "SetInformationJobObject": (ctypes.c_int, (handle, ctypes.c_int, ctypes.c_void_p, number)),
        "AssignProcessToJobObject": (ctypes.c_int, (handle, handle)),
        "TerminateJobObject": (ctypes.c_int, (handle, number)),
        "OpenProcess": (handle, (number, ctypes.c_int, number)),
        "CloseHandle": (ctypes.c_int, (handle,)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernel, name)
        function.restype, function.argtypes = result, arguments
    return kernel


def _checked(result: int | None) -> int:
    """Return the result of a function of kernel32. Raises `OSError` with the system's reason if the result is 0 or a null handle."""
    if not result:
        raise _windows.WinError(_windows.get_last_error())
    return result
