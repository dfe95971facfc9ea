"""`Sandbox`: starts a program shut in, feeds it nothing, keeps what it prints within bounds, and ends all of it.

Knows programs and folders, not skills (`scripts` does). Linux only: elsewhere `probe` says so and nothing runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from time import perf_counter

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, Process

from gateway.errors import SkillError
from gateway.processes import seal_descriptors

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/localtime")
"""Read and executed by every program; the rest of `/etc` is nobody's business."""

CERTIFICATE_PATHS = ("/etc/ssl/openssl.cnf", "/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/ca-certificates")
NETWORK_PATHS = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/run/systemd/resolve")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

SAFE_PATH = "/usr/local/bin:/usr/bin:/bin"

CUT = "\n[… output cut here]\n"

KILL_SECONDS = 5.0
"""Time a killed process has to be gone; the kernel needs none, a stuck disk might."""

_NOBODY = 65534
_LAUNCHER = str(Path(__file__).with_name("launcher.py"))

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
    "writing outside": lambda: open(outside + ".new", "w").close(),
    "shortening outside": lambda: os.truncate(outside, 0),
    "the network": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9)),
    "signals": lambda: os.kill(pid, 0),
}
print("open: " + ", ".join(name for name, work in checks.items() if not refused(work)))
open("inside", "w").close()
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    seconds: float = 30.0
    memory_bytes: int = 512 * 1024 * 1024
    """Of each process."""
    file_bytes: int = 64 * 1024 * 1024
    """Of each file it writes."""
    processes: int = 64
    files: int = 64
    """Open at once."""
    output_bytes: int = 256 * 1024
    """Kept of each of standard output and error; the rest is dropped."""


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run in a copy of a folder."""

    argv: Sequence[str]
    """`argv[0]` is an absolute path."""
    files: Mapping[str, bytes]
    """What is in the working folder, by relative path; the program gets a copy that is thrown away."""
    shown_at: str = ""
    """Where the copy appears to be, where that can be done: the folder that it is a copy of."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict[str, str]())
    read_paths: Sequence[str] = ()
    network: bool = False
    needs_address_space: bool = False
    """For runtimes that reserve far more memory than they use (Node); only what they write to is limited then."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended."""

    exit_code: int
    """128 and the signal's number for one that was killed."""
    stdout: str
    stderr: str
    timed_out: bool
    is_cut: bool
    """Whether output was dropped."""
    milliseconds: int


class Sandbox:
    """Runs jobs, at most `concurrency` at once. Call `probe` first."""

    def __init__(self, limits: Limits | None = None, *, concurrency: int = 4, wrapper_path: str = SAFE_PATH) -> None:
        """bubblewrap is looked for on `wrapper_path`, where own namespaces are not allowed."""
        self._wrapper_path = wrapper_path
        self.limits = limits or Limits()
        self._limiter = anyio.CapacityLimiter(concurrency)
        self._wrapper = ""

    async def probe(self) -> str:
        """Why nothing can be run here; `""` when it can. Tries a real program in a real sandbox."""
        if not sys.platform.startswith("linux"):
            return f"there is no sandbox on {sys.platform}"
        reason = await self._probe_once()
        wrapper = shutil.which("bwrap", path=self._wrapper_path)
        if reason and wrapper:
            self._wrapper = wrapper
            reason = await self._probe_once()
        return reason

    async def _probe_once(self) -> str:
        with tempfile.NamedTemporaryFile() as outside:
            python = python_path()
            argv = (python, "-B", "-c", _PROBE, outside.name, str(os.getpid()))
            try:
                ran = await self.run(Job(argv, {}, read_paths=prefixes_of(python)))
            except SkillError as error:
                return str(error)
        if ran.exit_code != 0 or not ran.stdout.startswith("open: "):
            return f"a trial run failed: {(ran.stderr or ran.stdout).strip()[-300:]}"
        leaks = ran.stdout.removeprefix("open: ").strip()
        return f"a trial run was not kept from {leaks}" if leaks else ""

    async def run(self, job: Job) -> Ran:
        """Run a program to its end or to the time limit; whatever it started ends with it.

        Raises:
            SkillError: The sandbox cannot be set up (code `sandbox`).
        """
        async with self._limiter, AsyncExitStack() as stack:
            folder = await anyio.to_thread.run_sync(tempfile.mkdtemp, None, "moongate-skill-")
            stack.push_async_callback(_remove, folder)
            as_nobody = os.geteuid() == 0 and is_open_to_all(job.argv[0])
            await anyio.to_thread.run_sync(_stage, folder, job.files, as_nobody)
            read_end, write_end = os.pipe()
            stack.callback(os.close, read_end)
            try:
                command = self._command(job, folder, write_end, as_nobody)
                seal_descriptors()
                process = await anyio.open_process(
                    command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=folder, env={}, start_new_session=True, pass_fds=(write_end,)
                )
            except OSError as error:
                raise SkillError(f"The sandbox cannot be started: {error}.", code="sandbox") from None
            finally:
                os.close(write_end)
            stack.push_async_callback(_end, process)
            ran = await self._follow(process)
            trouble = await anyio.to_thread.run_sync(os.read, read_end, 4096)
            if trouble:
                raise SkillError(f"The sandbox cannot be set up: {trouble.decode(errors='replace')}.", code="sandbox")
            return ran

    def _command(self, job: Job, folder: str, status: int, as_nobody: bool) -> list[str]:
        work, home = f"{folder}/work", f"{folder}/home"
        spec = {
            "argv": list(job.argv),
            "env": {"PATH": SAFE_PATH, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, **job.environment},
            "cwd": work,
            "shown": job.shown_at,
            "read": [*SYSTEM_PATHS, *CERTIFICATE_PATHS, *(NETWORK_PATHS if job.network else ()), *job.read_paths],
            "write": [home, *DEVICES],
            "limits": self._rlimits(job),
            "network": job.network,
            "nobody": as_nobody,
            "wrapped": bool(self._wrapper),
        }
        launcher = [python_path(), "-I", "-S", _LAUNCHER, json.dumps(spec), str(status)]
        return [*wrapper_command(self._wrapper, job, folder, (work, home)), *launcher] if self._wrapper else launcher

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

    async def _follow(self, process: Process) -> Ran:
        started = perf_counter()
        assert process.stdout is not None and process.stderr is not None
        outputs = [_Kept(process.stdout, self.limits.output_bytes), _Kept(process.stderr, self.limits.output_bytes)]
        with anyio.move_on_after(self.limits.seconds) as clock:
            async with anyio.create_task_group() as tasks:
                for output in outputs:
                    tasks.start_soon(output.drain)
                await process.wait()
                # What it left running holds the pipes open and ends now.
                _kill(process)
        timed_out = clock.cancelled_caught
        if timed_out:
            _kill(process)
        with anyio.move_on_after(KILL_SECONDS):
            await process.wait()
        code = process.returncode if process.returncode is not None else -signal.SIGKILL
        took = round((perf_counter() - started) * 1000)
        exit_code = 128 - code if code < 0 else code
        return Ran(exit_code, outputs[0].text(), outputs[1].text(), timed_out, any(o.is_cut for o in outputs), took)


class _Kept:
    """The first part of an output; the rest is read and dropped, so that the program is not held up."""

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


def wrapper_command(wrapper: str, job: Job, folder: str, writable: Sequence[str]) -> list[str]:
    """bubblewrap's arguments before the launcher: own namespaces and a root with only what the program may read."""
    command = [wrapper, "--unshare-all", "--die-with-parent", "--new-session", "--proc", "/proc", "--dev", "/dev"]
    command += ["--share-net"] if job.network else []
    reads = [*SYSTEM_PATHS, *CERTIFICATE_PATHS, *(NETWORK_PATHS if job.network else ()), *job.read_paths, *prefixes_of(python_path())]
    for path in dict.fromkeys([*reads, _LAUNCHER]):
        command += ["--ro-bind-try", path, path]
    command += ["--dir", folder]
    for path in writable:
        command += ["--bind", path, path]
    return [*command, "--chdir", folder, "--"]


def _stage(folder: str, files: Mapping[str, bytes], as_nobody: bool) -> None:
    """Write the copy: files that cannot be written to, in folders that can."""
    made = [folder, f"{folder}/work", f"{folder}/home"]
    for path in made[1:]:
        os.mkdir(path, 0o700)
    for path, data in files.items():
        target = os.path.join(folder, "work", *path.split("/"))
        parent = os.path.dirname(target)
        if not os.path.isdir(parent):
            os.makedirs(parent, 0o700)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o500 if data.startswith(b"#!") else 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    if as_nobody:
        for top, folders, names in os.walk(folder):
            for name in (".", *folders, *names):
                os.chown(os.path.join(top, name), _NOBODY, _NOBODY)


async def _end(process: Process) -> None:
    """Kill what is left and let go of the pipes."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(KILL_SECONDS):
        _kill(process)
        await process.wait()
        await process.aclose()


def _kill(process: Process) -> None:
    """The whole group; with it the launcher, and with the launcher its process namespace."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


async def _remove(folder: str) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(_remove_now, folder)


def _remove_now(folder: str) -> None:
    for top, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def python_path() -> str:
    """The Python that this program runs on, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def prefixes_of(program: str) -> list[str]:
    """What a program outside the system's folders must read to start: its installation, `<prefix>/bin/<program>`."""
    real = os.path.realpath(program)
    found = [real]
    prefix = os.path.dirname(os.path.dirname(real))
    if os.path.basename(os.path.dirname(real)) == "bin" and prefix not in ("/", os.path.expanduser("~")):
        found.append(prefix)
    return found


def is_open_to_all(path: str) -> bool:
    """Whether any user may reach and execute a file."""
    place = os.path.realpath(path)
    try:
        while place != os.path.dirname(place):
            if not os.stat(place).st_mode & stat.S_IXOTH:
                return False
            place = os.path.dirname(place)
    except OSError:
        return False
    return True
