"""Whole answers over HTTP as ASGI applications, for what is answered before any framework is there."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.json_types import JsonMapping, JsonObject, JsonValue

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def json_answer(content: JsonMapping, status: int = 200, headers: Mapping[str, str] | None = None) -> ASGIApp:
    """Answers with an object."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return _answer(body, status, {**(headers or {}), "content-type": "application/json"})


LIMIT_REACHED = -32010
"""JSON-RPC code of a refusal by a quota: the message names the setting. -32000 to -32019 are for implementations (MCP, Error Codes)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served: an HTTP status, a JSON-RPC code, and text that says what to do."""

    status: int
    code: int
    message: str
    retry_after_seconds: int | None = None

    def to_answer(self, *, is_rpc: bool, number: JsonValue = None) -> ASGIApp:
        """As a JSON-RPC error at the MCP endpoint, as an object with `message` elsewhere. `number` is the request's id, if it is known."""
        headers = {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}
        if is_rpc:
            content: JsonObject = {"jsonrpc": "2.0", "id": number, "error": {"code": self.code, "message": self.message}}
        else:
            content = {"error": http.HTTPStatus(self.status).phrase.lower().replace(" ", "_"), "message": self.message}
        return json_answer(content, self.status, headers)


def text_answer(text: str, status: int) -> ASGIApp:
    """Answers with a line."""
    return _answer(text.encode(), status, {"content-type": "text/plain; charset=utf-8"})


def _answer(body: bytes, status: int, headers: Mapping[str, str]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": [*fields, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    return answer
