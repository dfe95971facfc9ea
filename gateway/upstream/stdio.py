"""Starts a child process that speaks MCP over its standard input and output, and stops the process and everything that it started.

On POSIX systems, `pipe` sends and receives the messages. It replaces the MCP SDK's stdio client, which reads lines of any length (in
quadratic time) and lets the child write directly to the gateway's stderr. On Windows, the SDK's client is used.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import anyio

from gateway.config.models import StdioServer
from gateway.errors import NotSent
from gateway.processes import ProcessGroup, seal_descriptors
from gateway.sdk import load
from gateway.upstream.carriers.carrier import Carrier
from gateway.upstream.carriers.pipe_carrier import PipeCarrier
from gateway.upstream.carriers.sdk_carrier import SdkCarrier
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.large_bodies import LargeBodies
from gateway.upstream.pipe import ChildLog, Pipe

__all__ = ["ChildLog", "open_stdio"]

GRACE_SECONDS = 2.0
"""Seconds that a child process gets to end after its standard input is closed, and again after SIGTERM. Then SIGKILL is sent."""

CHECKS = 100
"""Maximum number of times that the gateway checks, within `GRACE_SECONDS` after SIGTERM, whether the child's process group has ended.

The gateway must check because no event reports the end of a process group.
"""

_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "XDG_STATE_HOME")
"""Environment variables that a child process inherits: those that the MCP SDK passes on, and `XDG_STATE_HOME`.

From `XDG_STATE_HOME`, a child process that is a Moongate gateway finds its state folder.
"""


@asynccontextmanager
async def open_stdio(
    server: str,
    entry: StdioServer,
    log: ChildLog,
    *,
    max_line_bytes: int,
    children: ChildProcesses | None = None,
    bodies: LargeBodies | None = None,
    on_child: Callable[[int], AbstractAsyncContextManager[None]] | None = None,
) -> AsyncGenerator[Carrier, None]:
    """Start the child process of `entry`, and yield the carrier that exchanges messages with it. Leaving stops its process group.

    Diagnostics are written to `log`. If `children` is given, the child also ends if the gateway is killed, and the child's environment
    names the gateways through which it was started. `on_child` is entered with the child's process group while the child runs.

    Raises:
        NotSent: The program cannot be started, or a chain of gateways would start each other endlessly (`ChildProcesses.lineage`).
    """
    lineage = {} if children is None else children.lineage(server)
    if sys.platform == "win32":
        await load("mcp.client.stdio")
        from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

        env = {**get_default_environment(), **entry.env, **lineage}
        parameters = StdioServerParameters(command=entry.command, args=list(entry.args), env=env, cwd=entry.cwd)
        async with stdio_client(parameters) as streams:
            yield SdkCarrier(server, lambda: nullcontext(streams))
        return
    # A value that begins with `()` is a function that an old shell exported, and a shell would execute it (Shellshock).
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
        raise NotSent(f"Cannot start {entry.command!r}: {reason}. {fix}", server=server) from None
    group = transport.get_pid()
    try:
        if children is not None:
            await children.guard(group)
        async with nullcontext() if on_child is None else on_child(group):
            yield PipeCarrier(server, pipe)
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(pipe, ProcessGroup(group))
            log.exit_code = transport.get_returncode()
            transport.close()
            if children is not None:
                await children.release(group)


async def _stop(pipe: Pipe, group: ProcessGroup) -> None:
    """Stop the child: close its input, then send SIGTERM and at last SIGKILL to its process group. Each step has a time limit."""
    pipe.close_input()
    with anyio.move_on_after(GRACE_SECONDS):
        await pipe.ended.wait()
    if group.terminate():
        for _ in range(CHECKS):
            await anyio.sleep(GRACE_SECONDS / CHECKS)
            if not group.is_alive():
                break
        else:
            group.kill()
    with anyio.move_on_after(GRACE_SECONDS):
        await pipe.ended.wait()
