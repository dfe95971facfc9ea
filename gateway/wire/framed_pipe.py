"""`FramedPipe`: splits the output of a child process into lines and writes lines to its input. `upstream.pipe` is its subclass.

Every buffer is bounded. A line over the limit is dropped except for its ends. A large line needs a claim (permission to hold it in
memory): until the claim is granted, the child is not read. Plain asyncio, because the child's pipes are protocols of the event loop, and
memory streams and tasks would cost ten times what a message costs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import cast

import anyio

from gateway.wire.message_sizes import LARGE_BYTES, Claim, Claims

MAX_STDERR_LINE_BYTES = 65_536
"""Maximum bytes kept of a line of standard error that does not end."""

LINES_AT_ONCE = 64
"""Lines that are delivered before other callbacks of the event loop run. One read has up to 256 KiB: thousands of short lines."""

FINAL_OUTPUT_SECONDS = 0.5
"""How long output is read after the child's end. Processes that the child started may hold its streams open without end."""

FINAL_OUTPUT_WAITS = 20
"""Maximum number of further `FINAL_OUTPUT_SECONDS` while this process pauses reading, because the pipe may then hold more output."""


class FramedPipe(asyncio.SubprocessProtocol):
    """The standard streams of one child process. A subclass implements the methods that receive lines."""

    def __init__(self, name: str, max_line_bytes: int, claims: Claims | None = None) -> None:
        """`claims` counts the memory of large lines under `name`. Without `claims`, large lines are delivered like short lines."""
        self._name = name
        self._claims = claims
        self._claim: Claim | None = None
        """The claim (permission to hold memory) of the large line that is being read."""
        self._is_held = False
        """Whether a large line is being processed. What was read after that line waits."""
        self._is_ending = False
        """Whether the output ended while a large line was processed."""
        self._max_line_bytes = max_line_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._line: list[bytes] = []
        """The parts of the line that has not ended yet. Of a line that is too long, only the ends are kept."""
        self._size = 0
        self._unframed: deque[bytes] = deque()
        """Bytes that were read and not yet split into lines, in order. While there are any, the child is not read."""
        self._is_framing = False
        """Whether `_frame_more` is scheduled."""
        self._stderr = b""
        self._writable: asyncio.Future[None] | None = None
        """A future that `write` awaits while the child does not read its input; `None` while the child reads."""
        self._lines: list[bytes | memoryview] = []
        """Lines that are written together at the end of this turn of the event loop."""
        self._is_readable = True
        self._was_paused = False
        """Whether reading was paused since `_await_final_output` last looked."""
        self.is_open = True
        """Whether the child's output is open."""
        self.takes_input = True
        """Whether the child's input is open."""
        self.ended = anyio.Event()
        """Set when the process has ended; its children may still hold its streams."""

    # -- for the subclass --------------------------------------------------------------------------------------

    def line_received(self, line: bytes) -> None:
        """Process a line of standard output, without its line break."""
        raise NotImplementedError

    def large_line_received(self, parts: list[bytes], claim: Claim) -> None:
        """Process a large line, given in consecutive parts, in another thread or process. No line follows before `resume_framing`."""
        raise NotImplementedError

    def oversized_line_received(self, ends: bytes) -> None:
        """Handle a line over `max_line_bytes`. `ends` is its beginning directly followed by its end."""
        raise NotImplementedError

    def stderr_line_received(self, line: bytes) -> None:
        """Process a line of standard error."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return whether further lines may be delivered. The subclass calls `read_on` when there is room again."""
        raise NotImplementedError

    def output_ended(self) -> None:
        """Handle the end of standard output, after its last line."""
        raise NotImplementedError

    def resume_framing(self) -> None:
        """Deliver the lines after a large line. The subclass calls this when it has processed the large line."""
        self._is_held = False
        if self._is_ending:
            self._end_output()
        else:
            self._frame_more()
            self.read_on()

    # -- for the event loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, which has the child's pipes."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Split bytes of standard output or standard error into lines."""
        if fd == 1:
            self._frame(data)
        else:
            self._frame_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that the child, or the system, closed one of its streams."""
        if fd == 0:
            self.takes_input = False
            self.resume_writing()
        elif fd == 1:
            self._end_output()
        else:
            self._frame_stderr(b"\n")

    def process_exited(self) -> None:
        """Set `ended`. The output counts as ended `FINAL_OUTPUT_SECONDS` later, after its last lines were read."""
        self.ended.set()
        self._was_paused = True
        self._await_final_output(FINAL_OUTPUT_WAITS)

    def _await_final_output(self, waits: int) -> None:
        if waits and self._was_paused:
            self._was_paused = not self._is_readable
            asyncio.get_running_loop().call_later(FINAL_OUTPUT_SECONDS, self._await_final_output, waits - 1)
        else:
            self._end_output()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the process has ended and all its streams are closed."""
        self.takes_input = False
        self.resume_writing()
        self._end_output()

    def pause_writing(self) -> None:
        """Make `write` wait, because the child does not read its input."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Wake `write`: the child reads its input again, or the input is closed."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # -- writing -----------------------------------------------------------------------------------------------

    async def write(self, *line: bytes | memoryview) -> None:
        """Write one line, given in consecutive parts, as soon as the child reads.

        Raises:
            BrokenResourceError: The child's input is closed.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)
        self.write_now(line)

    @property
    def is_writable(self) -> bool:
        """Whether the child reads its input."""
        return self._writable is None

    def write_now(self, line: Iterable[bytes | memoryview]) -> None:
        """Write one line without waiting until the child reads; until then the line is buffered. For short lines only.

        Raises:
            BrokenResourceError: The child's input is closed.
        """
        if not self.takes_input:
            raise anyio.BrokenResourceError
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._flush)
        self._lines += line
        self._lines.append(b"\n")

    def _flush(self) -> None:
        data = b"".join(self._lines)
        self._lines.clear()
        stdin = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if stdin is not None and data and not stdin.is_closing():
            cast("asyncio.WriteTransport", stdin).write(data)

    def close_input(self) -> None:
        """Close the child's input."""
        self._flush()
        self.takes_input = False
        stdin = self._transport.get_pipe_transport(0) if self._transport is not None else None
        if stdin is not None:
            stdin.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def _frame(self, data: bytes) -> None:
        if self._unframed or self._is_held:
            self._unframed.append(data)
            self.read_on()
            return
        *lines, rest = data.split(b"\n", LINES_AT_ONCE)
        if len(lines) == LINES_AT_ONCE and rest:
            self._unframed.append(rest)
            rest = b""
        for index, line in enumerate(lines):
            if self._size:
                self._end_line(line)
            elif len(line) <= self._max_line_bytes:
                self.line_received(line)
            else:
                self.oversized_line_received(line)
            if self._is_held:
                if later := b"\n".join([*lines[index + 1 :], rest]):
                    self._unframed.appendleft(later)
                rest = b""
                break
        if rest:
            self._size += len(rest)
            self._line.append(rest)
            if self._size > self._max_line_bytes:
                del self._line[2:-2]  # the id of a JSON-RPC message is at one of its ends
            if self._size >= LARGE_BYTES and self._claim is None and self._claims is not None:
                self._claim = self._claims.claim(self._name, self._max_line_bytes, self.read_on)
        self.read_on()

    def _frame_more(self) -> None:
        """Split the bytes in `_unframed`, which were read earlier, into lines, and deliver the lines."""
        self._is_framing = False
        if self._unframed:
            data = b"".join(self._unframed)
            self._unframed.clear()
            self._frame(data)

    def _end_line(self, last: bytes) -> None:
        parts, size, claim = self._line, self._size + len(last), self._claim
        self._line, self._size, self._claim = [], 0, None
        parts.append(last)
        if size > self._max_line_bytes:
            self.oversized_line_received(b"".join(parts))
        elif claim is None:
            self.line_received(b"".join(parts))
        else:
            self._is_held = True
            self.large_line_received(parts, claim)

    def _frame_stderr(self, data: bytes) -> None:
        *lines, rest = (self._stderr + data).split(b"\n")
        self._stderr = rest[-MAX_STDERR_LINE_BYTES:]
        for line in lines:
            self.stderr_line_received(line)

    def read_on(self) -> None:
        """Continue splitting bytes into lines, and then reading the child, if `has_room` allows it; otherwise pause reading."""
        has_room = self.has_room()
        if self._is_held or (self._claim is not None and not self._claim.is_granted):
            has_room = False
        elif self._unframed:
            if has_room and not self._is_framing:
                self._is_framing = True
                asyncio.get_running_loop().call_soon(self._frame_more)
            has_room = False
        stdout = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if stdout is None or has_room is self._is_readable:
            return
        self._is_readable = not self._is_readable
        reader = cast("asyncio.ReadTransport", stdout)
        if self._is_readable:
            reader.resume_reading()
        else:
            self._was_paused = True
            reader.pause_reading()

    def _end_output(self) -> None:
        if not self.is_open:
            return
        while self._unframed and not self._is_held:
            self._frame_more()
        self._is_ending = self._is_held
        if self._is_ending:
            return
        self.is_open, self._claim = False, None
        self.output_ended()
