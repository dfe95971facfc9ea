"""`Pipe`: lines to and from one child process, every buffer and wait bounded, and `PipeExchange`: a call over it and its answer.

Used by `stdio`, which starts and stops the child. What the child writes is framed here; the answer to a call of the exchange goes
straight to who waits for it, everything else to whoever takes it (`links`), in the order it came. What is not JSON-RPC is reported
once and skipped, a line has a limit, and the last lines of stderr are kept to explain a death.

Plain asyncio, because the child's pipes are protocols of the event loop, and memory streams, tasks and models per message cost ten
times what the message does (performance.md §4).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.lowlevel

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import CONNECTION_CLOSED, PARSE_ERROR, RpcError
from gateway.tools.base import Received, Releasable
from gateway.tools.verbatim import Decoded, decode
from gateway.tools.waits import PlainWait, own_task
from gateway.upstream.answers import error_of, failed, id_of, outcome_of
from gateway.upstream.exchange import FIRST_NUMBER, Progress, RequestWriter, cancellation, encode_message
from gateway.upstream.large import LARGE_BYTES, Claim, LargeBodies
from gateway.upstream.standins import TOO_LARGE, too_large

logger = logging.getLogger(__name__)

STDERR_LINES = 5
"""Last lines of standard error kept for the error message."""

MAX_STDERR_LINE_BYTES = 65_536
"""Of a line of standard error that does not end."""

MAX_WAITING = 64
"""Messages that wait to be taken; then the child is not read."""

LINES_AT_ONCE = 64
"""Lines of the child that are parsed before other callbacks of the event loop run. One read has up to 256 KiB: thousands of short lines."""

MAX_UNREAD = 64
"""Answers to requests of the child that wait until it reads; further ones are dropped."""

END_BYTES = 4096
"""Kept of either end of a large line while it is parsed: they hold its id, for the error if it is malformed."""

HEARD_TURNS = 3
"""Turns of the event loop after which a message that was given away is being handled."""

LAST_WORDS_SECONDS = 0.5
"""What a child said that has ended is there by then, though others that it started may hold its streams open for ever."""


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


class Pipe(asyncio.SubprocessProtocol):
    """The three byte streams of one child."""

    def __init__(self, server: str, log: ChildLog, max_line_bytes: int, bodies: LargeBodies | None = None) -> None:
        """Without `bodies` large lines need no claim, and are parsed in the event loop."""
        self._server = server
        self._bodies = bodies
        self._claim: Claim | None = None
        """Of the line that is being read, where it is large."""
        self._parsing: asyncio.Future[tuple[Decoded, Releasable | None]] | None = None
        """Parses a large line elsewhere; what was read after it waits."""
        self._parsed_ends = b""
        """The ends of that line."""
        self._is_ending = False
        """The output ended while a large line was parsed."""
        self._log = log
        self._max_line_bytes = max_line_bytes
        self._transport: asyncio.SubprocessTransport | None = None
        self._line: list[bytes] = []
        """The parts of the line that has not ended yet; of one that is too long only its ends."""
        self._size = 0
        self._unread_lines: deque[bytes] = deque()
        """What was read and not yet split into lines, in order; the child is not read meanwhile."""
        self._is_framing = False
        """`_frame_more` is scheduled."""
        self._stderr = b""
        self._waiting: deque[JsonObject | tuple[int, JsonObject | RpcError]] = deque()
        """What is no answer to a call, and answers that came after it."""
        self._is_quiet = True
        """Nothing of it is there, nor just being handled."""
        self._came = anyio.Event()
        self._calls: dict[int, PlainWait[JsonObject]] = {}
        self._others: set[int] = set()
        """Of these, the requests of other methods than `tools/call`."""
        self._progress: dict[int, Progress] = {}
        """Where calls want to hear how far they are."""
        self._writable: asyncio.Future[None] | None = None
        """While the child does not read."""
        self._unread = 0
        """Answers that wait for that."""
        self._lines: list[bytes | memoryview] = []
        """Written at the end of this turn of the loop, together."""
        self._is_readable = True
        self.is_open = True
        """Whether its output goes on."""
        self.takes_input = True
        self.ended = anyio.Event()
        """The process is gone; a grandchild may still hold its streams."""

    # -- what the loop calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The child runs."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It said something."""
        if fd == 1:
            self._frame(data)
        else:
            self._hear_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It closed one of its streams."""
        if fd == 0:
            self.takes_input = False
            self.resume_writing()
        elif fd == 1:
            self._end_output()
        else:
            self._hear_stderr(b"\n")

    def process_exited(self) -> None:
        """It is gone."""
        self.ended.set()
        asyncio.get_running_loop().call_later(LAST_WORDS_SECONDS, self._end_output)

    def connection_lost(self, exc: Exception | None) -> None:
        """All is over."""
        self.takes_input = False
        self.resume_writing()
        self._end_output()

    def pause_writing(self) -> None:
        """It does not read."""
        if self._writable is None:
            self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """It reads again, or never will."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # -- writing -----------------------------------------------------------------------------------------------

    async def write(self, *line: bytes | memoryview) -> None:
        """Give the child one line (in parts that follow each other), as soon as it reads.

        Raises:
            BrokenResourceError: It takes none.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)
        self.write_now(line)

    async def answer(self, line: bytes) -> None:
        """As `write`, for the answer to a request of the child's own: one that asks on and on and does not read gets none."""
        if self._unread >= MAX_UNREAD:
            logger.debug("%s: an answer was dropped, as the server reads none", self._server)
            return
        self._unread += 1
        try:
            await self.write(line)
        finally:
            self._unread -= 1

    @property
    def is_writable(self) -> bool:
        """Whether it reads what it is given."""
        return self._writable is None

    def write_now(self, line: Iterable[bytes | memoryview]) -> None:
        """As `write`, but for a line that is short and follows one that it was given; it may have to wait in the buffer.

        Raises:
            BrokenResourceError: It takes none.
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
        """Nothing more is said to it."""
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
                del self._line[2:-2]  # the ends tell whose answer it is
            if self._size >= LARGE_BYTES and self._claim is None and self._bodies is not None:
                self._claim = self._bodies.claim(f"server {self._server}", self._max_line_bytes, self._read_on)
        self._read_on()

    def _frame_more(self) -> None:
        """Go on with what was read."""
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
        """Deliver a large line, then go on with what was read after it."""
        self._claim = self._parsing = None
        try:
            decoded, claim = parsing.result()
        except ValueError:
            self._skip(self._parsed_ends)
        except ToolFailed as error:
            if (said := id_of(self._parsed_ends)) is not None:
                self._stand_in(said, RpcError(TOO_LARGE, str(error)))
        except asyncio.CancelledError:  # the loop ends
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
        """Hand on a message that is not an answer to a call of the exchange."""
        message = to_message(value)
        if message is not None:
            self._hand_on(message)
        else:
            self._skip(line)

    def _skip(self, line: bytes) -> None:
        """Drop what is not JSON-RPC; the call that it seems to answer fails."""
        self._complain("a line that is not JSON-RPC")
        if (said := id_of(line)) is not None and (_number(said) in self._calls or _is_marked_answer(line)):
            self._stand_in(said, RpcError(PARSE_ERROR, "Failed to parse JSON response"))

    def _stand_in(self, said: int | str, error: RpcError) -> None:
        """Give the error to who waits for the answer with this id: a call of the exchange, or else one of the SDK's dispatcher."""
        if (number := _number(said)) in self._calls:
            self._answer(number, error)
        else:
            self._hand_on(failed(said, error))

    def _settle(self, decoded: Decoded, claim: Releasable | None) -> bool:
        """Give an answer to the call that waits for it; whether it was one."""
        message, encoded, verbatim = decoded
        fields: JsonMapping | None = message  # at best
        if not isinstance(fields, dict):
            return False
        said = fields.get("id")
        number = said if type(said) is int else _number(said)
        call = self._calls.get(number)
        if call is None or "method" in fields or fields.get("jsonrpc") != "2.0":
            return False
        result: JsonObject | RpcError | None = fields.get("result")  # at best
        if "error" in fields or not isinstance(result, dict):  # else there is nothing to decide
            result = outcome_of(message, fields["id"])
        if result is None:
            return False
        outcome = Received(result, encoded, verbatim, claim) if isinstance(result, dict) else result
        if self._is_quiet and not isinstance(outcome, RpcError):
            del self._calls[number]
            call.settle(outcome, is_plain=True)
        else:
            self._answer(number, outcome)
        return True

    def _answer(self, number: int, outcome: JsonObject | RpcError) -> None:
        if self._is_quiet:
            self._resolve(number, outcome)
        else:
            self._hand_on((number, outcome))

    def _resolve(self, number: int, outcome: JsonObject | RpcError) -> None:
        """Who waits for a result, that came after something else, has a task of its own from here on (`tools.waits`)."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        if isinstance(outcome, RpcError):
            call.fail(outcome)
        else:
            call.settle(outcome, is_plain=False)

    def _refuse(self, parts: list[bytes]) -> None:
        """A line that is too long: whoever waits for it as an answer is told so."""
        self._complain(f"a line of over {self._max_line_bytes} bytes")
        said = id_of(b"".join(parts))
        if said is None:
            return
        self._stand_in(said, RpcError(TOO_LARGE, too_large(self._max_line_bytes)))

    def _complain(self, what: str) -> None:
        self._log.garbage_lines += 1
        if self._log.garbage_lines == 1:
            logger.warning("%s: %s on its standard output was skipped; further ones are only counted", self._server, what)

    def _hear_stderr(self, data: bytes) -> None:
        *lines, rest = (self._stderr + data).split(b"\n")
        self._stderr = rest[-MAX_STDERR_LINE_BYTES:]
        for line in lines:
            text = line.decode(errors="replace").strip()[:500]
            if text:
                self._log.stderr.append(text)
                logger.debug("%s stderr: %s", self._server, text)

    # -- to who takes it ---------------------------------------------------------------------------------------

    def _hand_on(self, item: JsonObject | tuple[int, JsonObject | RpcError]) -> None:
        self._waiting.append(item)
        self._is_quiet = False
        self._came.set()

    async def hand_on_forever(self, take: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Give away every message that is no answer to a call, one after the other, until the output ends.

        An answer that came after a message is not given before that one is `take`n and being handled.
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
                self._waiting.popleft()  # not before: it is an answer that came, even if the output ends meanwhile
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
        """Go on with what was read, then with reading, if there is room for what comes; else pause reading."""
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
        """Whether a call of `tools/call` waits for the answer with this id."""
        return (number := _number(said)) in self._calls and number not in self._others

    def expect(self, number: int, progress: Progress | None = None, *, is_call: bool = True) -> PlainWait[JsonObject]:
        """The answer to a request that is about to be sent; `forget` it in any case."""
        call: PlainWait[JsonObject] = PlainWait()
        self._calls[number] = call
        if not is_call:
            self._others.add(number)
        if progress is not None:
            self._progress[number] = progress
        if not self.is_open:
            call.set_exception(_closed())
        return call

    def forget(self, number: int, call: PlainWait[JsonObject]) -> None:
        """Nobody waits any more."""
        self._calls.pop(number, None)
        self._progress.pop(number, None)
        self._others.discard(number)
        if call.done() and not call.cancelled():
            call.exception()  # or the loop reports one that nobody took

    def progress_of(self, params: JsonMapping) -> Progress | None:
        """Who wants to hear what a progress notification says; `None` where it is for no call that is under way."""
        return self._progress.get(_number(params.get("progressToken"))) if self._progress else None

    def end_calls(self, *, but: Collection[int] = ()) -> None:
        """No answer comes any more, `but` for these."""
        for number in [number for number in self._calls if number not in but]:
            self._resolve(number, _closed())


class PipeExchange:
    """Requests over a pipe. Belongs to one session."""

    speaks_both_eras = True
    """As `Exchange`: over a pipe the eras differ in what is said, not in how."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._last = FIRST_NUMBER - 1
        self._writer = RequestWriter()

    def close(self) -> None:
        """End what runs; the pipe is closed by who opened it."""
        self._pipe.end_calls()

    async def request(
        self,
        method: str,
        params: JsonMapping,
        progress: Progress | None = None,
        meta: JsonMapping | None = None,
    ) -> JsonObject:
        """The result of one request. What the server says meanwhile goes to who takes it. Cancelling it cancels it at the server.

        Raises:
            RpcError: An error came back, or the pipe broke.
            ToolFailed: The parameters cannot be sent.
        """
        self._last = number = self._last + 1
        if progress is not None:
            meta = {**(meta or {}), "progressToken": number}
        line = self._writer.parts(number, method, params, meta)
        pipe = self._pipe
        call = pipe.expect(number, progress, is_call=method == "tools/call")
        is_written = is_answered = False
        try:
            if pipe.is_writable:
                pipe.write_now(line)
            else:
                await own_task()
                await pipe.write(*line)
            is_written = True
            result = await call
            is_answered = True
            return result
        except anyio.BrokenResourceError:
            raise _closed() from None
        except asyncio.CancelledError:
            if is_written and method != "initialize":  # which may not be cancelled
                self._cancel(number)
            raise
        finally:
            if not is_answered or progress is not None or method != "tools/call":
                pipe.forget(number, call)

    async def notify(self, method: str, params: JsonMapping | None) -> None:
        """Send a notification, if the child takes any."""
        with contextlib.suppress(anyio.BrokenResourceError):
            await self._pipe.write(encode_message({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}))

    def _cancel(self, number: int) -> None:
        with contextlib.suppress(anyio.BrokenResourceError):  # it is gone, and the call with it
            self._pipe.write_now([cancellation(number)])


def _number(said: JsonValue) -> int:
    """The number of a request of ours, by an id that some servers give back as text; -1 for none."""
    if isinstance(said, str):
        return int(said) if said.isdecimal() and len(said) < 20 else -1
    return said if isinstance(said, int) and not isinstance(said, bool) else -1


def _is_marked_answer(line: bytes) -> bool:
    """Whether a line that cannot be read was to be an answer: the numbers of the SDK's requests are small, as others in a log are."""
    return b'"jsonrpc"' in line and b'"method"' not in line


def to_message(value: JsonValue) -> JsonObject | None:
    """A decoded line as JSON-RPC message; `None` where it is none."""
    if not isinstance(value, dict):
        return None
    fields = cast("JsonObject", value)
    if fields.get("jsonrpc") != "2.0":
        return None
    if isinstance(fields.get("method"), str):
        is_one = isinstance(fields.get("params"), dict | None)
    else:
        said = fields.get("id")
        is_named = isinstance(said, int | str) and not isinstance(said, bool)
        is_one = (is_named and isinstance(fields.get("result"), dict)) or ((is_named or said is None) and error_of(fields) is not None)
    return fields if is_one else None


def _closed() -> RpcError:
    """In the SDK's words, which `session` translates."""
    return RpcError(CONNECTION_CLOSED, "Connection closed")
