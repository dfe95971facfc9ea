"""Receives the redirect of the browser at the end of a sign-in, on a loopback address (RFC 8252 §7.3).

The server runs during one sign-in, and accepts only the path `/callback` with the `state` of that sign-in. It handles no tokens.
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
"""Path of the redirect URI."""

_PAGE = "<!doctype html><meta charset=utf-8><title>Moongate</title><body style='font:16px sans-serif;margin:3em'><p>{}</p>"


@dataclass(frozen=True, slots=True)
class Redirected:
    """The authorization response in the redirect (RFC 6749 §4.1.2)."""

    code: str | None
    error: str | None
    issuer: str | None
    """The `iss` parameter of the redirect (RFC 9207); `None` if it is missing."""


class Callback:
    """The redirect target of one sign-in, an ASGI application; made by `listening`."""

    def __init__(self) -> None:
        self.redirect_uri = ""
        self._state = ""
        self._result: Redirected | None = None
        self._arrived = anyio.Event()

    async def wait(self, state: str) -> Redirected:
        """Wait for the redirect with `state`, and return its response. Requests with another `state` get 400."""
        self._state = state
        await self._arrived.wait()
        assert self._result is not None
        return self._result

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request of the browser, as an ASGI application."""
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
    """Listen on 127.0.0.1:`port` until left, and yield the callback. If `port` is 0, use `prefer` if it is free, else any free port.

    Raises:
        ConfigError: The port is taken.
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
