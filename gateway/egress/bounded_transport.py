"""`BoundedTransport`: an httpx2 transport with limits on responses, for URLs in the operator's configuration.

It requests no compression, decompresses in small pieces if a server compresses anyway, and aborts responses that are too large or too slow.
It follows no redirects, because a redirect leads to an address that the operator did not configure. `upstream.carriers` wraps it for MCP
servers; clients of models and remote agents use `egress.client.build_client`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Generator

import anyio
import httpx2

from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context
from gateway.wire.content_coding import CodingError, Decompressor, decompressor_for

MAX_ANSWER_BYTES = 33_554_432
"""Maximum bytes of a response, or a whole event stream, of a model or a remote agent (32 MiB). The decoded response needs twice as much
memory."""


class ResponseTooLarge(httpx2.ReadError):
    """Raised if the body of a response exceeds its size limit. A retry would not help."""


class ResponseUnreadable(httpx2.RemoteProtocolError):
    """Raised if the body of a response has an unsupported content coding, or cannot be decompressed."""


def build_transport(
    whom: str, url: str, *, max_answer_bytes: int | None = None, tls: ssl.SSLContext | None = None
) -> BoundedTransport:
    """Return a transport with pooled connections to `url`, through a proxy if the environment configures one for it.

    `max_answer_bytes` limits each response body; with `None`, the caller must limit the bodies.
    `tls` replaces the context that all outgoing connections share.

    Raises:
        NotSent: The proxy in the environment is invalid. The error names `whom`, the receiver of the requests, as the server.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60.0)
    proxy = proxy_for(whom, url, os.environ)
    inner = httpx2.AsyncHTTPTransport(limits=limits, verify=tls or tls_context(), proxy=proxy)
    return BoundedTransport(inner, max_answer_bytes=max_answer_bytes)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Wraps another httpx2 transport, which it owns and closes, and limits the size and time of its responses."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, max_answer_bytes: int | None) -> None:
        """Wrap the transport `inner`.

        `max_answer_bytes` limits each decompressed response body. If it is `None`, the caller must limit the bodies.
        """
        self._inner = inner
        self._max_bytes = max_answer_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, and return the response, whose body is checked while it is read.

        The request's read timeout is the deadline of the whole response; for an event stream, only of its headers. The headers may take
        the connect timeout in addition.

        Raises:
            ResponseUnreadable: The body cannot be decompressed. Raised here, or while the body is read.
            httpx2.ReadTimeout: The response did not arrive in time.
            ResponseTooLarge: The body exceeds the limit. Raised here, or while the body is read.
        """
        request.headers["accept-encoding"] = "identity"
        seconds = request.extensions.get("timeout", {}).get("read")
        until = None if seconds is None else anyio.current_time() + seconds
        response = await self._head(request, until)
        try:
            decompressor = decompressor_for(response.headers.get("content-encoding", ""))
        except CodingError as error:
            await response.aclose()
            raise ResponseUnreadable(f"the body {error}", request=request) from None
        if decompressor is not None:
            del response.headers["content-encoding"]
            response.headers.pop("content-length", None)
        declared = response.headers.get("content-length", "")
        if self._max_bytes is not None and declared.isdecimal() and int(declared) > self._max_bytes:
            await response.aclose()
            raise ResponseTooLarge(f"the answer is larger than {self._max_bytes} bytes", request=request)
        is_streaming = response.headers.get("content-type", "").startswith("text/event-stream")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Body(response.stream, request, decompressor, self._max_bytes, None if is_streaming else until)
        return response

    async def _head(self, request: httpx2.Request, until: float | None) -> httpx2.Response:
        """Send a request, and return the response before its body is read. `until` is the deadline for the headers, if any."""
        if until is None:
            return await self._inner.handle_async_request(request)
        connecting: float | None = request.extensions.get("timeout", {}).get("connect")
        try:
            with anyio.fail_after(until - anyio.current_time() + (connecting or 0)):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            raise httpx2.ReadTimeout("no answer in time", request=request) from None

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """A response body that yields decompressed pieces. Reading it raises an error if it exceeds its size limit or its deadline."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        request: httpx2.Request,
        decompressor: Decompressor | None,
        max_bytes: int | None,
        until: float | None,
    ) -> None:
        self._inner = inner
        self._request = request
        self._decompressor = decompressor
        self._max_bytes = max_bytes
        self._until = until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        chunks = aiter(self._inner)
        while (chunk := await self._next(chunks)) is not None:
            for piece in self._plain(chunk):
                seen += len(piece)
                if self._max_bytes is not None and seen > self._max_bytes:
                    raise ResponseTooLarge(f"the answer is larger than {self._max_bytes} bytes", request=self._request)
                yield piece

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        if self._until is None:
            return await anext(chunks, None)
        try:
            with anyio.fail_after(max(self._until - anyio.current_time(), 0)):
                return await anext(chunks, None)
        except TimeoutError:
            raise httpx2.ReadTimeout("the answer did not end in time", request=self._request) from None

    def _plain(self, chunk: bytes) -> Generator[bytes]:
        if self._decompressor is None:
            yield chunk
            return
        try:
            yield from self._decompressor.pieces(chunk)
        except CodingError as error:
            raise ResponseUnreadable(f"the body {error}", request=self._request) from None

    async def aclose(self) -> None:
        await self._inner.aclose()
