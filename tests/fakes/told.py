"""Handlers whose response repeats the request: `Told` on the fast path, at once; `sdk_path` as an ASGI application."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.server.head import Head


class Told:
    """The fast path's response to a request, and the fast path itself (`ServerConnection.start_fast`)."""

    is_cancelled = False

    def __init__(self, head: Head, body: bytes) -> None:
        facts = head.method, head.path, repr(head.headers), repr(sorted(head.fields.items())), repr(body)
        self.text = json.dumps(facts).encode()

    def cancel(self, msg: object = None) -> None:
        """Do nothing: the request has already been answered."""

    def left(self) -> None:
        """Do nothing: the request has already been answered."""

    def when_settled(self, then: Callable[[], None]) -> None:
        then()

    def answer(self) -> tuple[None, Sequence[bytes | memoryview]]:
        return None, (self.text,)

    def forget(self) -> None:
        """Do nothing: the response is not stored."""

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it is answered")


async def sdk_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with the same text as `Told`."""
    body, is_more = b"", True
    while is_more:
        message: Any = await receive()
        body, is_more = body + message.get("body", b""), message.get("more_body", False)
    text = Told(Head(scope), body).text
    headers = [(b"content-length", b"%d" % len(text)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})
