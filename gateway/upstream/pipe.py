"""`Pipe`: exchanges JSON-RPC messages with one MCP server that runs as a child process, and matches its responses to pending requests.

`stdio` starts and stops the process, and `PipeCarrier` sends the requests. A response sets the result of its request's future at once,
unless messages that arrived before it are still being processed. All other messages are passed to the session in order. Lines that are not
JSON-RPC are skipped, and the first one is logged. The last lines of stderr are kept for error messages. In the names below, a "call" is a
pending request to the process, and an "answer" is its response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from gateway.errors import Malformed, OutcomeUnknown, RequestFailure, TooLarge, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import RpcError
from gateway.tools.base import Received, Releasable
from gateway.upstream.carriers.carrier import Progress
from gateway.upstream.large_bodies import LargeBodies
from gateway.wire.framed_pipe import FramedPipe
from gateway.wire.jsonrpc import decode_message, id_of, looks_like_response, number_of, outcome_of, to_message
from gateway.wire.long_text import Decoded
from gateway.wire.message_sizes import Claim, too_large
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY

logger = logging.getLogger(__name__)

STDERR_LINES = 5
"""Number of last lines of the child's standard error that are kept for an error message."""

MAX_WAITING = 64
"""Maximum number of received messages that wait for the session to process them. At this number, the gateway stops reading from the child.
"""

MAX_UNREAD = 64
"""Maximum number of responses to requests of the child that wait until the child reads. Further responses are dropped."""

END_BYTES = 4096
"""Bytes kept from each end of a large line while it is parsed. If the line is malformed, the id of its request is read from these bytes."""

HANDLING_TURNS = 3
"""Iterations of the event loop after which the session has begun to process a message that was passed to it."""

PipeFailure = RpcError | RequestFailure
"""The error of a failed request: a JSON-RPC error that the server sent, or the reason why no response arrived."""


@dataclass(slots=True)
class ChildLog:
    """Diagnostics of a child process for an error message: last lines of stderr, number of invalid lines on stdout, and exit code."""

    stderr: deque[str] = field(default_factory=lambda: deque[str](maxlen=STDERR_LINES))
    garbage_lines: int = 0
    exit_code: int | None = None

    def explain(self) -> str:
        """Return one line of text about the child's exit code, stderr and invalid output; empty if there is nothing to report."""
        parts: list[str] = []
        if self.exit_code is not None:
            parts.append(f"the process exited with code {self.exit_code}")
        if self.stderr:
            parts.append(f"the last line on its standard error: {self.stderr[-1]!r}")
        if self.garbage_lines:
            parts.append(f"{self.garbage_lines} line(s) on its standard output were not JSON-RPC (it must log to stderr)")
        return "; ".join(parts)


class Pipe(FramedPipe):
    """Writes messages to one child process, parses its output, and ends each pending request with the response of the child."""

    def __init__(self, server: str, log: ChildLog, max_line_bytes: int, bodies: LargeBodies | None = None) -> None:
        """`bodies` grants the memory for large lines and parses them in other threads. If it is `None`, the event loop parses all lines."""
        super().__init__(f"server {server}", max_line_bytes, bodies)
        self._server = server
        self._bodies = bodies
        self._parsing: asyncio.Future[tuple[Decoded, Releasable | None]] | None = None
        """The future of a large line that is being parsed. Referenced here because the event loop does not keep it alive."""
        self._log = log
        self._waiting: deque[JsonObject | tuple[int, JsonObject | PipeFailure]] = deque()
        """Received messages that wait, in order, until the session processes them, and the responses that arrived after them."""
        self._is_quiet = True
        """Whether no received message waits or is being processed, so that a response can end its request at once."""
        self._came = anyio.Event()
        self._calls: dict[int, asyncio.Future[JsonObject]] = {}
        self._others: set[int] = set()
        """Ids of pending requests with another method than `tools/call`."""
        self._progress: dict[int, Progress] = {}
        """Functions that receive the progress reports of a request, by request id."""
        self._unread = 0
        """Number of responses to the child's requests that wait until the child reads."""

    async def answer(self, line: bytes) -> None:
        """Write the gateway's response to a request of the child. Drop it if `MAX_UNREAD` responses already wait until the child reads."""
        if self._unread >= MAX_UNREAD:
            logger.debug("answer dropped because the server reads none server=%s", self._server)
            return
        self._unread += 1
        try:
            await self.write(line)
        finally:
            self._unread -= 1

    # -- reading -----------------------------------------------------------------------------------------------

    def line_received(self, line: bytes) -> None:
        """Parse one line of the child's standard output.

        A response ends its pending request, any other message is queued, and a line that is not JSON-RPC is skipped.
        """
        try:
            decoded = decode_message([line])
        except ValueError:
            if line.strip():
                self._skip(line)
            return
        if not (self._calls and self._settle(decoded, None)):
            self._receive(decoded[0], line)

    def large_line_received(self, parts: list[bytes], claim: Claim) -> None:
        """Parse a large line of the child's standard output in another thread or process. `_parsed` then processes the message.

        `claim` is the memory granted for the line.
        """
        assert self._bodies is not None, "lines are claimed only from `bodies`"
        ends = parts[0][:END_BYTES] + parts[-1][-END_BYTES:]
        self._parsing = asyncio.ensure_future(self._bodies.read(parts, claim, self._is_call))
        self._parsing.add_done_callback(lambda parsing: self._parsed(parsing, ends))

    def _parsed(self, parsing: asyncio.Future[tuple[Decoded, Releasable | None]], ends: bytes) -> None:
        """Process the parsed message of a large line, then resume reading lines. `ends` are the first and last bytes of the line."""
        self._parsing = None
        try:
            decoded, claim = parsing.result()
        except ValueError:
            self._skip(ends)
        except ToolFailed as error:
            self._fail_call(ends, TooLarge(str(error), server=self._server))
        except asyncio.CancelledError:  # the event loop is closing
            return
        else:
            if not self._settle(decoded, claim):
                self._receive(decoded[0], ends)
        self.resume_framing()

    def oversized_line_received(self, ends: bytes) -> None:
        """Fail the request that a line over the size limit answers. Log the line if it is the first that is not used.

        `ends` are the line's first and last bytes, from which the id of the request is read.
        """
        self._complain(f"a line of over {self._max_line_bytes} bytes")
        self._fail_call(ends, TooLarge(too_large(self._max_line_bytes), server=self._server))

    def stderr_line_received(self, line: bytes) -> None:
        """Store a line of the child's standard error, for the error message if the child fails."""
        text = line.decode(errors="replace").strip()[:500]
        if text:
            self._log.stderr.append(text)
            logger.debug("stderr server=%s line=%s", self._server, text)

    def has_room(self) -> bool:
        """Return whether further lines may be read from the child: fewer than `MAX_WAITING` messages wait."""
        return len(self._waiting) < MAX_WAITING

    def output_ended(self) -> None:
        """Fail the pending requests whose responses have not arrived, because the child's output has ended."""
        self.end_calls(but={item[0] for item in self._waiting if isinstance(item, tuple)})
        self._came.set()

    def _receive(self, value: JsonValue, line: bytes) -> None:
        """Queue a message that is not the response to a pending request; skip a line that is not JSON-RPC."""
        message = to_message(value)
        if message is not None:
            self._queue(message)
        else:
            self._skip(line)

    def _skip(self, line: bytes) -> None:
        """Drop a line that is not JSON-RPC. If the line looks like a response, fail the request whose id the line contains.

        If the line does not look like a response, no request fails, because the line may be log output.
        """
        self._complain("a line that is not JSON-RPC")
        if looks_like_response(line):
            self._fail_call(line, Malformed("a line is not JSON-RPC", server=self._server))

    def _fail_call(self, line: bytes, failure: RequestFailure) -> None:
        """Fail the pending request that a malformed or too large line answers, with `failure`, if the id in `line` can be read.

        `line` may be only the first and last bytes of the line.
        """
        number = id_of(line)
        if number is not None and (number := number_of(number)) in self._calls:
            self._answer(number, failure)

    def _settle(self, decoded: Decoded, claim: Releasable | None) -> bool:
        """End the pending request that a parsed message answers. Return whether the message is the response to a pending request."""
        message, encoded, long_text = decoded
        fields: JsonMapping | None = message  # may have any type; checked below
        if not isinstance(fields, dict):
            return False
        said = fields.get("id")
        number = said if type(said) is int else number_of(said)
        call = self._calls.get(number)
        if call is None or "method" in fields or fields.get(VERSION_KEY) != VERSION:
            return False
        result: JsonObject | RpcError | None = fields.get("result")  # may have any type; checked below
        if "error" in fields or not isinstance(result, dict):  # otherwise the message is an ordinary result
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
            self._queue((number, outcome))

    def _resolve(self, number: int, outcome: JsonObject | PipeFailure) -> None:
        call = self._calls.pop(number, None)
        if call is None or call.done():
            return
        if isinstance(outcome, dict):
            call.set_result(outcome)
        else:
            call.set_exception(outcome)

    def _complain(self, what: str) -> None:
        self._log.garbage_lines += 1
        if self._log.garbage_lines == 1:
            logger.warning("standard output skipped, later ones are only counted server=%s reason=%r", self._server, what)

    # -- messages that do not answer calls ---------------------------------------------------------------------

    def _queue(self, item: JsonObject | tuple[int, JsonObject | PipeFailure]) -> None:
        self._waiting.append(item)
        self._is_quiet = False
        self._came.set()

    async def pass_on_forever(self, take: Callable[[JsonObject], Awaitable[None]]) -> None:
        """Call `take` with each received message, in order, until the child's output ends. Responses to pending requests are left out.

        If a response arrives after another message, its request ends only when the session has begun to process that message.
        """
        while self.is_open or self._waiting:
            await self._came.wait()
            self._came = anyio.Event()
            await self._pass_on_all(take)

    async def _pass_on_all(self, take: Callable[[JsonObject], Awaitable[None]]) -> None:
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, tuple):
                await self._until_handled()
                self._waiting.popleft()  # Only now: if the output ends during the wait, `output_ended` must not fail this request.
                self._resolve(*item)
            else:
                self._waiting.popleft()
                await take(item)
                self.read_on()
        await self._until_handled()
        self._is_quiet = not self._waiting

    async def _until_handled(self) -> None:
        for _ in range(HANDLING_TURNS):
            await anyio.lowlevel.checkpoint()

    # -- calls -------------------------------------------------------------------------------------------------

    def _is_call(self, said: JsonValue) -> bool:
        """Return whether `said`, the id in a received message, is the id of a pending `tools/call` request."""
        return (number := number_of(said)) in self._calls and number not in self._others

    def expect(self, number: int, progress: Progress | None = None, *, is_call: bool = True) -> asyncio.Future[JsonObject]:
        """Register a request that is about to be sent, and return the future of its response. The caller must always call `forget`.

        `progress` receives the request's progress reports. `is_call` is true for `tools/call`.
        """
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
        """Unregister a request that has ended or whose response is no longer needed."""
        self._calls.pop(number, None)
        self._progress.pop(number, None)
        self._others.discard(number)
        if call.done() and not call.cancelled():
            call.exception()  # otherwise the event loop logs "exception was never retrieved"

    def progress_of(self, params: JsonMapping) -> Progress | None:
        """Return the function that receives a progress notification, or `None` if no pending request has the notification's token."""
        return self._progress.get(number_of(params.get("progressToken"))) if self._progress else None

    def closed(self) -> OutcomeUnknown:
        """Return the error of a request that gets no response because the pipe to the child is closed."""
        return OutcomeUnknown("the pipe closed", server=self._server)

    def end_calls(self, *, but: Collection[int] = ()) -> None:
        """Fail all pending requests, except those whose ids are in `but`, because no further response will arrive."""
        for number in [number for number in self._calls if number not in but]:
            self._resolve(number, self.closed())
