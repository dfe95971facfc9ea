"""Starts `python -m MODULE` or `python FILE.py` as a real process by forking a helper that has imported the modules (saves about 1 s).

`born` is used like `subprocess.Popen`. The process has a session, an environment, a working directory and standard streams of its
own, receives signals and can be killed; only its parent differs: a helper process (`tests.fakes.nurse`) that starts at first
use and ends with the test process. `sooner` returns a command for programs that start the process themselves: they start a small
interpreter (`tests.fakes.stand_in`) that passes on its streams and signals and has the same exit code.
Properties of the start itself (imports, arguments, a bare interpreter) are tested with real starts in tests/cli and tests/accept.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


class Born:
    """A process from the nursery, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, nursery: Nursery, pid: int, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self._nursery = nursery

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the number of the signal that ended the process. None until `poll` or `wait` has read it."""
        return self._nursery.ended.get(self.pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        self._nursery.read_ends(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process ends and return its exit code.

        Raises `subprocess.TimeoutExpired` after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.returncode) is None:
            left = 1.0 if until is None else until - time.monotonic()
            if left < 0:
                raise subprocess.TimeoutExpired("a process from the nursery", timeout or 0)
            self._nursery.read_ends(min(left, 1.0))
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, but not to its children."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


Child = subprocess.Popen[bytes] | Born


class Nursery:
    """The test process's side of the helper process."""

    def __init__(self) -> None:
        self.ended: dict[int, int] = {}
        self._folder = tempfile.mkdtemp(prefix="nursery-")
        self.door = os.path.join(self._folder, "door")
        self._lock = threading.Lock()
        self._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tells:
            fds = (theirs.fileno(), tells.fileno())
            argv = [sys.executable, "-m", "tests.fakes.nurse", self.door, *map(str, fds)]
            self._helper = subprocess.Popen(argv, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=ROOT)
        self._told.setblocking(False)
        atexit.register(self.close)

    def bear(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], stdout: int, stderr: int) -> int:
        """Start `python -m *argv`, or `python *argv` if `argv[0]` ends in `.py`, and return its process id."""
        told = json.dumps({"argv": list(argv), "cwd": str(cwd), "env": dict(env)}).encode()
        with self._lock:
            socket.send_fds(self._asked, [told], [stdout, stderr])
            return int(self._asked.recv(64))

    def read_ends(self, seconds: float) -> None:
        """Wait up to `seconds` for an ended process, and store the exit codes of all that have ended."""
        select.select([self._told], [], [], seconds)
        with self._lock:
            while True:
                try:
                    message = self._told.recv(64)
                except BlockingIOError:
                    return
                if not message:
                    raise RuntimeError("the helper process that starts processes is gone")
                pid, status = map(int, message.split())
                self.ended[pid] = os.waitstatus_to_exitcode(status)

    def wait_for_door(self, seconds: float = 60.0) -> None:
        """Wait until the helper process listens for the commands that `sooner` returns."""
        until = time.monotonic() + seconds
        while not os.path.exists(self.door):
            assert time.monotonic() < until, "the helper process that starts processes did not start"
            time.sleep(0.01)

    def close(self) -> None:
        """End the helper process; the tests have ended the processes that it started."""
        self._asked.close()
        self._told.close()
        self._helper.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@cache
def nursery() -> Nursery:
    """Return the nursery of this test process; start it at the first use."""
    return Nursery()


def born(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: int, stderr: IO[bytes]) -> Born:
    """Start `python -m *argv` (or `python *argv` if `argv[0]` ends in `.py`) in a new session. `stdout` may be PIPE or DEVNULL."""
    nursery_process = nursery()
    if stdout != subprocess.PIPE:
        with open(os.devnull, "wb") as nowhere:
            return Born(nursery_process, nursery_process.bear(argv, cwd, env, nowhere.fileno(), stderr.fileno()), None)
    reads, writes = os.pipe()
    try:
        return Born(nursery_process, nursery_process.bear(argv, cwd, env, writes, stderr.fileno()), os.fdopen(reads, "rb"))
    finally:
        os.close(writes)


def sooner(*argv: str) -> tuple[str, list[str]]:
    """Return a program and its arguments that stand for `python -m *argv` (or `python *argv` if `argv[0]` ends in `.py`).

    The forked process has the working directory and the environment of the program.
    """
    nursery_process = nursery()
    nursery_process.wait_for_door()
    return sys.executable, ["-I", "-S", str(ROOT / "tests/fakes/stand_in.py"), nursery_process.door, *argv]
