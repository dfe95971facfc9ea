"""Helpers for processes and the machine: start processes pinned to a core, read their CPU time and memory, describe the machine."""

from __future__ import annotations

import asyncio  # noqa: TID251  # benchmarks use the same event loop as the gateway
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
"""Seconds between SIGTERM and SIGKILL when a process is stopped."""


def run_loop(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as `asyncio.run` does, on uvloop if uvloop is installed."""
    factory = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


# -- cores -----------------------------------------------------------------------------------------------------------


def cores() -> tuple[int, int]:
    """Return the core for contenders and the core for all other processes. Both are the same on a machine with one core."""
    if not hasattr(os, "sched_getaffinity"):
        return (0, 0)
    mine = sorted(_ALL_CORES)
    return (mine[0], mine[-1])


_ALL_CORES = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset[int]()
"""Cores available at import. Read once, because pinning reduces the set that `sched_getaffinity` returns."""


@contextlib.contextmanager
def pinned(core: int | None) -> Generator[None]:
    """Pin this process, and the processes it starts inside the block, to one core; `None` changes nothing."""
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
    """Pin this process to the second core. Child processes inherit this, so contenders must be pinned to the first core explicitly."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores()[1]})


def host_took() -> float:
    """Return the steal time since boot in seconds, summed over the cores of `cores`; 0 if `/proc/stat` does not exist."""
    stat = Path("/proc/stat")
    lines = stat.read_text().splitlines() if stat.exists() else []
    mine = {f"cpu{core}" for core in cores()}
    return sum(int(line.split()[_STEAL]) for line in lines if line.split()[0] in mine) / os.sysconf("SC_CLK_TCK")


_STEAL = 8
"""Column of the steal time in a `cpu` line of `/proc/stat`; see proc(5)."""


# -- processes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """The command line, additional environment variables and working directory of a program."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict[str, str])
    folder: Path = ROOT
    """The working directory."""


def python(*argv: str, checkout: Path = ROOT) -> Command:
    """Return a command that runs this Python interpreter with `argv` and imports `gateway` and `benchmarks` from `checkout`."""
    return Command((sys.executable, *argv), {"PYTHONPATH": str(checkout)}, checkout)


@contextlib.contextmanager
def started(command: Command, *, core: int | None = None, log: Path | None = None) -> Generator[subprocess.Popen[bytes]]:
    """Start a process on one core, and stop the process and its children on exit. `log` receives stdout and stderr."""
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
    """Send SIGTERM to a process of `started`, wait, and kill its remaining process group."""
    if child.returncode is not None:
        return
    os.kill(child.pid, signal.SIGTERM)  # `terminate` may reap the child, and its PID may then be reused
    until = time.monotonic() + STOP_SECONDS
    while not has_ended(child) and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)  # the child is not reaped yet, so its PID is still its own
    child.wait()


def has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has exited, without reaping the process."""
    return child.returncode is not None or os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all current threads of a process, from the nanosecond counters of the scheduler."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def megabytes(pid: int) -> float:
    """Return the proportional set size (PSS) of a process in MiB: private memory plus its share of shared memory, without children."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return [*found]


def wait_for_port(port: int, child: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until a process accepts connections on a port.

    Raises:
        TimeoutError: The port did not accept a connection within `seconds`, or `child` ended.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and not has_ended(child):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.005)
    raise TimeoutError("it ended" if has_ended(child) else f"nothing listens after {seconds:g} s")


def machine_class() -> str:
    """Return the cores, CPU model, memory, system and Python version of the machine, without the host name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    virtual = ", virtual machine" if any(line.startswith("flags") and "hypervisor" in line for line in lines) else ""
    parts = [f"{len(_ALL_CORES) or os.cpu_count()} cores", models[0] if models else platform.machine(), f"{gigabytes:.0f} GiB"]
    return f"{', '.join(parts)}{virtual}; {platform.system()}, Python {platform.python_version()}"
