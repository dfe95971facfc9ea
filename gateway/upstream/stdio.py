"""MCP over the standard input and output of a child process: starts it, and stops it with everything that it started.

What goes over its streams is `pipe`'s, which is used instead of the SDK's client on POSIX because that one reads lines of any length
(in quadratic time) and lets the child write straight to our stderr. On Windows the SDK's client is used.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.shared.message import SessionMessage

from gateway.config.models import StdioServer
from gateway.errors import UpstreamUnavailable
from gateway.upstream.children import ChildProcesses
from gateway.upstream.pipe import ChildLog, Pipe, PipeWriter

__all__ = ["ChildLog", "open_stdio"]

GRACE_SECONDS = 2.0
"""Time to leave after standard input closed, and again after SIGTERM; then SIGKILL."""

Reader = MemoryObjectReceiveStream[SessionMessage | Exception]


@asynccontextmanager
async def open_stdio(
    server: str, entry: StdioServer, log: ChildLog, *, max_line_bytes: int, children: ChildProcesses | None = None
) -> AsyncGenerator[tuple[Reader, PipeWriter], None]:
    """Start the child and yield its message streams; leaving stops it and everything it started.

    With `children` it also ends when the gateway is killed.

    Raises:
        UpstreamUnavailable: The program cannot be started.
    """
    env = {**get_default_environment(), **entry.env}
    if sys.platform == "win32":
        parameters = StdioServerParameters(command=entry.command, args=list(entry.args), env=env, cwd=entry.cwd)
        async with stdio_client(parameters) as streams:
            yield streams  # pyright: ignore[reportReturnType]  # the SDK types them as protocols
        return
    how: dict[str, Any] = {"env": env, "cwd": entry.cwd, "start_new_session": True}
    try:
        transport, pipe = await asyncio.get_running_loop().subprocess_exec(
            lambda: Pipe(server, log, max_line_bytes), entry.command, *entry.args, **how
        )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UpstreamUnavailable(f"Cannot start {entry.command!r}: {reason}. Is it installed and on PATH?", server=server) from None
    group = transport.get_pid()
    if children is not None:
        await children.guard(group)
    send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipe.hand_on_forever, send)
        try:
            yield receive, PipeWriter(pipe)
        finally:
            with anyio.CancelScope(shield=True):
                receive.close()
                await _stop(pipe, group)
                log.exit_code = transport.get_returncode()
                transport.close()
                if children is not None:
                    await children.release(group)
            tasks.cancel_scope.cancel()


async def _stop(pipe: Pipe, group: int) -> None:
    """Close its input, then SIGTERM, then SIGKILL the whole process group; every step is bounded."""
    pipe.close_input()
    if await _left_within(GRACE_SECONDS, pipe):
        _signal(group, signal.SIGTERM)  # what it left behind
        return
    _signal(group, signal.SIGTERM)
    if not await _left_within(GRACE_SECONDS, pipe):
        _signal(group, signal.SIGKILL)
        await _left_within(GRACE_SECONDS, pipe)


async def _left_within(seconds: float, pipe: Pipe) -> bool:
    with anyio.move_on_after(seconds):
        await pipe.ended.wait()
    return pipe.ended.is_set()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
