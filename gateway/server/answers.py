"""Whole answers over HTTP as ASGI applications, for what is answered before any framework is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.json_types import JsonMapping

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def json_answer(content: JsonMapping, status: int = 200, headers: Mapping[str, str] | None = None) -> ASGIApp:
    """Answers with an object."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return _answer(body, status, {**(headers or {}), "content-type": "application/json"})


def text_answer(text: str, status: int) -> ASGIApp:
    """Answers with a line."""
    return _answer(text.encode(), status, {"content-type": "text/plain; charset=utf-8"})


def _answer(body: bytes, status: int, headers: Mapping[str, str]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": [*fields, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    return answer
