"""A remote MCP server with the HTTP+SSE transport of 2024-11-05, in a thread of the test. A call's argument selects its fault.

The tool `do` has an argument `how`:
- `well`, `slow` (answers once `may_go_on` is set),
- `text-id` (the response's id is the number as a string, with a leading zero),
- `large` (a result of `bytes` bytes), `last-id` (the same, with the id as the last member), `lines` (an event of many `data` lines),
  `garbage` (an event that has an id but is not JSON),
- `turned-away` (the POST is answered with `status`), `unheard` (the connection of the POST is closed without a response), `unended` (the
  response to the POST never ends),
- `stream-ends` (the server closes the event stream), `forgotten` (the first such call: the server forgets the session and sends 404).
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SECONDS = 20.0
TOOL = {
    "name": "do",
    "inputSchema": {"type": "object", "properties": {"how": {"type": "string"}, "bytes": {"type": "integer"}}, "required": ["how"]},
}


class OldServer:
    """The server's state: open streams, settings of the faults, and a record of the calls that it ran."""

    def __init__(self) -> None:
        self.url = ""
        self.endpoint = "/messages"
        """Path that the `endpoint` event sends to clients; the session id is appended."""
        self.streams: dict[str, queue.Queue[bytes | None]] = {}
        """Queued events of each open stream, by session id; `None` closes the stream."""
        self.lost: list[queue.Queue[bytes | None]] = []
        """Event queues of the sessions that the server forgot."""
        self.opened = 0
        self.status = 500
        self.runs: list[str] = []
        """The argument `how` of every call that the tool ran, in order."""
        self.may_go_on = threading.Event()
        self._forgets = True

    def take(self, session: str, message: dict[str, Any], handler: Handler) -> None:
        """Acknowledge one POST and run its request, or fail the POST as `how` specifies."""
        method: Any = message.get("method")
        if method != "tools/call":
            handler.reply(202)
            if "id" in message:
                self.say(session, {"jsonrpc": "2.0", "id": message["id"], **self.result(method)})
            return
        arguments: dict[str, Any] = message["params"]["arguments"]
        how: str = arguments["how"]
        if how == "forgotten" and self._forgets:
            self._forgets = False
            self.lost.append(self.streams.pop(session))
            handler.reply(404)
        elif how == "turned-away":
            handler.reply(self.status)
        elif how == "unheard":
            handler.close_connection = True
        else:
            self.runs.append(how)
            if how == "unended":
                handler.reply(202, {"content-length": "10"})
            else:
                handler.reply(202)
            threading.Thread(target=self.call, args=(session, message["id"], arguments), daemon=True).start()

    def call(self, session: str, number: Any, arguments: dict[str, Any]) -> None:
        """Run the tool `do` and send its result on the event stream."""
        how, text = arguments["how"], "x" * arguments.get("bytes", 1)
        result = {"content": [{"type": "text", "text": text}]}
        if how == "slow":
            self.may_go_on.wait(SECONDS)
        if how == "stream-ends":
            self.streams.pop(session).put(None)
        elif how == "garbage":
            self.send(session, b'data: {"jsonrpc":"2.0","id":%d,"result":{{{\n\n' % number)
        elif how == "last-id":
            self.say(session, {"result": result, "jsonrpc": "2.0", "id": number})
        elif how == "text-id":
            self.say(session, {"jsonrpc": "2.0", "id": f"0{number}", "result": result})
        elif how == "lines":
            lines = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}, indent=0).splitlines()
            self.send(session, b"".join(b"data: %s\n" % line.encode() for line in lines) + b"\n")
        else:
            self.say(session, {"jsonrpc": "2.0", "id": number, "result": result})

    def result(self, method: str) -> dict[str, Any]:
        """Return the `result` or `error` of a request other than `tools/call`."""
        known: dict[str, dict[str, Any]] = {
            "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}},
            "tools/list": {"tools": [TOOL]},
            "ping": {},
        }
        return {"result": known[method]} if method in known else {"error": {"code": -32601, "message": f"cannot {method}"}}

    def say(self, session: str, message: dict[str, Any]) -> None:
        """Send one JSON-RPC message as an event."""
        self.send(session, b"event: message\ndata: %s\n\n" % json.dumps(message).encode())

    def send(self, session: str, event: bytes) -> None:
        """Send one event if the stream is still open."""
        if session in self.streams:
            self.streams[session].put(event)


class Handler(BaseHTTPRequestHandler):
    """Handles the HTTP requests of one connection."""

    protocol_version = "HTTP/1.1"
    old: OldServer

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.reply(307, {"location": "/sse"})
            return
        if self.path == "/page":
            self.reply(200, {"content-type": "text/html"})
            return
        if self.path.startswith("/status/"):
            self.reply(int(self.path.rpartition("/")[2]))
            return
        self.old.opened += 1
        session = f"session-{self.old.opened}"
        events: queue.Queue[bytes | None] = queue.Queue()
        self.old.streams[session] = events
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(f"event: endpoint\ndata: {self.old.endpoint}?sessionId={session}\n\n".encode())
        while (event := events.get()) is not None:
            self.wfile.write(event)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        url = urlsplit(self.path)
        if url.path == "/moved-messages":
            self.reply(308, {"location": f"/messages?{url.query}"})
            return
        session = parse_qs(url.query)["sessionId"][0]
        if session in self.old.streams:
            self.old.take(session, message, self)
        else:
            self.reply(404)

    def reply(self, status: int, headers: dict[str, str] | None = None) -> None:
        """Send a response with this status and an empty body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "content-length" not in (headers or {}):
            self.send_header("Content-Length", "0")
        self.end_headers()
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: stderr belongs to the test."""


@contextmanager
def old_server() -> Generator[OldServer]:
    """Run the server on a free port; its event stream is at `url`."""
    old = OldServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"old": old}))
    server.daemon_threads = True
    old.url = f"http://127.0.0.1:{server.server_address[1]}/sse"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield old
    finally:
        old.may_go_on.set()
        for events in [*old.streams.values(), *old.lost]:
            events.put(None)
        server.shutdown()
        thread.join(timeout=SECONDS)
        server.server_close()
