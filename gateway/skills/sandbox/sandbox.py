"""`Sandbox`: runs a program confined and without input, limits its output, and ends all its processes.

It handles programs and folders only; `scripts` uses it for scripts of skills. Linux only: on other systems `probe` returns a reason.
"""

from __future__ import annotations

import logging
import marshal
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from time import perf_counter

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from gateway.errors import SkillError
from gateway.gate.concurrency import Limiter
from gateway.processes import ProcessGroup, seal_descriptors
from gateway.skills.sandbox import NOBODY
from gateway.skills.sandbox.spec import Spec

logger = logging.getLogger(__name__)

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
"""Paths that every program in the sandbox may read and execute. Scripts do not need the other files of `/etc`."""

CERTIFICATE_PATHS = ("/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ca-certificates")
NETWORK_PATHS = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/run/systemd/resolve")

SAFE_PATH = "/usr/local/bin:/usr/bin:/bin"

CUT = "\n[… output cut here]\n"

KILL_SECONDS = 5.0
"""Seconds to wait for the end of a killed process. A disk that does not respond can delay it."""

SEND_SECONDS = 10.0
"""Timeout in seconds for sending the description of a run (`Spec`) to the launcher, the program that starts the script."""

_LAUNCHER = Path(__file__).parent
_START = f"import sys; sys.path.append({str(_LAUNCHER.parent)!r}); from {_LAUNCHER.name}.launcher import main; main()"

_PROBE = """
import os, socket, sys
def refused(work):
    try:
        work()
    except OSError:
        return True
    return False
outside, pid = sys.argv[1], int(sys.argv[2])
checks = {
    "reading outside": lambda: open(outside).close(),
    "shortening outside": lambda: os.truncate(outside, 0),
    "the network": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9)),
    "signals": lambda: os.kill(pid, 0),
}
for change in (lambda: os.chmod(outside, 0o666), lambda: os.utime(outside, (0, 0)), lambda: open(outside + ".new", "w").close()):
    refused(change)  # some seem to succeed, so the gateway compares the files afterwards
print("open: " + ", ".join(name for name, work in checks.items() if not refused(work)))
open("inside", "w").close()
"""

_NETWORK_PROBE = """
import errno, socket, sys
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagram.connect(("127.0.0.1", 9))
stream = socket.socket()
print("answer: " + errno.errorcode.get(stream.connect_ex(("127.0.0.1", int(sys.argv[1]))), "none"))
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run of a program in the sandbox."""

    seconds: float = 30.0
    memory_bytes: int = 512 * 1024 * 1024
    """Maximum memory of each process."""
    file_bytes: int = 64 * 1024 * 1024
    """Maximum size of each file that the program writes."""
    disk_bytes: int = 128 * 1024 * 1024
    """Maximum size of all files that the program writes, not counting the copy of its folder."""
    disk_files: int = 10_000
    """Maximum number of files and folders that the program creates."""
    processes: int = 64
    files: int = 64
    """Maximum number of files that each process has open at the same time."""
    output_bytes: int = 256 * 1024
    """Maximum bytes of standard output, and of standard error, that are stored; further output is dropped."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program to run in the sandbox, in a copy of a folder."""

    argv: Sequence[str]
    """The program and its arguments. `argv[0]` is an absolute path."""
    files: Mapping[str, bytes]
    """Content of the working folder, by relative path. The program gets a copy, which is deleted afterwards."""
    shown_at: str = ""
    """Path of the folder with the original `files`. The program finds its copy at this path, too, if the machine allows it."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    read_paths: Sequence[str] = ()
    network: bool = False
    caller: str = ""
    """Id of the principal for which the program runs."""
    needs_address_space: bool = False
    """Whether the runtime (Node) reserves far more memory than it uses. If so, its address space is not limited, only its data."""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """The result of a run of a program: exit code, output, and limits that it exceeded."""

    exit_code: int
    """Exit code of the program. If a signal killed the program, 128 plus the number of the signal."""
    stdout: str
    stderr: str
    timed_out: bool
    is_cut: bool
    """Whether output beyond `Limits.output_bytes` was dropped."""
    milliseconds: int
    stopped: str
    """The limit for which the run was ended, `disk` or `processes`; else empty, also after the time limit (`timed_out`)."""
    gap: str
    """Reason why the program could see names and attributes of files outside the copy of its job's files; empty if it could not."""

    @property
    def is_over_disk(self) -> bool:
        """Whether the run was ended because the program wrote too much."""
        return self.stopped == "disk"


class Sandbox:
    """Runs programs confined, at most `concurrency` at the same time, with a fair queue per caller. Call `probe` first."""

    def __init__(self, limits: Limits | None = None, *, concurrency: int = 4, wrapper_path: str = SAFE_PATH, python: str = "") -> None:
        """Store the settings. No program runs before `probe` or `run`.

        `wrapper_path` is the search path for bubblewrap, which is used if the launcher (which confines the program) may not create
        namespaces. `python` is the interpreter for the test programs, by default the one of this process. Pass the interpreter that runs
        scripts: if the gateway runs as root, the result of `probe` depends on whether every user can execute the interpreter.
        """
        self._wrapper_path = wrapper_path
        self._python = os.path.realpath(python) if python else python_path()
        self.limits = limits or Limits()
        self._limiter = Limiter(concurrency)
        self._wrapper = ""
        self.gap = ""
        """Reason why programs can see names and attributes of files outside the copy of their job's files; empty if they cannot."""
        self._may_fall_back = True

    async def probe(self) -> str:
        """Run test programs to select a kind of sandbox that works here. Return the reason if no kind works; empty if programs can run.

        The kinds are, in order of preference, namespaces that the launcher creates, namespaces that bubblewrap creates, and Landlock.
        If the selected kind hides the names of files outside the sandbox, `run` refuses a program from which it cannot hide them.
        """
        self._may_fall_back = True
        reason = await self._choose()
        self._may_fall_back = bool(self.gap)
        return reason

    async def _choose(self) -> str:
        if not sys.platform.startswith("linux"):
            return f"the sandbox does not support {sys.platform}"
        reason, self.gap = await self._probe_once()
        wrapper = shutil.which("bwrap", path=self._wrapper_path)
        if not (reason or self.gap) or not wrapper:
            return reason
        self._wrapper = wrapper
        why_not_wrapped, _ = await self._probe_once()
        if not why_not_wrapped:
            self.gap = ""
            return ""
        if not reason:
            self._wrapper = ""
        return reason and why_not_wrapped

    async def _probe_once(self) -> tuple[str, str]:
        """Run a test program in the sandbox, and return two reasons, each empty if it does not apply.

        The first is why no program can run with the current wrapper (bubblewrap or none), the second is why a program can see names of
        files outside the sandbox.
        """
        with tempfile.TemporaryDirectory(prefix="moongate-probe-") as folder:
            outside = f"{folder}/outside"
            before = _state_of(folder, outside)
            ran = await self._try(_PROBE, outside, str(os.getpid()))
            after = _state_of(folder, outside)
        if isinstance(ran, str):
            return ran, ""
        if ran.exit_code != 0 or not ran.stdout.startswith("open: "):
            ended = "was too slow" if ran.timed_out else "wrote too much" if ran.is_over_disk else f"failed with exit code {ran.exit_code}"
            return f"a test run {ended}: {(ran.stderr or ran.stdout).strip()[-300:]}", ""
        leaks = ran.stdout.removeprefix("open: ").strip() or ("changing files outside" if before != after else "")
        return f"a test run could do what the sandbox must prevent: {leaks}" if leaks else "", ran.gap

    async def probe_network(self) -> str:
        """Test that a program with network access cannot connect to this machine. Return why no such program can run; empty if it can."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ran = await self._try(_NETWORK_PROBE, str(listener.getsockname()[1]), network=True)
        if isinstance(ran, str):
            return ran
        if ran.stdout.strip() != "answer: EACCES":
            said = (ran.stderr or ran.stdout).strip()[-300:]
            return f"a test run could do what the sandbox must prevent, connecting to this machine: {said}"
        return ""

    async def _try(self, code: str, *arguments: str, network: bool = False) -> FinishedJob | str:
        job = Job((self._python, "-B", "-c", code, *arguments), {}, read_paths=prefixes_of(self._python), network=network)
        try:
            return await self.run(job)
        except SkillError as error:
            return str(error)

    async def run(self, job: Job) -> FinishedJob:
        """Run a program until it ends or exceeds a limit, and return its result. Its child processes end with it.

        Raises:
            SkillError: The sandbox cannot be set up (code `sandbox`).
        """
        async with self._limiter.slot(job.caller), AsyncExitStack() as stack:
            folder = await anyio.to_thread.run_sync(tempfile.mkdtemp, None, "moongate-skill-")
            stack.push_async_callback(_remove, folder)
            as_nobody = self._is_root and is_open_to_all(job.argv[0]) and is_open_to_all(os.path.dirname(folder))
            await anyio.to_thread.run_sync(_stage, folder, job.files, as_nobody)
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            try:
                seal_descriptors()
                process = await anyio.open_process(
                    self._command(job, folder), stdin=theirs.fileno(), stdout=PIPE, stderr=PIPE, env={}, start_new_session=True
                )
            except OSError as error:
                raise SkillError(f"The sandbox cannot be started: {error}.", code="sandbox") from None
            finally:
                theirs.close()
            stack.push_async_callback(_end, process)
            spec = self._spec(job, folder, as_nobody=as_nobody)
            await anyio.to_thread.run_sync(_send, ours, spec)
            return await self._follow(process, ours)

    @property
    def _is_root(self) -> bool:
        """Whether the launcher, which starts the program, runs as root and can change its user. In bubblewrap, there is only one user."""
        return os.geteuid() == 0 and not self._wrapper

    def _command(self, job: Job, folder: str) -> list[str]:
        launcher = [python_path(), "-I", "-S", "-c", _START]
        if not self._wrapper:
            return launcher
        given = sum(len(data) + 4096 for data in job.files.values())
        return [*wrapper_command(self._wrapper, job, folder, self.limits.disk_bytes + given), *launcher]

    def _spec(self, job: Job, folder: str, *, as_nobody: bool) -> Spec:
        own = f"{folder}/own"
        return Spec(
            argv=list(job.argv),
            env={"PATH": SAFE_PATH, "LANG": "C.UTF-8", "HOME": f"{own}/home", "TMPDIR": f"{own}/home", **job.environment},
            given=f"{folder}/given",
            own=own,
            top=f"{folder}/top",
            shown=job.shown_at,
            read=readable(job),
            limits=self._rlimits(job),
            max_bytes=self.limits.disk_bytes,
            max_files=self.limits.disk_files,
            network=job.network,
            nobody=as_nobody,
            nobody_inside=self._is_root and not as_nobody and is_open_to_all(job.argv[0], shown=readable(job)),
            may_fall_back=self._may_fall_back,
            wrapped=bool(self._wrapper),
        )

    def _rlimits(self, job: Job) -> dict[str, int]:
        limits = self.limits
        found = {
            "CPU": max(1, int(limits.seconds) + 1),
            "DATA": limits.memory_bytes,
            "FSIZE": limits.file_bytes,
            "NPROC": limits.processes,
            "NOFILE": limits.files,
        }
        return found if job.needs_address_space else {**found, "AS": limits.memory_bytes}

    async def _follow(self, process: Process, launcher: socket.socket) -> FinishedJob:
        started = perf_counter()
        assert process.stdout is not None and process.stderr is not None
        outputs = [_Kept(process.stdout, self.limits.output_bytes), _Kept(process.stderr, self.limits.output_bytes)]
        with anyio.move_on_after(self.limits.seconds) as clock:
            async with anyio.create_task_group() as tasks:
                for output in outputs:
                    tasks.start_soon(output.drain)
                await process.wait()
                # Processes that the program left behind would keep the pipes open, so they are killed now.
                _kill(process)
        timed_out = clock.cancelled_caught
        if timed_out:
            _kill(process)
        with anyio.move_on_after(KILL_SECONDS):
            await process.wait()
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        took = round((perf_counter() - started) * 1000)
        reports = _reports(launcher)
        if "problem" in reports:
            raise SkillError(f"The sandbox cannot be set up: {reports['problem']}.", code="sandbox")
        return FinishedJob(
            exit_code=128 - code if code < 0 else code,
            stdout=outputs[0].text(),
            stderr=outputs[1].text(),
            timed_out=timed_out,
            is_cut=any(output.is_cut for output in outputs),
            milliseconds=took,
            stopped=reports.get("stopped", ""),
            gap=reports.get("gap", ""),
        )


class _Kept:
    """Stores the first part of an output stream. The rest is read and dropped, so that the program does not block."""

    def __init__(self, stream: ByteReceiveStream, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._data = bytearray()
        self.is_cut = False

    async def drain(self) -> None:
        try:
            async for chunk in self._stream:
                room = self._limit - len(self._data)
                self._data += chunk[:room]
                self.is_cut = self.is_cut or len(chunk) > room
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass

    def text(self) -> str:
        return self._data.decode("utf-8", errors="replace") + (CUT if self.is_cut else "")


def _state_of(folder: str, file: str) -> tuple[object, ...]:
    """Return what a test program must not be able to change: the names in `folder`, and the mode and time of `file`.

    Creates the file if it is missing.
    """
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
    status = os.stat(file)
    return sorted(os.listdir(folder)), status.st_mode, status.st_mtime_ns


def readable(job: Job) -> list[str]:
    """Return the paths that a job's program may read, besides the copy of the job's files."""
    return [*SYSTEM_PATHS, *CERTIFICATE_PATHS, *(NETWORK_PATHS if job.network else ()), *job.read_paths]


def wrapper_command(wrapper: str, job: Job, folder: str, max_bytes: int) -> list[str]:
    """Return bubblewrap's command line, to be followed by that of the launcher, the program that confines and starts the job's program.

    Bubblewrap creates namespaces and a root file system with the program's readable paths. Only a file system of `max_bytes` is writable.
    """
    command = [wrapper, "--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev"]
    command += ["--share-net"] if job.network else []
    for path in dict.fromkeys([*readable(job), *prefixes_of(python_path()), str(_LAUNCHER), f"{folder}/given"]):
        command += ["--ro-bind-try", path, path]
    command += ["--size", str(max_bytes), "--tmpfs", f"{folder}/own", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", f"{folder}/own", "--"]


def _stage(folder: str, files: Mapping[str, bytes], as_nobody: bool) -> None:
    """Write the job's files below `folder`, read-only, to be copied for the program. With `as_nobody`, they belong to the user `nobody`."""
    for name in ("given", "top"):
        os.mkdir(f"{folder}/{name}", 0o700)
    for path, data in files.items():
        target = os.path.join(folder, "given", *path.split("/"))
        parent = os.path.dirname(target)
        if not os.path.isdir(parent):
            os.makedirs(parent, 0o700)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o500 if data.startswith(b"#!") else 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    if as_nobody:
        for top, folders, names in os.walk(folder):
            for name in (".", *folders, *names):
                os.chown(os.path.join(top, name), NOBODY, NOBODY)


def _send(launcher: socket.socket, spec: Spec) -> None:
    """Send the description of the run to the launcher, the process that starts the program. Errors are ignored.

    A launcher that has already ended has written the reason to standard error.
    """
    data = marshal.dumps(asdict(spec))
    launcher.settimeout(SEND_SECONDS)
    with suppress(OSError):
        launcher.sendall(len(data).to_bytes(4, "big") + data)


def _reports(launcher: socket.socket) -> dict[str, str]:
    """Read what the launcher, the process that starts the program, reported before it ended: kind (`problem`, `gap`, `stopped`) → text."""
    launcher.setblocking(False)
    data = b""
    with suppress(OSError):
        while piece := launcher.recv(65_536):
            data += piece
    lines = (line.partition("\t") for line in data.decode(errors="replace").splitlines())
    return {kind: text for kind, _, text in lines}


async def _end(process: Process) -> None:
    """Kill the process group of the launcher (the process that starts the program), wait for its end, and close the pipes to it."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(KILL_SECONDS):
        _kill(process)
        await process.wait()
        await process.aclose()


def _kill(process: Process) -> None:
    """Kill the process group of the launcher, which started the script. The processes in the script's namespace end with it."""
    ProcessGroup(process.pid).kill()


async def _remove(folder: str) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(_remove_now, folder)


def _remove_now(folder: str) -> None:
    """Remove a folder and everything in it. Inner folders are moved up first, so that the depth of the folders does not matter."""
    moved = 0
    try:
        while inner := [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]:
            for path in inner:
                os.chmod(path, 0o700)
                for entry in list(os.scandir(path)):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, 0o700)
                        moved += 1
                        os.rename(entry.path, f"{folder}/{moved}")
                    else:
                        os.unlink(entry.path)
                os.rmdir(path)
        os.rmdir(folder)
    except OSError as error:
        logger.warning("folder of a script run not removed folder=%s reason=%r", folder, error.strerror)


def python_path() -> str:
    """Return the path of this process's Python interpreter, outside any virtual environment: for the launcher, and scripts by default."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def prefixes_of(program: str) -> list[str]:
    """Return the paths that must be visible in the sandbox so that a program outside the system's folders can start.

    These are the program itself, and for `<prefix>/bin/<program>` also `<prefix>`, unless it is `/` or the user's home folder.
    """
    real = os.path.realpath(program)
    found = [real]
    prefix = os.path.dirname(os.path.dirname(real))
    if os.path.basename(os.path.dirname(real)) == "bin" and prefix not in ("/", os.path.expanduser("~")):
        found.append(prefix)
    return found


def is_open_to_all(path: str, *, shown: Sequence[str] = ()) -> bool:
    """Return whether every user can reach and execute the file `path`, by the modes of the file and the folders around it.

    With `shown`, the file is in a root file system that has only these paths; folders around them do not matter.
    """
    place = os.path.realpath(path)
    tops = [os.path.realpath(top) for top in shown]
    try:
        while place != os.path.dirname(place):
            if not os.stat(place).st_mode & stat.S_IXOTH:
                return False
            place = os.path.dirname(place)
            if tops and not any(f"{place}/".startswith(f"{top}/") for top in tops):
                break  # the launcher creates the folders above `place` in the new root
    except OSError:
        return False
    return True
