"""MCP over the standard input and output of a child process, with every buffer and wait bounded.

Used instead of the SDK's client on POSIX because that one reads lines of any length (in quadratic time) and
lets the child write straight to our stderr: here a line has a limit, what is not JSON-RPC is reported once
and skipped, and the last lines of stderr are kept to explain a death. On Windows the SDK's client is used.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

from gateway.config.models import StdioServer
from gateway.errors import UpstreamUnavailable
from gateway.upstream.children import ChildProcesses
from gateway.upstream.http import TOO_LARGE, too_large

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0
"""Time to leave after standard input closed, and again after SIGTERM; then SIGKILL."""

STDERR_LINES = 5
"""Last lines of standard error kept for the error message."""

READ_SIZE = 65_536
"""Bytes per read from the child."""

EXIT_POLL_SECONDS = 0.01
"""How often a leaving child is looked at."""


_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*,(?!\s*"method")')
_TAIL_ID = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
"""The id of an answer, where writers of JSON-RPC put it: at the start of the line or at its end."""


@dataclass(slots=True)
class ChildLog:
    """What a child said outside the protocol; read when it failed."""

    stderr: deque[str] = field(default_factory=lambda: deque[str](maxlen=STDERR_LINES))
    garbage_lines: int = 0
    exit_code: int | None = None

    def explain(self) -> str:
        """One line for a person: exit code and last words, or empty."""
        parts: list[str] = []
        if self.exit_code is not None:
            parts.append(f"the process exited with code {self.exit_code}")
        if self.stderr:
            parts.append(f"its last words: {self.stderr[-1]!r}")
        if self.garbage_lines:
            parts.append(f"{self.garbage_lines} line(s) on its standard output were not JSON-RPC (it must log to stderr)")
        return "; ".join(parts)


Reader = MemoryObjectReceiveStream[SessionMessage | Exception]
Writer = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def open_stdio(
    server: str, entry: StdioServer, log: ChildLog, *, max_line_bytes: int, children: ChildProcesses | None = None
) -> AsyncGenerator[tuple[Reader, Writer], None]:
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
    try:
        process = await anyio.open_process(
            [entry.command, *entry.args], env=env, cwd=entry.cwd, start_new_session=True
        )
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UpstreamUnavailable(f"Cannot start {entry.command!r}: {reason}. Is it installed and on PATH?", server=server) from None
    pipe = _Pipe(server, process, log, max_line_bytes)
    if children is not None:
        await children.guard(process.pid)
    read_send, read_receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_send, write_receive = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipe.read_messages, read_send)
        tasks.start_soon(pipe.write_messages, write_receive)
        tasks.start_soon(pipe.read_stderr)
        try:
            yield read_receive, write_send
        finally:
            with anyio.CancelScope(shield=True):
                read_receive.close()
                write_send.close()
                await pipe.stop()
                if children is not None:
                    await children.release(process.pid)
            tasks.cancel_scope.cancel()


class _Pipe:
    """The three byte streams of one child."""

    def __init__(self, server: str, process: anyio.abc.Process, log: ChildLog, max_line_bytes: int) -> None:
        self._server = server
        self._process = process
        self._log = log
        self._max_line_bytes = max_line_bytes

    async def read_messages(self, out: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Frame and decode standard output until it ends; then the message stream ends too."""
        stdout = self._process.stdout
        assert stdout is not None
        async with out:
            with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                pending: list[bytes] = []
                size = 0
                while True:
                    chunk = await stdout.receive(READ_SIZE)
                    *lines, rest = chunk.split(b"\n")
                    for line in lines:
                        pending.append(line)
                        if size + len(line) <= self._max_line_bytes:
                            await self._deliver(b"".join(pending), out)
                        else:
                            await self._refuse(b"".join(pending[:2]), b"".join(pending[2:]), out)
                        pending.clear()
                        size = 0
                    size += len(rest)
                    pending.append(rest)
                    if size > self._max_line_bytes:
                        del pending[2:-2]  # the ends tell whose answer it is

    async def _deliver(self, line: bytes, out: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        if not line.strip():
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._complain("a line that is not JSON-RPC")
            return
        await out.send(SessionMessage(message))

    async def _refuse(self, head: bytes, tail: bytes, out: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """A line that is too long: whoever waits for it as an answer is told so."""
        self._complain(f"a line of over {self._max_line_bytes} bytes")
        found = _HEAD_ID.match(head) or _TAIL_ID.search(tail)
        if found is not None:
            error = ErrorData(code=TOO_LARGE, message=too_large(self._max_line_bytes))
            await out.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=json.loads(found[1]), error=error)))

    def _complain(self, what: str) -> None:
        self._log.garbage_lines += 1
        if self._log.garbage_lines == 1:
            logger.warning("%s: %s on its standard output was skipped; further ones are only counted", self._server, what)

    async def write_messages(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write what the session sends; a child that no longer reads ends the connection."""
        stdin = self._process.stdin
        assert stdin is not None
        async with messages:
            with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                async for item in messages:
                    line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await stdin.send(line.encode() + b"\n")

    async def read_stderr(self) -> None:
        """Log the child's standard error line by line and keep the last ones."""
        stderr = self._process.stderr
        assert stderr is not None
        rest = b""
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            while True:
                *lines, rest = (rest + await stderr.receive(READ_SIZE)).split(b"\n")
                rest = rest[-READ_SIZE:]
                for line in lines:
                    self._note(line)
        self._note(rest)

    def _note(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()[:500]
        if text:
            self._log.stderr.append(text)
            logger.debug("%s stderr: %s", self._server, text)

    async def stop(self) -> None:
        """Close its input, then SIGTERM, then SIGKILL the whole process group; every step is bounded."""
        if self._process.stdin is not None:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._process.stdin.aclose()
        if not await self._left_within(GRACE_SECONDS):
            self._signal(signal.SIGTERM)
            if not await self._left_within(GRACE_SECONDS):
                self._signal(signal.SIGKILL)
                await self._left_within(GRACE_SECONDS)
        else:
            self._signal(signal.SIGTERM)
        self._log.exit_code = self._process.returncode
        with anyio.move_on_after(GRACE_SECONDS):
            await self._process.aclose()

    async def _left_within(self, seconds: float) -> bool:
        # Polled: `wait()` also waits for the pipes, which a grandchild may still hold open.
        with anyio.move_on_after(seconds):
            while self._process.returncode is None:  # noqa: ASYNC110  # the exit is reported by no event
                await anyio.sleep(EXIT_POLL_SECONDS)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
