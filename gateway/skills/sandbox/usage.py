"""What a run without a file system of its own has written: the launcher looks again and again, and ends a run that wrote too much.

Also counts files that are open and have no name any more, so nothing hides from the count. Between two looks a script can write as much
as the disk takes; only a file system of limited size (`root`) is exact.
"""

from __future__ import annotations

import os
import stat

SECONDS_BETWEEN = 0.1
"""Between two looks."""

_BLOCK = 512
"""Unit of `st_blocks`."""


def is_exceeded(folder: str, launcher: int, *, max_bytes: int, max_files: int) -> bool:
    """Whether `folder`, and nameless files that processes below `launcher` hold open, have more than is allowed.

    A folder that the launcher cannot read counts as too much: nobody could say what is in it.
    """
    size = files = 0
    try:
        for _, folders, names, at in os.fwalk(folder, onerror=_raise):
            files += len(folders) + len(names)
            if files > max_files:
                return True
            size += sum(_blocks(name, at) for name in names)
    except PermissionError:
        return True
    except OSError:
        return False  # something went away while it was looked at; the next look counts again
    return size + _nameless(descendants(launcher)) > max_bytes


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _blocks(name: str, at: int) -> int:
    try:
        return os.stat(name, dir_fd=at, follow_symlinks=False).st_blocks * _BLOCK
    except FileNotFoundError:
        return 0


def _nameless(processes: list[int]) -> int:
    """Bytes of files without a name that these processes have open, each counted once."""
    found: dict[tuple[int, int], int] = {}
    for pid in processes:
        try:
            for number in os.listdir(f"/proc/{pid}/fd"):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                    found[status.st_dev, status.st_ino] = status.st_blocks * _BLOCK
        except OSError:
            continue  # the process ended
    return sum(found.values())


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
