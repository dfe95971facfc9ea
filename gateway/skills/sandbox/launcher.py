"""Shuts itself in, then becomes the script. Started as a program: `python -I -S launcher.py SPEC STATUS_FD`.

`SPEC` is JSON (`gateway.skills.sandbox.run` writes it). What goes wrong before the script starts is written to the
status descriptor, which closes at the moment the script starts. Standard library only, and no import of this package.

In order: namespaces (user, mount, network, IPC, host name, processes), limits, no new privileges, Landlock, seccomp.
The floor: files by Landlock (ABI 3, so that nothing is truncated either) or an isolating wrapper; no network by a
namespace or seccomp; no signals by a process namespace or Landlock (ABI 6).
"""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)

NEW_ALL = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
"""`CLONE_NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET` (linux/sched.h)."""

NOBODY = 65534
"""Our user inside: not root, so that starting the script drops every capability of the namespace."""

MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID_NODEV_NOEXEC = 0x1000, 0x4000, 0x40000, 0x2 | 0x4 | 0x8
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22

# Landlock (linux/landlock.h)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, IOCTL_DEV = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
TCP, SCOPES = 0b11, 0b11

# Seccomp (linux/filter.h, linux/audit.h)
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NAMESPACE_FLAGS = 0x7E020000
CALLS: dict[str, dict[str, Any]] = {
    "x86_64": {
        "arch": 0xC000003E,
        "socket": 41,
        "clone": 56,
        "group": (109, 112),
        "refused": (
            *(101, 155, 161, 163, 165, 166, 167, 169, 175, 176, 179, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 312, 313),
            *(320, 321, 323),
        ),
    },
    "aarch64": {
        "arch": 0xC00000B7,
        "socket": 198,
        "clone": 220,
        "group": (154, 157),
        "refused": (
            *(117, 41, 51, 89, 40, 39, 224, 142, 105, 106, 60, 104, 217, 218, 219, 97, 241, 265, 268, 270, 271, 272, 273),
            *(294, 280, 282),
        ),
    },
}
"""System calls that a script has no use for: tracing, mounting, modules, keys, namespaces, other processes' memory."""

REFUSED_EVERYWHERE = (425, 428, 429, 430, 431, 432, 433, 438, 442)
"""`io_uring_setup`, the new mount calls, `pidfd_getfd`: one number on every architecture."""

CLONE3 = 435


class Unfit(Exception):
    """The sandbox cannot be set up as asked."""


def call(name: str, *arguments: Any) -> None:
    """A libc function that returns -1 for failure."""
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def drop_root() -> None:
    """Become nobody for good: the kernel exempts root from the limit on processes, and from file modes."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else the maps of a user namespace could not be written


def enter_namespaces() -> bool:
    """Whether this process is now in namespaces of its own; the next child is the first process of its own tree."""
    uid, gid = os.getuid(), os.getgid()
    try:
        call("unshare", NEW_ALL)
        for file, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {uid} 1"), ("gid_map", f"{NOBODY} {gid} 1")):
            with open(f"/proc/self/{file}", "w") as handle:
                handle.write(text)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def mount(spec: dict[str, Any]) -> bool:
    """Show the copy where the skill is, and only our own processes in `/proc`; whether the latter worked."""
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    shown = spec.get("shown")
    if shown and LIBC.mount(os.fsencode(spec["cwd"]), os.fsencode(shown), None, MS_BIND | MS_REC, None) == 0:
        spec["cwd"] = shown
    return LIBC.mount(b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None) == 0


def limit(limits: dict[str, int]) -> None:
    """Set resource limits by their names in `resource`, without the `RLIMIT_`."""
    for name, value in {**limits, "CORE": 0}.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 for none."""
    return max(0, LIBC.syscall(CREATE_RULESET, None, 0, 1))


def landlock(abi: int, read: list[str], write: list[str], has_network: bool) -> None:
    """Allow reading and executing below `read`, everything below `write`, and nothing else."""
    handled = ALL_BY_ABI[min(abi, 5)]
    attributes = struct.pack("QQQ", handled, 0 if has_network else TCP, SCOPES)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = LIBC.syscall(CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        raise Unfit(f"Landlock refuses the rules: {os.strerror(ctypes.get_errno())}")
    for paths, access in ((read, EXECUTE | READ_FILE | READ_DIR), (write, handled)):
        for path in paths:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            allowed = (access if os.path.isdir(path) else access & OF_FILES) & handled
            if LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, place), 0) != 0:
                raise Unfit(f"Landlock refuses a rule for {path}: {os.strerror(ctypes.get_errno())}")
            os.close(place)
    if LIBC.syscall(RESTRICT_SELF, ruleset, 0) != 0:
        raise Unfit(f"Landlock refuses to start: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def seccomp(keep_group: bool, has_network: bool) -> bool:
    """Refuse the calls that a script has no use for; whether this machine's are known."""
    known = CALLS.get(platform.machine())
    if known is None:
        return False
    refuse, missing = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    code = [(LOAD, 0, 0, 4), (JUMP_EQUAL, 1, 0, known["arch"]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    if platform.machine() == "x86_64":
        code += [(JUMP_AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, refuse)]
    code += [(JUMP_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, missing)]
    for number in (*known["refused"], *REFUSED_EVERYWHERE, *(known["group"] if keep_group else ())):
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    if has_network:
        families = [(JUMP_EQUAL, 3 - at, 0, family) for at, family in enumerate((2, 10, 16))]  # internet, and netlink for its names
        code += [(JUMP_EQUAL, 0, 6, known["socket"]), (LOAD, 0, 0, 16), *families, (RETURN, 0, 0, refuse), (RETURN, 0, 0, ALLOW)]
    else:
        code += [(JUMP_EQUAL, 0, 1, known["socket"]), (RETURN, 0, 0, refuse)]
    code += [(JUMP_EQUAL, 0, 3, known["clone"]), (LOAD, 0, 0, 16), (JUMP_SET, 0, 1, NAMESPACE_FLAGS), (RETURN, 0, 0, refuse)]
    code += [(RETURN, 0, 0, ALLOW)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(packed))
    call("prctl", PR_SET_SECCOMP, 2, program, 0, 0)
    return True


def become(spec: dict[str, Any], in_namespaces: bool) -> None:
    """Shut this process in and start the script in its place. Returns only by raising."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    abi, wrapped = landlock_abi(), bool(spec["wrapped"])
    apart = in_namespaces or wrapped
    read = list(spec["read"])
    if in_namespaces and mount(spec):
        read.append("/proc")
    if not (wrapped or abi >= 3):
        raise Unfit(f"Landlock is missing or too old (ABI {abi}, 3 is needed)")
    if not (apart or abi >= 6):
        raise Unfit("neither a process namespace nor Landlock ABI 6 keeps the script from signalling other processes")
    os.chdir(spec["cwd"])
    limit(spec["limits"])
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if abi:
        landlock(abi, read, [*spec["write"], spec["cwd"]], spec["network"])
    if not seccomp(not apart, spec["network"]) and not (apart and not spec["network"]):
        raise Unfit(f"the system calls of {platform.machine()} are not known, so the network cannot be closed")
    os.execve(spec["argv"][0], spec["argv"], spec["env"])


def main() -> int:
    """Set up, start the script, and end as it ends."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    status = int(sys.argv[2])
    os.set_inheritable(status, False)
    try:
        if spec["nobody"]:
            drop_root()
        in_namespaces = not spec["wrapped"] and not spec["network"] and enter_namespaces()
        child = os.fork() if in_namespaces else 0
        if child == 0:
            become(spec, in_namespaces)
    except (Unfit, OSError) as error:
        os.write(status, str(error).encode())
        os._exit(125)
    os.close(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended) if not os.WIFSIGNALED(ended) else 128 + os.WTERMSIG(ended)


if __name__ == "__main__":
    os._exit(main())
