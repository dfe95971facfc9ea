"""`build_httpx_client`: creates an httpx client with limits on responses (`bounded_transport`), for packages that need httpx (`a2a-sdk`).

Import this module only together with such a package, because httpx is not a dependency of the gateway, which uses httpx2.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import httpx
import httpx2

from gateway.egress.bounded_transport import MAX_ANSWER_BYTES, BoundedTransport, build_transport


def build_httpx_client(whom: str, url: str, *, timeout_seconds: float, headers: dict[str, str]) -> httpx.AsyncClient:
    """Create an httpx client with limits on responses, for one URL in the operator's configuration.

    The client sends `headers` with every request, so use it for one origin only: they may contain a credential.

    Raises:
        NotSent: The proxy in the environment is invalid. The error names `whom`, the receiver of the requests, as the server.
    """
    transport = _Adapted(build_transport(whom, url, max_answer_bytes=MAX_ANSWER_BYTES))
    return httpx.AsyncClient(transport=transport, headers=headers, timeout=timeout_seconds, follow_redirects=False)


class _Adapted(httpx.AsyncBaseTransport):
    """An httpx transport that sends requests with an httpx2 transport, which it owns, and converts requests, responses and errors."""

    def __init__(self, inner: BoundedTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Read the body of an httpx request completely, send the request with httpx2, and return the response."""
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
        """Close the httpx2 transport."""
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
    """Convert an httpx2 error to the httpx error whose class has the same name, or the name of the nearest base class that httpx has."""
    for kind in type(error).__mro__:
        known = getattr(httpx, kind.__name__, None)
        if isinstance(known, type) and issubclass(known, httpx.TransportError):
            return known(str(error))
    return httpx.TransportError(str(error))
