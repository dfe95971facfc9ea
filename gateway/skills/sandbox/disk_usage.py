"""Measures how much a sandboxed script has written, if it has no file system of its own. The launcher ends a run that exceeds its limits.

The launcher, the program that confines the script, measures up to ten times a second. Deleted files count while they stay on the disk
because of an open descriptor, a mapping, a running program, or a descriptor in a message between processes. The seccomp filter refuses
every other way to keep a deleted file (`seccomp`). Between two measurements a script can write as fast as the disk allows; only a file
system of limited size (`namespaces`) is exact.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SECONDS_BETWEEN = 0.1
"""Seconds between two measurements of what a script has written."""

_BLOCK = 512
"""Bytes per unit of `st_blocks`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MAX_DEPTH = 100
"""Maximum levels of folders that are measured, because measuring opens a descriptor for each level. Deeper folders exceed the limits."""

_DELETED = b" (deleted)\n"
"""End of the line for a deleted file in `/proc/PID/maps`."""


class Usage:
    """Measures the disk space and the number of files that one run of a script uses."""

    def __init__(self, folder: str, launcher: int, *, max_bytes: int, max_files: int, max_file_bytes: int) -> None:
        """Store the limits. `folder` is the only folder that the script can write to.

        `launcher` is the id of the process that started the script and is an ancestor of all processes of the script; with 0, deleted
        files are not counted. `max_file_bytes`, the limit for one file, is used as size of a file of unknown size.
        """
        self._folder = os.path.realpath(folder)
        self._launcher = launcher
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._nameless = _Nameless(self._folder, max_file_bytes)

    def is_exceeded(self) -> bool:
        """Return whether the files in the folder, and deleted files that are still on the disk, exceed the limits.

        Data that cannot be read counts as exceeding the limits: an unreadable folder or process, or descriptors that are in a message to
        another process at two measurements in a row.
        """
        named: dict[int, int] = {}
        try:
            top = os.open(self._folder, _FOLDER)
            try:
                self._measure(top, named, self._max_files, _MAX_DEPTH)
            finally:
                os.close(top)
            if self._nameless.look_at(descendants(self._launcher) if self._launcher else []):
                return True
        except OSError:
            return True
        return sum({**self._nameless.sizes, **named}.values()) > self._max_bytes

    def _measure(self, folder: int, found: dict[int, int], files_left: int, depth_left: int) -> int:
        """Add the size of each file below an open folder to `found` (inode → bytes), and return how many more files the limit allows.

        Raises:
            OSError: The folder cannot be read, or has too many files or levels.
        """
        with os.scandir(folder) as entries:
            for entry in entries:
                files_left -= 1
                if files_left < 0 or depth_left <= 0:
                    raise OSError(errno.E2BIG, "too many files or levels")
                try:
                    status = entry.stat(follow_symlinks=False)
                    found[status.st_ino] = status.st_blocks * _BLOCK
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder) if stat.S_ISDIR(status.st_mode) else -1
                except (FileNotFoundError, NotADirectoryError):
                    continue  # the entry was removed or replaced after it was listed
                if inner >= 0:
                    try:
                        files_left = self._measure(inner, found, files_left, depth_left - 1)
                    finally:
                        os.close(inner)
        return files_left


class _Nameless:
    """Measures deleted files that stay on the disk because a process has them open or mapped.

    A file that was found once counts until the run ends. Otherwise a script could hide a file by passing it from process to process.
    """

    def __init__(self, folder: str, max_file_bytes: int) -> None:
        self.sizes: dict[int, int] = {}
        """Inode of each deleted file found so far → its bytes. The device is ignored, because `maps` and `stat` may name different
        devices."""
        self._start = b" " + os.fsencode(folder) + b"/"
        self._max_file_bytes = max_file_bytes
        self._now: dict[int, int] = {}
        """Inode → bytes at the current measurement: exact for an open file, the largest possible size for a file that is only mapped."""
        self._is_sent = self._was_sent = False

    def look_at(self, processes: Iterable[int]) -> bool:
        """Measure the deleted files of these processes. Return whether files may be hidden in messages between the processes.

        Files may be hidden if descriptors are in a message (sent over a socket and not received yet) both now and at the last measurement.

        Raises:
            PermissionError: The /proc entries of a process cannot be read, so that it may have any file open.
        """
        self._was_sent, self._is_sent = self._is_sent, False
        self._now = {}
        for pid in processes:
            self._add_process(pid)
        self.sizes |= self._now
        return self._was_sent and self._is_sent

    def _add_process(self, pid: int) -> None:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except (FileNotFoundError, ProcessLookupError):
            return  # the process or thread has ended
        has_memory = False
        for thread in threads:  # threads can have separate descriptors, and the first thread may have ended
            place = f"/proc/{pid}/task/{thread}"
            try:
                for number in os.listdir(f"{place}/fd"):
                    self._add_descriptor(place, number)
                if not has_memory:
                    self._add_file(f"{place}/exe")
                    has_memory = self._add_maps(f"{place}/maps")
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process or thread has ended
            except PermissionError:
                if _is_alive(place):
                    raise

    def _add_descriptor(self, place: str, number: str) -> None:
        try:
            kind = self._add_file(f"{place}/fd/{number}")
            if stat.S_ISSOCK(kind):
                with open(f"{place}/fdinfo/{number}", "rb") as file:
                    counts = [int(line.split()[1]) for line in file if line.startswith(b"scm_fds:")]
                self._is_sent = self._is_sent or any(counts)
        except FileNotFoundError:
            pass  # the descriptor was closed after it was listed

    def _add_file(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            self._now[status.st_ino] = status.st_blocks * _BLOCK
        return status.st_mode

    def _add_maps(self, path: str) -> bool:
        """Add the deleted files that a thread has mapped, with their largest possible size.

        `path` is the thread's `maps` file in /proc. Returns whether it lists any memory; an ended thread has none.
        """
        with open(path, "rb") as file:
            lines = file.readlines()
        for line in lines:
            if line.endswith(_DELETED) and self._start in line:
                self._now.setdefault(int(line.split(None, 5)[4]), self._max_file_bytes)
        return bool(lines)


def _is_alive(place: str) -> bool:
    """Return whether a thread is alive. An ended thread has no memory, and its /proc entries belong to root.

    `place` is the thread's folder in /proc.
    """
    try:
        with open(f"{place}/statm", "rb") as file:
            return file.read().split()[0] != b"0"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of process `pid`. Orphans are included if `pid` adopts them (`PR_SET_CHILD_SUBREAPER`)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def count_tasks(pid: int) -> int:
    """Count the threads of all descendants of process `pid`.

    Ended orphans are included, because a script could pass an open file along many of them.
    """
    count = 0
    for process in descendants(pid):
        try:
            count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            count += 1  # the process or thread has ended
    return count


def tasks_of_user() -> int:
    """Count the threads of all processes of this process's user.

    Without a user namespace, the kernel's limit on processes counts these together with the threads of the script.
    """
    uid, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                count += len(os.listdir(f"/proc/{name}/task")) if os.stat(f"/proc/{name}").st_uid == uid else 0
            except OSError:
                continue
    return count
