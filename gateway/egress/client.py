"""`build_client`: creates an httpx2 client with limits on responses (`bounded_transport`), for one URL in the operator's configuration.

Programs written for other libraries often do not close their chat clients, and must not get warnings about open sockets. Therefore, a
garbage-collected client closes itself in the running event loop, as clients of the `openai` package do. This needs asyncio, not anyio.
"""

from __future__ import annotations

import asyncio
import ssl

import httpx2

from gateway.egress.bounded_transport import MAX_ANSWER_BYTES, build_transport
from gateway.egress.tcp import CONNECT_SECONDS


def build_client(whom: str, url: str, *, timeout_seconds: float, tls: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    """Create an httpx2 client for `url`. The caller closes it.

    `timeout_seconds` is the deadline of a whole response, or the longest silence between two parts of an event stream. `tls`
    replaces the context that all outgoing connections share.

    Raises:
        NotSent: The proxy in the environment is invalid. The error names `whom`, the receiver of the requests, as the server.
    """
    transport = build_transport(whom, url, max_answer_bytes=MAX_ANSWER_BYTES, tls=tls)
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds), pool=None)
    return _Client(transport=transport, timeout=timeout, follow_redirects=False)


class _Client(httpx2.AsyncClient):
    def __del__(self) -> None:
        if self.is_closed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the loop is closed, and its sockets with it
            return
        loop.create_task(self.aclose())  # noqa: RUF006  # no object is left to hold a reference
