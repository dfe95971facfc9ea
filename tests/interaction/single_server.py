"""A stdio server that may run only once: it notes its process id with each start, call, subscription and end in a file (`argv[1]`)."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {"name": name, "inputSchema": {"type": "object", "properties": {"steps": {"type": "integer"}}}} for name in ("who", "slow", "ask")
]

CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {"subscribe": True}}


def note(event: str) -> None:
    """Append one line to the file."""
    with open(sys.argv[1], "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.monotonic(), "pid": os.getpid(), "event": event}) + "\n")


def send(message: dict[str, Any]) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(said: str) -> dict[str, Any]:
    """Return a result of `tools/call` with a text."""
    return {"content": [{"type": "text", "text": said}]}


def call(number: object, params: dict[str, Any]) -> None:
    """Answer one `tools/call`."""
    name, token = params["name"], params.get("_meta", {}).get("progressToken")
    note(name)
    if name == "slow":
        for step in range(params["arguments"].get("steps", 10)):
            time.sleep(0.1)
            note("step")
            if token is not None:
                send({"method": "notifications/progress", "params": {"progressToken": token, "progress": step + 1}})
    if name == "ask":
        form = {"type": "object", "properties": {"name": {"type": "string"}}}
        send({"id": f"q{number}", "method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": form}})
        answer = json.loads(sys.stdin.readline())
        send({"id": number, "result": text(json.dumps(answer.get("result", answer.get("error"))))})
        return
    send({"id": number, "result": text(str(os.getpid()))})


def main() -> None:
    """Serve until the input ends."""
    note("start")
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            info = {"name": "single", "version": "1"}
            send({"id": number, "result": {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}})
        elif method == "tools/list":
            send({"id": number, "result": {"tools": TOOLS}})
        elif method == "resources/list":
            send({"id": number, "result": {"resources": [{"uri": "data://one", "name": "one"}]}})
        elif method in ("resources/subscribe", "resources/unsubscribe"):
            note(method)
            send({"id": number, "result": {}})
        elif method == "tools/call":
            call(number, message["params"])
        elif number is not None and method is not None:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
    note("end")


if __name__ == "__main__":
    main()
