"""Kernel calls for which Python has no function, and the numbers of system calls on the two supported processors.

This module is part of the launcher, the program that confines and starts a script, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
"""False at run time, as in `typing`, and true for type checkers.

Defined here, because importing `typing` takes as long as everything else in the launcher, the program that starts a script.
"""
if TYPE_CHECKING:
    from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECUREBITS = 1, 4, 28
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

MACHINE = os.uname().machine
"""Type of this machine's processor, as the kernel names it (`x86_64`)."""

MACHINES = ("x86_64", "aarch64")
"""Types of the supported processors, as the kernel names them. The tuples in `NUMBERS` (numbers of system calls) have this order."""

NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bind": (49, 200),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close_range": (436, 436),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "fallocate": (285, 47),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "futimesat": (261, None),
    "init_module": (175, 105),
    "inotify_add_watch": (254, 27),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_add_rule": (445, 445),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "lchown": (94, None),
    "listen": (50, 201),
    "listmount": (458, 458),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "sendmmsg": (307, 269),
    "sendmsg": (46, 211),
    "sendto": (44, 206),
    "setns": (308, 268),
    "setpgid": (109, 154),
    "setpriority": (141, 140),
    "setsid": (112, 157),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "statmount": (457, 457),
    "swapon": (167, 224),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
"""Name of a system call → its number on each processor type in `MACHINES`; `None` if that processor has no such call.

The numbers are those of asm/unistd_64.h and asm-generic/unistd.h."""

NEWEST = 469
"""Highest system call number that is covered by `NUMBERS`. System calls with higher numbers are refused."""


class Unfit(Exception):
    """Raised if the sandbox cannot be set up as requested. The message is the reason."""


def is_known_machine() -> bool:
    """Return whether `NUMBERS` has the system calls of this machine's processor. If not, the sandbox cannot run scripts."""
    return MACHINE in MACHINES


def number_of(name: str) -> int | None:
    """Return the number of the system call `name`, a key of `NUMBERS`, on this machine's processor; `None` if it has no such call.

    The processor must be one of `MACHINES`.
    """
    return NUMBERS[name][MACHINES.index(MACHINE)]


def call(name: str, *arguments: Any) -> None:
    """Call the libc function `name`, which must return 0 for success. Raises `OSError` if it fails."""
    if getattr(LIBC, name)(*arguments) != 0:
        raise _failure(name)


def system_call(name: str, *arguments: Any) -> int:
    """Make the system call `name`, for calls that libc may have no function for, and return its result.

    Raises:
        OSError: The call failed, or its number on this processor is unknown.
    """
    number = number_of(name) if is_known_machine() else None
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: unknown on {MACHINE}")
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise _failure(name)
    return int(result)


def _failure(name: str) -> OSError:
    return OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
