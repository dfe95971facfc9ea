"""Serves the gateway over standard input and output: what an IDE starts.

Standard input is read when it has something, not by a waiting thread, so a signal can end the gateway while the
client keeps its pipe open. The descriptors 0 and 1 are diverted meanwhile: a child reads nothing of the wire,
and stray prints go to stderr. Ends when the client closes our standard input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import contextmanager
from typing import cast

import anyio
from mcp.server.stdio import stdio_server

from gateway.server.build import GatewayServer

READ_SIZE = 65_536
"""Bytes per read of standard input: what a pipe holds."""


async def serve_stdio(server: GatewayServer) -> None:
    """Serve one client until it closes the pipe."""
    with _private_stdin() as descriptor:
        stdin = cast("anyio.AsyncFile[str]", _Lines(descriptor)) if descriptor is not None else None  # only iterated
        async with stdio_server(stdin) as (read, write):
            await server.mcp.run(read, write, server.mcp.create_initialization_options())


class _Lines:
    """The lines of a pipe, socket or terminal; waiting for one can be cancelled."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __aiter__(self) -> AsyncIterator[str]:
        return self._read()

    async def _read(self) -> AsyncGenerator[str, None]:
        pending: list[bytes] = []
        while True:
            await anyio.wait_readable(self._descriptor)
            data = os.read(self._descriptor, READ_SIZE)
            *complete, rest = data.split(b"\n")
            for line in complete:
                pending.append(line)
                yield b"".join(pending).decode(errors="replace")
                pending = []
            if rest:
                pending.append(rest)
            if not data:
                if pending:
                    yield b"".join(pending).decode(errors="replace")
                return


@contextmanager
def _private_stdin() -> Generator[int | None, None, None]:
    """Standard input under a number of its own, with 0 on the null device; `None` where it cannot be waited for."""
    if sys.platform == "win32" or not _is_pollable(0):
        yield None
        return
    import fcntl

    private = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        yield private
    finally:
        os.dup2(private, 0)
        os.close(private)
        os.close(null)


def _is_pollable(descriptor: int) -> bool:
    """Whether readiness can be waited for: true for pipes, sockets and terminals, false for regular files."""
    import stat

    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
