"""The launcher: a program that confines a script, starts it and watches it. `sandbox` starts it with a socket as standard input.

It reads a `Spec` from the socket: the length, then the fields in the format of `marshal`, which needs no import. It writes reports, each a
line of kind, tab and text: `problem` (the sandbox cannot be set up), `gap` (a weaker confinement is used), `stopped` (the run was ended,
and the limit).

This process stays outside: it makes the script's connections, measures what the script writes, and ends everything when the gateway is
gone. Its child enters the namespaces. The first process in them waits for the script, because the kernel ends a process namespace with
its first process, and that process must not outlive the launcher. Without namespaces the child becomes the script.

The minimum: files are protected by an own root file system, a wrapper (bubblewrap) or Landlock (ABI 3); the network by a namespace or
seccomp; other processes by a process namespace or Landlock (ABI 6).
"""

from __future__ import annotations

import _socket
import _thread
import marshal
import os
import resource
import select
import struct
import sys

from . import NOBODY, disk_usage, landlock, namespaces, seccomp
from .kernel import (
    MACHINE,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    PR_SET_SECUREBITS,
    Unfit,
    call,
    is_known_machine,
    system_call,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .spec import Spec

SIGKILL = 9

PROBLEM_CODE = 125
"""Exit code of the launcher if the script could not be started."""

NO_ROOT_PRIVILEGES = 0b11
"""`SECBIT_NOROOT` and its lock (`SECBIT_NOROOT_LOCKED`): a program that root starts gets no capabilities."""

_CHANNEL = 3
"""File descriptor to which the launcher moves its socket to the gateway."""

FILES, PROCESSES = 1, 2
"""Limits (disk usage, processes) that the launcher must enforce if the kernel does not. The script's process sends their sum."""


class _Given:
    """An object with the fields of a `Spec`, which was read from the socket. The class `Spec` itself is not imported, to save time."""

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


class Channel:
    """The socket to the gateway: reads the `Spec`, sends reports."""

    def __init__(self) -> None:
        """Move the socket away from standard input, and close all inherited descriptors except standard output and error."""
        os.dup2(0, _CHANNEL, inheritable=False)
        system_call("close_range", _CHANNEL + 1, 0xFFFFFFFF, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def spec(self) -> Spec:
        """Read the description of the run (`Spec`) that the gateway sends. Raises `EOFError`."""
        size = int.from_bytes(self._read(4), "big")
        return _Given(marshal.loads(self._read(size)))  # type: ignore[return-value]  # it has these fields

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(_CHANNEL, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def report(self, kind: str, text: str) -> None:
        """Send a report; do nothing if the gateway is gone."""
        try:
            os.write(_CHANNEL, f"{kind}\t{' '.join(text.split())}\n".encode())
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket to the gateway in this process; other processes keep theirs."""
        os.close(_CHANNEL)


def main() -> NoReturn:
    """Set up the sandbox, start the script, and exit with its exit code."""
    if not is_known_machine():
        sys.exit(f"unsupported processor {MACHINE}: its system calls are unknown")
    channel = Channel()
    try:
        spec = channel.spec()
        serve = _connecting() if spec.network else None
        if spec.nobody:
            drop_root()
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        ours, theirs = _socket.socketpair()
        launcher = os.getpid()
        child = os.fork()
        if child == 0:
            ours.close()
            _become_script(spec, channel, theirs, launcher)
    except (Unfit, OSError, EOFError) as error:
        channel.report("problem", str(error))
        os._exit(PROBLEM_CODE)
    theirs.close()
    os._exit(_watch(spec, child, channel, ours, serve=serve))


def _connecting() -> Callable[[int], None]:
    # Only with a network, because its imports take as long as the rest; before `drop_root`, because nobody may be unable to read the file.
    from . import connection_broker

    return connection_broker.serve


def drop_root() -> None:
    """Change this process to the user `nobody` for good: the kernel exempts root from file modes and from the limit on processes."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # else the maps of a user namespace could not be written


# -- in the script's process ---------------------------------------------------------------------------------------


def _become_script(spec: Spec, channel: Channel, launcher: _socket.socket, parent: int) -> NoReturn:
    """Confine this process, or with namespaces its grandchild in them, and replace it by the script's program."""
    try:
        is_exempt, gap, is_nobody = os.getuid() == 0, "", False
        if not spec.wrapped:
            gap, is_nobody = namespaces.enter_namespaces(has_network=spec.network, as_nobody=spec.nobody_inside and is_exempt)
        _end_with_parent()  # not earlier: a process that changes its user loses this setting
        if os.getppid() != parent:
            os._exit(PROBLEM_CODE)  # the launcher ended before this process was tied to it
        if not gap and not spec.wrapped:
            _go_on_inside(channel, launcher)
        _shut_in(spec, channel, launcher, gap=gap, is_nobody=is_nobody, is_exempt=is_exempt)
        os.execve(spec.argv[0], list(spec.argv), spec.env)
    except (Unfit, OSError) as error:
        channel.report("problem", str(error))
    os._exit(PROBLEM_CODE)


def _end_with_parent() -> None:
    call("prctl", PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def _go_on_inside(channel: Channel, launcher: _socket.socket) -> None:
    """Fork twice and return in the grandchild, the second process of the namespace. Its parents wait and exit with its exit code."""
    for _ in range(2):
        child = os.fork()
        if child:
            channel.close()
            launcher.close()
            _end_like(child)
        _end_with_parent()


def _end_like(child: int) -> NoReturn:
    """Wait for a child and exit with its exit code. Waits for no orphans, so that they count as processes even after they ended."""
    os._exit(_code_of(os.waitpid(child, 0)[1]))


def _shut_in(spec: Spec, channel: Channel, launcher: _socket.socket, *, gap: str, is_nobody: bool, is_exempt: bool) -> None:
    """Drop every right that the script must not have. `gap` is why this process could not enter namespaces; empty if it did.

    `is_exempt`: the launcher runs as root, so the kernel does not limit the number of its processes. `is_nobody`: this process has changed
    from root to the user `nobody`, for which the limit holds.
    """
    abi = landlock.version()
    is_apart = not gap
    has_root = has_processes = spec.wrapped
    work, home = f"{spec.own}/work", f"{spec.own}/home"
    if is_apart and not spec.wrapped:
        try:
            has_processes = namespaces.enter_root(
                spec.top, spec.given, spec.own, read=spec.read, max_bytes=spec.max_bytes, max_files=spec.max_files
            )
            has_root = True
        except OSError as error:
            gap = f"mounts are not allowed in a user namespace ({error.strerror})"
            if is_nobody:
                namespaces.become_root_again()
                _end_with_parent()
                is_nobody = False
    if gap and not spec.may_fall_back:
        raise Unfit(gap)
    if gap:
        channel.report("gap", gap)
    if gap or spec.wrapped:
        namespaces.fill(spec.given, spec.own)
    if not has_root and abi < landlock.ENOUGH_FOR_FILES:
        raise Unfit(f"{gap}, and Landlock is missing or too old (ABI {abi}, {landlock.ENOUGH_FOR_FILES} is needed)")
    if not is_apart and abi < landlock.ENOUGH_FOR_SIGNALS:
        raise Unfit(f"{gap}, and Landlock ABI {abi} does not keep a script from signalling other processes")
    if spec.shown and has_root and not spec.wrapped and namespaces.show_at(work, spec.shown):
        work = spec.shown
    os.chdir(work)
    others = 0 if is_apart else disk_usage.tasks_of_user()
    _limit({**spec.limits, "NPROC": spec.limits["NPROC"] + others, "CORE": 0})
    if os.geteuid() == 0:  # in a wrapper, or without namespaces
        call("prctl", PR_SET_SECUREBITS, NO_ROOT_PRIVILEGES, 0, 0, 0)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if abi:
        own_places = (namespaces.SHARED_MEMORY, namespaces.TEMPORARY) if has_root and not spec.wrapped else ()
        read = [*spec.read, "/proc"] if has_processes else spec.read
        landlock.restrict(abi, read, [work, home, *namespaces.DEVICES, *own_places], has_network=spec.network)
    listener = seccomp.install(is_apart=is_apart, has_network=spec.network)
    counted = (0 if has_root and not spec.wrapped else FILES) | (PROCESSES if is_exempt and not is_nobody else 0)
    descriptors = [] if listener is None else [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener))]
    launcher.sendmsg([bytes([counted])], descriptors)


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


# -- in the launcher -----------------------------------------------------------------------------------------------


def _watch(spec: Spec, child: int, channel: Channel, script: _socket.socket, *, serve: Callable[[int], None] | None) -> int:
    """Wait for the script and return its exit code. Kills the whole run if the gateway is gone or one of the limits here is exceeded.

    `serve` makes the connections of a script with network access (`connection_broker.serve`).
    """
    size, entries = namespaces.measure(spec.given)
    max_processes = 2 * spec.limits["NPROC"]  # the kernel's limit may include others of the user
    used = disk_usage.Usage(
        spec.own,
        0 if spec.wrapped else os.getpid(),  # the wrapper's file system counts bytes
        max_bytes=spec.max_bytes + size,
        max_files=spec.max_files + entries,
        max_file_bytes=spec.limits["FSIZE"],
    )
    ended = os.pidfd_open(child)
    events = select.poll()
    for source in (ended, _CHANNEL, script.fileno()):
        events.register(source, select.POLLIN)
    counted = 0
    while True:
        ready = {descriptor for descriptor, _ in events.poll(disk_usage.SECONDS_BETWEEN * 1000 if counted else None)}
        if ended in ready:
            return _code_of(os.waitpid(child, 0)[1])
        if _CHANNEL in ready:
            os.killpg(0, SIGKILL)
        if script.fileno() in ready:
            events.unregister(script.fileno())
            sent, descriptors, _, _ = script.recvmsg(1, _socket.CMSG_SPACE(struct.calcsize("i")))
            counted = int.from_bytes(sent, "big")
            for _, _, packed in descriptors:
                assert serve is not None
                _thread.start_new_thread(serve, struct.unpack("i", packed))
        elif counted and disk_usage.count_tasks(os.getpid()) > max_processes:
            channel.report("stopped", "processes")
            os.killpg(0, SIGKILL)  # no process escapes: one with a pending signal cannot fork, and a namespace ends with its first process
        elif counted & FILES and used.is_exceeded():
            channel.report("stopped", "disk")
            os.killpg(0, SIGKILL)


def _code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit("this program is started by gateway.skills.sandbox.sandbox")
