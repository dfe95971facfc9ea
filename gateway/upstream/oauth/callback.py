"""HTTP server that receives the browser's redirect at the end of an OAuth sign-in, on a loopback address (RFC 8252 §7.3).

It runs during one sign-in, and accepts only the path `/callback` with the `state` of this sign-in. It does not handle tokens.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import anyio
from starlette.responses import HTMLResponse

from gateway.errors import ConfigError
from gateway.wire.loopback_server import HOST, serving

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

PATH = "/callback"
"""Path of the redirect URI, which is registered with the authorization server."""

_PAGE = "<!doctype html><meta charset=utf-8><title>Moongate</title><body style='font:16px sans-serif;margin:3em'><p>{}</p>"


@dataclass(frozen=True, slots=True)
class Redirected:
    """The parameters of an authorization response, which the browser's redirect transmits (RFC 6749 §4.1.2)."""

    code: str | None
    error: str | None
    issuer: str | None
    """The `iss` parameter of the redirect (RFC 9207); `None` if it is missing."""


class Callback:
    """ASGI application that receives the redirect of one sign-in. `listening` creates it."""

    def __init__(self) -> None:
        self.redirect_uri = ""
        self._state = ""
        self._result: Redirected | None = None
        self._arrived = anyio.Event()

    async def wait(self, state: str) -> Redirected:
        """Wait for the redirect with `state`, and return its authorization response. Requests without this state get an error page."""
        self._state = state
        await self._arrived.wait()
        assert self._result is not None
        return self._result

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of the browser with a page, and store the authorization response if the request is the redirect."""
        status, text = self._judge(scope)
        headers = {"cache-control": "no-store", "referrer-policy": "no-referrer", "connection": "close"}
        await HTMLResponse(_PAGE.format(text), status, headers)(scope, receive, send)
        if self._result is not None:
            self._arrived.set()

    def _judge(self, scope: Scope) -> tuple[int, str]:
        if scope["path"] != PATH:
            return 404, "There is nothing here."
        if scope["method"] != "GET":
            return 405, "There is nothing here."
        query = parse_qs(scope["query_string"].decode("latin-1"))
        fields = {key: values[0] for key, values in query.items() if len(values) == 1}
        if not self._state or not hmac.compare_digest(fields.get("state", "").encode(), self._state.encode()):
            return 400, "This is not the sign-in that was started. Start it again from the terminal."
        if self._result is None:
            self._result = Redirected(fields.get("code"), fields.get("error"), fields.get("iss"))
        if self._result.code is None:
            return 200, "The sign-in was not completed. You can close this window."
        return 200, "Back to the terminal: it finishes the sign-in. You can close this window."


@asynccontextmanager
async def listening(port: int, *, prefer: int | None = None) -> AsyncGenerator[Callback]:
    """Listen on 127.0.0.1:`port` inside the context, and yield the `Callback` that receives the redirect.

    If `port` is 0, use the port `prefer` if it is free, else any free port.

    Raises:
        ConfigError: The port cannot be used, for example because it is taken.
    """
    callback, bound = Callback(), None
    async with AsyncExitStack() as stack:
        if port == 0 and prefer is not None:
            with suppress(OSError):
                bound = await stack.enter_async_context(serving(callback, prefer))
        try:
            bound = bound or await stack.enter_async_context(serving(callback, port))
        except OSError as error:
            fix = "free it, or set `auth.redirectPort` to another"
            raise ConfigError(f"Port {port} for the sign-in cannot be used: {error.strerror or 'unknown reason'}; {fix}.") from None
        callback.redirect_uri = f"http://{HOST}:{bound}{PATH}"
        yield callback
