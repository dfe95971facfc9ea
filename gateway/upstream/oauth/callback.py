"""The loopback address that a browser returns to after a sign-in (RFC 8252 §7.3).

It listens on 127.0.0.1 during one sign-in, and accepts only its one path with the right `state`. It handles no tokens.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.abc
from anyio.streams.stapled import MultiListener

from gateway.errors import ConfigError, GatewayError

PATH = "/callback"
"""Path of the redirect URI."""

MAX_REQUEST_BYTES = 16_384
"""Maximum size of a request's head; a code and a state are far smaller."""

REQUEST_SECONDS = 10.0
"""Timeout for one request's head."""

_PAGE = "<!doctype html><meta charset=utf-8><title>Moongate</title><body style='font:16px sans-serif;margin:3em'><p>{}</p>"


@dataclass(frozen=True, slots=True)
class Redirected:
    """The authorization server's response, which the browser brought."""

    code: str | None
    error: str | None
    issuer: str | None
    """The `iss` parameter (RFC 9207)."""


class Callback:
    """The redirect target of one sign-in; made by `listening`."""

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._state = ""
        self._result: Redirected | None = None
        self._arrived = anyio.Event()

    async def wait(self, state: str) -> Redirected:
        """Wait for the response with `state`, and return it. Any other request is rejected."""
        self._state = state
        await self._arrived.wait()
        assert self._result is not None
        return self._result

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        """Answer one connection."""
        async with stream:
            try:
                with anyio.fail_after(REQUEST_SECONDS):
                    status, text = self._judge(await _request_line(stream))
                    body = _PAGE.format(text).encode()
                    head = f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
                    head += "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
                    await stream.send(head.encode() + body)
            except (TimeoutError, anyio.BrokenResourceError, anyio.EndOfStream):
                return
            finally:
                if self._result is not None:
                    self._arrived.set()

    def _judge(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.rpartition(" ")[0])
        if target.path != PATH:
            return "404 Not Found", "There is nothing here."
        if method != "GET":
            return "405 Method Not Allowed", "There is nothing here."
        fields = {key: values[0] for key, values in parse_qs(target.query).items() if len(values) == 1}
        if not self._state or not hmac.compare_digest(fields.get("state", "").encode(), self._state.encode()):
            return "400 Bad Request", "This is not the sign-in that was started. Start it again from the terminal."
        if self._result is None:
            self._result = Redirected(fields.get("code"), fields.get("error"), fields.get("iss"))
        if self._result.code is None:
            return "200 OK", "The sign-in was not completed. You can close this window."
        return "200 OK", "Back to the terminal: it finishes the sign-in. You can close this window."


async def _request_line(stream: anyio.abc.SocketStream) -> str:
    """Return the first line of a request after its whole head has arrived."""
    data = b""
    while b"\r\n\r\n" not in data and len(data) < MAX_REQUEST_BYTES:
        data += await stream.receive(4096)
    return data.partition(b"\r\n")[0].decode("latin-1")


@asynccontextmanager
async def listening(port: int, *, prefer: int | None = None) -> AsyncGenerator[Callback]:
    """Listen on 127.0.0.1:`port` until left. If `port` is 0, use `prefer` if it is free, else any free port.

    Raises:
        ConfigError: The port is taken.
    """
    try:
        listener = await _listener(port, prefer)
    except OSError as error:
        fix = "free it, or set `auth.redirectPort` to another"
        raise ConfigError(f"Port {port} for the sign-in cannot be used: {error.strerror or 'unknown reason'}; {fix}.") from None
    bound = int(listener.extra(anyio.abc.SocketAttribute.local_port))
    callback = Callback(f"http://127.0.0.1:{bound}{PATH}")
    try:
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, callback.handle)
            yield callback
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        own = group.exceptions
        if len(own) == 1 and isinstance(own[0], GatewayError):
            raise own[0] from None  # the error of the sign-in, not the task group around it
        raise


async def _listener(port: int, prefer: int | None) -> MultiListener[anyio.abc.SocketStream]:
    if port == 0 and prefer is not None:
        with suppress(OSError):
            return await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=prefer)
    return await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
