"""`BoundedTransport`: the way to an address that the operator wrote, for whoever speaks HTTP over httpx2.

Asks for no compression and undoes, piece by piece, what comes compressed nevertheless; ends answers that are larger or
slower than is taken. Follows no redirect: a redirect is an answer, and where a peer sends us is not where the operator did.
`upstream.http` puts its own layers above it, clients of models and agents take `client.build_client`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Generator

import anyio
import httpx2

from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context

MAX_ANSWER_BYTES = 33_554_432
"""Of one answer of a model or a remote agent, of a whole stream as well (32 MiB): read and decoded it costs twice that."""

PIECE_BYTES = 262_144
"""What is undone of a compressed body at once."""

_CODINGS = ("gzip", "x-gzip", "deflate")
_ZLIB_OR_GZIP = 47
"""`wbits` for zlib: both kinds of head, the largest window."""


class AnswerTooLarge(httpx2.ReadError):
    """The body is larger than is taken; asking again would give the same."""


class AnswerUnreadable(httpx2.RemoteProtocolError):
    """The body comes in a coding that was not asked for and is not known, or broken."""


def build_transport(whom: str, url: str, *, max_answer_bytes: int | None = None) -> BoundedTransport:
    """Pooled connections to `url`, through the proxy that the environment names for it.

    Raises:
        UpstreamUnavailable: The environment names a proxy that is none. `whom` is the name in the message.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60.0)
    proxy = proxy_for(whom, url, os.environ)
    return BoundedTransport(httpx2.AsyncHTTPTransport(limits=limits, verify=tls_context(), proxy=proxy), max_answer_bytes=max_answer_bytes)


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Wraps the real transport; owns and closes it."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, max_answer_bytes: int | None) -> None:
        """`max_answer_bytes`: of every body; `None` leaves that to the layer above, which gets the decoded bytes."""
        self._inner = inner
        self._max_bytes = max_answer_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send. The request's read timeout is the time for a whole answer that is no event stream.

        Raises:
            AnswerUnreadable: While the body is read, or before.
            httpx2.ReadTimeout: It did not come in time.
            AnswerTooLarge: While the body is read, or before.
        """
        request.headers["accept-encoding"] = "identity"
        seconds = request.extensions.get("timeout", {}).get("read")
        until = None if seconds is None else anyio.current_time() + seconds
        response = await self._head(request, until)
        inflater = None
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("identity", ""):
            if coding not in _CODINGS:
                await response.aclose()
                raise AnswerUnreadable(f"the body came in the coding {coding[:40]!r}, which was not asked for", request=request)
            del response.headers["content-encoding"]
            response.headers.pop("content-length", None)
            inflater = zlib.decompressobj(wbits=_ZLIB_OR_GZIP)
        declared = response.headers.get("content-length", "")
        if self._max_bytes is not None and declared.isdecimal() and int(declared) > self._max_bytes:
            await response.aclose()
            raise AnswerTooLarge(f"the answer is larger than {self._max_bytes} bytes", request=request)
        is_streaming = response.headers.get("content-type", "").startswith("text/event-stream")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Body(response.stream, request, inflater, self._max_bytes, None if is_streaming else until)
        return response

    async def _head(self, request: httpx2.Request, until: float | None) -> httpx2.Response:
        """The answer before its body, which may not drip for longer than it may be silent."""
        if until is None:
            return await self._inner.handle_async_request(request)
        connecting: float | None = request.extensions.get("timeout", {}).get("connect")
        try:
            with anyio.fail_after(until - anyio.current_time() + (connecting or 0)):
                return await self._inner.handle_async_request(request)
        except TimeoutError:
            raise httpx2.ReadTimeout("no answer in time", request=request) from None

    async def aclose(self) -> None:
        """Close the real transport."""
        await self._inner.aclose()


class _Body(httpx2.AsyncByteStream):
    """A body as it was meant, in pieces, within its bounds."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        request: httpx2.Request,
        inflater: zlib._Decompress | None,  # pyright: ignore[reportPrivateUsage]  # the type has no public name before 3.14
        max_bytes: int | None,
        until: float | None,
    ) -> None:
        self._inner = inner
        self._request = request
        self._inflater = inflater
        self._max_bytes = max_bytes
        self._until = until

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        chunks = aiter(self._inner)
        while (chunk := await self._next(chunks)) is not None:
            for piece in self._plain(chunk):
                seen += len(piece)
                if self._max_bytes is not None and seen > self._max_bytes:
                    raise AnswerTooLarge(f"the answer is larger than {self._max_bytes} bytes", request=self._request)
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
        if self._inflater is None:
            yield chunk
            return
        try:
            while chunk and not self._inflater.eof:
                if piece := self._inflater.decompress(chunk, PIECE_BYTES):
                    yield piece
                chunk = self._inflater.unconsumed_tail
        except zlib.error:
            raise AnswerUnreadable("the coding of the body is broken", request=self._request) from None

    async def aclose(self) -> None:
        await self._inner.aclose()
