"""The upstream of the benchmarks: a bare streamable HTTP answerer of both eras that counts requests and connections.

It speaks just enough MCP for every contender (discover, initialize, tools/list, tools/call) and does no work of its own, so that the
hop is what is measured. `GET /counts` tells what it saw.

    python -m benchmarks.upstream PORT[,PORT…] TOOLS [TTL_MS]

Plain protocols of the event loop: a framework here would take more of the processor than most of what is measured.
"""

from __future__ import annotations

import asyncio  # noqa: TID251  # one connection is a protocol of the event loop
import json
import sys
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
"""`text` comes back; with `size`, so many characters of prose behind it, or instead an image of as many."""

DESCRIPTION = "Says back what it is given, to the letter. Use it to see that calls arrive; it reads nothing and changes nothing."


class Answers:
    """What is said to whom, and what was asked."""

    def __init__(self, tools: int, ttl_ms: int) -> None:
        self.requests: dict[str, int] = {}
        self.connections = 0
        self._tools = [{"name": f"tool_{n}", "description": DESCRIPTION, "inputSchema": SCHEMA} for n in range(tools)]
        self._ttl_ms = ttl_ms
        self._prose: dict[int, bytes] = {}
        self._images: dict[int, bytes] = {}

    def counts(self) -> bytes:
        """For `GET /counts`."""
        return json.dumps({"requests": self.requests, "connections": self.connections}).encode()

    def to(self, body: bytes) -> bytes:
        """The answer to one message; empty to a notification."""
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
        """The result of a call; its prose is written once."""
        text, size = json.dumps(arguments["text"]).encode()[:-1], arguments.get("size", 0)
        if arguments.get("format") == "image":
            return b'{"resultType":"complete","content":[{"type":"image","data":"%s","mimeType":"image/png"}]}' % self._image(size)
        if size and size not in self._prose:
            self._prose[size] = json.dumps(prose(size)).encode()[1:-1]
        content = b'[{"type":"text","text":%s%s"}]' % (text, self._prose[size] if size else b"")
        return b'{"resultType":"complete","content":%s}' % content

    def _image(self, size: int) -> bytes:
        """So many characters of encoded binary, written once."""
        if size not in self._images:
            self._images[size] = image(size).encode()
        return self._images[size]

    def _said(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """`result` or `error` of one request; a list is written anew for each, as by servers that are not made for this."""
        stamp = {"resultType": "complete"}
        match method:
            case "tools/list":
                return {"result": {**stamp, "tools": self._tools, "ttlMs": self._ttl_ms, "cacheScope": "private"}}
            case "server/discover":
                found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                return {"result": {**stamp, **found, "ttlMs": 0, "cacheScope": "private"}}
            case "initialize":
                agreed: dict[str, Any] = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
                return {"result": {**agreed, "serverInfo": {"name": "bench", "version": "1"}}}
            case "ping":
                return {"result": {}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


class Served(asyncio.Protocol):
    """One connection; also what httptools calls back."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

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
        if self._parser.get_method() != b"POST":
            self._write(405, b"")
            return
        answer = self._answers.to(body)
        self._write(200 if answer else 202, answer)

    def _write(self, status: int, body: bytes) -> None:
        head = b"HTTP/1.1 %d OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        if self._transport is not None:
            self._transport.write(head + body)


async def serve(ports: list[int], tools: int, ttl_ms: int) -> None:
    """Answer until ended."""
    answers = Answers(tools, ttl_ms)
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(lambda: Served(answers), "127.0.0.1", port, backlog=1024)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(serve([int(port) for port in sys.argv[1].split(",")], int(sys.argv[2]), int([*sys.argv, "60000"][3])))
