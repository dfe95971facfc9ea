"""`build_client`: creates an httpx2 client with the bounded transport, for one address that the operator wrote.

Programs written for other libraries often never close their chat clients and must not get warnings about open sockets. A garbage-collected
client therefore closes itself on the running loop, as clients of the `openai` package do. This needs plain asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2

from gateway.egress.bounded_transport import MAX_ANSWER_BYTES, build_transport

CONNECT_SECONDS = 10.0
"""Timeout for name resolution, TCP and TLS."""


def build_client(whom: str, url: str, *, timeout_seconds: float, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
    """Create a client for one address. The caller closes it.

    `timeout_seconds` is the deadline of a whole response, or the longest silence between two parts of an event stream.

    Raises:
        NotSent: The environment names an invalid proxy; see `build_transport`.
    """
    transport = build_transport(whom, url, max_answer_bytes=MAX_ANSWER_BYTES)
    timeout = httpx2.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds), pool=None)
    return _Client(transport=transport, headers=headers, timeout=timeout, follow_redirects=False)


class _Client(httpx2.AsyncClient):
    def __del__(self) -> None:
        if self.is_closed:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # the loop is closed, and its sockets with it
            return
        loop.create_task(self.aclose())  # noqa: RUF006  # no object is left to hold a reference
