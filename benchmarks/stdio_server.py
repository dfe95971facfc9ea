"""The upstream server of the stdio benchmarks: a minimal MCP server over stdin and stdout for 2026 and 2025 clients.

    python benchmarks/stdio_server.py [CORE]

With `CORE` the server pins itself to that core; otherwise it would inherit the core of the gateway or proxy that starts it. The file is a
script without imports from `benchmarks`, because some proxies do not pass `PYTHONPATH` to the server.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"], "additionalProperties": False}
TOOLS = [{"name": f"tool_{n}", "description": "Says it back.", "inputSchema": SCHEMA} for n in range(2)]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the `result` or `error` member of the response to a request."""
    match method:
        case "tools/call":
            return {"result": {"resultType": "complete", "content": [{"type": "text", "text": params["arguments"]["text"]}]}}
        case "tools/list":
            return {"result": {"resultType": "complete", "tools": TOOLS, "ttlMs": 60_000, "cacheScope": "private"}}
        case "server/discover":
            found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return {"result": {"resultType": "complete", **found, "ttlMs": 0, "cacheScope": "private"}}
        case "initialize":
            agreed: dict[str, Any] = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            return {"result": {**agreed, "serverInfo": {"name": "bench", "version": "1"}}}
        case "ping":
            return {"result": {}}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}


def main() -> None:
    """Serve until stdin ends. The responses to all requests of one read leave in one write."""
    rest = b""
    while chunk := os.read(0, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        out: list[str] = []
        for line in lines:
            message = json.loads(line)
            if "id" in message and "method" in message:
                said = answer(message["method"], message.get("params") or {})
                out.append(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}) + "\n")
        data = "".join(out).encode()
        while data:
            data = data[os.write(1, data) :]


if __name__ == "__main__":
    if sys.argv[1:] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    main()
