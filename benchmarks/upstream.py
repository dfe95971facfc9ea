"""The upstream server of the HTTP benchmarks: a minimal MCP server over streamable HTTP that counts requests and connections.

The server implements only the methods that the contenders call (server/discover, initialize, ping, tools/list, tools/call). Its tools do
almost no work, so the measured time is that of the gateway or proxy in front. `GET /counts` returns the counters as JSON.

    python -m benchmarks.upstream PORT[,PORT…] TOOLS [TTL_MS [KIND]]

`KIND` is a key of `KINDS`. A `both` or `streams` server supports MCP 2026 and 2025 and keeps no sessions; a `2025` or `2025-streams` server
supports 2025 with sessions only. The kinds with `streams` in their name send each response as an SSE stream, the others as JSON.

The server uses asyncio protocols directly, because an HTTP framework would use more CPU time than most contenders.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: TID251  # asyncio.Protocol has no anyio equivalent
import json
import uuid
from dataclasses import dataclass
from typing import Any, cast

import httptools

from benchmarks.machine import run_loop
from benchmarks.payload import image, prose

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What is to be said back. It is not changed, and has no limit of its own."},
        "size": {"type": "integer", "minimum": 0, "description": "So many characters of prose are put behind the text."},
        "format": {"type": "string", "enum": ["text", "markdown", "image"], "description": "What comes back: an image has `size` of them."},
    },
    "required": ["text"],
    "additionalProperties": False,
}
"""Input schema of every tool. The result has `text` followed by `size` characters of prose, or an image of `size` base64 characters."""

DESCRIPTION = "Says back what it is given, to the letter. Use it to see that calls arrive; it reads nothing and changes nothing."


STREAM = (
    b"content-type: text/event-stream\r\ncache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\ntransfer-encoding: chunked\r\n"
)
"""Header lines of an SSE response, as the MCP SDKs send them; `x-accel-buffering: no` stops nginx from buffering the stream."""
EVENT = b"%x\r\nevent: message\r\ndata: %s\r\n\r\n\r\n"
"""One SSE event as one HTTP chunk. The chunk length counts neither the length line nor the final CRLF."""
END = b"0\r\n\r\n"
"""The last HTTP chunk of an SSE response."""

HANDSHAKES = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol versions that `initialize` accepts. The server offers the first if the client requests another version."""


@dataclass(frozen=True)
class Kind:
    """The protocol features of an upstream server."""

    has_sessions: bool = False
    """The server supports MCP 2025 only and rejects every MCP request without a session id, except `initialize`."""
    streams: bool = False
    """The server sends each JSON-RPC response as an SSE stream of one event."""


KINDS = {
    "both": Kind(),
    "streams": Kind(streams=True),
    "2025": Kind(has_sessions=True),
    "2025-streams": Kind(has_sessions=True, streams=True),
}


class Answers:
    """The MCP responses, request counters and sessions that all connections of an upstream share."""

    def __init__(self, tools: int, ttl_ms: int, kind: Kind) -> None:
        self.kind = kind
        self.requests: dict[str, int] = {}
        self.connections = 0
        self.sessions: dict[bytes, SessionServed | None] = {}
        """Open sessions by id, each with the connection of its GET stream, or `None` if the session has no stream."""
        self._tools = [{"name": f"tool_{n}", "description": DESCRIPTION, "inputSchema": SCHEMA} for n in range(tools)]
        self._stamp = {} if kind.has_sessions else {"resultType": "complete"}
        self._hints = {} if kind.has_sessions else {"ttlMs": ttl_ms, "cacheScope": "private"}
        self._opening = b"{" if kind.has_sessions else b'{"resultType":"complete",'
        self._prose: dict[int, bytes] = {}
        self._images: dict[int, bytes] = {}

    def counts(self) -> bytes:
        """Return the request and connection counters as JSON, the body for `GET /counts`."""
        return json.dumps({"requests": self.requests, "connections": self.connections}).encode()

    def to(self, body: bytes) -> bytes:
        """Count a JSON-RPC message and return its response; return `b""` for a notification."""
        message: dict[str, Any] = json.loads(body)
        method: str = message["method"]
        params: dict[str, Any] = message.get("params") or {}
        self.requests[method] = self.requests.get(method, 0) + 1
        if "id" not in message:
            return b""
        number = json.dumps(message["id"]).encode()
        if method == "tools/call":
            return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (number, self._called(params["arguments"]))
        return b'{"jsonrpc":"2.0","id":%s,%s' % (number, json.dumps(self._said(method, params)).encode()[1:])

    def _called(self, arguments: dict[str, Any]) -> bytes:
        """Return the JSON of a `tools/call` result. The prose of each size is generated once and cached."""
        text, size = json.dumps(arguments["text"]).encode()[:-1], arguments.get("size", 0)
        if arguments.get("format") == "image":
            return b'%s"content":[{"type":"image","data":"%s","mimeType":"image/png"}]}' % (self._opening, self._image(size))
        if size and size not in self._prose:
            self._prose[size] = json.dumps(prose(size)).encode()[1:-1]
        content = b'[{"type":"text","text":%s%s"}]' % (text, self._prose[size] if size else b"")
        return b'%s"content":%s}' % (self._opening, content)

    def _image(self, size: int) -> bytes:
        """Return `size` characters of base64, generated once per size and cached."""
        if size not in self._images:
            self._images[size] = image(size).encode()
        return self._images[size]

    def _said(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the `result` or `error` member of a response. Tool lists are serialized for each request, as in ordinary servers."""
        match method:
            case "tools/list":
                return {"result": {**self._stamp, "tools": self._tools, **self._hints}}
            case "server/discover" if not self.kind.has_sessions:
                found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                return {"result": {**self._stamp, **found, "ttlMs": 0, "cacheScope": "private"}}
            case "initialize":
                wanted = params["protocolVersion"]
                version = wanted if wanted in HANDSHAKES else HANDSHAKES[0]
                agreed: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}}
                return {"result": {**agreed, "serverInfo": {"name": "bench", "version": "1"}}}
            case "ping":
                return {"result": {}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


class Served(asyncio.Protocol):
    """One HTTP connection and its httptools callbacks. Clients must not pipeline requests."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._is_counted = False
        self._lines = b""
        """Additional header lines of the current response."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._write(400, b"")

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._url == b"/counts":
            self._write(200, self._answers.counts())
            return
        if not self._is_counted:
            self._is_counted = True
            self._answers.connections += 1
        self._asked(self._parser.get_method(), body)

    def _asked(self, method: bytes, body: bytes) -> None:
        if method != b"POST":
            self._write(405, b"")
            return
        answer = self._answers.to(body)
        if answer and self._answers.kind.streams:
            self._begin_stream()
            asyncio.get_running_loop().call_soon(self._write_event, answer)
        else:
            self._write(200 if answer else 202, answer)

    def _write(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d OK\r\n%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, self._lines, len(body))
        self._send(head + body)

    def _begin_stream(self) -> None:
        self._send(b"HTTP/1.1 200 OK\r\n%s%s\r\n" % (self._lines, STREAM))

    def _write_event(self, answer: bytes) -> None:
        """Send the event now and the last chunk in the next loop iteration, as servers on the MCP SDKs do."""
        self._send(EVENT % (len(EVENT) - len(b"%x\r\n%s\r\n") + len(answer), answer))
        asyncio.get_running_loop().call_soon(self._send, END)

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


class SessionServed(Served):
    """One HTTP connection to a 2025 server with sessions. Errors for missing or unknown session ids match those of the Python SDK."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(answers)
        self._session = b""
        self._listens_in = b""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.end_stream()

    def on_message_begin(self) -> None:
        self._session = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"mcp-session-id":
            self._session = value

    def end_stream(self) -> None:
        """End the GET stream on this connection, because its session was deleted or the connection closed."""
        if self._listens_in in self._answers.sessions:
            self._answers.sessions[self._listens_in] = None
            self._send(END)
        self._listens_in = b""

    def _asked(self, method: bytes, body: bytes) -> None:
        self._lines, sessions = b"", self._answers.sessions
        if not self._session and not (method == b"POST" and json.loads(body)["method"] == "initialize"):
            self._refuse(400, "Bad Request: Missing session ID")
            return
        if self._session and self._session not in sessions:
            self._refuse(404, "Session not found")
            return
        if not self._session:
            self._session = uuid.uuid4().hex.encode()
            sessions[self._session] = None
        self._lines = b"mcp-session-id: %s\r\n" % self._session
        match method:
            case b"GET":
                self._listen()
            case b"DELETE":
                if (listener := sessions[self._session]) is not None:
                    listener.end_stream()
                del sessions[self._session]
                self._write(200, b"")
            case _:
                super()._asked(method, body)

    def _listen(self) -> None:
        if self._answers.sessions[self._session] is not None:
            self._refuse(409, "Conflict: Only one SSE stream is allowed per session")
            return
        self._answers.sessions[self._session], self._listens_in = self, self._session
        self._begin_stream()

    def _refuse(self, status: int, why: str) -> None:
        error = {"code": -32600, "message": why}
        self._write(status, json.dumps({"jsonrpc": "2.0", "id": "server-error", "error": error}).encode())


async def serve(ports: list[int], tools: int, ttl_ms: int, kind: Kind) -> None:
    """Serve on all `ports` until the process is stopped."""
    answers = Answers(tools, ttl_ms, kind)
    served = SessionServed if kind.has_sessions else Served
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: served(answers), "127.0.0.1", port, backlog=1024)
    await asyncio.Event().wait()


def main() -> None:
    """Parse the command line and run the server."""
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("ports")
    cli.add_argument("tools", type=int)
    cli.add_argument("ttl_ms", type=int, nargs="?", default=60_000)
    cli.add_argument("kind", choices=list(KINDS), nargs="?", default="both")
    options = cli.parse_args()
    run_loop(serve([int(port) for port in options.ports.split(",")], options.tools, options.ttl_ms, KINDS[options.kind]))


if __name__ == "__main__":
    main()
