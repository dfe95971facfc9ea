"""The bounded transport in the shape of httpx, for packages that want a client of that library (`a2a-sdk`).

Loaded only where such a package is: httpx is no dependency of the gateway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import httpx
import httpx2

from gateway.egress.transport import MAX_ANSWER_BYTES, BoundedTransport, build_transport


def build_httpx_client(whom: str, url: str, *, timeout_seconds: float, headers: dict[str, str]) -> httpx.AsyncClient:
    """As `egress.client.build_client`. `headers` go to whatever the client is asked to fetch: its owner keeps it to one origin.

    Raises:
        UpstreamUnavailable: As there.
    """
    transport = _Adapted(build_transport(whom, url, max_answer_bytes=MAX_ANSWER_BYTES))
    return httpx.AsyncClient(transport=transport, headers=headers, timeout=timeout_seconds, follow_redirects=False)


class _Adapted(httpx.AsyncBaseTransport):
    """Requests, answers and errors of the one library as those of the other. Owns the inner transport."""

    def __init__(self, inner: BoundedTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send; the body of a request is there as a whole."""
        content = await request.aread()
        asked = httpx2.Request(
            request.method, str(request.url), headers=request.headers.raw, content=content, extensions=dict(request.extensions)
        )
        try:
            answer = await self._inner.handle_async_request(asked)
        except httpx2.RequestError as error:
            raise _as_httpx(error) from error
        stream = _Stream(cast("httpx2.AsyncByteStream", answer.stream))
        return httpx.Response(answer.status_code, headers=answer.headers.raw, stream=stream, request=request)

    async def aclose(self) -> None:
        """Close the real transport."""
        await self._inner.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._inner:
                yield piece
        except httpx2.RequestError as error:
            raise _as_httpx(error) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _as_httpx(error: httpx2.RequestError) -> httpx.TransportError:
    """The error of the same name, or of the nearest class above it that both have."""
    for kind in type(error).__mro__:
        known = getattr(httpx, kind.__name__, None)
        if isinstance(known, type) and issubclass(known, httpx.TransportError):
            return known(str(error))
    return httpx.TransportError(str(error))
