"""Serves one MCP client over standard input and output, when the client started the gateway as a child process.

Standard input is polled, so a signal can end the gateway while the client keeps its pipe open. If the input cannot be polled (a file, or
Windows), a thread reads it. While the client is served, descriptors 0 and 1 are redirected, so that child processes cannot read the
client's messages, and stray prints go to stderr. Serving ends when the client closes the pipe, or at the end of the file.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import anyio
import anyio.to_thread

from gateway.server.dispatch import LineDispatch, ServerParts
from gateway.server.parked import ParkedCalls
from gateway.server.startup_answers import READ_SIZE, SHORT_BYTES, AnsweredFilter, EarlyExchange, Listed, StartupAnswers


class StdioParts(ServerParts, Protocol):
    """The attributes and methods of `GatewayServer` that this module needs to serve a client over stdio."""

    parked: ParkedCalls


async def serve_stdio(server: StdioParts, first: StartupAnswers | None = None, listed: Listed | None = None) -> None:
    """Serve one MCP client over standard input and output until the client closes the pipe.

    `first` is the object that answered the client while the gateway was loading; serving continues with the input that it has read.
    `listed` is a function that stores results for the next start. It is called at most once, after the first listing that the fast path
    (without the MCP SDK) has handled in a 2025 session.
    """
    try:
        await _serve(server, first, listed)
    finally:
        await server.parked.end_remote_parked()


async def _serve(server: StdioParts, first: StartupAnswers | None, listed: Listed | None) -> None:
    with _private(0, lambda: os.open(os.devnull, os.O_RDONLY)) as wire_in, _private(1, _errors) as wire_out:
        out = _Out(wire_out)
        async with anyio.create_task_group() as tasks:
            taken = first.take() if first is not None else EarlyExchange()
            if taken.unsent:
                await out.write(taken.unsent)
            write = AnsweredFilter(taken, out.write).write if taken.answered else out.write
            conversation = LineDispatch(server, write, tasks, listed)
            async for line in _lines(wire_in, taken.data):
                await conversation.take(line)
            await conversation.end()
            tasks.cancel_scope.cancel()


class _Out:
    """Writes whole lines to a pipe, socket or terminal, in the order of the calls. If the pipe is full, only the tasks that write wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = anyio.Lock()
        if sys.platform != "win32":
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write `data` completely, after all earlier writes."""
        async with self._writing:
            if len(data) <= SHORT_BYTES and self._has_room():
                data = data[os.write(self._descriptor, data) :]
            if data:
                await anyio.to_thread.run_sync(self._write_all, data, abandon_on_cancel=True)

    def _has_room(self) -> bool:
        """Whether `SHORT_BYTES` can be written without blocking. False on Windows, because a pipe cannot be polled there."""
        return sys.platform != "win32" and any(event == select.POLLOUT for _, event in self._poll.poll(0))

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]


async def _lines(descriptor: int, data: bytes = b"") -> AsyncGenerator[bytes, None]:
    """Yield the lines of standard input, without line ends. Waiting for a line can be cancelled.

    `descriptor` is a duplicate of the descriptor of standard input. `data` is input that was read before; its lines come first.
    """
    pending: list[bytes] = []
    is_pollable = _is_pollable(descriptor)
    while True:
        if not data and is_pollable:
            await anyio.wait_readable(descriptor)
            data = os.read(descriptor, READ_SIZE)
        elif not data:
            data = await anyio.to_thread.run_sync(os.read, descriptor, READ_SIZE, abandon_on_cancel=True)
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
    """Redirect standard descriptor `number` (0 or 1) to the file that `diversion` opens, and yield a duplicate of the original.

    On exit the original is restored. The duplicate stays open, because a thread may still use it.
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


def _errors() -> int:
    """Return a new descriptor of standard error. If standard error is closed, return a descriptor of the null device."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _is_pollable(descriptor: int) -> bool:
    """Whether a descriptor can be polled: true for pipes, sockets and terminals, false for files, the null device, and on Windows."""
    import stat

    mode = os.fstat(descriptor).st_mode
    return sys.platform != "win32" and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor))
