"""A minimal byte proxy, the lower bound for proxies in Python: an ASGI application that forwards bodies without parsing them.

The proxy sends all requests over keep-alive connections to the upstream.

    python -m benchmarks.raw PORT UPSTREAM_URL
"""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from gateway.egress.tcp import connector
from gateway.wire.http1_client import ConnectionPool

PASSED = (b"accept", b"content-type", b"mcp-protocol-version", b"mcp-method", b"mcp-name")


class Raw:
    """The ASGI application."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self.pool = ConnectionPool("up", connector(parts.hostname or "", parts.port or 80, None), max_body_bytes=1 << 26)
        self.head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        lines = b"".join(b"%s: %s\r\n" % line for line in scope["headers"] if line[0] in PASSED)
        answer = await self.pool.send(b"%s%scontent-length: %d\r\n\r\n%s" % (self.head, lines, len(body), body))
        headers = [(b"content-type", answer.headers[b"content-type"]), (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


if __name__ == "__main__":
    settings = {"host": "127.0.0.1", "log_level": "error", "lifespan": "off", "timeout_keep_alive": 75, "loop": "asyncio"}
    uvicorn.run(Raw(sys.argv[2]), port=int(sys.argv[1]), **settings)  # pyright: ignore[reportArgumentType]  # mixed value types
