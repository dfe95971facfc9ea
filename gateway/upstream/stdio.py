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

from gateway.config.models import StdioServer
from gateway.errors import UpstreamUnavailable
from gateway.processes import seal_descriptors
from gateway.sdk import load
from gateway.upstream.children import ChildProcesses
from gateway.upstream.large import LargeBodies
from gateway.upstream.link import Link
from gateway.upstream.links import PipeLink, StreamLink
from gateway.upstream.pipe import ChildLog, Pipe

__all__ = ["ChildLog", "open_stdio"]

GRACE_SECONDS = 2.0
"""Time to leave after standard input closed, and again after SIGTERM; then SIGKILL."""

LOOKS = 100
"""How often in that time it is looked whether what the child started has left too, which nobody tells."""

_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "XDG_STATE_HOME")
"""Variables of our environment that a child gets too: the SDK's choice, and where a gateway behind this one finds its state folder."""


@asynccontextmanager
async def open_stdio(
    server: str,
    entry: StdioServer,
    log: ChildLog,
    *,
    max_line_bytes: int,
    children: ChildProcesses | None = None,
    bodies: LargeBodies | None = None,
    is_direct: bool = True,
) -> AsyncGenerator[Link, None]:
    """Start the child and yield the link to it, by the SDK only without `is_direct`; leaving stops it and everything it started.

    With `children` it also ends when the gateway is killed, and is told which gateways it comes from.

    Raises:
        UpstreamUnavailable: The program cannot be started.
    """
    lineage = {} if children is None else children.lineage(server)
    if sys.platform == "win32":
        await load("mcp.client.stdio")
        from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

        env = {**get_default_environment(), **entry.env, **lineage}
        parameters = StdioServerParameters(command=entry.command, args=list(entry.args), env=env, cwd=entry.cwd)
        async with stdio_client(parameters) as streams:
            yield StreamLink(streams)
        return
    # What begins like this is a function that an old shell exported, and would be run.
    ours = {name: value for name in _INHERITED if (value := os.environ.get(name)) is not None and not value.startswith("()")}
    env = {**ours, **entry.env, **lineage}
    how: dict[str, Any] = {"env": env, "cwd": entry.cwd, "start_new_session": True}
    if children is not None:
        await children.watch()
    seal_descriptors()
    try:
        transport, pipe = await asyncio.get_running_loop().subprocess_exec(
            lambda: Pipe(server, log, max_line_bytes, bodies), entry.command, *entry.args, **how
        )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        has_words = not entry.args and len(entry.command.split()) > 1
        fix = "Write its arguments as `args`, not in `command`." if has_words else "Is it installed and on PATH?"
        raise UpstreamUnavailable(f"Cannot start {entry.command!r}: {reason}. {fix}", server=server) from None
    group = transport.get_pid()
    try:
        if children is not None:
            await children.guard(group)
        yield PipeLink(pipe, is_direct=is_direct)
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(pipe, group)
            log.exit_code = transport.get_returncode()
            transport.close()
            if children is not None:
                await children.release(group)


async def _stop(pipe: Pipe, group: int) -> None:
    """Close its input, then SIGTERM, then SIGKILL the whole process group, in which it may have left others; every step is bounded."""
    pipe.close_input()
    with anyio.move_on_after(GRACE_SECONDS):
        await pipe.ended.wait()
    if _signal(group, signal.SIGTERM):
        for _ in range(LOOKS):
            await anyio.sleep(GRACE_SECONDS / LOOKS)
            if not _signal(group, 0):
                break
        else:
            _signal(group, signal.SIGKILL)
    with anyio.move_on_after(GRACE_SECONDS):
        await pipe.ended.wait()


def _signal(group: int, number: int) -> bool:
    """Send it to every process of the group; whether there is one that takes it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False
