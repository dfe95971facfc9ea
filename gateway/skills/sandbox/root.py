"""Namespaces of a script and its own file system: a new root with only what it may read, its copy, and a limit on all of it.

The root is a `tmpfs` of limited size that exists for this run and in this mount namespace only. What the script may read is mounted
into it read-only, so names, modes and times of everything else cannot even be asked for.
"""

from __future__ import annotations

import errno
import os
import struct

from . import NOBODY
from .kernel import LIBC, call, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEW_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000
NEW_NETWORK = 0x40000000
"""`CLONE_NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID`, and `CLONE_NEWNET` (linux/sched.h)."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

SHARED_MEMORY, TEMPORARY = "/dev/shm", "/tmp"
"""Folders that programs expect to be able to write to. They are part of the limited file system."""

_STREAMS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}

_BIND, _RECURSIVE, _PRIVATE, _NO_SET_ID, _NO_DEVICES, _NO_EXECUTION = 0x1000, 0x4000, 0x40000, 0x2, 0x4, 0x8
_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_READ_ONLY_ATTRIBUTES = 0x1 | 0x2 | 0x4
"""`MOUNT_ATTR_RDONLY | NOSUID | NODEV` (linux/mount.h)."""

_SPARE_ENTRIES = 512
"""Folders and files that the launcher itself makes in the root to mount on."""

_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS)


def enter_namespaces(*, has_network: bool) -> str:
    """Enter namespaces of this run's own; returns why that is not possible here, or an empty text.

    The next child is the first process of the process namespace.
    """
    uid, gid = os.getuid(), os.getgid()
    try:
        call("unshare", NEW_ALL if has_network else NEW_ALL | NEW_NETWORK)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)
    except OSError as error:
        if error.errno in _REFUSALS:
            return f"user namespaces are not allowed ({error.strerror})"
        raise
    return ""


def enter_root(top: str, given: str, own: str, *, read: Sequence[str], max_bytes: int, max_files: int) -> bool:
    """Make a new root at the empty folder `top`, with the files of `given` in `own/work`, and make it this process's.

    `max_bytes` and `max_files` bound what is written beside these files. Returns whether `/proc` is there, with the processes of this
    namespace.

    Raises:
        OSError: A mount is not allowed here. The process still has its old root then.
    """
    size, entries = measure(given)
    call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    options = f"size={max_bytes + size},nr_inodes={max_files + entries + _SPARE_ENTRIES},mode=755"
    call("mount", b"tmpfs", os.fsencode(top), b"tmpfs", _NO_SET_ID | _NO_DEVICES, options.encode())
    for path in outermost(real for given_path in read for real in (given_path, os.path.realpath(given_path))):
        _show(path, top, is_read_only=True)
    for path in DEVICES:
        _show(path, top, is_read_only=False)
    for path in (SHARED_MEMORY, TEMPORARY):
        os.makedirs(top + path, 0o777, exist_ok=True)
    has_processes = _mount_processes(top)
    fill(given, top + own)
    os.chdir(top)
    system_call("pivot_root", b".", b".")
    call("umount2", b".", _DETACH)
    os.chdir("/")
    return has_processes


def _mount_processes(top: str) -> bool:
    os.makedirs(f"{top}/proc", exist_ok=True)
    flags = _NO_SET_ID | _NO_DEVICES | _NO_EXECUTION
    if LIBC.mount(b"proc", os.fsencode(f"{top}/proc"), b"proc", flags, None) != 0:
        return False  # a container hides parts of its own, and the kernel allows no second one that would show them
    for name, target in _STREAMS.items():
        os.symlink(target, f"{top}/dev/{name}")
    return True


def show_at(folder: str, path: str) -> bool:
    """Make `folder` also appear at `path`; false if that is not possible."""
    try:
        os.makedirs(path, exist_ok=True)
        call("mount", os.fsencode(folder), os.fsencode(path), None, _BIND, None)
    except OSError:
        return False
    return True


def outermost(paths: Iterable[str]) -> list[str]:
    """Absolute paths that exist, without those inside another one."""
    found: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if path.startswith("/") and os.path.exists(path)}):
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _show(path: str, top: str, *, is_read_only: bool) -> None:
    """Mount what is at `path` at the same path below `top`."""
    target = top + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
    call("mount", os.fsencode(path), os.fsencode(target), None, _BIND | _RECURSIVE, None)
    if is_read_only:
        attributes = struct.pack("QQQQ", _READ_ONLY_ATTRIBUTES, 0, 0, 0)
        system_call("mount_setattr", _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, len(attributes))


def fill(given: str, own: str) -> None:
    """Make the folders `work`, with a copy of the files of `given`, and `home` in `own`."""
    for name in ("work", "home"):
        os.makedirs(f"{own}/{name}", 0o700)
    for folder, folders, files, at in os.fwalk(given):
        target = f"{own}/work{folder[len(given) :]}"
        for name in folders:
            os.mkdir(f"{target}/{name}", 0o700)
        for name in files:
            _copy(name, at, f"{target}/{name}")


def _copy(name: str, at: int, target: str) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    status = os.fstat(source)
    copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, status.st_mode & 0o700)
    while os.sendfile(copy, source, None, status.st_size or 1):
        pass
    os.close(copy)
    os.close(source)


def measure(given: str) -> tuple[int, int]:
    """Bytes, in whole pages, and number of the files and folders below `given`."""
    size = entries = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for _, folders, files, at in os.fwalk(given):
        entries += len(folders) + len(files)
        size += sum(-(-os.stat(name, dir_fd=at).st_size // page) * page for name in files)
    return size, entries
