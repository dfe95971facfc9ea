"""`FirstAnswers`: answers a 2025 client over stdio with what is known from an earlier run, while the gateway is still being imported.

A thread answers `initialize`, `ping` and the listings. It stops for good at the first line that it cannot answer. When the gateway reads
standard input, it gets every line from the first one on and handles them as usual; `Told` drops its answers to requests that were answered
already. If such an answer lists something else than the earlier one, the client is notified that the list changed.

Imported before the gateway, so it imports little.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from gateway.errors import StorageError
from gateway.json_types import JsonMapping, JsonValue
from gateway.server.handshake import plain_hello
from gateway.storage.first_answers import AnswersFile, Known

logger = logging.getLogger(__name__)

READ_SIZE = 65_536
"""Bytes per read of standard input: what a pipe holds."""

SHORT_BYTES = 4_096
"""A pipe that can be written to takes this much without waiting (`PIPE_BUF`)."""

MAX_LINE = 65_536
"""A longer line is left to the gateway."""

MAX_NESTED = 100
"""Objects and lists of a line, likewise."""

MAX_ID = 256
"""Characters of an id, likewise."""

INITIALIZE = "initialize"

CHANGED = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""The listings, and the notification that one changed."""

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})

Number = int | str
"""The id of a request."""

Write = Callable[[bytes], Awaitable[None]]

Listed = Callable[[], Coroutine[None, None, None]]
"""What runs after the first listing of a session."""


@dataclass(slots=True)
class Taken:
    """The input and the answers from before the gateway was there."""

    data: bytes = b""
    """Everything that was read."""
    unsent: bytes = b""
    """The rest of an answer that the client has not read yet."""
    told: dict[Number, tuple[str, str]] = field(default_factory=lambda: cast("dict[Number, tuple[str, str]]", {}))
    """By id, the method of each answered request and its result as JSON text."""


class FirstAnswers:
    """Of one run. `begin` starts answering and `take` ends it."""

    def __init__(self, configuration: Path, version: str) -> None:
        """`configuration` is the file's absolute path, `version` the gateway's. Raises `StorageError` if the user has no home folder."""
        self.file = AnswersFile(configuration, version)
        self.since_ns = time.time_ns()
        """When this run began; files that change later may have been read before."""
        self._answering: Answering | None = None

    def begin(self) -> None:
        """Start answering, if an earlier run left answers that still hold and standard input can be waited for."""
        if not _is_stream(0):
            return
        with contextlib.suppress(OSError, StorageError):
            known = self.file.read()
            if known is not None:
                self._answering = Answering(known)
                self._answering.start()

    def take(self) -> Taken:
        """End the answering and return what the session has to go on with."""
        answering, self._answering = self._answering, None
        return answering.end() if answering is not None else Taken()


class Answering:
    """A thread that waits for nothing but its client and its end."""

    def __init__(self, known: Known, wire_in: int = 0, wire_out: int = 1) -> None:
        """The descriptors are of a pipe or socket."""
        self._known = known
        self._taken = Taken()
        self._stop, self._stopper = os.pipe()
        # Descriptor 1 is diverted while modules of the user are imported.
        self._in, self._out = wire_in, _duplicate(wire_out)
        self._thread = threading.Thread(target=self._run, name="first-answers", daemon=True)

    def start(self) -> None:
        """Answer until a line cannot be answered, the client leaves, or `end` is called."""
        self._thread.start()

    def end(self) -> Taken:
        """Returns when nothing is read and written here any more."""
        os.write(self._stopper, b"x")
        self._thread.join()
        for descriptor in (self._stop, self._stopper, self._out):
            os.close(descriptor)
        return self._taken

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the gateway finds the same error and handles it
            self._read()

    def _read(self) -> None:
        start = 0
        while self._waits_for(self._in, select.POLLIN):
            data = os.read(self._in, READ_SIZE)
            if not data:
                return
            self._taken.data += data
            while (end := self._taken.data.find(b"\n", start)) >= 0:
                if not self._answers(self._taken.data[start:end]):
                    return
                start = end + 1
            if len(self._taken.data) - start > MAX_LINE:
                return

    def _waits_for(self, descriptor: int, event: int) -> bool:
        """Wait until `descriptor` is ready. Return false if `end` was called."""
        poll = select.poll()
        poll.register(descriptor, event)
        poll.register(self._stop, select.POLLIN)
        return all(ready != self._stop for ready, _ in poll.poll())

    def _answers(self, line: bytes) -> bool:
        """Answer a line; return false if that was not possible or not possible in time."""
        message = _message(line)
        if message is None:
            return False
        method, params, told = message.get("method"), message.get("params", {}), self._taken.told
        if "id" not in message:
            return method == "notifications/initialized" and params == {} and bool(told)
        number = _plain_id(message["id"])
        if number is None or number in told or not isinstance(method, str) or (method == INITIALIZE) == bool(told):
            return False
        result = self._introduction(message) if method == INITIALIZE else self._result(method, params)
        if result is None:
            return False
        told[number] = (method, result)
        self._taken.unsent = b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (json.dumps(number).encode(), result.encode())
        return self._sends()

    def _introduction(self, message: JsonMapping) -> str | None:
        hello = plain_hello(message)
        return None if hello is None else json.dumps({**self._known.introduction, "protocolVersion": hello.version})

    def _result(self, method: str, params: JsonValue) -> str | None:
        if method == "ping":
            return "{}" if params == {} else None
        return self._known.lists.get(method) if _is_plain(params) else None

    def _sends(self) -> bool:
        """Write `unsent`. Return false if `end` was called before."""
        taken = self._taken
        while taken.unsent:
            if not self._waits_for(self._out, select.POLLOUT):
                return False
            with contextlib.suppress(BlockingIOError):
                taken.unsent = taken.unsent[os.write(self._out, taken.unsent[:SHORT_BYTES]) :]
        return True


class Told:
    """Writes for a session of which some requests were answered before it began."""

    def __init__(self, taken: Taken, write: Write) -> None:
        self._told = dict(taken.told)
        self._write = write

    async def write(self, line: bytes) -> None:
        """Send a line, unless it answers what was answered: then say whether a list changed since."""
        if not self._told or not isinstance(message := json.loads(line), dict):
            await self._write(line)
            return
        answer = cast("JsonMapping", message)
        number = _plain_id(answer.get("id"))
        if "method" in answer or number is None or number not in self._told:
            await self._write(line)
            return
        method, text = self._told.pop(number)
        said, now = json.loads(text), answer.get("result")
        if method in CHANGED and said != now:
            logger.info("a list differs from the one that the client was given at the start method=%s", method)
            await self._write(b'{"jsonrpc":"2.0","method":"%s"}\n' % CHANGED[method].encode())
        elif method == INITIALIZE and _agreed(said) != _agreed(now):
            logger.error("initialize was answered from an earlier run, which agreed to something else; restart the gateway")


def _agreed(result: JsonValue) -> list[JsonValue]:
    found = cast("JsonMapping", result) if isinstance(result, dict) else None
    return [found.get("protocolVersion"), found.get("capabilities")] if found is not None else []


def _message(line: bytes) -> JsonMapping | None:
    """Return the message of a line that every JSON parser reads alike, if it has the members of a request or notification only."""
    is_odd = b"\\u" in line or b"NaN" in line or b"Infinity" in line
    if is_odd or len(line) > MAX_LINE or line.count(b"{") + line.count(b"[") > MAX_NESTED:
        return None
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    message = cast("JsonMapping", found)
    return message if message.keys() <= _MEMBERS and message.get("jsonrpc") == "2.0" else None


def _plain_id(number: JsonValue) -> Number | None:
    if isinstance(number, str):
        return number if len(number) <= MAX_ID and number.isascii() and number.isprintable() else None
    return number if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53 else None


def _is_plain(params: JsonValue) -> bool:
    """Whether the parameters of a listing ask for nothing. Some clients send a progress token with every request."""
    if params == {}:
        return True
    fields = cast("JsonMapping", params) if isinstance(params, dict) else None
    meta = fields.get("_meta") if fields is not None and len(fields) == 1 else None
    if not isinstance(meta, dict) or not meta.keys() <= {"progressToken"}:
        return False
    token = cast("JsonMapping", meta).get("progressToken", "")
    return isinstance(token, int | str) and not isinstance(token, bool)


def _is_stream(descriptor: int) -> bool:
    """Whether it is a pipe or a socket."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _duplicate(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
