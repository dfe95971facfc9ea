"""The helper process of `tests.fakes.nursery`: one thread with nearly everything imported, which forks each requested process."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, cast

import gateway
from gateway.config.load import load_text
from gateway.egress.tls import tls_context
from gateway.policy.form_lexicon import lexicon

PRELOADED = (
    "anyio._backends._asyncio", "httptools", "uvloop", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on",
    "mcp.server.lowlevel", "mcp.client.session", "mcp.client.stdio", "mcp.client.streamable_http", "openai.resources.responses",
    "openai.resources.chat.completions", "jsonschema_rs", "sqlite3",
)  # fmt: skip
"""What processes started for tests import besides all modules of `gateway`. None of it starts a thread."""
SERVERS = '{"mcpServers": {"one": {"command": "one"}, "two": {"type": "http", "url": "https://two.example"}}}'
MESSAGE_BYTES = 1 << 18
PR_SET_PDEATHSIG = 1


class Nurse:
    """Forks processes for the test process (requests on `asked`, exit statuses on `tells`) and for stand-ins (on `door`)."""

    def __init__(self, door: str, asked: socket.socket, tells: socket.socket) -> None:
        self._asked, self._tells = asked, tells
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(door)
        self._door.listen(64)
        self._stand_ins: dict[socket.socket, int] = {}
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, _wake)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> list[str] | None:
        """Handle requests until the test process closes its socket (returns None). In a forked process, return the command to run."""
        while True:
            ready, _, _ = select.select([self._asked, self._door, self._woken, *self._stand_ins], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._tell_ends()
            for stand_in in [known for known in self._stand_ins if known in ready]:
                self._hand_on(stand_in)
            argv: list[str] | None = None
            if self._door in ready:
                stand_in, _ = self._door.accept()
                argv = self._bear(stand_in, standing_in=True)
            if argv is None and self._asked in ready:
                argv = self._bear(self._asked, standing_in=False)
                if argv == []:
                    return None
            if argv:
                return argv

    def _bear(self, asking: socket.socket, *, standing_in: bool) -> list[str] | None:
        """Return the command in the forked process, and None in this process (an empty list if the socket had no request)."""
        message, fds, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, 3)
        if not message:
            return [] if asking is self._asked else None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for fd in (self._woken, self._wakes):
                os.close(fd)
            for known in (self._asked, self._tells, self._door, asking, *self._stand_ins):
                known.close()
            return _become(json.loads(message), fds)
        for fd in fds:
            os.close(fd)
        if standing_in:
            self._stand_ins[asking] = pid
        else:
            asking.send(str(pid).encode())
        return None

    def _hand_on(self, stand_in: socket.socket) -> None:
        """Send a stand-in's signal to its process. If the stand-in is gone, kill the group of its process."""
        with suppress(ConnectionError):
            if told := stand_in.recv(64):
                os.kill(self._stand_ins[stand_in], int(told))
                return
        with suppress(ProcessLookupError):
            os.killpg(self._stand_ins[stand_in], signal.SIGKILL)
        del self._stand_ins[stand_in]
        stand_in.close()

    def _tell_ends(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for stand_in in [known for known, stood_for in self._stand_ins.items() if stood_for == pid]:
                with suppress(OSError):
                    stand_in.send(str(os.waitstatus_to_exitcode(status)).encode())
                del self._stand_ins[stand_in]
                stand_in.close()
                break
            else:
                self._tells.send(f"{pid} {status}".encode())


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: a signal handler is needed for Python to write to the wakeup descriptor."""


def _die_with_parent() -> None:
    """Have the kernel kill this process when the helper process ends for any reason; only Linux supports this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(told: dict[str, object], fds: Sequence[int]) -> list[str]:
    _die_with_parent()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, number in zip(fds, range(3 - len(fds), 3), strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(str(told["cwd"]))
    os.environ.clear()
    os.environ.update(told["env"])  # type: ignore[arg-type]
    return list(told["argv"])  # type: ignore[arg-type]


EXTRAS = ("temporalio",)
"""Packages that modules of the gateway import at their top and that may be missing."""


def _preload() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRAS:
                raise
    load_text(SERVERS, Path("gateway.json"), {})  # pydantic builds the models of the configuration at first use
    tls_context()
    lexicon()
    gc.freeze()


def _run(argv: list[str]) -> None:
    """Run `python -m *argv`, or the program `argv[0]` if it is a path that ends in `.py`.

    The process ends without freeing every object: the memory is shared with the nurse, and writing to it copies it.
    """
    sys.argv = argv
    code: object = None
    try:
        if argv[0].endswith(".py"):
            sys.path.insert(0, os.path.dirname(os.path.abspath(argv[0])))
            runpy.run_path(argv[0], run_name="__main__")
        else:
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    cast("Any", threading)._shutdown()  # the interpreter's own exit also joins threads before it runs `atexit` functions
    cast("Any", atexit)._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    _preload()
    given = Nurse(sys.argv[1], *(socket.socket(fileno=int(fd)) for fd in sys.argv[2:])).serve()
    if given is not None:
        _run(given)
