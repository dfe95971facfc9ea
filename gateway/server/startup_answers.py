"""`StartupAnswers`: answers a 2025 client over stdio from the cache of an earlier run, while the gateway's modules are being imported.

A thread answers `initialize`, `ping` and the listings, and stops at the first line that it cannot answer. When the gateway is ready, it
handles all lines again from the first line on, and `AnsweredFilter` drops its responses to the requests that the thread has answered. If a
listing differs from the thread's answer, the client is notified that the list changed.

This module is imported before the rest of the gateway, so it imports little. It therefore parses lines with Python's `json`, not with
`wire.jsonrpc`, whose import of pydantic_core takes longer than the answer. The rules for what is answered are stricter than those of the
gateway, so a line that both parsers could read differently is left to the gateway.
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
from gateway.server.fast_path.handshake import plain_initialize
from gateway.storage.startup_cache import CachedAnswers, StartupCache
from gateway.wire.rpc_envelope import MEMBERS, RESULT, VERSION, VERSION_KEY, notification

logger = logging.getLogger(__name__)

READ_SIZE = 65_536
"""Bytes per read of standard input: the capacity of a pipe."""

SHORT_BYTES = 4_096
"""Number of bytes that can be written to a pipe without blocking when `poll` reports the pipe as writable (`PIPE_BUF`)."""

MAX_LINE = 65_536
"""Maximum bytes of a client's line that is answered from the cache. Longer lines are answered when the gateway is ready."""

MAX_NESTED = 100
"""Maximum number of JSON objects and lists in a client's line that is answered from the cache, before the gateway is ready."""

MAX_ID = 256
"""Maximum characters of the JSON-RPC id of a request that is answered from the cache, before the gateway is ready."""

INITIALIZE = "initialize"

CHANGED = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""Method of a listing request → method of the notification that the listing has changed."""

Number = int | str
"""The JSON-RPC id of a request."""

Write = Callable[[bytes], Awaitable[None]]

Listed = Callable[[], Coroutine[None, None, None]]
"""An async function that stores results for the next start.

The stdio server runs it at most once, after the first listing that the fast path (without the MCP SDK) has handled in a 2025 session."""


@dataclass(slots=True)
class EarlyExchange:
    """The bytes that were read from a stdio client, and the requests that were answered from the cache, before the gateway was ready."""

    data: bytes = b""
    """All bytes that were read from standard input so far."""
    unsent: bytes = b""
    """The end of the last response that could not be written to standard output yet."""
    answered: dict[Number, tuple[str, str]] = field(default_factory=lambda: cast("dict[Number, tuple[str, str]]", {}))
    """The answered requests: JSON-RPC id → method, and result as JSON text."""


class StartupAnswers:
    """Answers a stdio client from the cache of an earlier run while the gateway loads.

    `begin` starts a thread that answers, and `take` ends the thread.
    """

    def __init__(self, configuration: Path, version: str) -> None:
        """`configuration` is the absolute path of the configuration file, `version` the version of the gateway.

        Raises `StorageError` if the user has no home folder for the cache.
        """
        self.file = StartupCache(configuration, version)
        self.since_ns = time.time_ns()
        """Time when this process started, in nanoseconds since the epoch.

        The cache must not be written if a file on which it depends changed later, because this run may have read the earlier content.
        """
        self._answering: Answering | None = None

    def begin(self) -> None:
        """Start a thread that answers, if the cache of an earlier run is valid and standard input is a pipe or socket."""
        if not _is_stream(0):
            return
        with contextlib.suppress(OSError, StorageError):
            known = self.file.read()
            if known is not None:
                self._answering = Answering(known)
                self._answering.start()

    def take(self) -> EarlyExchange:
        """Stop the answering thread. Return the bytes that it has read from the client, and the requests that it has answered."""
        answering, self._answering = self._answering, None
        return answering.end() if answering is not None else EarlyExchange()


class Answering:
    """A thread that answers requests of a stdio client from cached results. `end` stops the thread, even while it waits for the client."""

    def __init__(self, known: CachedAnswers, wire_in: int = 0, wire_out: int = 1) -> None:
        """`known` are the cached results. The thread reads requests from the descriptor `wire_in`, and writes responses to `wire_out`.

        The descriptors must be pipes or sockets.
        """
        self._known = known
        self._taken = EarlyExchange()
        self._stop, self._stopper = os.pipe()
        # The thread writes to a duplicate, because descriptor 1 is redirected while the user's modules are imported.
        self._in, self._out = wire_in, _duplicate(wire_out)
        self._thread = threading.Thread(target=self._run, name="first-answers", daemon=True)

    def start(self) -> None:
        """Start the thread. It answers requests until a line cannot be answered, the client disconnects, or `end` is called."""
        self._thread.start()

    def end(self) -> EarlyExchange:
        """Stop the thread. Return the bytes that it has read from the client, and the requests that it has answered."""
        os.write(self._stopper, b"x")
        self._thread.join()
        for descriptor in (self._stop, self._stopper, self._out):
            os.close(descriptor)
        return self._taken

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # when the gateway serves the client, it finds the same error and handles it
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
        """Wait until `descriptor` is ready for `event` (`POLLIN` or `POLLOUT`), and return true. Return false if `end` was called."""
        poll = select.poll()
        poll.register(descriptor, event)
        poll.register(self._stop, select.POLLIN)
        return all(ready != self._stop for ready, _ in poll.poll())

    def _answers(self, line: bytes) -> bool:
        """Answer the message in a line from the cache, and return true. Return false if it cannot be answered, or `end` was called."""
        message = _message(line)
        if message is None:
            return False
        method, params, answered = message.get("method"), message.get("params", {}), self._taken.answered
        if "id" not in message:
            return method == "notifications/initialized" and params == {} and bool(answered)
        number = _plain_id(message["id"])
        if number is None or number in answered or not isinstance(method, str) or (method == INITIALIZE) == bool(answered):
            return False
        result = self._introduction(message) if method == INITIALIZE else self._result(method, params)
        if result is None:
            return False
        answered[number] = (method, result)
        self._taken.unsent = RESULT % (json.dumps(number).encode(), result.encode()) + b"\n"
        return self._sends()

    def _introduction(self, message: JsonMapping) -> str | None:
        hello = plain_initialize(message)
        return None if hello is None else json.dumps({**self._known.introduction, "protocolVersion": hello.client.protocol_version})

    def _result(self, method: str, params: JsonValue) -> str | None:
        if method == "ping":
            return "{}" if params == {} else None
        return self._known.lists.get(method) if _is_plain(params) else None

    def _sends(self) -> bool:
        """Write the unsent part of the last response, and return true. Return false if `end` was called meanwhile."""
        taken = self._taken
        while taken.unsent:
            if not self._waits_for(self._out, select.POLLOUT):
                return False
            with contextlib.suppress(BlockingIOError):
                taken.unsent = taken.unsent[os.write(self._out, taken.unsent[:SHORT_BYTES]) :]
        return True


class AnsweredFilter:
    """Writes lines to a stdio client, but drops responses to requests that were answered from the cache before the gateway was ready."""

    def __init__(self, taken: EarlyExchange, write: Write) -> None:
        self._answered = dict(taken.answered)
        self._write = write

    async def write(self, line: bytes) -> None:
        """Write a line to the client. A response to a request that was already answered is dropped.

        If a dropped response is a listing that differs from the earlier answer, the client is notified that the list changed.
        """
        if not self._answered or not isinstance(message := json.loads(line), dict):
            await self._write(line)
            return
        answer = cast("JsonMapping", message)
        number = _plain_id(answer.get("id"))
        if "method" in answer or number is None or number not in self._answered:
            await self._write(line)
            return
        method, text = self._answered.pop(number)
        said, now = json.loads(text), answer.get("result")
        if method in CHANGED and said != now:
            logger.info("listing changed since early answer method=%s", method)
            await self._write(json.dumps(notification(CHANGED[method], None), separators=(",", ":")).encode() + b"\n")
        elif method == INITIALIZE and _agreed(said) != _agreed(now):
            logger.error("early answer to initialize is outdated, restart the gateway")


def _agreed(result: JsonValue) -> list[JsonValue]:
    found = cast("JsonMapping", result) if isinstance(result, dict) else None
    return [found.get("protocolVersion"), found.get("capabilities")] if found is not None else []


def _message(line: bytes) -> JsonMapping | None:
    """Parse a line that contains a JSON-RPC request or notification.

    Return `None` if the line contains anything else, is too long, has too many objects and lists, or is JSON that two parsers may read
    differently.
    """
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
    return message if message.keys() <= MEMBERS and message.get(VERSION_KEY) == VERSION else None


def _plain_id(number: JsonValue) -> Number | None:
    if isinstance(number, str):
        return number if len(number) <= MAX_ID and number.isascii() and number.isprintable() else None
    return number if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 2**53 else None


def _is_plain(params: JsonValue) -> bool:
    """Whether the parameters of a listing request are empty, or contain only a progress token, which some clients always send."""
    if params == {}:
        return True
    fields = cast("JsonMapping", params) if isinstance(params, dict) else None
    meta = fields.get("_meta") if fields is not None and len(fields) == 1 else None
    if not isinstance(meta, dict) or not meta.keys() <= {"progressToken"}:
        return False
    token = cast("JsonMapping", meta).get("progressToken", "")
    return isinstance(token, int | str) and not isinstance(token, bool)


def _is_stream(descriptor: int) -> bool:
    """Whether a descriptor is a pipe or a socket."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _duplicate(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
