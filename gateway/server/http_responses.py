"""Builds complete HTTP responses as ASGI applications, for modules that must not import Starlette."""

from __future__ import annotations

import http
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.protocol import RpcError
from gateway.wire.rpc_envelope import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def json_response(content: JsonMapping, status: int = 200, headers: Mapping[str, str] | None = None) -> ASGIApp:
    """Return an ASGI application that answers every request with this JSON object, status and headers."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    return _response(body, status, {**(headers or {}), "content-type": "application/json"})


KEYS_UNREADABLE = "The gateway cannot read its API keys. Its log has the reason."
"""The `error` of a 503 response while the API keys cannot be read."""

LIMIT_REACHED = -32010
"""JSON-RPC error code of a request that is refused because of a quota. MCP leaves -32000 to -32019 to implementations (Error Codes)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error with which a request is refused: HTTP status, JSON-RPC error code, and a message that tells the client what to do."""

    status: int
    code: int
    message: str
    retry_after_seconds: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: cast("Mapping[str, str]", {}))
    """Further headers of the response, such as a challenge."""
    data: JsonObject | None = None
    """The member `data` of the JSON-RPC error."""

    def to_response(self, *, is_rpc: bool, number: JsonValue = None) -> ASGIApp:
        """Return an ASGI application that sends the refusal.

        With `is_rpc`, the body is a JSON-RPC error for the request with the id `number`; else a JSON object with `error` and `message`.
        """
        headers = {**self.headers, **({} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)})}
        if is_rpc:
            content = error_response(number, RpcError(self.code, self.message, self.data))
        else:
            content = {"error": http.HTTPStatus(self.status).phrase.lower().replace(" ", "_"), "message": self.message}
        return json_response(content, self.status, headers)


def text_response(text: str, status: int) -> ASGIApp:
    """Return an ASGI application that answers every request with this plain text and status."""
    return _response(text.encode(), status, {"content-type": "text/plain; charset=utf-8"})


def _response(body: bytes, status: int, headers: Mapping[str, str]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": [*fields, (b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    return answer


def insufficient_scope(wanted: str, verdict: Reject) -> tuple[JsonObject, dict[str, str]]:
    """Return the JSON content and the headers of a 403 response to a caller whose API key lacks the scope `wanted` (RFC 6750, 3.1).

    `wanted` is empty for a user with an access token, whose scopes have other names. `verdict` is the rejection; its reason becomes the
    message in the content.
    """
    challenge = 'Bearer realm="moongate", error="insufficient_scope"' + (f', scope="{wanted}"' if wanted else "")
    return {"error": "insufficient_scope", "message": verdict.reason}, {"WWW-Authenticate": challenge}
