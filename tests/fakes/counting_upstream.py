"""A 2025 server over stdio that records every request, with tools for tests of changing and long tool lists.

    python -m tests.fakes.counting_upstream FOLDER NAME TOOLS

Each request is a line `METHOD [TOOL]` in `FOLDER/NAME.requests`. Tools: `pid` answers its process id, `wait` answers once
`FOLDER/go` exists, `flood` announces a changed tool list 3,000 times within some three seconds and then answers, and
`tool-0`… up to TOOLS of them, which answer their own name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FLOOD = 3_000


class Counting:
    """The server: records each request, and runs each call in a thread."""

    def __init__(self, folder: Path, name: str, tools: int) -> None:
        self.folder, self.name = folder, name
        self.tools = ["pid", "wait", "flood", *(f"tool-{n}" for n in range(tools))]
        self.lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        with self.lock:
            os.write(1, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def note(self, text: str) -> None:
        with (self.folder / f"{self.name}.requests").open("a") as journal:
            journal.write(text + "\n")

    def handle(self, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        if "id" not in message:
            return
        params: dict[str, Any] = message.get("params") or {}
        self.note(f"{method} {params.get('name', '')}".strip())
        if method == "tools/call":
            threading.Thread(target=self.call, args=(message["id"], params["name"]), daemon=True).start()
        elif method == "initialize":
            agreed = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}}}
            self.send({"id": message["id"], "result": {**agreed, "serverInfo": {"name": self.name, "version": "1"}}})
        elif method == "tools/list":
            listed = [{"name": tool, "inputSchema": {"type": "object"}} for tool in self.tools]
            self.send({"id": message["id"], "result": {"tools": listed}})
        else:
            self.send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

    def call(self, id_: Any, tool: str) -> None:
        text = tool
        if tool == "pid":
            text = str(os.getpid())
        elif tool == "wait":
            while not (self.folder / "go").exists():
                time.sleep(0.02)
            text = "waited"
        elif tool == "flood":
            for n in range(FLOOD):
                if n == FLOOD - 1:
                    self.tools.append("last")
                self.send({"method": "notifications/tools/list_changed"})
                time.sleep(0.001)
        self.send({"id": id_, "result": {"content": [{"type": "text", "text": text}]}})


def main() -> None:
    folder, name, tools = sys.argv[1:]
    server = Counting(Path(folder), name, int(tools))
    for line in sys.stdin.buffer:
        server.handle(json.loads(line))


if __name__ == "__main__":
    main()
