"""Linux namespaces for a sandboxed script, and its own root file system, which has the paths the script may read and its working folder.

The root is a `tmpfs` that exists for one run and in one mount namespace only. The readable paths are mounted into it read-only, so that the
script cannot even find out names, modes and times of other files.
"""

from __future__ import annotations

import errno
import os
import struct

from . import NOBODY
from .kernel import LIBC, PR_SET_DUMPABLE, PR_SET_SECUREBITS, call, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import NoReturn

NEW_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000
NEW_NETWORK = 0x40000000
"""`CLONE_NEWNET`, the flag for a new network namespace, which a script without network access gets.

`NEW_ALL` has the flags for the namespaces that every script gets: `CLONE_NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID` (linux/sched.h)."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

SHARED_MEMORY, TEMPORARY = "/dev/shm", "/tmp"
"""Folders that programs expect to be writable. They are created in the script's root file system, whose size is limited."""

_STREAMS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}

_BIND, _RECURSIVE, _PRIVATE, _NO_SET_ID, _NO_DEVICES, _NO_EXECUTION = 0x1000, 0x4000, 0x40000, 0x2, 0x4, 0x8
_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_READ_ONLY_ATTRIBUTES = 0x1 | 0x2 | 0x4
"""`MOUNT_ATTR_RDONLY | NOSUID | NODEV` (linux/mount.h): a read-only mount without set-user-id programs and devices."""

_SPARE_ENTRIES = 512
"""Number of files and folders that a script's root file system may have in addition to the script's own: the mount points."""

_KEEP_CAPABILITIES = 0b100
"""`SECBIT_NO_SETUID_FIXUP`: a process keeps its capabilities when it changes its user (linux/securebits.h)."""

_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS)


def enter_namespaces(*, has_network: bool, as_nobody: bool) -> tuple[str, bool]:
    """Enter new namespaces. Return the reason why that is not possible here (else empty), and whether the user is now `nobody`.

    The next child of this process is the first process of the process namespace. With `as_nobody`, a root process changes to `nobody`
    inside and outside the namespace if the kernel allows it, because the kernel exempts root from the limit on processes. The process keeps
    its capabilities until it starts a program, so that it can still mount paths that only root can reach.

    Raises:
        OSError: Entering failed for another reason than that namespaces are not allowed here.
    """
    uid, gid = os.getuid(), os.getgid()
    mapper = _Mapper() if as_nobody else None
    try:
        call("unshare", NEW_ALL if has_network else NEW_ALL | NEW_NETWORK)
        if mapper is not None and mapper.map():
            _become_nobody()
            return "", True
        for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)
    except OSError as error:
        if error.errno in _REFUSALS:
            return f"user namespaces are not allowed ({error.strerror})", False
        raise
    finally:
        if mapper is not None:
            mapper.end()
    return "", False


class _Mapper:
    """A helper process that maps two users into the new user namespace. Only root outside the namespace may do that."""

    def __init__(self) -> None:
        """Start the helper process. Call `map` after entering the namespace, and `end` in any case."""
        go_on, self._start = os.pipe()
        process = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._start)
            self._write(process, go_on)
        os.close(go_on)

    def _write(self, process: int, go_on: int) -> NoReturn:
        code = 1
        try:
            if os.read(go_on, 1):
                for file in ("uid_map", "gid_map"):
                    with open(f"/proc/{process}/{file}", "w") as handle:
                        handle.write(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                code = 0
        finally:
            os._exit(code)

    def map(self) -> bool:
        """Map the users root and nobody of the namespace to the same users outside. Return false if this is not allowed here."""
        os.write(self._start, b"x")
        return self.end() == 0

    def end(self) -> int:
        """Wait until the helper process has ended and return its exit code."""
        if self._pid:
            os.close(self._start)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
        return self._code


def _become_nobody() -> None:
    """Change user and group to `nobody`, but keep all capabilities in the user namespace until a program is started."""
    call("prctl", PR_SET_SECUREBITS, _KEEP_CAPABILITIES, 0, 0, 0)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", PR_SET_SECUREBITS, 0, 0, 0, 0)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise `disk_usage` cannot read /proc of its children


def become_root_again() -> None:
    """Change the user back from `nobody` to root.

    This is needed if the script has no root file system of its own, because its program may be at a path that only root can reach.
    """
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)


def enter_root(top: str, given: str, own: str, *, read: Sequence[str], max_bytes: int, max_files: int) -> bool:
    """Create a root file system at the empty folder `top`, and make it the root of this process, which becomes the script.

    The files below `given` are copied into the new root, to the folder `work` at the path `own`. The paths `read`, which the script may
    read, are mounted read-only. `max_bytes` and `max_files` limit what the script can write in addition to the copied files. Returns
    whether the new root has a `/proc` (with the processes of this namespace).

    Raises:
        OSError: A mount is not allowed here. The process then still has its old root.
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
        return False  # a container hides parts of its /proc, so the kernel refuses to mount a complete one
    for name, target in _STREAMS.items():
        os.symlink(target, f"{top}/dev/{name}")
    return True


def show_at(folder: str, path: str) -> bool:
    """Make the content of `folder` also available at `path`, by a bind mount. Return false if that is not possible."""
    try:
        os.makedirs(path, exist_ok=True)
        call("mount", os.fsencode(folder), os.fsencode(path), None, _BIND, None)
    except OSError:
        return False
    return True


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the absolute `paths` that exist, without paths that are inside another path in `paths`."""
    found: list[str] = []
    for path in sorted({os.path.normpath(path) for path in paths if path.startswith("/") and os.path.exists(path)}):
        if not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def _show(path: str, top: str, *, is_read_only: bool) -> None:
    """Mount `path` at the same path below the new root `top`, read-only if `is_read_only`."""
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
    """Create the folders `home` and `work` in `own`, and copy the files of `given` to `work`."""
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
    """Return the total size of the files below `given`, each rounded up to whole memory pages, and the number of files and folders.

    Both numbers are added to the limits on what a script may write, because copies of the files count towards these limits.
    """
    size = entries = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for _, folders, files, at in os.fwalk(given):
        entries += len(folders) + len(files)
        size += sum(-(-os.stat(name, dir_fd=at).st_size // page) * page for name in files)
    return size, entries
