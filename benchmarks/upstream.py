"""The upstream of the benchmarks: a bare streamable HTTP answerer that counts requests and connections.

It speaks just enough MCP for both contenders (discover, initialize, tools/list, tools/call) and does no work of
its own, so that the hop is what is measured. `GET /counts` tells what it saw.

    python -m benchmarks.upstream PORT TOOLS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvicorn

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "size": {"type": "integer", "minimum": 0}},
    "required": ["text"],
    "additionalProperties": False,
}
"""`text` comes back; with `size`, so many characters more behind it."""


class Counting:
    """The ASGI application."""

    def __init__(self, tools: int) -> None:
        self.requests: dict[str, int] = {}
        self.connections: set[tuple[str, int]] = set()
        self.tools = [{"name": f"tool_{n}", "description": "Says it back.", "inputSchema": SCHEMA} for n in range(tools)]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/counts":
            await reply(send, {"requests": self.requests, "connections": len(self.connections)})
            return
        self.connections.add(tuple(scope["client"]))
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        if scope["method"] != "POST":
            await reply(send, None, 405)
            return
        message = json.loads(body)
        method = message["method"]
        self.requests[method] = self.requests.get(method, 0) + 1
        if "id" not in message:
            await reply(send, None, 202)
            return
        await reply(send, {"jsonrpc": "2.0", "id": message["id"], **self.answer(method, message.get("params") or {})})

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """`result` or `error` of one request."""
        stamp = {"resultType": "complete"}
        match method:
            case "server/discover":
                found: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                found |= {"ttlMs": 0, "cacheScope": "private"}
                return {"result": {**stamp, **found}}
            case "tools/list":
                return {"result": {**stamp, "tools": self.tools, "ttlMs": 60_000, "cacheScope": "private"}}
            case "tools/call":
                given = params["arguments"]
                return {"result": {**stamp, "content": [{"type": "text", "text": given["text"] + "x" * given.get("size", 0)}]}}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}


async def reply(send: Any, value: Any, status: int = 200) -> None:
    """Answer with JSON, or with nothing."""
    body = b"" if value is None else json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    settings = {"host": "127.0.0.1", "log_level": "error", "lifespan": "off", "timeout_keep_alive": 75}
    uvicorn.run(Counting(int(sys.argv[2])), port=int(sys.argv[1]), **settings)  # pyright: ignore[reportArgumentType]  # keyword by keyword
