"""A remote server over HTTP, in a thread of the test, that behaves as the test sets it, and records the requests it receives."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = {"name": "do", "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}}


class Far:
    """The behaviour of the server and its recorded requests. A test changes the behaviour between and during calls."""

    def __init__(self, *, modern: bool) -> None:
        self.modern = modern
        self.url = ""
        self.refuse: tuple[int, dict[str, str]] | None = None
        """If set, the server rejects every request with this status and these headers, and does not read the body."""
        self.forgets_with = 404
        """The status that rejects a request of an unknown session."""
        self.gate = threading.Event()
        """While cleared, calls and other requests of callers wait."""
        self.gate.set()
        self.hears = threading.Event()
        """While cleared, no notification is acknowledged."""
        self.hears.set()
        self.seen: list[tuple[str, float]] = []
        """Every request that arrived: method and monotonic time."""
        self.runs: list[str] = []
        """Argument `id` of every call that was run."""
        self.said: list[tuple[str, str]] = []
        """Every accepted `resources/subscribe` and `resources/unsubscribe` request: method and URI."""
        self.sessions: set[str] = set()
        self._made = 0

    def restart(self) -> None:
        """Forget all sessions, like a server after a restart."""
        self.sessions.clear()

    def count(self, method: str) -> int:
        """Return the number of received requests with this method."""
        return sum(1 for seen, _ in self.seen if seen == method)

    def begin(self) -> str:
        """Create a session and return its id."""
        self._made += 1
        self.sessions.add(name := f"session-{self._made}")
        return name

    def result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of an accepted request, or `None` for an unknown method."""
        can: dict[str, Any] = {"tools": {}, "completions": {}, "prompts": {}, "resources": {"subscribe": True}}
        lists: dict[str, Any] = {
            "tools/list": {"tools": [TOOL]},
            "prompts/list": {"prompts": [{"name": "ask", "arguments": [{"name": "city"}]}]},
            "resources/list": {"resources": [{"name": name, "uri": f"page://{name}"} for name in ("one", "two", "three")]},
            "resources/templates/list": {"resourceTemplates": []},
        }
        if method in lists:
            return {**lists[method], **({"ttlMs": 0, "cacheScope": "private"} if self.modern else {})}
        if method == "server/discover" and self.modern:
            return {"supportedVersions": ["2026-07-28"], "capabilities": can, "ttlMs": 0, "cacheScope": "private"}
        if method == "initialize" and not self.modern:
            return {"protocolVersion": "2025-11-25", "capabilities": can, "serverInfo": {"name": "far", "version": "1"}}
        if method in ("completion/complete", "resources/subscribe", "resources/unsubscribe", "tools/call"):
            self.gate.wait(30)
        if method in ("resources/subscribe", "resources/unsubscribe"):
            self.said.append((method, params["uri"]))
        if method == "tools/call":
            self.runs.append(params["arguments"]["id"])
            return {"content": [{"type": "text", "text": "done"}]}
        if method == "completion/complete":
            return {"completion": {"values": ["Paris"]}}
        return {} if method in ("resources/subscribe", "resources/unsubscribe", "ping") else None

    def answer(self, message: dict[str, Any], session: str | None) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        if self.refuse is not None:
            return self.refuse[0], b"", self.refuse[1]
        if session is not None and session not in self.sessions:
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return self.forgets_with, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode(), {}
        if "id" not in message:
            self.hears.wait(30)
            return 202, b"", {}
        method: str = message["method"]
        found = self.result(method, message.get("params") or {})
        headers = {"mcp-session-id": self.begin()} if method == "initialize" and not self.modern else {}
        if found is not None:
            body: dict[str, Any] = {"result": {**found, **({"resultType": "complete"} if self.modern else {})}}
        else:
            body = {"error": {"code": -32601, "message": "Method not found"}}
        return 200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}).encode(), headers


@contextmanager
def far_server(*, modern: bool) -> Generator[Far]:
    """A running one."""
    far = Far(modern=modern)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            method: str = message.get("method", "")
            far.seen.append((method, time.monotonic()))
            session = self.headers.get("mcp-session-id")
            self.reply(*far.answer(message, session))

        def do_GET(self) -> None:
            self.reply(405, b"", {})

        def do_DELETE(self) -> None:
            self.reply(200, b"", {})

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # the client closed the connection before the response
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing, because stderr belongs to the test process."""

    class Quick(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    serving = Quick(("127.0.0.1", 0), Handler)
    far.url = f"http://127.0.0.1:{serving.server_address[1]}/mcp"
    thread = threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield far
    finally:
        far.gate.set()
        far.hears.set()
        serving.shutdown()
        serving.server_close()
        thread.join(5)
