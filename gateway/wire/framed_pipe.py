"""`FramedPipe`: splits the output of a child process into lines and writes lines to its input. `upstream.pipe` contains the subclass.

The buffers for output are bounded: the class keeps only the beginning and the end of a line over the size limit. A line of which
`LARGE_BYTES` have arrived without its end needs a claim (permission to hold it in memory): until the claim is granted, no output is read.
The class uses asyncio's protocol callbacks directly, because memory streams and tasks (anyio) would cost ten times as much per message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import cast

import anyio

from gateway.wire.message_sizes import LARGE_BYTES, Claim, Claims

MAX_STDERR_LINE_BYTES = 65_536
"""Maximum bytes kept of an incomplete line of standard error; earlier bytes of the line are dropped."""

LINES_AT_ONCE = 64
"""Maximum lines delivered before other event loop callbacks run, because one read has up to 256 KiB, which may be thousands of lines."""

FINAL_OUTPUT_SECONDS = 0.5
"""Seconds for which standard output that stays open after the child process has ended is still read. This is limited because processes that
the child started may keep its streams open forever.
"""

FINAL_OUTPUT_WAITS = 20
"""Maximum number of waits of `FINAL_OUTPUT_SECONDS` after the child's end. The wait is repeated if the gateway paused reading during it,
because the pipe may then still contain output.
"""


class FramedPipe(asyncio.SubprocessProtocol):
    """Reads and writes the standard streams of one child process as lines. A subclass implements the methods that receive lines."""

    def __init__(self, name: str, max_line_bytes: int, claims: Claims | None = None) -> None:
        """Limit lines to `max_line_bytes`. `claims` grants the memory for each large line (`LARGE_BYTES` or more) of the server `name`.

        Without `claims`, large lines are delivered like short lines.
        """
        self._name = name
        self._claims = claims
        self._claim: Claim | None = None
        """The claim (permission to hold memory) of the large line that is being read; `None` if the line is not large."""
        self._is_held = False
        """Whether the subclass is processing a large line. Bytes read after that line wait in `_unframed`."""
        self._is_ending = False
        """Whether the child's output ended while a large line was being processed, so that `output_ended` is called afterwards."""
        self._max_line_bytes = max_line_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._line: list[bytes] = []
        """The parts of the incomplete line that is being read. If the line is too long, only its beginning and end are kept."""
        self._size = 0
        self._unframed: deque[bytes] = deque()
        """Bytes that were read but not yet split into lines, in order. The child is not read until they are split."""
        self._is_framing = False
        """Whether a call of `_frame_more`, which splits the bytes in `_unframed`, is scheduled."""
        self._stderr = b""
        self._writable: asyncio.Future[None] | None = None
        """A future that `write` awaits while the child does not read its input; `None` while the child reads."""
        self._lines: list[bytes | memoryview] = []
        """Lines for the child's input, which `_flush` writes together at the end of the current event loop iteration."""
        self._is_readable = True
        self._was_paused = False
        """Whether reading was paused since the last wait of `FINAL_OUTPUT_SECONDS` began."""
        self.is_open = True
        """Whether the child's standard output is open."""
        self.takes_input = True
        """Whether the child's standard input is open."""
        self.ended = anyio.Event()
        """Event that is set when the child process has ended; processes that it started may still keep its streams open."""

    # -- for the subclass --------------------------------------------------------------------------------------

    def line_received(self, line: bytes) -> None:
        """Process a line of the child's standard output, without its line break."""
        raise NotImplementedError

    def large_line_received(self, parts: list[bytes], claim: Claim) -> None:
        """Process a large line, given in consecutive parts, in another thread or process.

        The next line is delivered only after the subclass has called `resume_framing`.
        """
        raise NotImplementedError

    def oversized_line_received(self, ends: bytes) -> None:
        """Handle a line of standard output over `max_line_bytes`. `ends` is the line's beginning, directly followed by its end."""
        raise NotImplementedError

    def stderr_line_received(self, line: bytes) -> None:
        """Process a line of standard error."""
        raise NotImplementedError

    def has_room(self) -> bool:
        """Return whether the subclass accepts further lines; reading pauses while this is false.

        The subclass calls `read_on` when it accepts lines again.
        """
        raise NotImplementedError

    def output_ended(self) -> None:
        """Handle the end of standard output, after its last complete line. An incomplete line at the end is dropped."""
        raise NotImplementedError

    def resume_framing(self) -> None:
        """Deliver the lines that follow a large line. The subclass calls this method when it has processed the large line."""
        self._is_held = False
        if self._is_ending:
            self._end_output()
        else:
            self._frame_more()
            self.read_on()

    # -- for the event loop ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, which gives access to the child's pipes."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Split bytes of standard output or standard error into lines."""
        if fd == 1:
            self._frame(data)
        else:
            self._frame_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Handle the closing of the child's standard input (wake `write`), output (call `output_ended`) or error (end its last line)."""
        if fd == 0:
            self.takes_input = False
            self.resume_writing()
        elif fd == 1:
            self._end_output()
        else:
            self._frame_stderr(b"\n")

    def process_exited(self) -> None:
        """Set the event `ended`. End the output after `FINAL_OUTPUT_SECONDS` if the child's standard output is still open then.

        If reading was paused during the wait, wait again, up to `FINAL_OUTPUT_WAITS` times in all.
        """
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
        """End input and output, because the child process has ended and all its streams are closed."""
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
        """Write one line, given in consecutive parts, to the child's input. Waits while the child does not read its input.

        Raises:
            BrokenResourceError: The child's input is closed.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)
        self.write_now(line)

    @property
    def is_writable(self) -> bool:
        """Whether `write` would not wait, because the child reads its input or the input is closed."""
        return self._writable is None

    def write_now(self, line: Iterable[bytes | memoryview]) -> None:
        """Write one short line, given in consecutive parts, without waiting; the line is buffered while the child does not read.

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
        """Write the buffered lines and close the child's standard input."""
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
        """Pause or resume reading the child's output, depending on whether the subclass accepts further lines (`has_room`).

        Bytes that were read but not yet split into lines are split first. While a large line is processed or waits for its claim
        (permission to hold memory), reading is paused in any case.
        """
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
