"""A remote server with the transport of 2024-11-05, in a thread of the test, that fails one call in the way that its argument names.

Its tool `do` takes `how`:
- `well`, `slow` (answers once `may_go_on` is set),
- `text-id` (the id is the number as text, with a zero before it),
- `large` (as many bytes as `bytes` says), `last-id` (the same, its id at the end), `lines` (many lines), `garbage` (not JSON, with an id),
- `turned-away` (its POST is answered with `status`), `unheard` (its POST is cut off), `unended` (its POST's answer never ends),
- `stream-ends`, `forgotten` (the server knows no session any more, once).
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
    """What it does, and what reached it."""

    def __init__(self) -> None:
        self.url = ""
        self.endpoint = "/messages"
        """Told to clients, with the session."""
        self.streams: dict[str, queue.Queue[bytes | None]] = {}
        """Open ones by session; `None` ends one."""
        self.lost: list[queue.Queue[bytes | None]] = []
        """Of sessions that it forgot."""
        self.opened = 0
        self.status = 500
        self.runs: list[str] = []
        """How, of every call that was run."""
        self.may_go_on = threading.Event()
        self._forgets = True

    def take(self, session: str, message: dict[str, Any], handler: Handler) -> None:
        """One POST: acknowledge and answer it."""
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
        """Run the tool."""
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
        """Of anything but a call."""
        known: dict[str, dict[str, Any]] = {
            "initialize": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "old", "version": "1"}},
            "tools/list": {"tools": [TOOL]},
            "ping": {},
        }
        return {"result": known[method]} if method in known else {"error": {"code": -32601, "message": f"cannot {method}"}}

    def say(self, session: str, message: dict[str, Any]) -> None:
        """One message."""
        self.send(session, b"event: message\ndata: %s\n\n" % json.dumps(message).encode())

    def send(self, session: str, event: bytes) -> None:
        """Send one event if the stream is still open."""
        if session in self.streams:
            self.streams[session].put(event)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

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
        """A status, and nothing to read."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if "content-length" not in (headers or {}):
            self.send_header("Content-Length", "0")
        self.end_headers()
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: stderr is the test's."""


@contextmanager
def old_server() -> Generator[OldServer]:
    """It serves; its stream is at `url`."""
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
