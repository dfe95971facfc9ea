"""Serves the gateway over standard input and output: what an IDE starts.

Standard input is read when it has something, not by a waiting thread, so a signal can end the gateway while the
client keeps its pipe open. The descriptors 0 and 1 are diverted meanwhile: a child reads nothing of the wire,
and stray prints go to stderr. Ends when the client closes our standard input. Where it cannot be waited for (a
file, Windows), the SDK's loop has both.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from typing import cast

import anyio
import anyio.to_thread

from gateway.sdk import load
from gateway.server.bodies import problem_of
from gateway.server.build import GatewayServer
from gateway.server.conversation import Conversation
from gateway.server.first_answers import READ_SIZE, SHORT_BYTES, FirstAnswers, Listed, Taken, Told


async def serve_stdio(server: GatewayServer, first: FirstAnswers | None = None, listed: Listed | None = None) -> None:
    """Serve one client until it closes the pipe; `first` answered it until now, and `listed` is as in `Conversation`."""
    try:
        await _serve(server, first, listed)
    finally:
        await server.parked.end_behind()


async def _serve(server: GatewayServer, first: FirstAnswers | None, listed: Listed | None) -> None:
    if sys.platform == "win32" or not _is_pollable(0):
        await _serve_file(server)
        return
    with _private(0, _nothing) as wire_in, _private(1, _errors) as wire_out:
        out = _Out(wire_out)
        async with anyio.create_task_group() as tasks:
            taken = first.take() if first is not None else Taken()
            if taken.unsent:
                await out.write(taken.unsent)
            write = Told(taken, out.write).write if taken.told else out.write
            conversation = Conversation(server, write, tasks, listed)
            async for line in _lines(wire_in, taken.data):
                await conversation.take(line)
            await conversation.end()
            tasks.cancel_scope.cancel()


async def _serve_file(server: GatewayServer) -> None:
    sdk = await server.load_sdk()
    await load("mcp.server.stdio")
    from mcp.server.stdio import stdio_server

    with _private(0, _nothing) as wire_in:
        lines = cast("anyio.AsyncFile[str]", _Utf8Lines(wire_in))
        async with stdio_server(stdin=lines) as (read, write):
            await sdk.mcp.run(read, write, sdk.mcp.create_initialization_options())


class _Utf8Lines:
    """The lines of a file, as the SDK reads them. A line that `problem_of` refuses becomes an empty one, which the SDK skips."""

    def __init__(self, descriptor: int) -> None:
        self._file = anyio.wrap_file(os.fdopen(descriptor, "rb", closefd=False))

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        async for line in self._file:
            yield line.decode() if problem_of(line) is None else ""


class _Out:
    """Writes whole lines to a pipe, socket or terminal, one after the other; one that is full holds up nobody but its writers."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = anyio.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Returns when it is written."""
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
    """The lines of a pipe, socket or terminal, of which `data` was read before; waiting for one can be cancelled."""
    pending: list[bytes] = []
    while True:
        if not data:
            with suppress(PermissionError):  # of a file, which is always readable and cannot be waited for
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
    """A standard descriptor under a number of its own, with what `diversion` opens in its place.

    That of an output stays taken after this: a thread may still be writing there.
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
    """Standard error, where there is one."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _is_pollable(descriptor: int) -> bool:
    """Whether readiness can be waited for: true for pipes, sockets and terminals, false for regular files."""
    import stat

    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
