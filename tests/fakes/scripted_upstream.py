"""A remote server that misbehaves at one step of the protocol, as long as a file exists, and keeps a journal of what it ran.

    python -m tests.fakes.scripted_upstream --stdio | --http PORT  [--modern]  FOLDER STEP KIND

Bare JSON-RPC. While `FOLDER/fault` exists, KIND happens at STEP. Steps: `discover`, `initialize`, `initialized`, `list`, `before`
(a call that was read but not run), `after` (run but not answered), `progress` (in the middle of a call), `idle` (after an
answer). Kinds: `die`, `hang`, `garbage` (bytes that are no JSON), `binary` (NUL and 0xFF), `shape` (JSON that is no JSON-RPC),
`stranger` (an answer to nobody), `half` (half an answer, then the end), `twice` (the answer two times), `refuse` (an error),
`once` (as `die`, and `FOLDER/fault` is gone). Every run of the tool `do` appends its argument `id` to `FOLDER/journal`; its
annotations are what `FOLDER/annotations` holds as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOOL = {"name": "do", "inputSchema": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}}
STEP_OF = {"server/discover": "discover", "initialize": "initialize", "notifications/initialized": "initialized", "tools/list": "list"}
Write = Callable[[bytes], None]


class Scripted:
    """The server, apart from how its bytes travel."""

    def __init__(self, folder: Path, step: str, kind: str, *, modern: bool) -> None:
        self.folder, self.step, self.kind, self.modern = folder, step, kind, modern

    def fails_at(self, step: str) -> bool:
        return step == self.step and (self.folder / "fault").exists()

    def handle(self, message: dict[str, Any], write: Write) -> None:
        """Answer one message by writing whole lines; a fault may end the process instead."""
        method = message.get("method", "")
        if method == "tools/call":
            self.call(message, write)
            return
        answer = self.line(message, self.answer(method))
        if self.fails_at(STEP_OF.get(method, "")):
            self.fail(answer, write)
        elif "id" in message:
            write(answer)

    def call(self, message: dict[str, Any], write: Write) -> None:
        params: dict[str, Any] = message["params"]
        result = {"content": [{"type": "text", "text": "done"}], **({"resultType": "complete"} if self.modern else {})}
        answer = self.line(message, {"result": result})
        if self.fails_at("before"):
            self.fail(answer, write)
            return
        meta: dict[str, Any] = params.get("_meta") or {}
        token = meta.get("progressToken")
        if token is not None:
            progress = {"progressToken": token, "progress": 1}
            write(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}).encode() + b"\n")
        if self.fails_at("progress"):
            self.fail(answer, write)
            return
        with (self.folder / "journal").open("a") as journal:
            journal.write(params["arguments"]["id"] + "\n")
        if self.fails_at("after"):
            self.fail(answer, write)
            return
        write(answer)
        if self.fails_at("idle"):
            self.fail(b"", write)

    def answer(self, method: str) -> dict[str, Any]:
        if method == "tools/list":
            extra = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.modern else {}
            hints = self.folder / "annotations"
            tool = {**TOOL, "annotations": json.loads(hints.read_text())} if hints.exists() else TOOL
            return {"result": {"tools": [tool], **extra}}
        if method == "server/discover" and self.modern:
            facts: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
            return {"result": {**facts, "ttlMs": 0, "cacheScope": "private"}}
        if method == "initialize":
            agreed: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            return {"result": {**agreed, "serverInfo": {"name": "scripted", "version": "1"}}}
        return {"error": {"code": -32601, "message": "Method not found"}}

    @staticmethod
    def line(message: dict[str, Any], body: dict[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **body}).encode() + b"\n"

    def fail(self, answer: bytes, write: Write) -> None:
        match self.kind:
            case "die":
                os._exit(3)
            case "once":
                (self.folder / "fault").unlink()
                os._exit(3)
            case "hang":
                while (self.folder / "fault").exists():
                    time.sleep(0.05)
            case "garbage":
                write(b"<html>502 Bad Gateway</html>\n")
            case "binary":
                write(b"\x00\xff\xfe\x00\n")
            case "shape":
                write(b'{"jsonrpc":"2.0","id":[],"result":7}\n')
            case "stranger":
                write(b'{"jsonrpc":"2.0","id":987654,"result":{}}\n')
            case "half":
                write(answer[: len(answer) // 2])
                os._exit(4)
            case "twice":
                write(answer)
                write(answer)
            case "refuse":
                id_ = json.loads(answer)["id"] if answer else None
                write(json.dumps({"jsonrpc": "2.0", "id": id_, "error": {"code": -32603, "message": "no"}}).encode() + b"\n")
            case other:
                raise SystemExit(f"unknown kind {other!r}")


def over_stdio(server: Scripted) -> None:
    def write(data: bytes) -> None:
        os.write(1, data)

    for line in sys.stdin.buffer:
        server.handle(json.loads(line), write)


def over_http(server: Scripted, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in message:
                server.handle(message, lambda _: None)
                self.start(202, "text/plain", 0)
                return
            lines: list[bytes] = []
            if message.get("method") == "tools/call" and server.step == "progress":
                self.stream(message)
                return
            server.handle(message, lines.append)
            body = b"".join(lines[-1:])
            self.start(200, "application/json", len(body))
            self.wfile.write(body)

        def stream(self, message: dict[str, Any]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()

            def write(data: bytes) -> None:
                self.wfile.write(b"data: " + data.strip(b"\n") + b"\n\n")
                self.wfile.flush()

            server.handle(message, write)
            self.close_connection = True

        def start(self, status: int, kind: str, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def do_GET(self) -> None:
            self.start(405, "text/plain", 0)

        def do_DELETE(self) -> None:
            self.start(200, "text/plain", 0)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: stderr is the test's."""

    class Quick(ThreadingHTTPServer):
        daemon_threads = True

    serving = Quick(("127.0.0.1", port), Handler)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    serving.serve_forever()


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--stdio", action="store_true")
    cli.add_argument("--http", type=int)
    cli.add_argument("--modern", action="store_true")
    cli.add_argument("folder", type=Path)
    cli.add_argument("step")
    cli.add_argument("kind")
    options = cli.parse_args()
    server = Scripted(options.folder, options.step, options.kind, modern=options.modern)
    if options.stdio:
        over_stdio(server)
    else:
        over_http(server, options.http)


if __name__ == "__main__":
    main()
