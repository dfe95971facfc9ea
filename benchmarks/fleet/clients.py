"""HTTP connections and MCP messages of the harness, without an SDK, so that the load costs little CPU time."""

from __future__ import annotations

import asyncio  # noqa: TID251  # asyncio.Protocol has no anyio equivalent
import json
from dataclasses import dataclass
from typing import Any, cast

import httptools

from benchmarks.payload import LEGACY, META, PROTOCOL

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""Seconds that a client waits for a response."""

CALL_HEADER = "x-fleet-call"
"""Header with the name of a call, which nginx writes to its log if the request fails."""

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
"""Client capabilities of 2026 clients that let calls become tasks."""


class ConnectionLost(Exception):
    """The connection could not be opened, or was closed before the response was complete."""


class StreamBroke(ConnectionLost):
    """The event stream with the response broke after its head had arrived. It cannot carry an error; an MCP client may resume it."""


class NoAnswer(Exception):
    """The response did not arrive within `ANSWER_SECONDS`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP response."""

    status: int
    body: bytes
    session: str
    """Value of the header `mcp-session-id`, or an empty string."""

    def message(self) -> dict[str, Any] | None:
        """Return the JSON-RPC response in the body, also from an event stream; `None` if the body contains none."""
        lines = [self.body, *(line[5:] for line in reversed(self.body.split(b"\n")) if line.startswith(b"data:"))]
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return cast("dict[str, Any]", found)
        return None


class Connection(asyncio.Protocol):
    """A keep-alive connection that sends one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._head: asyncio.Future[int] | None = None
        self._parts: list[bytes] = []
        self._session = ""
        self.retry_seconds = 1.0
        """Time after which the client opens an event stream again: the last `retry` field, or the default of the MCP SDKs."""
        self._is_stream = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is closed."""

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a port of this machine.

        Raises:
            ConnectionLost: Nothing accepts the connection.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        except OSError as error:
            raise ConnectionLost(f"no connection: {error}") from None
        return made

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes) -> Answer:
        """Send a complete request and return its response.

        Raises:
            ConnectionLost: The connection was closed before the response was complete; `StreamBroke` in the middle of an event stream.
            NoAnswer: The response did not arrive in time.
        """
        answer = self._begin(request)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            self.close()
            raise NoAnswer(f"no answer in {ANSWER_SECONDS:g} s") from None

    async def listen(self, request: bytes) -> int:
        """Send the request of an event stream, and return the status when the head of the response has arrived."""
        answer = self._begin(request)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._head = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ANSWER_SECONDS):
            return await self._head

    def close(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, request: bytes) -> asyncio.Future[Answer]:
        if self._transport is None:
            raise ConnectionLost("the connection was closed while it was idle")
        self._parser, self._parts, self._session, self._is_stream = httptools.HttpResponseParser(self), [], "", False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is not None:
            self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        lost = ConnectionLost("the connection was closed before the response was complete")
        for waiting in (self._answer, self._head):
            if waiting is not None and not waiting.done():
                waiting.set_exception(StreamBroke("the event stream with the response broke") if self._is_stream else lost)
        if not self.lost.done():
            self.lost.set_result(None)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self._session = value.decode()
        elif name.lower() == b"content-type":
            self._is_stream = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        if self._head is not None and self._parser is not None and not self._head.done():
            self._head.set_result(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        if self._head is None:
            self._parts.append(body)
        elif body.startswith(b"retry: "):
            self.retry_seconds = int(body[7 : body.index(b"\r")]) / 1000

    def on_message_complete(self) -> None:
        if self._answer is not None and self._parser is not None and not self._answer.done():
            self._answer.set_result(Answer(self._parser.get_status_code(), b"".join(self._parts), self._session))
        if self._head is not None:
            self.close()


class Pool:
    """Keep-alive connections to one port. Each request has a connection for itself."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def send(self, request: bytes) -> Answer:
        """Send a request over an idle or new connection and return its response; see `Connection.send`."""
        connection = None
        while self._idle and connection is None:
            taken = self._idle.pop()
            connection = taken if taken.is_open else None
        connection = connection or await Connection.open(self._port)
        answer = await connection.send(request)
        self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close all idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle = []


@dataclass(frozen=True)
class Person:
    """A principal of the harness: its name in the texts of calls, and its API key."""

    name: str
    key: str


def modern(person: Person, method: str, number: int, params: dict[str, Any], call: str, *, tasks: bool = False) -> bytes:
    """Return a complete 2026 request. `call` names the call in nginx's log."""
    meta = {**META, **({"io.modelcontextprotocol/clientCapabilities": TASKS} if tasks else {}), **params.get("_meta", {})}
    name = params.get("name") or params.get("taskId")
    lines = [f"mcp-protocol-version: {PROTOCOL}", f"mcp-method: {method}", *([f"mcp-name: {name}"] if name else [])]
    return _post(person, {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}, lines, call)


def legacy(person: Person, session: str, message: dict[str, Any], call: str) -> bytes:
    """Return a complete 2025 request of a session, which is empty for `initialize`."""
    lines = [f"mcp-protocol-version: {LEGACY}", f"mcp-session-id: {session}"] if session else []
    return _post(person, {"jsonrpc": "2.0", **message}, lines, call)


def listening(person: Person, session: str) -> bytes:
    """Return the GET request of a session's event stream."""
    lines = [f"mcp-protocol-version: {LEGACY}", f"mcp-session-id: {session}", "accept: text/event-stream"]
    return ("\r\n".join(["GET /mcp HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {person.key}", *lines]) + "\r\n\r\n").encode()


def _post(person: Person, message: dict[str, Any], lines: list[str], call: str) -> bytes:
    body = json.dumps(message).encode()
    common = ["POST /mcp HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {person.key}", f"{CALL_HEADER}: {call}"]
    common += ["accept: application/json, text/event-stream", "content-type: application/json", *lines, f"content-length: {len(body)}"]
    return ("\r\n".join(common) + "\r\n\r\n").encode() + body
