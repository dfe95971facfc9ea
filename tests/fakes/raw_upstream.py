"""A remote server that sends and lists exactly what a test specifies, valid or not, and returns exactly what it received.

    python -m tests.fakes.raw_upstream --stdio | --http [--port PORT]  [--modern]  '<JSON>'

It speaks bare JSON-RPC, so nothing of an SDK tidies up listings or parameters. The JSON object may have `tools`, `resources`,
`templates`, `prompts` (listings), `instructions`, `results` (tool name → result, or a list of them for one call each), `reads`
(URI → result of `resources/read`), `skills` (entries of the skills extension, which it has then), `rendered`
(prompt name → result), `messages` (tool name → the members of its answer beside the version and the id, or instead of them), `says`
(notifications sent before the result of each call), `asks` (a request put to the client during each call) and `later` (a second
tools listing, announced by the tool `change`). A tool without a result answers with the parameters it was called with, as text and
as structured content `{"got": params}`; over HTTP also `"headers"`.
With a `folder` it writes a line `PID METHOD NAME` for each request into `FOLDER/requests`, lists `later` once `FOLDER/later`
exists, and ends without a response at the first call after `FOLDER/leave` was created; it renames that file to `FOLDER/later`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast


class Raw:
    """The server without a transport: `told` is the JSON object that specifies its listings and results."""

    def __init__(self, told: dict[str, Any], *, modern: bool) -> None:
        self.told = told
        self.modern = modern
        self.folder = Path(told["folder"]) if "folder" in told else None
        self.is_later = False

    @property
    def changed(self) -> bool:
        """Whether the server lists the tools of `later`."""
        return self.is_later or (self.folder is not None and (self.folder / "later").exists())

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Record a request in `FOLDER/requests`; end the process at a call if `FOLDER/leave` exists."""
        if self.folder is None:
            return
        with (self.folder / "requests").open("a") as file:
            file.write(f"{os.getpid()} {method} {params.get('name', '')}\n")
        if method == "tools/call" and (self.folder / "leave").exists():
            (self.folder / "leave").rename(self.folder / "later")
            os._exit(3)

    def answer(self, method: str, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """Return the `result` or `error` of one request."""
        listing = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}.get(method)
        if listing is not None:
            result = {listing: self.told.get("templates" if listing == "resourceTemplates" else listing, [])}
        elif method == "tools/list":
            result = {"tools": self.told["later"] if self.changed else self.told.get("tools", [])}
        elif method == "tools/call" and params["name"] in self.told.get("messages", {}):
            return self.told["messages"][params["name"]]
        elif method == "tools/call":
            result = self.call(params, headers)
        elif method in ("ping", "logging/setLevel"):
            result = {}
        elif method == "skills/list" and "skills" in self.told:
            result = {"skills": self.told["skills"], "ttlMs": 0, "cacheScope": "private"}
        elif method == "skills/get":
            found = next((entry for entry in self.told.get("skills", []) if entry["uri"] == params.get("uri")), None)
            result = None if found is None else {"skill": found, "ttlMs": 0, "cacheScope": "private"}
        elif method == "initialize" or (method == "server/discover" and self.modern):
            result = self.introduction(method)
        else:
            kept = {"resources/read": ("reads", "uri"), "prompts/get": ("rendered", "name")}.get(method)
            result = self.told.get(kept[0], {}).get(params.get(kept[1])) if kept else None
        if result is None:
            code = -32602 if method in ("resources/read", "prompts/get", "skills/get") else -32601
            return {"error": {"code": code, "message": f"cannot {method}"}}
        if isinstance(result.get("error"), dict):
            return {"error": result["error"]}
        return {"result": {"resultType": "complete", **result} if self.modern else result}

    def call(self, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        """Return the specified result of a tool, or the parameters of the call."""
        self.is_later = self.is_later or params["name"] == "change"
        seen = {"got": params, **({"headers": headers} if headers else {})}
        kept: Any = self.told.get("results", {}).get(params["name"])
        told: dict[str, Any] | None = kept
        if isinstance(kept, list):
            turns = cast("list[dict[str, Any]]", kept)
            told = turns.pop(0) if turns else None
        return told or {"content": [{"type": "text", "text": json.dumps(params)}], "structuredContent": seen}

    def introduction(self, method: str) -> dict[str, Any]:
        """Return the result of `initialize` or `server/discover`."""
        said: dict[str, Any] = {"capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}, "logging": {}}}
        if "skills" in self.told:
            said["capabilities"]["extensions"] = {"io.modelcontextprotocol/skills": {}}
        if "instructions" in self.told:
            said["instructions"] = self.told["instructions"]
        if method == "initialize":
            return {**said, "protocolVersion": "2025-11-25", "serverInfo": {"name": "raw", "version": "1"}}
        return {**said, "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}


def over_stdio(raw: Raw) -> None:
    """Serve over stdio, one message per line, until standard input ends."""

    def send(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    asked = 0
    while line := sys.stdin.readline():
        message: dict[str, Any] = json.loads(line)
        method: Any = message.get("method")
        params: dict[str, Any] = message.get("params") or {}
        if "id" not in message or method is None:
            continue
        raw.note(method, params)
        if method == "tools/call":
            for said in raw.told.get("says", []):
                send(_tokened(said, params))
            if "asks" in raw.told:
                asked += 1
                send({"id": f"ask-{asked}", **raw.told["asks"]})
                answer: dict[str, Any] = json.loads(sys.stdin.readline())
                text = json.dumps(answer.get("result") or answer.get("error"))
                send({"id": message["id"], "result": {"content": [{"type": "text", "text": text}]}})
                continue
        answered = raw.answer(method, params, {})
        if method == "tools/call" and params["name"] == "change":
            send({"method": "notifications/tools/list_changed"})  # first, so that a client receives it before the response
        send({"id": message["id"], **answered})


def _tokened(said: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return a notification, with the call's progress token if it is a progress notification."""
    if said["method"] != "notifications/progress":
        return said
    meta: dict[str, Any] = params.get("_meta") or {}
    return {**said, "params": {**said["params"], "progressToken": meta.get("progressToken")}}


def http_server(raw: Raw, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server that answers each request with one JSON body; it is not yet serving."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in message:
                self.reply(202, b"")
                return
            raw.note(message["method"], message.get("params") or {})
            headers = {k.lower(): v for k, v in self.headers.items() if k.lower().startswith("mcp-")}
            answer = {"jsonrpc": "2.0", "id": message["id"], **raw.answer(message["method"], message.get("params") or {}, headers)}
            self.reply(200, json.dumps(answer).encode())

        def do_GET(self) -> None:
            self.reply(405, b"")

        def do_DELETE(self) -> None:
            self.reply(200, b"")

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: stderr belongs to the test."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def over_http(raw: Raw, port: int) -> None:
    """Print the endpoint's URL and serve until the process ends."""
    server = http_server(raw, port)
    sys.stdout.write(f"http://127.0.0.1:{server.server_address[1]}/mcp\n")
    sys.stdout.flush()
    server.serve_forever()


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--stdio", action="store_true")
    cli.add_argument("--http", action="store_true")
    cli.add_argument("--port", type=int, default=0)
    cli.add_argument("--modern", action="store_true")
    cli.add_argument("told")
    options = cli.parse_args()
    raw = Raw(json.loads(options.told), modern=options.modern)
    if options.stdio:
        over_stdio(raw)
    else:
        over_http(raw, options.port)


if __name__ == "__main__":
    main()
