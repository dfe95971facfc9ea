"""The machine under the benchmarks: processes on cores of their own, what they take of processor and memory, and what the machine is."""

from __future__ import annotations

import asyncio  # noqa: TID251  # the benchmarks run on the same loop as what they measure
import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fakes.running import free_port as free_port

ROOT = Path(__file__).resolve().parent.parent
STOP_SECONDS = 10.0
"""For a process that is told to end; then it is killed."""


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """As `asyncio.run`, on uvloop where that is installed."""
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


# -- cores -----------------------------------------------------------------------------------------------------------


def cores() -> tuple[int, int]:
    """Two cores of this process: for what is measured, and for all else. The same one twice where there is but one."""
    if not hasattr(os, "sched_getaffinity"):
        return (0, 0)
    mine = sorted(_ALL_CORES)
    return (mine[0], mine[-1])


_ALL_CORES = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()
"""As they were at the start: pinning narrows what the system says."""


@contextlib.contextmanager
def pinned(core: int | None) -> Generator[None]:
    """What is started meanwhile runs on this core only."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def stand_aside() -> None:
    """Leave the core of what is measured; all that is started from here has to be pinned there."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores()[1]})


def host_took() -> float:
    """Seconds that the host has taken from these cores so far for others (steal), each core counted; 0 where the system does not say."""
    stat = Path("/proc/stat")
    lines = stat.read_text().splitlines() if stat.exists() else []
    mine = {f"cpu{core}" for core in cores()}
    return sum(int(line.split()[_STEAL]) for line in lines if line.split()[0] in mine) / os.sysconf("SC_CLK_TCK")


_STEAL = 8
"""The column of it in /proc/stat (proc(5))."""


# -- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """How a program is started."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict[str, str])
    folder: Path = ROOT
    """The working directory."""


def python(*argv: str, checkout: Path = ROOT) -> Command:
    """A program of this interpreter that imports `gateway` and `benchmarks` from `checkout`."""
    return Command((sys.executable, *argv), {"PYTHONPATH": str(checkout)}, checkout)


@contextlib.contextmanager
def started(command: Command, *, core: int | None = None, log: Path | None = None) -> Generator[subprocess.Popen[bytes]]:
    """A process and all it starts, on one core, ended on leaving."""
    out = log.open("wb") if log is not None else subprocess.DEVNULL
    with pinned(core):
        child = subprocess.Popen(
            command.argv,
            env={**os.environ, **command.env},
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        stop(child)
        if not isinstance(out, int):
            out.close()


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a process of `started`, and what it leaves behind."""
    if child.returncode is not None:
        return
    os.kill(child.pid, signal.SIGTERM)  # `terminate` would wait for one that has ended, and its number be another's
    until = time.monotonic() + STOP_SECONDS
    while not has_ended(child) and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)  # it is not waited for yet, so its number is its own
    child.wait()


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Whether a process is over; it still has to be waited for."""
    return child.returncode is not None or os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cpu_seconds(pid: int) -> float:
    """Time on a processor of all threads that a process has (nanosecond counters of the scheduler)."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def megabytes(pid: int) -> float:
    """Its own memory and its share of what it shares (PSS), without its children."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def free_ports(count: int) -> list[int]:
    """As `free_port`, so many different ones."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [*found]


def wait_for_port(port: int, child: subprocess.Popen[bytes], seconds: float) -> None:
    """Until somebody listens.

    Raises:
        TimeoutError: Nobody does, or the process ended.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and not has_ended(child):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.005)
    raise TimeoutError("it ended" if has_ended(child) else f"nothing listens after {seconds:g} s")


def machine_class() -> str:
    """Cores, memory and kind of machine, without its name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    virtual = ", virtual machine" if any(line.startswith("flags") and "hypervisor" in line for line in lines) else ""
    parts = [f"{len(_ALL_CORES) or os.cpu_count()} cores", models[0] if models else platform.machine(), f"{gigabytes:.0f} GiB"]
    return f"{', '.join(parts)}{virtual}; {platform.system()}, Python {platform.python_version()}"
