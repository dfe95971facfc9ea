"""Files of the package that execute code for one plain proxied call: `make trace-call` prints them, with the functions that are entered.

A gateway in a process of its own serves a 2026 server to a 2026 client, both over HTTP. Python's profiler traces several calls on a
connection in use. Timers of the gateway that fire meanwhile drop out because only files of every call count. Generated code counts for no
file: the constructors of the dataclasses in `upstream/carriers/carrier.py` and `wire/http1_response.py`. The command fails if there are
more than `MAX_FILES` files.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from benchmarks.contenders import Contender, Place, gateway, running
from benchmarks.driver import Line, ask, connect, whole
from benchmarks.machine import Command, python
from benchmarks.measures import UPSTREAM
from tests.architecture.sources import ROOT

MAX_FILES = 26
"""Most files that may execute code for one call, so that a reader can follow it."""

CALLS = 8
WARM_CALLS = 50
OUTPUT = "TRACE_OUTPUT"
"""Environment variable: the folder to which the traced gateway writes one file per call."""


def trace_on_signals() -> None:
    """In the gateway's process: start to trace at SIGUSR1; stop at SIGUSR2 and write each file with its functions."""
    entered: set[str] = set()
    numbers = iter(range(CALLS))

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            entered.add(f"{frame.f_code.co_filename} {frame.f_code.co_qualname}")

    def start(number: int, frame: FrameType | None) -> None:
        entered.clear()
        sys.setprofile(note)

    def stop(number: int, frame: FrameType | None) -> None:
        sys.setprofile(None)
        names = sorted(name.removeprefix(f"{ROOT}/") for name in entered if name.startswith(f"{ROOT / 'gateway'}/"))
        path = Path(os.environ[OUTPUT]) / str(next(numbers))
        path.with_suffix(".part").write_text("\n".join(names), encoding="utf-8")
        path.with_suffix(".part").rename(path)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)


async def traced_functions() -> list[str]:
    """`FILE FUNCTION` of each function that every call entered, sorted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def traced(place: Place) -> Command:
            command = gateway(place)
            argv = (sys.executable, "-m", "tests.architecture.trace_call", *command.argv[3:])
            return Command(argv, {**command.env, OUTPUT: name}, command.folder)

        def upstream(place: Place) -> Command:
            return python("-m", "benchmarks.upstream", str(place.port), "20", "60000", "both")

        behind = Contender("upstream", "upstream", upstream, UPSTREAM.program, UPSTREAM.version, eras=UPSTREAM.eras)
        front = Contender("traced", "traced", traced, UPSTREAM.program, UPSTREAM.version)
        found: list[set[str]] = []
        async with running(behind, folder) as server, running(front, folder, server.wire.port) as served:
            request = whole(served.wire, "modern", "tools/call", {"name": served.wire.tool, "arguments": {"text": "hello"}})
            line = Line()
            await connect(served.wire, line)
            for _ in range(WARM_CALLS):
                await ask(line, request)
            for number in range(CALLS):
                os.kill(served.child.pid, signal.SIGUSR1)
                await anyio.sleep(0.005)  # until the signal is handled
                status, _ = await ask(line, request)
                os.kill(served.child.pid, signal.SIGUSR2)
                assert status == 200
                found.append(set((await written(folder / str(number))).splitlines()))
            line.close()
    return sorted(name for name in found[0] if all(name in names for names in found))


async def written(path: Path) -> str:
    """Wait until a file exists, and return its text."""
    file = anyio.Path(path)
    with anyio.fail_after(10):
        while not await file.exists():
            await anyio.sleep(0.01)
    return await file.read_text(encoding="utf-8")


def main() -> None:
    """Run the gateway with tracing if there are arguments, else print the files of one call."""
    if sys.argv[1:]:
        from gateway.cli.main import main as moongate

        trace_on_signals()
        moongate(sys.argv[1:])
    began = time.monotonic()
    functions = anyio.run(traced_functions)
    files = dict[str, list[str]]()
    for function in functions:
        file, name = function.split(" ", 1)
        files.setdefault(file, []).append(name)
    for file, names in files.items():
        print(f"{file}\n    {' '.join(names)}")
    seconds = time.monotonic() - began
    print(f"{len(files)} files of gateway/ execute code for one plain proxied call ({seconds:.0f} s); the limit is {MAX_FILES}")
    sys.exit(len(files) > MAX_FILES)


if __name__ == "__main__":
    main()
