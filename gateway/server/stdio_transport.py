"""Serves the gateway over standard input and output, for clients that start it as a child process.

Standard input is polled, not read by a blocked thread, so a signal can end the gateway while the client keeps its pipe open. Descriptors 0
and 1 are redirected meanwhile: child processes cannot read the client's messages, and stray prints go to stderr. Serving ends when the
client closes the pipe. If standard input cannot be polled (a file, or Windows), the SDK's loop serves the client.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Protocol, cast

import anyio
import anyio.to_thread

from gateway.sdk import load
from gateway.server.bodies import problem_of
from gateway.server.dispatch import LineDispatch, ServerParts
from gateway.server.parked import ParkedCalls
from gateway.server.startup_answers import READ_SIZE, SHORT_BYTES, AnsweredFilter, EarlyExchange, Listed, StartupAnswers


class StdioParts(ServerParts, Protocol):
    """The parts of the server that a client over stdio needs."""

    parked: ParkedCalls


async def serve_stdio(server: StdioParts, first: StartupAnswers | None = None, listed: Listed | None = None) -> None:
    """Serve one client until it closes the pipe. `first` answered the client until now.

    `listed` runs after the first listing of a 2025 session.
    """
    try:
        await _serve(server, first, listed)
    finally:
        await server.parked.end_behind()


async def _serve(server: StdioParts, first: StartupAnswers | None, listed: Listed | None) -> None:
    if sys.platform == "win32" or not _is_pollable(0):
        await _serve_file(server)
        return
    with _private(0, _nothing) as wire_in, _private(1, _errors) as wire_out:
        out = _Out(wire_out)
        async with anyio.create_task_group() as tasks:
            taken = first.take() if first is not None else EarlyExchange()
            if taken.unsent:
                await out.write(taken.unsent)
            write = AnsweredFilter(taken, out.write).write if taken.told else out.write
            conversation = LineDispatch(server, write, tasks, listed)
            async for line in _lines(wire_in, taken.data):
                await conversation.take(line)
            await conversation.end()
            tasks.cancel_scope.cancel()


async def _serve_file(server: StdioParts) -> None:
    sdk = await server.load_sdk()
    await load("mcp.server.stdio")
    from mcp.server.stdio import stdio_server

    with _private(0, _nothing) as wire_in:
        lines = cast("anyio.AsyncFile[str]", _Utf8Lines(wire_in))
        async with stdio_server(stdin=lines) as (read, write):
            await sdk.mcp.run(read, write, sdk.mcp.create_initialization_options())


class _Utf8Lines:
    """Reads the lines of standard input for the SDK's loop. A line that `problem_of` rejects becomes empty; the SDK skips empty lines."""

    def __init__(self, descriptor: int) -> None:
        self._file = anyio.wrap_file(os.fdopen(descriptor, "rb", closefd=False))

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        async for line in self._file:
            yield line.decode() if problem_of(line) is None else ""


class _Out:
    """Writes whole lines to a pipe, socket or terminal, in order. A full pipe blocks only the tasks that write."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = anyio.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write `data` completely, after all earlier writes."""
        async with self._writing:
            if len(data) <= SHORT_BYTES and any(event == select.POLLOUT for _, event in self._poll.poll(0)):
                data = data[os.write(self._descriptor, data) :]
            if data:
                await anyio.to_thread.run_sync(self._write_all, data, abandon_on_cancel=True)

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


async def _lines(descriptor: int, data: bytes = b"") -> AsyncGenerator[bytes, None]:
    """Yield the lines of a pipe, socket or terminal. `data` is input that was already read. Waiting for a line can be cancelled."""
    pending: list[bytes] = []
    while True:
        if not data:
            with suppress(PermissionError):  # a file, which is always readable and cannot be polled
                await anyio.wait_readable(descriptor)
            data = os.read(descriptor, READ_SIZE)
        is_over = not data
        *complete, rest = data.split(b"\n")
        for line in complete:
            pending.append(line)
            yield b"".join(pending)
            pending = []
        if rest:
            pending.append(rest)
        data = b""
        if is_over:
            if pending:
                yield b"".join(pending)
            return


@contextmanager
def _private(number: int, diversion: Callable[[], int]) -> Generator[int, None, None]:
    """Yield a private duplicate of a standard descriptor, which meanwhile refers to the file that `diversion` opens.

    The duplicate of an output stays open afterwards, because a thread may still be writing to it.
    """
    if sys.platform == "win32":
        private = os.dup(number)
    else:
        import fcntl

        private = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    other = diversion()
    try:
        os.dup2(other, number)
        yield private
    finally:
        os.dup2(private, number)
        os.close(other)
        if number == 0:
            os.close(private)


def _nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def _errors() -> int:
    """Open a duplicate of standard error, or the null device if it is closed."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _is_pollable(descriptor: int) -> bool:
    """Whether a descriptor can be polled: true for pipes, sockets and terminals, false for regular files."""
    import stat

    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
