"""Clients that only hold event streams of 2025 sessions, in a process of their own.

When a replica dies, a thousand of them connect again within the same milliseconds. In the process that measures calls, this would count as
time that the gateways took.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # as the connections of `clients`
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process  # noqa: TID251  # as above
from dataclasses import asdict, dataclass, field

from benchmarks.fleet.clients import Connection, ConnectionLost, Person, listening
from benchmarks.machine import ROOT, run_loop

RETRY_SECONDS = 1.0
"""Pause after a failed attempt to open an event stream, as the MCP SDKs make it."""

REPORT_SECONDS = 0.2


@dataclass
class StreamCounts:
    """What the clients observed."""

    open: int = 0
    ends: int = 0
    """Event streams that ended."""
    refusals: dict[str, int] = field(default_factory=dict[str, int])
    """Attempts to open an event stream that failed, by what the client got."""


class Streams:
    """The process with the streams of a fleet behind one nginx. It is started by the first stream."""

    def __init__(self, port: int) -> None:
        self.counts = StreamCounts()
        self._port = port
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process."""
        argv = [sys.executable, "-m", "benchmarks.fleet.streams", str(self._port)]
        self._process = await asyncio.create_subprocess_exec(*argv, cwd=ROOT, stdin=PIPE, stdout=PIPE)
        self._reader = asyncio.create_task(self._read(self._process))

    def hold(self, person: Person, session: str) -> None:
        """Hold the stream of a session from now on, and open it again when it breaks."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps([person.name, person.key, session]).encode() + b"\n")

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.counts = StreamCounts(**json.loads(line))

    async def stop(self) -> None:
        """End the process and its streams."""
        if self._process is None or self._reader is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reader


async def _hold(port: int, person: Person, session: str, counts: StreamCounts) -> None:
    while True:
        pause = RETRY_SECONDS
        try:
            connection = await Connection.open(port)
            status = await connection.listen(listening(person, session))
            if status == 200:
                counts.open += 1
                await connection.lost
                counts.open -= 1
                counts.ends += 1
                pause = connection.retry_seconds
            else:
                connection.close()
                _count(counts, f"HTTP {status}")
        except (ConnectionLost, TimeoutError) as error:
            _count(counts, str(error) or "no answer")
        await asyncio.sleep(pause)


def _count(counts: StreamCounts, what: str) -> None:
    counts.refusals[what] = counts.refusals.get(what, 0) + 1


async def _run(port: int) -> None:
    """Hold the streams that standard input names, and report the counts, until standard input ends."""
    counts, lines = StreamCounts(), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)

    async def report() -> None:
        while True:
            print(json.dumps(asdict(counts)), flush=True)  # noqa: T201  # the protocol with the parent process
            await asyncio.sleep(REPORT_SECONDS)

    tasks = {asyncio.create_task(report())}
    async for line in lines:
        name, key, session = json.loads(line)
        tasks.add(asyncio.create_task(_hold(port, Person(name, key), session, counts)))
    for task in tasks:
        task.cancel()


if __name__ == "__main__":
    run_loop(_run(int(sys.argv[1])))
