"""A server over stdio whose long-running tool follows a script, response by response, also across restarts of the process.

    python -m tests.fakes.task_script [--modern] --log FILE '<JSON>'

The JSON object has per method (`tools/call`, `tasks/get`, `tasks/result`, `tasks/update`, `tasks/cancel`) a list of answers;
the last one stands for all that follow. An answer is `{"result": …}`, `{"error": …}`, `"hang"` (none) or `"die"` (the process
ends), or `{"ask": request, …}`, which puts a request to the client first, and with `"then": "hang"` never answers. Every
request is written to FILE before it is answered, one JSON object a line, so that a test sees what reached the server however it
ended. `support` is the listed tool's task support.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

EXTENSION = "io.modelcontextprotocol/tasks"


def send(message: dict[str, Any]) -> None:
    """Write one message as a line to stdout."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


class Script:
    """The server: answers each method from its list in `told`, and records the requests in `log`."""

    def __init__(self, told: dict[str, Any], log: Path, *, modern: bool) -> None:
        self.told = told
        self.log = log
        self.modern = modern

    def next(self, method: str) -> Any:
        """Return the scripted answer whose turn it is, counted from the recorded requests of this method."""
        answers: list[Any] = self.told.get(method) or [{"error": {"code": -32601, "message": "Method not found"}}]
        seen = sum(json.loads(line)["method"] == method for line in self.log.read_text().splitlines()) if self.log.exists() else 1
        return answers[min(seen, len(answers)) - 1]

    def introduction(self, method: str) -> dict[str, Any]:
        """The answer to `initialize` or `server/discover`."""
        if method == "initialize":
            capabilities: dict[str, Any] = {"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
            return {"capabilities": capabilities, "protocolVersion": "2025-11-25", "serverInfo": {"name": "script", "version": "1"}}
        capabilities = {"tools": {}, "extensions": {EXTENSION: {}}}
        return {"capabilities": capabilities, "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private"}

    def handle(self, message: dict[str, Any]) -> None:
        """Handle one message from the client."""
        method, number = message.get("method"), message.get("id")
        if number is None or method is None:
            return
        if method == "initialize" or (method == "server/discover" and self.modern):
            self.give(number, {"result": self.introduction(method)})
        elif method == "tools/list":
            execution = {"execution": {"taskSupport": self.told["support"]}} if self.told.get("support") else {}
            tool = {"name": "job", "inputSchema": {"type": "object", "properties": {"of": {"type": "string"}}}, **execution}
            self.give(number, {"result": {"tools": [tool]}})
        elif method == "tools/call" or method.startswith("tasks/"):
            with self.log.open("a") as log:
                log.write(json.dumps({"method": method, "params": message.get("params")}) + "\n")
            self.play(number, self.next(method))
        else:
            self.give(number, {"error": {"code": -32601, "message": "Method not found"}})

    def play(self, number: Any, answer: Any) -> None:
        """Carry out one scripted answer."""
        if answer == "die":
            os._exit(1)
        if answer == "hang":
            return
        if "ask" in answer:
            send({"id": "ask", **answer["ask"]})
            while json.loads(line := sys.stdin.readline()).get("id") != "ask":
                self.handle(json.loads(line))
            with self.log.open("a") as log:
                log.write(json.dumps({"method": "answer", "params": json.loads(line).get("result")}) + "\n")
            if answer.get("then") == "hang":
                return
        self.give(number, answer)

    def give(self, number: Any, answer: dict[str, Any]) -> None:
        """Send a response in the form of the protocol version."""
        if "result" in answer and self.modern:
            answer = {"result": {"resultType": "complete", **answer["result"]}}
        send({"id": number, **{k: v for k, v in answer.items() if k in ("result", "error")}})


def main() -> None:
    """Serve until standard input ends."""
    cli = argparse.ArgumentParser()
    cli.add_argument("--modern", action="store_true")
    cli.add_argument("--log", type=Path, required=True)
    cli.add_argument("told")
    given = cli.parse_args()
    script = Script(json.loads(given.told), given.log, modern=given.modern)
    while line := sys.stdin.readline():
        script.handle(json.loads(line))


if __name__ == "__main__":
    main()
