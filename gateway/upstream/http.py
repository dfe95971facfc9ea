"""The HTTP client of one remote server: pooled, bounded, and never taken down by one request.

The SDK's streamable HTTP transport ends the whole connection when one POST raises (python-sdk#3560), and
reads bodies without a limit. `SteadyTransport` sits below it: a request that cannot be delivered is answered
with a JSON-RPC error of its own, a body that breaks or grows past the limit just ends, a cancelled request of a 2025
session is let go, and a listening stream is tried again. Knows nothing of MCP sessions; `transport` builds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.abc
import httpx2
from pydantic_core import from_json

from gateway.egress.transport import build_transport
from gateway.errors import AuthNeeded, GatewayError, StorageError, UpstreamError, UpstreamUnavailable
from gateway.json_types import JsonValue
from gateway.protocol import RpcError
from gateway.upstream.answers import failed, outcome_of
from gateway.upstream.credentials import Credentials
from gateway.upstream.standins import (
    ACKNOWLEDGE_SECONDS,
    FORBIDDEN,
    LOST,
    MAX_IN_PASSING,
    NO_SESSION,
    NOT_SENT,
    RESUME_ATTEMPTS,
    SESSION_GONE,
    TOO_LARGE,
    UNAUTHORIZED,
    connect_problem,
    is_session_gone,
    no_answer,
    not_mcp,
    too_large,
    turned_away,
)

logger = logging.getLogger(__name__)

MAX_CHALLENGE_CHARS = 4096
"""Of a `WWW-Authenticate` header that is read."""

SESSION_HEADERS = ("mcp-session-id", "mcp-protocol-version")
"""What makes a request part of a 2025 session."""

HEAD_BYTES = 256
"""Of a message, enough to see what it is: the SDK writes `jsonrpc`, `id` and `method` first."""

MAX_REFUSAL_BYTES = 16_384
"""Of a body that is read to learn what its status means, such as a 400: whether the session is meant."""

RELISTEN_SECONDS = 1.0
"""Wait before a listening stream (GET) that could not be opened is tried again; doubles up to `MAX_RELISTEN_SECONDS`. The SDK
gives up after two attempts, and a 2025 server would tell nothing any more for as long as its session lasts."""

MAX_RELISTEN_SECONDS = 30.0
"""Longest wait between attempts to listen."""

CONNECT_TIMEOUT_SECONDS = 10.0
"""Time for TCP and TLS; the deadline of the call itself is the gate's."""


_FRAMING = (b"content-length", b"transfer-encoding")
"""Headers of a body that has been read."""

_REQUEST = b'{"jsonrpc":"2.0","id":'
"""How messages begin that are requests, or our answers to some."""

_T = TypeVar("_T")


class _Flight:
    """A request that is on its way or being answered, and can be let go."""

    def __init__(self, request: httpx2.Request) -> None:
        self.head = _head(request)
        self.is_over = False
        self._scope: anyio.CancelScope | None = None

    async def wait(self, what: Callable[[], Awaitable[_T]]) -> _T | None:
        """The outcome, or `None` where the request was let go meanwhile."""
        if not self.is_over:
            with anyio.CancelScope() as self._scope:
                return await what()
        return None

    def let_go(self) -> None:
        """Nobody waits for it any more."""
        self.is_over = True
        if self._scope is not None:
            self._scope.cancel()


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body that ends instead of raising: at the limit, when the connection breaks, or let go."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, server: str, max_bytes: int | None, flights: set[_Flight], flight: _Flight | None
    ) -> None:
        self._inner = inner
        self._server = server
        self._max_bytes = max_bytes
        self._flights = flights
        self._flight = flight

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        chunks = aiter(self._inner)
        flight = self._flight
        try:
            while True:
                chunk = await anext(chunks, None) if flight is None else await flight.wait(lambda: anext(chunks, None))
                if chunk is None:
                    return
                seen += len(chunk)
                if self._max_bytes is not None and seen > self._max_bytes:
                    logger.warning("%s: response body larger than %d bytes; cut off", self._server, self._max_bytes)
                    return
                yield chunk
        except (httpx2.TransportError, httpx2.StreamError) as error:
            logger.info("%s: response body broke off: %s", self._server, type(error).__name__)

    async def aclose(self) -> None:
        if self._flight is not None:
            self._flights.discard(self._flight)
        await self._inner.aclose()


class AuthorizedTransport(httpx2.AsyncBaseTransport):
    """Puts the credentials of one server on its requests, and tries a refused request once more with renewed ones.

    Nothing is held while a request runs. The header goes to the server's own origin only.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, credentials: Credentials, *, server: str, url: str) -> None:
        self._inner = inner
        self._credentials = credentials
        self._server = server
        self._origin = origin(httpx2.URL(url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send, at most twice.

        Raises:
            UpstreamError: There are no usable credentials, or the server takes none of them.
        """
        if origin(request.url) != self._origin:
            return await self._inner.handle_async_request(request)
        used = await self._credentials.header()
        request.headers["authorization"] = used
        response = await self._inner.handle_async_request(request)
        if response.status_code not in (401, 403):
            return response
        challenge = ", ".join(response.headers.get_list("www-authenticate"))[:MAX_CHALLENGE_CHARS]
        await response.aclose()
        renewed = await self._credentials.after(response.status_code, challenge, used)
        if renewed is not None and isinstance(request.stream, httpx2.ByteStream):
            request.headers["authorization"] = renewed
            response = await self._inner.handle_async_request(request)
            if response.status_code not in (401, 403):
                self._credentials.accepted()
                return response
            await response.aclose()
        if response.status_code == 403:
            raise UpstreamError(f"Server {self._server!r} answered 403: its credentials do not allow this.", server=self._server)
        raise AuthNeeded(f"Server {self._server!r} refuses its token (401); {self._credentials.explain()}", server=self._server)

    async def aclose(self) -> None:
        """Close the real transport."""
        await self._inner.aclose()


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Scheme, host and port; `None` for the usual one."""
    return url.scheme, url.host, url.port


class SteadyTransport(httpx2.AsyncBaseTransport):
    """Wraps the real transport of one server; owns and closes it. Entered, it delivers in passing what nothing has to wait for."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, *, server: str, max_body_bytes: int, up: Callable[[Mapping[str, str]], None] | None = None
    ) -> None:
        """`up` is told when the server knows that a 2025 session is up, and by which headers its requests are known."""
        self._inner = inner
        self._up = up
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._tasks: anyio.abc.TaskGroup | None = None
        self._in_passing = 0
        self._flights: set[_Flight] = set()
        """Requests of a 2025 session: the SDK lets only those of the modern era go when they are cancelled."""

    async def __aenter__(self) -> SteadyTransport:
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None = None, exc_value: BaseException | None = None, traceback: TracebackType | None = None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
        await self.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send; a delivery failure of a POST becomes a JSON-RPC error response, anything else raises as usual."""
        if request.method == "POST" and self._tasks is not None and self._in_passing < MAX_IN_PASSING and _is_waited_for_by_none(request):
            self._in_passing += 1
            self._tasks.start_soon(self._pass_on, request)
            return httpx2.Response(202, request=request)
        return await self._acknowledged(request)

    async def _pass_on(self, request: httpx2.Request) -> None:
        try:
            response = await self._acknowledged(request)
            await response.aclose()
        except httpx2.HTTPError as error:
            logger.debug("%s: not taken: %s", self._server, type(error).__name__)
        finally:
            self._in_passing -= 1

    async def _acknowledged(self, request: httpx2.Request) -> httpx2.Response:
        """Deliver, within `ACKNOWLEDGE_SECONDS` what has no answer; what a cancellation names is let go after it."""
        if request.method == "GET":
            return await self._listen(request)
        if request.method == "DELETE" or (request.method == "POST" and _has_no_answer(request)):
            try:
                with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                    response = await self._deliver(request)
                    if self._up is not None and response.is_success and _ends_handshake(request):
                        self._up({name: request.headers[name] for name in SESSION_HEADERS if name in request.headers})
                    return response
            finally:
                self._let_go(request)
            late = "not taken in time"
            return self._stand_in(request, RpcError(LOST, late), httpx2.ReadTimeout(late, request=request))
        if request.method != "POST" or "mcp-method" in request.headers:  # which only modern requests have
            return await self._deliver(request)
        flight = _Flight(request)
        self._flights.add(flight)
        response = None
        try:
            response = await self._deliver(request, flight)
            return response
        finally:
            if response is None or not isinstance(response.stream, _BoundedStream):
                self._flights.discard(flight)

    def _let_go(self, request: httpx2.Request) -> None:
        if not self._flights or b'"method":"notifications/cancelled"' not in _head(request):
            return
        named = json.loads(request.content).get("params", {}).get("requestId")
        start = _REQUEST + json.dumps(named).encode() + b","
        for flight in self._flights:
            if flight.head.startswith(start):
                flight.let_go()

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """Open a stream on which the server speaks first, as often as it takes, if it offers one."""
        wait, attempts = RELISTEN_SECONDS, RESUME_ATTEMPTS if "last-event-id" in request.headers else math.inf
        while True:
            attempts -= 1
            try:
                response = await self._deliver(request)
                status = response.status_code
                is_refused = (300 <= status < 500 and status not in (408, 429)) or status == 501
                is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
                if attempts <= 0 or is_refused or (response.is_success and is_stream):
                    return response
                await response.aclose()
            except httpx2.TransportError:
                if attempts <= 0:
                    raise
            await anyio.sleep(wait)
            wait = min(wait * 2, MAX_RELISTEN_SECONDS)

    async def _deliver(self, request: httpx2.Request, flight: _Flight | None = None) -> httpx2.Response:
        try:
            if flight is None:
                response = await self._inner.handle_async_request(request)
            else:
                answered = await flight.wait(lambda: self._inner.handle_async_request(request))
                if answered is None:
                    return _json_rpc_error(request, LOST, "cancelled")
                response = answered
        except (httpx2.TransportError, GatewayError) as error:
            return self._stand_in(request, undelivered(error), error)
        if request.method == "POST":
            refused = turned_away(self._server, response.status_code, response.headers.get("retry-after", ""))
            if refused is not None:
                await response.aclose()
                return _json_rpc_error(request, refused.code, refused.message, refused.data)
            if b'"method":"initialize"' in _head(request):
                said = response.headers
                odd = not_mcp(str(request.url), response.status_code, said.get("content-type", ""), said.get("location", ""))
                if odd is not None:
                    await response.aclose()
                    return _json_rpc_error(request, odd.code, odd.message)
            if response.status_code in (400, 404) and "mcp-session-id" in request.headers:
                return await self._session_gone(request, response)
        stream = response.stream
        if not isinstance(stream, httpx2.AsyncByteStream):
            return response
        streaming = response.headers.get("content-type", "").startswith("text/event-stream")
        if request.method == "POST" and response.headers.get("content-type", "").startswith("application/json"):
            return await self._whole(request, response, stream, flight)
        response.stream = _BoundedStream(stream, self._server, None if streaming else self._max_body_bytes, self._flights, flight)
        return response

    async def _whole(
        self, request: httpx2.Request, response: httpx2.Response, stream: httpx2.AsyncByteStream, flight: _Flight | None
    ) -> httpx2.Response:
        """The response with its body read, or our answer where that is too large, does not come to its end, or is no result.

        The SDK would read and parse what there is of it, and wait on after a message that is no answer.
        """
        parts: list[bytes] = []
        size = _length(response)

        async def read() -> bool:
            nonlocal size
            size = 0
            async for part in stream:
                size += len(part)
                if size > self._max_body_bytes:
                    break
                parts.append(part)
            return True

        try:
            if size <= self._max_body_bytes and (await read() if flight is None else await flight.wait(read)) is None:
                return _json_rpc_error(request, LOST, "cancelled")
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return _json_rpc_error(request, LOST, f"connection lost: {type(error).__name__}")
        finally:
            await response.aclose()
        if size > self._max_body_bytes:
            return _json_rpc_error(request, TOO_LARGE, too_large(self._max_body_bytes))
        body = b"".join(parts)
        if response.is_success and response.status_code != 202 and (error := _other_than_result(request, body)) is not None:
            return _json_rpc_error(request, error.code, error.message, error.data)
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _FRAMING]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    async def _session_gone(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Our answer where the status says that the request was not taken because its session is unknown; else the server's."""
        status, body = response.status_code, await beginning(response)
        if is_session_gone(status, body):
            return _json_rpc_error(request, SESSION_GONE, NO_SESSION)
        headers = {"content-type": response.headers.get("content-type", "")}
        return httpx2.Response(status, headers=headers, content=body, request=request)

    def _stand_in(self, request: httpx2.Request, said: RpcError, error: Exception) -> httpx2.Response:
        if request.method != "POST":
            raise error
        return _json_rpc_error(request, said.code, said.message)

    async def aclose(self) -> None:
        """Close the real transport."""
        await self._inner.aclose()


def undelivered(error: httpx2.TransportError | GatewayError) -> RpcError:
    """What stands in for an answer to a request that could not be delivered, or broke."""
    if isinstance(error, AuthNeeded | StorageError):
        return RpcError(UNAUTHORIZED, str(error))
    if isinstance(error, GatewayError):
        return RpcError(NOT_SENT if isinstance(error, UpstreamUnavailable) else FORBIDDEN, str(error))
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.UnsupportedProtocol | httpx2.ProxyError):
        return RpcError(NOT_SENT, f"cannot connect: {connect_problem(error)}")
    return RpcError(LOST, f"connection lost: {type(error).__name__}")


async def beginning(response: httpx2.Response) -> bytes:
    """Of a body that says little beside its status, as far as it comes within `ACKNOWLEDGE_SECONDS`. Closes the response."""
    body = b""
    try:
        with anyio.move_on_after(ACKNOWLEDGE_SECONDS), contextlib.suppress(httpx2.TransportError, httpx2.StreamError):
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_REFUSAL_BYTES:
                    break
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()
    return body


def _length(response: httpx2.Response) -> int:
    declared = response.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else 0


def _head(request: httpx2.Request) -> bytes:
    # A request that follows a redirect has the body of the first one only as its stream.
    return next(iter(request.stream))[:HEAD_BYTES] if isinstance(request.stream, httpx2.ByteStream) else b'"method"'


def _has_no_answer(request: httpx2.Request) -> bool:
    """Whether a POST carries a notification, or our answer to a server's request."""
    head = _head(request)
    return b'"method"' not in head or b'"method":"notifications/' in head


def _other_than_result(request: httpx2.Request, body: bytes) -> RpcError | None:
    """The error in the body that answers a request, or ours where it is no answer to it; `None` for a result, and for other POSTs."""
    head = _head(request)
    if not head.startswith(_REQUEST) or _has_no_answer(request):
        return None
    number, _ = json.JSONDecoder().raw_decode(head[len(_REQUEST) :].decode(errors="replace"))
    try:
        outcome = outcome_of(from_json(body), number)
    except ValueError:
        outcome = None
    if isinstance(outcome, dict):
        return None
    return outcome or no_answer()


def _ends_handshake(request: httpx2.Request) -> bool:
    """Whether a 2025 session is up with this POST. One with cookies does not count: the client keeps them, and they are renewed."""
    return b'"method":"notifications/initialized"' in _head(request) and "cookie" not in request.headers


def _is_waited_for_by_none(request: httpx2.Request) -> bool:
    """Whether it may arrive after what is sent later: a cancellation, or our answer to a server's request."""
    head = _head(request)
    return b'"method"' not in head or b'"method":"notifications/cancelled"' in head


def _json_rpc_error(request: httpx2.Request, code: int, message: str, data: JsonValue = None) -> httpx2.Response:
    body = json.dumps(failed(None, RpcError(code, message, data))).encode()
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=body, request=request)


def build_http_client(
    server: str,
    url: str,
    headers: Mapping[str, str],
    credentials: Credentials | None,
    *,
    max_body_bytes: int,
    up: Callable[[Mapping[str, str]], None] | None = None,
) -> httpx2.AsyncClient:
    """A client for one server over streamable HTTP (`up`: see `SteadyTransport`); enter and leave it with the connection.

    Reads have no timeout of their own: a stream may be silent for long, and every call has a deadline above this.
    """
    transport = SteadyTransport(_transport(server, url, credentials), server=server, max_body_bytes=max_body_bytes, up=up)
    return _client(transport, headers)


def build_sse_client(server: str, url: str, headers: Mapping[str, str], credentials: Credentials | None) -> httpx2.AsyncClient:
    """A client for one server over the old HTTP+SSE transport, whose POSTs are answered on the stream; else as `build_http_client`."""
    return _client(_transport(server, url, credentials), headers)


def _transport(server: str, url: str, credentials: Credentials | None) -> httpx2.AsyncBaseTransport:
    inner = build_transport(server, url)
    return inner if credentials is None else AuthorizedTransport(inner, credentials, server=server, url=url)


def _client(transport: httpx2.AsyncBaseTransport, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_SECONDS, read=None, write=60.0, pool=None)
    return httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=timeout, follow_redirects=False)
