"""Counts what a run without a file system of its own has written: the launcher looks again and again, and ends a run that wrote too much.

Deleted files count if anything keeps them on the disk: an open descriptor, a mapping, a program that runs, or a message between processes
that carries a descriptor. Nothing else can keep one, because the filter refuses it (`filters`). Between two looks a script can
write as much as the disk takes; only a file system of limited size (`root`) is exact.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SECONDS_BETWEEN = 0.1
"""Between two looks."""

_BLOCK = 512
"""Unit of `st_blocks`."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MAX_DEPTH = 100
"""Levels of folders; the launcher opens a descriptor for each."""

_DELETED = b" (deleted)\n"
"""End of the line of a nameless file in `/proc/PID/maps`."""


class Usage:
    """What one run uses of the disk."""

    def __init__(self, folder: str, launcher: int, *, max_bytes: int, max_files: int, max_file_bytes: int) -> None:
        """`folder` is all that the run can write to. The run's processes are those below `launcher`; 0 leaves out nameless files.

        `max_file_bytes` is the largest size of a file, which counts for one whose size cannot be asked for.
        """
        self._folder = os.path.realpath(folder)
        self._launcher = launcher
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._nameless = _Nameless(self._folder, max_file_bytes)

    def is_exceeded(self) -> bool:
        """Whether the files of the folder, and deleted files, are more than is allowed.

        Whatever the launcher cannot look at counts as too much: a folder, a process, and descriptors that are sent to another process and
        not received at two looks.
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
        """Add the bytes of the files below an open folder, by inode; returns the number of files that may still be there.

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
                    continue  # it went away, or something else took its place, while it was looked at
                if inner >= 0:
                    try:
                        files_left = self._measure(inner, found, files_left, depth_left - 1)
                    finally:
                        os.close(inner)
        return files_left


class _Nameless:
    """Files without a name that processes keep, or have kept, on the disk.

    Each counts until the run ends. Else a script could hide one by handing it on from process to process between two looks.
    """

    def __init__(self, folder: str, max_file_bytes: int) -> None:
        self.sizes: dict[int, int] = {}
        """Bytes by inode. The files of a run are on one file system; `maps` names another device than `stat` does on some of these."""
        self._start = b" " + os.fsencode(folder) + b"/"
        self._max_file_bytes = max_file_bytes
        self._now: dict[int, int] = {}
        """Bytes by inode at this look: the size by a descriptor comes before the largest possible one."""
        self._is_sent = self._was_sent = False

    def look_at(self, processes: Iterable[int]) -> bool:
        """Add the files of these processes; returns whether descriptors are in a message now and were in one at the last look.

        Raises:
            PermissionError: A process cannot be looked at, so it may keep any file.
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
            return  # it ended
        has_memory = False
        for thread in threads:  # each may have descriptors of its own, and the first may have ended
            place = f"/proc/{pid}/task/{thread}"
            try:
                for number in os.listdir(f"{place}/fd"):
                    self._add_descriptor(place, number)
                if not has_memory:
                    self._add_file(f"{place}/exe")
                    has_memory = self._add_maps(f"{place}/maps")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended
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
            pass  # closed meanwhile

    def _add_file(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
            self._now[status.st_ino] = status.st_blocks * _BLOCK
        return status.st_mode

    def _add_maps(self, path: str) -> bool:
        """Count mapped files that no descriptor keeps as large as may be; false if the thread has no memory any more."""
        with open(path, "rb") as file:
            lines = file.readlines()
        for line in lines:
            if line.endswith(_DELETED) and self._start in line:
                self._now.setdefault(int(line.split(None, 5)[4]), self._max_file_bytes)
        return bool(lines)


def _is_alive(place: str) -> bool:
    """Whether a thread has memory. One that ends has none, and belongs to root from then on."""
    try:
        with open(f"{place}/statm", "rb") as file:
            return file.read().split()[0] != b"0"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> list[int]:
    """Processes that `pid` started, and those that they did. Complete if `pid` adopts orphans (`PR_SET_CHILD_SUBREAPER`)."""
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
    """Number of threads of the processes below `pid`. An orphan that ended counts: a script could hand a file on through many of them."""
    count = 0
    for process in descendants(pid):
        try:
            count += len(os.listdir(f"/proc/{process}/task"))
        except OSError:
            count += 1  # it ended
    return count


def tasks_of_user() -> int:
    """Threads that this user has now, which the kernel counts together with those of a script that has no user namespace."""
    uid, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                count += len(os.listdir(f"/proc/{name}/task")) if os.stat(f"/proc/{name}").st_uid == uid else 0
            except OSError:
                continue
    return count
