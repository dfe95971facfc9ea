"""`build_client`: an httpx2 client for one address that the operator wrote, over the bounded transport.

Plain asyncio in one place: a program that never closes its chat clients, as programs written for other libraries do not, must
not be warned of open sockets, so a client that is forgotten closes itself with what the loop has, as the `openai` package's own do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx2

from gateway.egress.transport import MAX_ANSWER_BYTES, build_transport

CONNECT_SECONDS = 10.0
"""For name, TCP and TLS."""


def build_client(whom: str, url: str, *, timeout_seconds: float, headers: Mapping[str, str] | None = None) -> httpx2.AsyncClient:
    """A client for one address. Its owner closes it.

    `timeout_seconds` is for a whole answer, or for the silence between two parts of an event stream.

    Raises:
        UpstreamUnavailable: As `build_transport`.
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
        except RuntimeError:  # the loop is gone, and its sockets with it
            return
        loop.create_task(self.aclose())  # noqa: RUF006  # nothing is left that could keep it
