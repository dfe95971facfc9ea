"""Several processes behind one address (`moongate run --workers N`): who is who, and the one that watches over them.

Worker 0 is *home*: a whole gateway, which alone has everything that is remembered. The others answer plain calls by themselves and
hand all else home (`spread`, `server.homeward`). The supervisor holds the sockets, so that none of them is lost with a worker; it
forks the workers before it has a loop or threads, starts one again that died, hands signals on and does nothing else. A worker whose
supervisor died ends as at SIGTERM.

Decided: fork, and one home. Because: workers share the memory of what is imported and start at once; what exists once needs no
agreement. Instead of: equal workers, which would each start every child process and hold sessions that the others cannot serve.
Revisit when: home is the bottleneck of calls that others could take.
"""

from __future__ import annotations

import gc
import logging
import mmap
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import anyio

from gateway.errors import ConfigError

logger = logging.getLogger(__name__)

STEADY_SECONDS = 30.0
"""A worker that lived this long did not fail at its start; the next pause before it is started again is the shortest."""

FIRST_PAUSE_SECONDS = 0.2
LAST_PAUSE_SECONDS = 10.0
"""Pauses before a worker that keeps dying is started again: doubled each time, up to the last. After its first death there is none."""

STOP_SECONDS = 15.0
"""What workers may take to end beyond `drainSeconds`; then they are killed."""

BURST_SECONDS = 0.5
"""Signals closer together count once: a terminal sends them to every process of its group."""

BEAT_SECONDS = 1.0
"""Between two signs of life that home gives the other workers."""

SILENT_SECONDS = 20.0
"""Home without a sign of life for this long is stuck or stopped, and serves nobody until it gives one."""

_HOME, _EDITION, _BEAT = 0, slice(8, 16), slice(16, 24)
"""Places in the shared memory: how home is, the edition of what it published, and when it was last alive (monotonic, µs)."""

_AWAY, _SERVES, _STOPS = range(3)
"""How home may be. One that stops lets what it has begun come to its end."""


class Board:
    """What all workers see at once, without asking: a few bytes of shared memory."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 24)

    @property
    def home_serves(self) -> bool:
        """Whether home takes requests."""
        return self._memory[_HOME] == _SERVES and self._is_heard

    @property
    def home_lives(self) -> bool:
        """Whether home may still answer what it took."""
        return self._memory[_HOME] != _AWAY and self._is_heard

    @property
    def _is_heard(self) -> bool:
        lived = int.from_bytes(self._memory[_BEAT], "little") / 1e6
        return time.monotonic() - lived < SILENT_SECONDS

    def note_serving(self) -> None:
        """Home takes requests from here on."""
        self.beat()
        self._memory[_HOME] = _SERVES

    def note_stopping(self) -> None:
        """Home takes no more."""
        self._memory[_HOME] = _STOPS

    def note_away(self) -> None:
        """There is none."""
        self._memory[_HOME] = _AWAY

    def beat(self) -> None:
        """Home lives."""
        self._memory[_BEAT] = int(time.monotonic() * 1e6).to_bytes(8, "little")

    @property
    def edition(self) -> int:
        """Which edition of `spread` counts; home alone sets it."""
        return int.from_bytes(self._memory[_EDITION], "little")

    @edition.setter
    def edition(self, value: int) -> None:
        self._memory[_EDITION] = value.to_bytes(8, "little")


@dataclass(frozen=True, slots=True)
class Place:
    """One worker's place among the others."""

    number: int
    """0 is home."""
    count: int
    listener: socket.socket
    """Where clients come in, shared by all."""
    home: socket.socket
    """Where the others' requests come home."""
    requires_key: bool
    """Whether callers need an API key, as it was when the first workers started (`server.http.check_bind`)."""
    folder: Path
    """Private to the workers; gone with the supervisor."""
    board: Board
    is_first: bool
    """Whether no worker was here before; a later one reads the configuration again."""
    _lifeline: int
    _ready: int

    @property
    def is_home(self) -> bool:
        """Whether this is the worker that remembers."""
        return self.number == 0

    @property
    def home_path(self) -> str:
        """Where `home` listens."""
        return str(self.folder / "home")

    def share(self, limit: int) -> int:
        """This worker's part of a bound that holds for all together."""
        return limit // self.count + (self.number < limit % self.count)

    def note_ready(self) -> None:
        """Tell the supervisor that this worker serves."""
        if self.is_home:
            self.board.note_serving()
        os.write(self._ready, bytes([self.number]))

    def note_stopping(self) -> None:
        """Tell the other workers that this one, if it is home, takes no more requests."""
        if self.is_home:
            self.board.note_stopping()

    async def give_signs_of_life(self) -> None:
        """At home, until cancelled."""
        while self.is_home:
            self.board.beat()
            await anyio.sleep(BEAT_SECONDS)

    async def end_with_supervisor(self) -> None:
        """Wait until the supervisor is gone, then stop as at SIGTERM."""
        await anyio.wait_readable(self._lifeline)
        logger.error("the supervisor of the workers is gone, so worker %s stops", self.number)
        shutil.rmtree(self.folder, ignore_errors=True)  # nobody else is left to do it
        os.kill(os.getpid(), signal.SIGTERM)


class OneAtATime(socket.socket):
    """A listening socket of which a loop takes one connection per turn, so that one worker does not take all that wait."""

    _took = False

    def accept(self) -> tuple[socket.socket, object]:
        """As a socket's; every second time there is nothing."""
        if self._took:
            self._took = False
            raise BlockingIOError
        accepted = super().accept()
        self._took = True
        return accepted


def shared(listener: socket.socket) -> socket.socket:
    """The same listening socket for one of several processes that take from it; what it was is closed."""
    return OneAtATime(listener.family, listener.type, listener.proto, fileno=listener.detach())


@dataclass(slots=True)
class _Worker:
    """What the supervisor knows of one."""

    number: int
    pid: int = 0
    """0 while it does not run."""
    born: float = 0.0
    deaths: int = 0
    due: float = 0.0
    """When it is to be started (again)."""
    serves: bool = False
    reads_again: bool = False
    """It was told to read the configuration again before it could hear."""


@dataclass(slots=True)
class Supervisor:
    """Divides this process into workers. `run` returns in each of them, and here when all is over."""

    count: int
    listener: socket.socket
    drain_seconds: float
    requires_key: bool
    _workers: list[_Worker] = field(init=False)
    _folder: Path = field(init=False)
    _home: socket.socket = field(init=False)
    _board: Board = field(default_factory=Board)
    _life: tuple[int, int] = field(default_factory=os.pipe)
    _ready: tuple[int, int] = field(default_factory=os.pipe)
    _woken: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)
    _home_served: bool = False
    _stop_at: float = 0.0
    """When what still runs is killed; 0 while nothing stops."""
    _told_at: float = float("-inf")
    _code: int = 0

    def run(self) -> Place | int:
        """The place of a worker, or the exit code once every worker has ended.

        Raises:
            ConfigError: This system has no processes of this kind, or no place for what they share.
        """
        if sys.platform == "win32":
            raise ConfigError("--workers needs a POSIX system; on Windows run one process.", path="--workers")
        self._workers = [_Worker(number) for number in range(self.count)]
        self._meet()
        self._woken[1].setblocking(False)
        signal.set_wakeup_fd(self._woken[1].fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _wake_only)
        gc.collect()
        gc.freeze()  # or every look for garbage in a worker would copy what they share
        while True:
            place = self._start_due()
            if place is not None:
                return place
            if self._is_over():
                shutil.rmtree(self._folder, ignore_errors=True)
                return self._code
            self._wait()
            self._reap()

    def _meet(self) -> None:
        """Make the folder of the workers and the socket in it."""
        self._home = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="moongate-"))
            try:
                self._home.bind(str(self._folder / "home"))
            except OSError:
                self._folder.rmdir()
                raise
        except OSError as error:
            reason = f"The workers have no place to meet: {error.strerror or error}."
            raise ConfigError(f"{reason} Set TMPDIR to a folder that can be written and has a short path.", path="TMPDIR") from None
        self._home.listen(2048)

    def _is_over(self) -> bool:
        return bool(self._stop_at) and not any(worker.pid for worker in self._workers)

    # -- starting ----------------------------------------------------------------------------------------------

    def _start_due(self) -> Place | None:
        """Start what is to run now; returns in the new worker with its place. The others begin when home first serves."""
        now = time.monotonic()
        for worker in self._workers:
            if worker.pid or self._stop_at or worker.due > now or (worker.number and not self._home_served):
                continue
            place = self._fork(worker)
            if place is not None:
                return place
            logger.info("worker %s of %s is process %s", worker.number, self.count, worker.pid)
        return None

    def _fork(self, worker: _Worker) -> Place | None:
        sys.stdout.flush()
        sys.stderr.flush()
        heard = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # one that comes now is for whoever it finds ready to hear it
        try:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in heard:
                    signal.signal(number, signal.SIG_DFL)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)
        if pid:
            worker.pid, worker.born, worker.serves, worker.reads_again = pid, time.monotonic(), False, False
            return None
        os.close(self._life[1])
        os.close(self._ready[0])
        for end in self._woken:
            end.close()
        is_first, requires_key = worker.deaths == 0, self.requires_key
        sockets, pipes = (self.listener, self._home), (self._life[0], self._ready[1])
        return Place(worker.number, self.count, *sockets, requires_key, self._folder, self._board, is_first, *pipes)

    # -- watching ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until something happened or is due."""
        now = time.monotonic()
        dues = [worker.due for worker in self._workers if not worker.pid and worker.due > now]
        times = [*dues, self._stop_at] if self._stop_at else dues
        seconds = max(0.0, min(times) - now) if times else None
        told, _, _ = select.select([self._woken[0], self._ready[0]], [], [], seconds)
        if self._ready[0] in told:
            for number in os.read(self._ready[0], 4096):
                self._note_ready(self._workers[number])
        if self._woken[0] in told:
            for number in self._woken[0].recv(4096):
                self._hear(number)
        if self._stop_at and time.monotonic() >= self._stop_at:
            self._tell_all(signal.SIGKILL)

    def _note_ready(self, worker: _Worker) -> None:
        worker.serves = True
        if worker.number == 0:
            self._home_served = True
        if worker.reads_again:
            self._tell(worker, signal.SIGHUP)

    def _hear(self, number: int) -> None:
        if number == signal.SIGHUP:
            for worker in self._workers:
                worker.reads_again = not worker.serves
                if worker.serves:
                    self._tell(worker, signal.SIGHUP)
        elif number in (signal.SIGINT, signal.SIGTERM) and time.monotonic() - self._told_at > BURST_SECONDS:
            self._told_at = time.monotonic()
            self._stop()

    def _stop(self) -> None:
        """Workers let what runs come to its end; nobody waits meanwhile at a door that does not open again."""
        self.listener.close()
        self._home.close()
        self._stop_at = time.monotonic() + self.drain_seconds + STOP_SECONDS
        self._tell_all(signal.SIGTERM)

    def _tell_all(self, number: signal.Signals) -> None:
        for worker in self._workers:
            self._tell(worker, number)

    def _tell(self, worker: _Worker, number: signal.Signals) -> None:
        if worker.pid:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, number)

    def _reap(self) -> None:
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                self._bury(worker, os.waitstatus_to_exitcode(status))

    def _bury(self, worker: _Worker, code: int) -> None:
        """A worker ended: at a stop that is all, else it is started again; a gateway that never served is given up."""
        pid, worker.pid = worker.pid, 0
        if worker.number == 0:
            self._board.note_away()
        if self._stop_at:
            return
        if not self._home_served:
            self._code = code if code > 0 else 1
            self._stop()
            return
        lived = time.monotonic() - worker.born
        worker.deaths = 1 if lived >= STEADY_SECONDS else worker.deaths + 1
        pause = 0.0 if worker.deaths == 1 else min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (worker.deaths - 2))
        worker.due = time.monotonic() + pause
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        logger.error("worker %s (process %s) ended with %s; it is started again in %.1f s", worker.number, pid, how, pause)


def _wake_only(number: int, frame: FrameType | None) -> None:
    """What a signal means is read from the descriptor it wakes."""
