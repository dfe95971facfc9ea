"""`ChildDeadline`: kills a child process at a time that its gateway must keep moving on, also while the gateway itself is stopped.

A gateway that is suspended (SIGSTOP) cannot end its own child processes. So a small process beside it holds the deadline of one child: it
kills the child's process group at the deadline, or as soon as the gateway is dead.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL

import anyio
import anyio.abc

from gateway.errors import NotSent
from gateway.processes import seal_descriptors

_SCRIPT = """
import os, select, sys, time
group, deadline, rest = int(sys.argv[1]), float(sys.argv[2]), b""
while (left := deadline - time.monotonic()) > 0:
    if select.select([0], [], [], left)[0]:
        part = os.read(0, 4096)
        if not part:
            break
        *lines, rest = (rest + part).split(b"\\n")
        if b"end" in lines:
            sys.exit()
        if lines:
            deadline = float(lines[-1])
try:
    os.killpg(group, 9)
except OSError:
    pass
"""
"""Program of the process. Its arguments are the process group and the first deadline (`time.monotonic`, which all processes share).

Each line of its input is a later deadline, or `end` if the child has ended. The end of its input means that the gateway is dead.
"""

_END_SECONDS = 2.0
"""Timeout in seconds for the end of the process."""


class ChildDeadline:
    """The process that kills one child process group at a deadline. `held` starts it."""

    def __init__(self, server: str, process: anyio.abc.Process) -> None:
        self._server = server
        self._process = process

    @classmethod
    @asynccontextmanager
    async def held(cls, server: str, group: int, deadline: float) -> AsyncGenerator[ChildDeadline]:
        """Context manager: kill the process group `group` at `deadline` (`time.monotonic`), unless the context is left before.

        Raises:
            NotSent: The process that would kill the group cannot be started.
        """
        seal_descriptors()
        command = [sys.executable, "-I", "-S", "-c", _SCRIPT, str(group), str(deadline)]
        try:
            process = await anyio.open_process(command, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
        except OSError as error:
            text = f"Server {server!r} is not started, because the process that guards its lease cannot start: {error.strerror}."
            raise NotSent(text, server=server) from None
        made = cls(server, process)
        try:
            yield made
        finally:
            with anyio.move_on_after(_END_SECONDS, shield=True):
                with suppress(NotSent):
                    await made._send("end")
                await process.wait()
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def move(self, deadline: float) -> None:
        """Move the deadline. Raises `NotSent` if the process has ended, so that the child must be ended, too."""
        await self._send(str(deadline))

    async def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(f"{line}\n".encode())
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise NotSent(f"The process that guards the lease of server {self._server!r} has ended.", server=self._server) from None
