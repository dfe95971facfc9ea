"""The seccomp filter of a sandboxed script. It determines which system calls fail, and which report success without effect.

The calls `connect` and `bind` of a script with network access are answered by the launcher, the program that confines the script.

Decided: a list of refused system calls; calls that are newer than the list are refused, too. Because: interpreters need several hundred
calls, which differ between versions, so a list of allowed calls would break scripts at every upgrade.

Calls that change mode, time and owner of files (`PRETENDED`) report success and change nothing, because `cp -p`, `tar`, `git init`, `touch`
and Python's `shutil.copy` end with an error if such a call fails. Nothing depends on the real result: the script runs in a copy of the
skill that is deleted after the run. Modes and owners only protect against other users, and no other user has access. Calls on extended
attributes fail as on a file system without such attributes (`EOPNOTSUPP`), which these programs expect. Calls newer than the list,
`clone3` and those of Landlock fail as unknown calls (`ENOSYS`), and refused `ioctl` requests as unsupported ones (`ENOTTY`). Other refused
calls fail with `EPERM`, unless stated.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from .kernel import MACHINE, NEWEST, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, Unfit, number_of, system_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ATTRIBUTES = (
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
    "file_setattr",
)
"""System calls that change extended attributes and flags of a file, even of a file that the script may not open. They fail with
`EOPNOTSUPP`."""

PRETENDED = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat", "utimensat"),
    *("chown", "fchown", "fchownat", "lchown"),
)
"""System calls that change mode, time or owner of a file. They report success, and change nothing."""

UNBOUNDED = (
    *("memfd_create", "memfd_secret", "mq_open", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd"),
    *("semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmget"),
)
"""Refused system calls for memory that no limit counts, and for System V IPC and message queues, which outlive the run."""

OTHERS = (
    *("acct", "add_key", "bpf", "chroot", "delete_module", "fanotify_init", "fanotify_mark", "finit_module", "fsconfig", "fsmount"),
    *("fsopen", "fspick", "init_module", "inotify_add_watch", "io_uring_setup", "kcmp", "kexec_file_load", "kexec_load", "keyctl"),
    *("listmount", "migrate_pages", "mount", "mount_setattr", "move_mount", "move_pages", "name_to_handle_at", "open_by_handle_at"),
    *("open_tree", "open_tree_attr", "perf_event_open", "pidfd_getfd", "pivot_root", "process_madvise", "process_mrelease"),
    *("process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot", "request_key", "setns", "statmount"),
    *("swapon", "umount2", "unshare", "userfaultfd"),
)
"""Refused system calls for tracing, mounting, modules, keys, namespaces, watching, file handles, and calls that bypass the
filter."""

LANDLOCK = ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self")
"""System calls of Landlock. For a script, they fail as on a kernel without Landlock, because a Landlock rule keeps a deleted file on the
disk where `disk_usage` cannot see it."""

GROUPS = ("setpgid", "setsid")
"""System calls that leave the process group. Refused without a process namespace, because a run is then ended by killing its process
group."""

OF_PROCESSES = {
    **dict.fromkeys(("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"), 0),
    **dict.fromkeys(("ioprio_set", "setpriority"), 1),
}
"""System call on a process → position of the process id in its arguments. Without a process namespace only id 0, the calling process, is
allowed."""

FILE_IOCTLS = (0x66, 0x76, 0x58, 0x94, 0xF5)
"""Refused kinds of `ioctl` requests, by their second byte: requests on files and file systems (`f`, `v`, `X`, btrfs, f2fs) for flags,
verity, encryption and projects."""

CLONE_FLAGS = 0x7E020000 | 0x8000
"""Refused flags of `clone`: every `CLONE_NEW…`, and `CLONE_PARENT` (linux/sched.h), with which a script could get rid of its orphaned
processes."""

THREAD, SHARED_FILES = 0x10000, 0x400
"""`CLONE_THREAD` and `CLONE_FILES`. A thread without `CLONE_FILES` is refused, so that all threads of a process share their descriptors."""

FAMILIES = (2, 10, 16)
"""Socket families that a script with network access may use: `AF_INET`, `AF_INET6`, and `AF_NETLINK`, with which libc reads the machine's
addresses."""

PROTOCOLS = (0, 1, 6, 17, 58, 262)
"""Allowed protocols of sockets: default, ICMP, TCP, UDP, ICMPv6, MPTCP. SCTP is left out because it connects by messages, and protocols of
netlink because they can list sockets."""

LOCAL = 1
"""`AF_UNIX`. A script can create sockets of this family only as connected pairs (`socketpair`)."""

PAIRED, SOCKET_TYPE = (1, 5), 0xF
"""Allowed types of a socket pair (`SOCK_STREAM` and `SOCK_SEQPACKET`, which can reach only each other), and the mask of the type in the
argument."""

FASTOPEN = {"sendto": 3, "sendmsg": 2, "sendmmsg": 3}
MSG_FASTOPEN = 0x20000000
"""Flag that makes a first message open a connection. Refused (`EOPNOTSUPP`), so that every connection is a `connect` call. `FASTOPEN`
maps each system call with flags to the position of the flags in its arguments."""

# Constants of linux/filter.h, linux/seccomp.h and linux/audit.h.
_LOAD, _AND, _EQUAL, _AT_LEAST, _SET, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL, _NOTIFY = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_CALLS = 0x40000000
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5

_Line = tuple[int, int, int, int]
"""One instruction of the filter (BPF): code, jump if true, jump if false, operand."""

_SUCCESS, _EPERM, _ENOSYS = _ERRNO, _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS


def install(*, is_apart: bool, has_network: bool) -> int | None:
    """Install the filter for this thread and its children.

    With `has_network`, return the descriptor from which the launcher receives the script's `bind` and `connect` calls; otherwise `None`.
    `is_apart` is whether the script is in a process namespace of its own, which hides other processes.

    Raises:
        Unfit: The kernel cannot pass the `bind` and `connect` calls to the launcher.
        OSError: The kernel does not accept a filter.
    """
    code = program(is_apart=is_apart, has_network=has_network)
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    filter_program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(packed)))
    if not has_network:
        system_call("seccomp", _SET_MODE_FILTER, 0, filter_program)
        return None
    try:
        return system_call("seccomp", _SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE, filter_program)
    except OSError as error:
        raise Unfit(f"connections cannot be checked: the kernel does not pass them on ({error.strerror})") from None


def program(*, is_apart: bool, has_network: bool) -> list[_Line]:
    """Return the filter as BPF instructions. The parameters are those of `install`."""
    code: list[_Line] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _ARCHITECTURES[MACHINE]), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    if MACHINE == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32_CALLS), (_RETURN, 0, 0, _EPERM)]
    code += [(_AT_LEAST, 0, 1, NEWEST + 1), (_RETURN, 0, 0, _ENOSYS)]
    code += _answer(("clone3",), _ENOSYS)  # its flags are in memory, which a filter cannot read; libc then uses `clone`
    code += _answer(LANDLOCK, _ENOSYS)
    code += _answer(PRETENDED, _SUCCESS)
    code += _answer(ATTRIBUTES, _ERRNO | errno.EOPNOTSUPP)
    code += _answer((*UNBOUNDED, *OTHERS), _EPERM)
    is_apart_thread = [(_LOAD, 0, 0, _argument(0)), (_AND, 0, 0, THREAD | SHARED_FILES), (_EQUAL, 0, 1, THREAD), (_RETURN, 0, 0, _EPERM)]
    code += _on("clone", _unless_set(0, CLONE_FLAGS), is_apart_thread)
    code += _on("ioctl", _unless_file_request())
    code += _on("fallocate", _only(1, (0,), errno.EOPNOTSUPP))  # because space beyond the end of a file is not part of its size
    hides = [(_EQUAL, 0, 1, PR_SET_DUMPABLE), (_RETURN, 0, 0, _SUCCESS)]  # would prevent `disk_usage` from reading /proc
    adopts = [(_EQUAL, 0, 1, PR_SET_CHILD_SUBREAPER), (_RETURN, 0, 0, _EPERM)]
    code += _on("prctl", [(_LOAD, 0, 0, _argument(0))], hides, adopts)
    code += _on("socketpair", _only(0, (LOCAL,)), _only(1, PAIRED, mask=SOCKET_TYPE))
    code += _answer(("listen",), _EPERM)
    if has_network:
        code += _on("socket", _only(0, FAMILIES), _only(2, PROTOCOLS))
        code += _answer(("bind", "connect"), _NOTIFY)
        for name, at in FASTOPEN.items():
            code += _on(name, _unless_set(at, MSG_FASTOPEN, errno.EOPNOTSUPP))
    else:
        code += _answer(("bind", "connect", "socket"), _EPERM)
    if not is_apart:
        code += _answer(GROUPS, _EPERM)
        for name, at in OF_PROCESSES.items():
            code += _on(name, _only(at, (0,)))
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _answer(names: tuple[str, ...], answer: int) -> list[_Line]:
    """Return instructions that end the filter with the result `answer` for the system calls `names`."""
    numbers = [number for name in names if (number := number_of(name)) is not None]
    return [line for number in numbers for line in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer))]


def _on(name: str, *conditions: list[_Line]) -> list[_Line]:
    """Return instructions that allow the system call `name`, unless one of the conditions ends the filter with another result first."""
    number = number_of(name)
    body = [line for condition in conditions for line in condition] + [(_RETURN, 0, 0, _ALLOW)]
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _only(at: int, values: Sequence[int], error: int = errno.EPERM, *, mask: int = 0xFFFFFFFF) -> list[_Line]:
    """Return a condition for `_on`: the call fails with `error` unless an argument, masked with `mask`, is one of `values`.

    `at` is the position of the argument, counted from 0. Only the lower 32 bits of the argument are compared.
    """
    jumps = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(_LOAD, 0, 0, _argument(at)), (_AND, 0, 0, mask), *jumps, (_RETURN, 0, 0, _ERRNO | error)]


def _argument(at: int) -> int:
    """Return the offset of argument number `at` in the filter's data about a call.

    It is the offset of the lower 32 bits, because both supported processors are little-endian.
    """
    return 16 + 8 * at


def _unless_set(at: int, flags: int, error: int = errno.EPERM) -> list[_Line]:
    return [(_LOAD, 0, 0, _argument(at)), (_SET, 0, 1, flags), (_RETURN, 0, 0, _ERRNO | error)]


def _unless_file_request() -> list[_Line]:
    kinds = [(_EQUAL, len(FILE_IOCTLS) - at, 0, kind << 8) for at, kind in enumerate(FILE_IOCTLS)]
    tail = [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.ENOTTY)]
    return [(_LOAD, 0, 0, _argument(1)), (_AND, 0, 0, 0xFF00), *kinds, *tail]
