"""The launcher: a program that confines a script, starts it and watches it. `sandbox` starts it with a socket as standard input.

It reads a `Spec` (the description of the run) from the socket: the length, then the fields in the format of `marshal`, a module that needs
no import from disk. It writes reports to the socket, each as a line of kind, tab and text: `problem` (the sandbox cannot be set up), `gap`
(a weaker confinement is used), `stopped` (the run was ended because of the named limit).

The launcher's own process stays outside of the sandbox: it makes the script's connections, measures what the script writes, and ends
everything when the gateway is gone. Its child process enters the namespaces. The first process in them only waits for the script, because
the kernel ends a process namespace with its first process, and that process must not outlive the launcher. Without namespaces, the child
process itself becomes the script.

A script runs only with this protection: for files its own root file system, a wrapper (bubblewrap) or Landlock (ABI 3); for the network a
namespace or seccomp; for other processes a process namespace or Landlock (ABI 6).
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
"""`SECBIT_NOROOT` and its lock (`SECBIT_NOROOT_LOCKED`), with which a program that root starts gets no capabilities."""

_CHANNEL = 3
"""File descriptor of the socket to the gateway, after the launcher has moved it away from standard input."""

FILES, PROCESSES = 1, 2
"""Bits that stand for the limits on disk usage (`FILES`) and on the number of processes (`PROCESSES`).

The script's process sends the launcher a sum of these bits: the limits that the launcher must enforce, because the kernel does not."""


class _Given:
    """The fields of a `Spec` that was read from the socket, as attributes. The class `Spec` is not imported, to save time."""

    def __init__(self, fields: dict[str, object]) -> None:
        self.__dict__.update(fields)


class Channel:
    """The launcher's socket to the gateway. Reads the description of the run (`Spec`), and sends reports."""

    def __init__(self) -> None:
        """Move the socket away from standard input, and close all inherited descriptors except standard output and error."""
        os.dup2(0, _CHANNEL, inheritable=False)
        system_call("close_range", _CHANNEL + 1, 0xFFFFFFFF, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def spec(self) -> Spec:
        """Read the description of the run (`Spec`) that the gateway sends.

        Raises:
            EOFError: The gateway closed the socket before the whole description arrived.
        """
        size = int.from_bytes(self._read(4), "big")
        return _Given(marshal.loads(self._read(size)))  # type: ignore[return-value]  # the object has the fields of `Spec`

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(_CHANNEL, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def report(self, kind: str, text: str) -> None:
        """Send a report of this `kind` to the gateway. Do nothing if the gateway is gone.

        The kind determines the meaning of `text`. `problem`: why the sandbox cannot be set up, so that the script does not run. `gap`: why
        the script runs with weaker confinement (the system forbids namespaces or mounts). `stopped`: the exceeded limit for which the
        script was killed (`disk` or `processes`).
        """
        try:
            os.write(_CHANNEL, f"{kind}\t{' '.join(text.split())}\n".encode())
        except OSError:
            pass

    def close(self) -> None:
        """Close the socket to the gateway in this process. Copies of the socket in other processes stay open."""
        os.close(_CHANNEL)


def main() -> NoReturn:
    """Set up the sandbox, start the script, wait for its end, and exit with its exit code."""
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
    # Imported only for a script with network access, because the import takes as long as all other imports of the launcher. Imported
    # before `drop_root`, because the user `nobody` may not be able to read the file.
    from . import connection_broker

    return connection_broker.serve


def drop_root() -> None:
    """Change this process permanently to the user `nobody`, because the kernel exempts root from file modes and the limit on processes."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise `uid_map` and `gid_map` of a user namespace cannot be written


# -- in the script's process ---------------------------------------------------------------------------------------


def _become_script(spec: Spec, channel: Channel, launcher: _socket.socket, parent: int) -> NoReturn:
    """Enter the namespaces and drop rights, and then replace this process by the script's program. Never returns.

    With namespaces, the process that becomes the script is a grandchild of this process. `launcher` is the socket to the launcher, `parent`
    the launcher's process id.
    """
    try:
        is_exempt, gap, is_nobody = os.getuid() == 0, "", False
        if not spec.wrapped:
            gap, is_nobody = namespaces.enter_namespaces(has_network=spec.network, as_nobody=spec.nobody_inside and is_exempt)
        _end_with_parent()  # only now, because a process that changes its user loses this setting
        if os.getppid() != parent:
            os._exit(PROBLEM_CODE)  # the launcher ended before `_end_with_parent` took effect
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
    """Fork twice, and return only in the grandchild, the second process of the process namespace.

    The two other processes wait for their child and exit with its exit code.
    """
    for _ in range(2):
        child = os.fork()
        if child:
            channel.close()
            launcher.close()
            _end_like(child)
        _end_with_parent()


def _end_like(child: int) -> NoReturn:
    """Wait for the child process and exit with its exit code.

    Orphans are not waited for, so that they count as processes even after they have ended.
    """
    os._exit(_code_of(os.waitpid(child, 0)[1]))


def _shut_in(spec: Spec, channel: Channel, launcher: _socket.socket, *, gap: str, is_nobody: bool, is_exempt: bool) -> None:
    """Drop every right that the script must not have, and send the launcher the limits that the launcher must enforce.

    `gap` is the reason why this process could not enter namespaces; empty if it did. `is_exempt` is whether the launcher runs as root, so
    that the kernel does not limit the number of its processes. `is_nobody` is whether this process has changed from root to the user
    `nobody`, to which the limit applies.

    Raises:
        Unfit: The remaining protection is below the minimum.
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
    if os.geteuid() == 0:  # this process is in a wrapper, or without namespaces
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
    """Wait for the script, and return its exit code. Kill the whole run if the gateway is gone or a limit is exceeded.

    The limits are those on disk usage and processes that the kernel does not enforce. `script` is the socket to the script's process.
    `serve` makes the connections of a script with network access (`connection_broker.serve`).
    """
    size, entries = namespaces.measure(spec.given)
    max_processes = 2 * spec.limits["NPROC"]  # the limit of the kernel may include other processes of the user
    used = disk_usage.Usage(
        spec.own,
        0 if spec.wrapped else os.getpid(),  # 0 because the wrapper has a file system of limited size
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
            # No process of the run escapes: a process with a pending signal cannot fork, and a namespace ends with its first process.
            os.killpg(0, SIGKILL)
        elif counted & FILES and used.is_exceeded():
            channel.report("stopped", "disk")
            os.killpg(0, SIGKILL)


def _code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit("this program is started by gateway.skills.sandbox.sandbox")
