"""A remote server that misbehaves at one step of the protocol, as long as a file exists, and keeps a journal of what it ran.

    python -m tests.fakes.scripted_upstream --stdio | --http PORT  [--modern]  FOLDER STEP KIND
    python -m tests.fakes.scripted_upstream --rows '[[FOLDER, STEP, KIND, ERA], …]'      (all over HTTP; prints their ports)

Bare JSON-RPC. While `FOLDER/fault` exists, KIND happens at STEP, which is one of `STEPS`. Kinds everywhere: `die`, `hang`, `garbage`
(bytes that are not JSON), `binary` (NUL and 0xFF), `shape` (JSON, but not JSON-RPC), `stranger` (a response with an unknown id), `half`
(half a response, then the end), `twice` (the response two times), `refuse` (an error), `once` (as `die`, then removes `FOLDER/fault`).
Over HTTP also `type` (an HTML page), `lost` (404), `error` (500), `busy` (503), `drip` (one byte at a time) and `oversized`; see
`scripted_http`.

The tools `do`, `ask`, `slow` (until cancelled) and `long` (a task) append their argument `id` to `FOLDER/journal` when they run. The
annotations of `do` are what `FOLDER/annotations` holds as JSON. Once `FOLDER/changed` exists there is a tool `more`, which is announced.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = {
    "discover": "server/discover",
    "initialize": "initialize (2025)",
    "initialized": "notifications/initialized (2025)",
    "list": "tools/list",
    "before": "a call that was read but not run",
    "after": "a call that ran but was not answered",
    "progress": "the middle of a call",
    "idle": "after the answer of a call",
    "read": "resources/read",
    "prompt": "prompts/get",
    "complete": "completion/complete",
    "ask": "a call that would elicit input",
    "answered": "the answer to what was asked came",
    "cancel": "a cancellation came",
    "listen": "subscriptions/listen, or GET over HTTP (2025)",
    "subscribe": "resources/subscribe (2025)",
    "task-get": "tasks/get",
    "task-result": "tasks/result (2025)",
    "delete": "the end of a session over HTTP (2025)",
}
STEP_OF = {
    "server/discover": "discover",
    "initialize": "initialize",
    "notifications/initialized": "initialized",
    "tools/list": "list",
    "resources/read": "read",
    "prompts/get": "prompt",
    "completion/complete": "complete",
    "resources/subscribe": "subscribe",
    "tasks/get": "task-get",
    "tasks/result": "task-result",
    "notifications/cancelled": "cancel",
}
ID_ONLY = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
EXTENSION = "io.modelcontextprotocol/tasks"
QUESTION = {"mode": "form", "message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
DONE = {"content": [{"type": "text", "text": "done"}]}

Message = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """A point at which the server fails if the configured step is `step`; `answer` is the message that the fault replaces."""

    step: str
    answer: Message | None


@dataclass(frozen=True)
class Say:
    """A notification to send."""

    message: Message


@dataclass(frozen=True)
class Ask:
    """A request to send to the client; the generator receives the client's response."""

    message: Message


@dataclass(frozen=True)
class Hold:
    """A wait until the request is cancelled; with `acknowledged`, the request is a listener for list changes."""

    acknowledged: Message | None = None


@dataclass(frozen=True)
class Answer:
    """The response that ends the request."""

    message: Message


Doing = Generator[Point | Say | Ask | Hold | Answer, Any, None]


class Scripted:
    """The server without a transport: it handles messages and yields steps."""

    def __init__(self, folder: Path, step: str, kind: str, *, modern: bool) -> None:
        self.folder, self.step, self.kind, self.modern = folder, step, kind, modern
        self.fault, self.journal, self.changed = folder / "fault", folder / "journal", folder / "changed"
        self.tasks: set[str] = set()

    def fails_at(self, step: str) -> bool:
        return step == self.step and self.fault.exists()

    def handle(self, message: Message) -> Doing:
        """Yield the steps that handle one request or notification."""
        method = message.get("method", "")
        if method == "tools/call":
            yield from self.call(message)
            return
        answer = self.line(message, self.answer(method, message.get("params") or {}))
        if method == "subscriptions/listen" and self.modern:
            yield Point("listen", answer)
            meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
            params = {"notifications": message["params"]["notifications"], "_meta": meta}
            yield Hold({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params})
            return
        yield Point(STEP_OF.get(method, ""), answer if "id" in message else None)
        if "id" in message:
            yield Answer(answer)

    def call(self, message: Message) -> Doing:
        params: dict[str, Any] = message["params"]
        name, id_ = params["name"], params["arguments"]["id"]
        answer = self.line(message, {"result": self.whole(DONE)})
        if name == "slow":
            self.note(id_)
            yield Hold()
            return
        if name == "ask":
            answered = yield from self.ask(message)
            if not answered:
                return
        if name == "long" and self.takes_task(params):
            self.note(id_)
            self.tasks.add(id_)
            task = self.task(id_, "working")
            yield Answer(self.line(message, {"result": {"resultType": "task", **task} if self.modern else {"task": task}}))
            return
        yield Point("before", answer)
        meta: dict[str, Any] = params.get("_meta") or {}
        token = meta.get("progressToken")
        if token is not None:
            progress = {"progressToken": token, "progress": 1}
            yield Say({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        yield Point("progress", answer)
        self.note(id_)
        yield Point("after", answer)
        yield Answer(answer)
        yield Point("idle", None)

    def ask(self, message: Message) -> Generator[Any, Any, bool]:
        """Request input as the client's protocol version does; return whether the client's answer has arrived."""
        params: dict[str, Any] = message["params"]
        request = {"method": "elicitation/create", "params": QUESTION}
        if not self.modern:
            yield Point("ask", self.line(message, {"result": DONE}))
            yield Ask({"jsonrpc": "2.0", **request})
        elif "inputResponses" not in params:
            asked = self.line(message, {"result": {"resultType": "input_required", "inputRequests": {"who": request}, "requestState": "s"}})
            yield Point("ask", asked)
            yield Answer(asked)
            return False
        yield Point("answered", self.line(message, {"result": self.whole(DONE)}))
        return True

    def takes_task(self, params: dict[str, Any]) -> bool:
        meta: dict[str, Any] = params.get("_meta") or {}
        declared: dict[str, Any] = meta.get("io.modelcontextprotocol/clientCapabilities") or {}
        return EXTENSION in declared.get("extensions", {}) if self.modern else "task" in params

    def task(self, id_: str, status: str) -> dict[str, Any]:
        made = {"taskId": id_, "status": status, "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z"}
        if self.modern:
            return {**made, "ttlMs": None, "pollIntervalMs": 100, **({"result": DONE} if status == "completed" else {})}
        return {**made, "ttl": None, "pollInterval": 100}

    def note(self, id_: str) -> None:
        with self.journal.open("a") as journal:
            journal.write(id_ + "\n")

    def whole(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "resultType": "complete"} if self.modern else result

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        found = self.listing(method) or self.introduction(method) or self.about_task(method, params)
        if method == "resources/read":
            found = {"contents": [{"uri": params["uri"], "text": "page"}]}
        elif method == "prompts/get":
            found = {"messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}]}
        elif method == "completion/complete":
            found = {"completion": {"values": ["Paris"]}}
        elif method in ("resources/subscribe", "resources/unsubscribe", "ping", "tasks/cancel", "subscriptions/listen"):
            found = {}
        if found is None:
            return {"error": {"code": -32601, "message": "Method not found"}}
        if self.modern:
            kept = {"ttlMs": 0, "cacheScope": "private"} if not method.startswith("tasks/") else {}
            return {"result": {"resultType": "complete", **kept, **found}}
        return {"result": found}

    def listing(self, method: str) -> dict[str, Any] | None:
        if method == "tools/list":
            hints = self.folder / "annotations"
            tools: list[dict[str, Any]] = [{"name": name, "inputSchema": ID_ONLY} for name in ("do", "ask", "slow", "long")]
            if hints.exists():
                tools[0]["annotations"] = json.loads(hints.read_text())
            if not self.modern:
                tools[3]["execution"] = {"taskSupport": "required"}
            return {"tools": tools + ([{"name": "more", "inputSchema": ID_ONLY}] if self.changed.exists() else [])}
        lists: dict[str, dict[str, Any]] = {
            "prompts/list": {"prompts": [{"name": "greet", "arguments": [{"name": "city"}]}]},
            "resources/list": {"resources": [{"name": "page", "uri": "page://one"}]},
            "resources/templates/list": {"resourceTemplates": []},
        }
        return lists.get(method)

    def introduction(self, method: str) -> dict[str, Any] | None:
        can: dict[str, Any] = {"tools": {"listChanged": True}, "prompts": {}, "completions": {}, "resources": {"subscribe": True}}
        if method == "server/discover" and self.modern:
            return {"supportedVersions": ["2026-07-28"], "capabilities": {**can, "extensions": {EXTENSION: {}}}}
        if method == "initialize":
            tasks: dict[str, Any] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
            agreed: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {**can, "tasks": tasks}}
            return {**agreed, "serverInfo": {"name": "scripted", "version": "1"}}
        return None

    def about_task(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if not method.startswith("tasks/") or params.get("taskId") not in self.tasks:
            return None
        if method == "tasks/get":
            return self.task(params["taskId"], "completed")
        return DONE if method == "tasks/result" else None

    @staticmethod
    def line(message: Message, body: dict[str, Any]) -> Message:
        return {"jsonrpc": "2.0", "id": message.get("id"), **body}


def encoded(message: Message | None) -> bytes:
    """Encode a message as one line of JSON, without the line end."""
    return b"" if message is None else json.dumps(message).encode()


ODD: dict[str, bytes] = {
    "garbage": b"<html>502 Bad Gateway</html>",
    "binary": b"\x00\xff\xfe\x00",
    "shape": b'{"jsonrpc":"2.0","id":[],"result":7}',
    "stranger": b'{"jsonrpc":"2.0","id":987654,"result":{}}',
}
"""Bytes that the server sends in place of a response, by fault kind."""


def refusal(answer: Message | None) -> bytes:
    """Return the error response of the fault kind `refuse`."""
    id_ = answer["id"] if answer else None
    return encoded({"jsonrpc": "2.0", "id": id_, "error": {"code": -32603, "message": "no"}})


class OverStdio:
    """The stdio transport: one message per line. A fault may end the process."""

    def __init__(self, server: Scripted) -> None:
        self.server = server
        self.asking: dict[str, Doing] = {}
        self.announced = False
        self.listening: Message | None = None

    def run(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            self.announce()
            if "method" in message:
                self.go_on(self.server.handle(message), None)
            elif message["id"] in self.asking:
                self.go_on(self.asking.pop(message["id"]), message)

    def go_on(self, doing: Doing, value: Any) -> None:
        while True:
            try:
                step = doing.send(value)
            except StopIteration:
                return
            value = None
            match step:
                case Point():
                    if self.server.fails_at(step.step):
                        self.fail(step.answer)
                        return
                case Ask():
                    name = f"ask-{len(self.asking)}-{time.monotonic_ns()}"
                    self.asking[name] = doing
                    self.write(encoded({**step.message, "id": name}))
                    return
                case Hold():
                    if step.acknowledged is not None:
                        self.listening = step.acknowledged
                        self.write(encoded(step.acknowledged))
                    return
                case _:
                    self.write(encoded(step.message))

    def announce(self) -> None:
        """Notify listeners once that the tool list changed."""
        if self.announced or not self.server.changed.exists() or (self.server.modern and self.listening is None):
            return
        self.announced = True
        meta = {"_meta": self.listening["params"]["_meta"]} if self.listening else {}
        self.write(encoded({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": meta}))

    @staticmethod
    def write(data: bytes) -> None:
        os.write(1, data + b"\n")

    def fail(self, answer: Message | None) -> None:
        fault, kind = self.server.fault, self.server.kind
        match kind:
            case "die":
                os._exit(3)
            case "once":
                fault.unlink()
                os._exit(3)
            case "hang":
                while fault.exists():
                    time.sleep(0.02)
            case "half":
                os.write(1, encoded(answer)[: len(encoded(answer)) // 2])
                os._exit(4)
            case "twice":
                if answer is not None:
                    self.write(encoded(answer))
                    self.write(encoded(answer))
            case "refuse":
                self.write(refusal(answer))
            case _:
                self.write(ODD[kind])


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--stdio", action="store_true")
    cli.add_argument("--http", type=int)
    cli.add_argument("--rows", type=json.loads)
    cli.add_argument("--modern", action="store_true")
    cli.add_argument("folder", type=Path, nargs="?")
    cli.add_argument("step", nargs="?")
    cli.add_argument("kind", nargs="?")
    options = cli.parse_args()
    if options.stdio:
        OverStdio(Scripted(options.folder, options.step, options.kind, modern=options.modern)).run()
        return
    from tests.fakes.scripted_http import serve  # heavier than all the rest

    era = "modern" if options.modern else "legacy"
    serve(options.rows or [(options.folder, options.step, options.kind, era)], options.http or 0)


if __name__ == "__main__":
    main()
