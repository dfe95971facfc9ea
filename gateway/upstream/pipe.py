"""`Pipe`: frames the lines of one child process and matches answers to calls. Every buffer and every wait is bounded.

Used by `stdio`, which starts and stops the child, and by `PipeCarrier`. The answer to a call settles its future at once; other messages are
handed on in order. A line that is not JSON-RPC is logged once and skipped, and the last lines of stderr are kept for error messages.

Plain asyncio, because the child's pipes are protocols of the event loop, and memory streams, tasks and models cost ten times what a message
costs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.lowlevel

from gateway.errors import Malformed, OutcomeUnknown, RequestFailure, TooLarge, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import RpcError
from gateway.tools.base import Received, Releasable
from gateway.upstream.large_bodies import Claim, LargeBodies
from gateway.wire.jsonrpc import id_of, number_of, outcome_of, to_message
from gateway.wire.long_text import Decoded, decode
from gateway.wire.message_sizes import LARGE_BYTES, too_large

logger = logging.getLogger(__name__)

STDERR_LINES = 5
"""Last lines of standard error kept for the error message."""

MAX_STDERR_LINE_BYTES = 65_536
"""Maximum bytes kept of a line of standard error that does not end."""

MAX_WAITING = 64
"""Messages that wait to be handed on. At this number the child is not read."""

LINES_AT_ONCE = 64
"""Lines of the child that are parsed before other callbacks of the event loop run. One read has up to 256 KiB: thousands of short lines."""

MAX_UNREAD = 64
"""Answers to requests of the child that wait until it reads; further ones are dropped."""

END_BYTES = 4096
"""Bytes kept from each end of a large line while it is parsed. They hold its id, for the error if it is malformed."""

HEARD_TURNS = 3
"""Turns of the event loop after which a message that was handed on is being handled."""

LAST_WORDS_SECONDS = 0.5
"""Time after the child's end in which its last output arrives. Its own children may hold its streams open without end."""


Progress = Callable[[float, float | None, str | None], None]
"""Receives a progress report of a call (progress, total, message). Must not wait."""

PipeFailure = RpcError | RequestFailure
"""The error of a call: the server's, or why there is no answer."""


@dataclass(slots=True)
class ChildLog:
    """What a child wrote outside the protocol; read when the child failed."""

    stderr: deque[str] = field(default_factory=lambda: deque[str](maxlen=STDERR_LINES))
    garbage_lines: int = 0
    exit_code: int | None = None

    def explain(self) -> str:
        """Return one line for a person: exit code and last line of stderr; empty if there is nothing to report."""
        parts: list[str] = []
        if self.exit_code is not None:
            parts.append(f"the process exited with code {self.exit_code}")
        if self.stderr:
            parts.append(f"its last words: {self.stderr[-1]!r}")
        if self.garbage_lines:
            parts.append(f"{self.garbage_lines} line(s) on its standard output were not JSON-RPC (it must log to stderr)")
        return "; ".join(parts)


class Pipe(asyncio.SubprocessProtocol):
    """The three byte streams of one child."""

    def __init__(self, server: str, log: ChildLog, max_line_bytes: int, bodies: LargeBodies | None = None) -> None:
        """Without `bodies`, large lines need no claim and are parsed in the event loop."""
        self._server = server
        self._bodies = bodies
        self._claim: Claim | None = None
        """The claim of a large line that is being read."""
        self._parsing: asyncio.Future[tuple[Decoded, Releasable | None]] | None = None
        """The parsing of a large line in another thread or process. What was read after that line waits."""
        self._parsed_ends = b""
        """The ends of that line."""
        self._is_ending = False
        """Whether the output ended while a large line was parsed."""
        self._log = log
        self._max_line_bytes = max_line_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._line: list[bytes] = []
        """The parts of the line that has not ended yet. Of a line that is too long, only the ends are kept."""
        self._size = 0
        self._unread_lines: deque[bytes] = deque()
        """Bytes that were read and not yet split into lines, in order. The child is not read meanwhile."""
        self._is_framing = False
        """Whether `_frame_more` is scheduled."""
        self._stderr = b""
        self._waiting: deque[JsonObject | tuple[int, JsonObject | PipeFailure]] = deque()
        """Messages that are not answers to calls, and the answers that came after them."""
        self._is_quiet = True
        """Whether no message waits or is being handled."""
        self._came = anyio.Event()
        self._calls: dict[int, asyncio.Future[JsonObject]] = {}
        self._others: set[int] = set()
        """Pending requests of other methods than `tools/call`."""
        self._progress: dict[int, Progress] = {}
        """Receivers of progress reports, by request."""
        self._writable: asyncio.Future[None] | None = None
        """Set while the child does not read its input."""
        self._unread = 0
        """Number of answers that wait for the child to read."""
        self._lines: list[bytes | memoryview] = []
        """Lines that are written together at the end of this turn of the event loop."""
        self._is_readable = True
        self.is_open = True
        """Whether the child's output is open."""
        self.takes_input = True
        self.ended = anyio.Event()
        """Set when the process has ended; its children may still hold its streams."""

    # -- what the loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As `asyncio.SubprocessProtocol`."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """As `asyncio.SubprocessProtocol`."""
        if fd == 1:
            self._frame(data)
        else:
            self._hear_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """As `asyncio.SubprocessProtocol`."""
        if fd == 0:
            self.takes_input = False
            self.resume_writing()
        elif fd == 1:
            self._end_output()
        else:
            self._hear_stderr(b"\n")

    def process_exited(self) -> None:
        """As `asyncio.SubprocessProtocol`."""
        self.ended.set()
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._end_output)

    def connection_lost(self, exc: Exception | None) -> None:
        """As `asyncio.SubprocessProtocol`."""
        self.takes_input = False
        self.resume_writing()
        self._end_output()

    def pause_writing(self) -> None:
        """As `asyncio.SubprocessProtocol`: the child does not read its input."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """As `asyncio.SubprocessProtocol`: the child reads its input again, or never will."""
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

    async def answer(self, line: bytes) -> None:
        """As `write`, for the answer to a request of the child. Answers are dropped if too many wait."""
        if self._unread >= MAX_UNREAD:
            logger.debug("answer dropped because the server reads none server=%s", self._server)
            return
        self._unread += 1
        try:
            await self.write(line)
        finally:
            self._unread -= 1

    @property
    def is_writable(self) -> bool:
        """Whether the child reads its input."""
        return self._writable is None

    def write_now(self, line: Iterable[bytes | memoryview]) -> None:
        """As `write`, without waiting: for a short line that follows another one. It may stay in the buffer.

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
        if self._unread_lines or self._parsing is not None:
            self._unread_lines.append(data)
            self._read_on()
            return
        *lines, rest = data.split(b"\n", LINES_AT_ONCE)
        if len(lines) == LINES_AT_ONCE and rest:
            self._unread_lines.append(rest)
            rest = b""
        for index, line in enumerate(lines):
            if self._size:
                self._end_line(line)
            elif len(line) <= self._max_line_bytes:
                self._deliver(line)
            else:
                self._refuse([line])
            if self._parsing is not None:
                if later := b"\n".join([*lines[index + 1 :], rest]):
                    self._unread_lines.appendleft(later)
                rest = b""
                break
        if rest:
            self._size += len(rest)
            self._line.append(rest)
            if self._size > self._max_line_bytes:
                del self._line[2:-2]  # the ends tell which call the line answers
            if self._size >= LARGE_BYTES and self._claim is None and self._bodies is not None:
                self._claim = self._bodies.claim(f"server {self._server}", self._max_line_bytes, self._read_on)
        self._read_on()

    def _frame_more(self) -> None:
        """Frame the bytes that were read."""
        self._is_framing = False
        if self._unread_lines:
            data = b"".join(self._unread_lines)
            self._unread_lines.clear()
            self._frame(data)

    def _end_line(self, last: bytes) -> None:
        parts, size = self._line, self._size + len(last)
        self._line, self._size = [], 0
        parts.append(last)
        if size > self._max_line_bytes:
            self._claim = None
            self._refuse(parts)
        elif self._claim is None or self._bodies is None:
            self._deliver(b"".join(parts))
        else:
            self._parsed_ends = parts[0][:END_BYTES] + parts[-1][-END_BYTES:]
            self._parsing = asyncio.ensure_future(self._bodies.read(parts, self._claim, self._is_call))
            self._parsing.add_done_callback(self._parsed)

    def _parsed(self, parsing: asyncio.Future[tuple[Decoded, Releasable | None]]) -> None:
        """Deliver a large line, then frame what was read after it."""
        self._claim = self._parsing = None
        try:
            decoded, claim = parsing.result()
        except ValueError:
            self._skip(self._parsed_ends)
        except ToolFailed as error:
            self._fail_call(self._parsed_ends, TooLarge(str(error), server=self._server))
        except asyncio.CancelledError:  # the event loop is closing
            return
        else:
            if not self._settle(decoded, claim):
                self._hear(decoded[0], self._parsed_ends)
        if self._is_ending:
            self._end_output()
        else:
            self._frame_more()
            self._read_on()

    def _deliver(self, line: bytes) -> None:
        try:
            decoded = decode(line)
        except ValueError:
            if line.strip():
                self._skip(line)
            return
        if not (self._calls and self._settle(decoded, None)):
            self._hear(decoded[0], line)

    def _hear(self, value: JsonValue, line: bytes) -> None:
        """Hand on a message that does not answer a call."""
        message = to_message(value)
        if message is not None:
            self._hand_on(message)
        else:
            self._skip(line)

    def _skip(self, line: bytes) -> None:
        """Drop a line that is not JSON-RPC, and fail the call that it seems to answer. A log line may have an id too."""
        self._complain("a line that is not JSON-RPC")
        if b'"method"' not in line and any(member in line for member in (b'"jsonrpc"', b'"result"', b'"error"')):
            self._fail_call(line, Malformed("a line is not JSON-RPC", server=self._server))

    def _fail_call(self, line: bytes, failure: RequestFailure) -> None:
        """Fail the call that a line answers, if its id can be read."""
        number = id_of(line)
        if number is not None and (number := number_of(number)) in self._calls:
            self._answer(number, failure)

    def _settle(self, decoded: Decoded, claim: Releasable | None) -> bool:
        """Give an answer to the call that waits for it; whether it was one."""
        message, encoded, long_text = decoded
        fields: JsonMapping | None = message  # or another value
        if not isinstance(fields, dict):
            return False
        said = fields.get("id")
        number = said if type(said) is int else number_of(said)
        call = self._calls.get(number)
        if call is None or "method" in fields or fields.get("jsonrpc") != "2.0":
            return False
        result: JsonObject | RpcError | None = fields.get("result")  # or another value
        if "error" in fields or not isinstance(result, dict):  # else the message is an ordinary result
            result = outcome_of(message, fields["id"])
        if result is None:
            return False
        outcome = Received(result, encoded, long_text, claim) if isinstance(result, dict) else result
        self._answer(number, outcome)
        return True

    def _answer(self, number: int, outcome: JsonObject | PipeFailure) -> None:
        if self._is_quiet:
            self._resolve(number, outcome)
        else:
            self._hand_on((number, outcome))

    def _resolve(self, number: int, outcome: JsonObject | PipeFailure) -> None:
        call = self._calls.pop(number, None)
        if call is None or call.done():
            return
        if isinstance(outcome, dict):
            call.set_result(outcome)
        else:
            call.set_exception(outcome)

    def _refuse(self, parts: list[bytes]) -> None:
        """Drop a line that is too long, and fail the call that it answers."""
        self._complain(f"a line of over {self._max_line_bytes} bytes")
        self._fail_call(b"".join(parts), TooLarge(too_large(self._max_line_bytes), server=self._server))

    def _complain(self, what: str) -> None:
        self._log.garbage_lines += 1
        if self._log.garbage_lines == 1:
            logger.warning("%s on standard output skipped, further ones are only counted server=%s", what, self._server)

    def _hear_stderr(self, data: bytes) -> None:
        *lines, rest = (self._stderr + data).split(b"\n")
        self._stderr = rest[-MAX_STDERR_LINE_BYTES:]
        for line in lines:
            text = line.decode(errors="replace").strip()[:500]
            if text:
                self._log.stderr.append(text)
                logger.debug("stderr server=%s line=%s", self._server, text)

    # -- to who takes it ---------------------------------------------------------------------------------------

    def _hand_on(self, item: JsonObject | tuple[int, JsonObject | PipeFailure]) -> None:
        self._waiting.append(item)
        self._is_quiet = False
        self._came.set()

    async def hand_on_forever(self, take: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Hand on every message that does not answer a call, one after the other, until the output ends.

        An answer that came after a message is delivered only when the message is being handled.
        """
        while self.is_open or self._waiting:
            await self._came.wait()
            self._came = anyio.Event()
            await self._hand_on_all(take)

    async def _hand_on_all(self, take: Callable[[JsonObject], Awaitable[None]]) -> None:
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, tuple):
                await self._heard()
                self._waiting.popleft()  # not before, because an answer that came counts even if the output ends meanwhile
                self._resolve(*item)
            else:
                self._waiting.popleft()
                await take(item)
                self._read_on()
        await self._heard()
        self._is_quiet = not self._waiting

    async def _heard(self) -> None:
        for _ in range(HEARD_TURNS):
            await anyio.lowlevel.checkpoint()

    def _read_on(self) -> None:
        """Continue framing and then reading if there is room for messages, else pause reading."""
        has_room = len(self._waiting) < MAX_WAITING
        if self._parsing is not None or (self._claim is not None and not self._claim.is_granted):
            has_room = False
        elif self._unread_lines:
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
            reader.pause_reading()

    def _end_output(self) -> None:
        if not self.is_open:
            return
        while self._unread_lines and self._parsing is None:
            self._frame_more()
        self._is_ending = self._parsing is not None
        if self._is_ending:
            return
        self.is_open, self._claim = False, None
        answered = {item[0] for item in self._waiting if isinstance(item, tuple)}
        self.end_calls(but=answered)
        self._came.set()

    # -- calls -------------------------------------------------------------------------------------------------

    def _is_call(self, said: JsonValue) -> bool:
        """Return whether a pending `tools/call` has this id."""
        return (number := number_of(said)) in self._calls and number not in self._others

    def expect(self, number: int, progress: Progress | None = None, *, is_call: bool = True) -> asyncio.Future[JsonObject]:
        """Return the future of the answer to a request that is about to be sent. The caller calls `forget` in any case."""
        call: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        if not is_call:
            self._others.add(number)
        if progress is not None:
            self._progress[number] = progress
        if not self.is_open:
            call.set_exception(self.closed())
        return call

    def forget(self, number: int, call: asyncio.Future[JsonObject]) -> None:
        """Remove a request whose answer nothing waits for."""
        self._calls.pop(number, None)
        self._progress.pop(number, None)
        self._others.discard(number)
        if call.done() and not call.cancelled():
            call.exception()  # or the event loop logs an exception that was never retrieved

    def progress_of(self, params: JsonMapping) -> Progress | None:
        """Return the receiver of a progress notification, or `None` if no pending request has its token."""
        return self._progress.get(number_of(params.get("progressToken"))) if self._progress else None

    def closed(self) -> OutcomeUnknown:
        """Return the failure of a call that gets no answer because the pipe has closed."""
        return OutcomeUnknown("the pipe closed", server=self._server)

    def end_calls(self, *, but: Collection[int] = ()) -> None:
        """Fail the pending calls except those in `but`, because no further answer comes."""
        for number in [number for number in self._calls if number not in but]:
            self._resolve(number, self.closed())
