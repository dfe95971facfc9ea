"""HTTP transports (httpx2) that the MCP SDK's streamable HTTP client uses for one remote server.

The SDK's client ends the whole connection if one POST raises (python-sdk#3560), and reads bodies without a limit. If a request could not be
sent, `SteadyTransport` returns a response with a JSON-RPC error (`in_band`). It also limits bodies, ends a cancelled request of a 2025
session, and opens the standalone stream (GET) again. `AuthorizedTransport` adds credentials, also for `sse_carrier`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.abc
import httpx2
from pydantic_core import from_json

from gateway.egress.bounded_transport import build_transport
from gateway.egress.tcp import CONNECT_SECONDS
from gateway.errors import (
    Forbidden,
    GatewayError,
    Malformed,
    NotSent,
    OutcomeUnknown,
    RequestFailure,
    StorageError,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from gateway.protocol import RpcError
from gateway.upstream.carriers.carrier import ACKNOWLEDGE_SECONDS, CANCELLATION
from gateway.upstream.carriers.http_carrier import MAX_UNACKNOWLEDGED, RESUME_ATTEMPTS, OnSession
from gateway.upstream.carriers.http_failures import is_session_gone, post_failure, session_gone
from gateway.upstream.carriers.in_band import to_rpc_error
from gateway.upstream.credential_protocols import Credentials
from gateway.wire.http1_client import connect_problem
from gateway.wire.jsonrpc import first_id, method_in, outcome_of
from gateway.wire.message_sizes import too_large
from gateway.wire.rpc_envelope import error_response

logger = logging.getLogger(__name__)

MAX_CHALLENGE_CHARS = 4096
"""Maximum characters of a response's `WWW-Authenticate` headers that are read."""

SESSION_HEADERS = ("mcp-session-id", "mcp-protocol-version")
"""HTTP headers of a request that identify its MCP 2025 session."""

HEAD_BYTES = 256
"""Number of first bytes of a message from which its id and method are read. The SDK writes `jsonrpc`, `id` and `method` first."""

MAX_REFUSAL_BYTES = 16_384
"""Maximum bytes that are read of an error response, to find out whether the server has ended the session."""

RELISTEN_SECONDS = 1.0
"""Seconds before the standalone stream (GET) of an MCP 2025 session is opened again. Doubles with each attempt, to `MAX_RELISTEN_SECONDS`.

The SDK stops after two attempts; then the server could send no requests and notifications for the rest of the session.
"""

MAX_RELISTEN_SECONDS = 30.0
"""Longest wait between two attempts to open the standalone stream (GET) of an MCP 2025 session."""

_FRAMING = (b"content-length", b"transfer-encoding")
"""Response headers that describe the framing of the body. They are removed when the body has been read."""

_T = TypeVar("_T")

class _Flight:
    """One request in flight of an MCP 2025 session, which `cancel` can end while its response is awaited or read."""

    def __init__(self, request: httpx2.Request) -> None:
        self.number = first_id(_head(request))
        self.is_over = False
        self._scope: anyio.CancelScope | None = None

    async def wait(self, what: Callable[[], Awaitable[_T]]) -> _T | None:
        """Await `what()` and return its result. Return `None` if `cancel` was called before or during the wait."""
        if not self.is_over:
            with anyio.CancelScope() as self._scope:
                return await what()
        return None

    def cancel(self) -> None:
        """Cancel the request: a running `wait` and all later ones return `None`."""
        self.is_over = True
        if self._scope is not None:
            self._scope.cancel()


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body that ends early instead of raising: at its size limit, if the connection breaks, or if the request is cancelled."""

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
                    logger.warning("response body cut off server=%s max_bytes=%d", self._server, self._max_bytes)
                    return
                yield chunk
        except (httpx2.TransportError, httpx2.StreamError) as error:
            logger.info("response body broke off server=%s error=%s", self._server, type(error).__name__)

    async def aclose(self) -> None:
        if self._flight is not None:
            self._flights.discard(self._flight)
        await self._inner.aclose()


class AuthorizedTransport(httpx2.AsyncBaseTransport):
    """Wraps the HTTP transport to one server: adds the `Authorization` header, and resends a rejected request with renewed credentials.

    Only requests to the server's own origin get the header. The transport holds no lock while a request runs.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, credentials: Credentials, *, server: str, url: str) -> None:
        self._inner = inner
        self._credentials = credentials
        self._server = server
        self._origin = origin(httpx2.URL(url))

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with credentials. If the server answers 401 or 403, send it once more if the credentials can be renewed.

        Raises:
            UpstreamError: The credentials are missing or unusable, or the server rejects them.
            StorageError: The stored credentials cannot be read, written or locked.
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
            raise Forbidden(f"Server {self._server!r} answered 403: its credentials do not allow this.", server=self._server)
        raise Unauthorized(f"Server {self._server!r} refuses its token (401); {self._credentials.explain()}", server=self._server)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Return the origin of a URL: scheme, host and port. The port is `None` if it is the default port of the scheme."""
    return url.scheme, url.host, url.port


class SteadyTransport(httpx2.AsyncBaseTransport):
    """Wraps the HTTP transport to one server for the MCP SDK's client: a failed POST becomes a JSON-RPC error, and bodies are limited.

    Cancellations, and responses to the server's requests, are sent in the background. Owns and closes the wrapped transport.
    """

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, *, server: str, max_body_bytes: int, on_session: OnSession | None = None
    ) -> None:
        """Wrap the transport `inner`. `on_session` is called when the handshake (`initialize`) of an MCP 2025 session is complete."""
        self._inner = inner
        self._on_session = on_session
        self._server = server
        self._max_body_bytes = max_body_bytes
        self._tasks: anyio.abc.TaskGroup | None = None
        self._in_passing = 0
        self._flights: set[_Flight] = set()
        """Requests in flight of an MCP 2025 session. This transport cancels them, because the SDK cancels only requests of MCP 2026."""

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
        """Send an HTTP request, and return its response. If a POST fails, return a response with a JSON-RPC error instead of raising.

        A message that later messages may overtake (a cancellation, or the response to a server's request) is sent in the background, unless
        `MAX_UNACKNOWLEDGED` such messages are being sent; its response is `202 Accepted` at once.
        """
        if request.method == "POST" and self._tasks is not None and self._in_passing < MAX_UNACKNOWLEDGED and _may_arrive_late(request):
            self._in_passing += 1
            self._tasks.start_soon(self._pass_on, request)
            return httpx2.Response(202, request=request)
        return await self._acknowledged(request)

    async def _pass_on(self, request: httpx2.Request) -> None:
        try:
            response = await self._acknowledged(request)
            await response.aclose()
        except httpx2.HTTPError as error:
            logger.debug("message not delivered server=%s error=%s", self._server, type(error).__name__)
        finally:
            self._in_passing -= 1

    async def _acknowledged(self, request: httpx2.Request) -> httpx2.Response:
        """Send an HTTP request, and return its response.

        If a message has no JSON-RPC response, the server must accept it within `ACKNOWLEDGE_SECONDS`, else the message fails. After a
        `notifications/cancelled`, this transport also cancels the request whose id the notification contains.
        """
        if request.method == "GET":
            return await self._listen(request)
        if request.method == "DELETE" or (request.method == "POST" and _has_no_answer(request)):
            try:
                with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                    response = await self._deliver(request)
                    if self._on_session is not None and response.is_success and _ends_handshake(request):
                        self._on_session({name: request.headers[name] for name in SESSION_HEADERS if name in request.headers})
                    return response
            finally:
                self._cancel_named(request)
            late = "not taken in time"
            failure = OutcomeUnknown(late, server=self._server)
            return self._fail(request, failure, httpx2.ReadTimeout(late, request=request))
        if request.method != "POST" or "mcp-method" in request.headers:  # only MCP 2026 requests have this header
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

    def _cancel_named(self, request: httpx2.Request) -> None:
        if not self._flights or _method(request) != CANCELLATION:
            return
        named = json.loads(request.content).get("params", {}).get("requestId")
        for flight in self._flights:
            if named is not None and flight.number == named:
                flight.cancel()

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """Open the standalone stream (GET) until the server accepts or refuses it, or resume a stream with `RESUME_ATTEMPTS` attempts."""
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
                    return _failed(request, OutcomeUnknown("cancelled", server=self._server))
                response = answered
        except (httpx2.TransportError, GatewayError) as error:
            return self._fail(request, undelivered(self._server, error), error)
        if request.method == "POST":
            failure = post_failure(self._server, _method(request), str(request.url), response.status_code, response.headers)
            if failure is not None:
                await response.aclose()
                return _failed(request, failure)
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
        """Read the whole body of a JSON response, and return a response with this body.

        Return an error response if the body is too large, is incomplete or does not answer the request. Otherwise the SDK would parse an
        incomplete body, and would wait forever for a missing answer.
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
                return _failed(request, OutcomeUnknown("cancelled", server=self._server))
        except (httpx2.TransportError, httpx2.StreamError) as error:
            return _failed(request, OutcomeUnknown(f"connection lost: {type(error).__name__}", server=self._server))
        finally:
            await response.aclose()
        if size > self._max_body_bytes:
            return _failed(request, TooLarge(too_large(self._max_body_bytes), server=self._server))
        body = b"".join(parts)
        if response.is_success and response.status_code != 202 and (error := self._error_in(request, body)) is not None:
            return _failed(request, error)
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _FRAMING]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=request)

    async def _session_gone(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Return a copy of the server's response, or an error response if it means that the server does not know the session."""
        status, body = response.status_code, await beginning(response)
        if is_session_gone(status, body):
            return _failed(request, session_gone(self._server))
        headers = {"content-type": response.headers.get("content-type", "")}
        return httpx2.Response(status, headers=headers, content=body, request=request)

    def _fail(self, request: httpx2.Request, failure: RequestFailure, error: Exception) -> httpx2.Response:
        if request.method != "POST":
            raise error
        return _failed(request, failure)

    def _error_in(self, request: httpx2.Request, body: bytes) -> RpcError | RequestFailure | None:
        """Return the JSON-RPC error in the body of a response, or a failure if the body does not answer the request.

        Return `None` if the body is a result, or if the request is a message without a response.
        """
        number = first_id(_head(request))
        if number is None or _has_no_answer(request):
            return None
        try:
            outcome = outcome_of(from_json(body), number)
        except ValueError:
            outcome = None
        if isinstance(outcome, dict):
            return None
        return outcome or Malformed("the response does not belong to the request", server=self._server)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


def undelivered(server: str, error: httpx2.TransportError | GatewayError) -> RequestFailure:
    """Convert the exception of a request that could not be sent, or whose connection broke, to a failure of the request."""
    match error:
        case Unauthorized() | StorageError():
            return Unauthorized(str(error), server=server)
        case NotSent():
            return NotSent(str(error), server=server)
        case GatewayError():
            return Forbidden(str(error), server=server)
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.UnsupportedProtocol() | httpx2.ProxyError():
            return Unreachable(f"cannot connect: {connect_problem(error)}", server=server)
        case _:
            return OutcomeUnknown(f"connection lost: {type(error).__name__}", server=server)


async def beginning(response: httpx2.Response) -> bytes:
    """Read the beginning of a response's body, close the response, and return the bytes.

    Reading stops after `ACKNOWLEDGE_SECONDS` or about `MAX_REFUSAL_BYTES`.
    """
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
    # A request that follows a redirect has no `content`, only the stream of the first request's body.
    return next(iter(request.stream))[:HEAD_BYTES] if isinstance(request.stream, httpx2.ByteStream) else b""


def _method(request: httpx2.Request) -> str:
    """Return the JSON-RPC method of the message in a POST; empty for a response, `?` if a redirect made the message unreadable."""
    head = _head(request)
    return method_in(head) if head else "?"


def _has_no_answer(request: httpx2.Request) -> bool:
    """Return whether the message in a POST has no JSON-RPC response: a notification, or the response to a server's request."""
    method = _method(request)
    return not method or method.startswith("notifications/")


def _ends_handshake(request: httpx2.Request) -> bool:
    """Return whether a POST completes the handshake of an MCP 2025 session that uses no cookies.

    Only such a session can continue without the SDK, because only the SDK's HTTP client renews cookies.
    """
    return _method(request) == "notifications/initialized" and "cookie" not in request.headers


def _may_arrive_late(request: httpx2.Request) -> bool:
    """Return whether later messages may overtake the message in a POST: a cancellation, or the response to a server's request."""
    return _method(request) in ("", CANCELLATION)


def _failed(request: httpx2.Request, failure: RpcError | RequestFailure) -> httpx2.Response:
    """Return an HTTP response whose body is a JSON-RPC error: the server's error `failure`, or an encoding of `failure` (`in_band`)."""
    error = failure if isinstance(failure, RpcError) else to_rpc_error(failure)
    body = json.dumps(error_response(None, error)).encode()
    return httpx2.Response(502, headers={"content-type": "application/json"}, content=body, request=request)


def build_http_client(
    server: str,
    url: str,
    headers: Mapping[str, str],
    credentials: Credentials | None,
    *,
    max_body_bytes: int,
    on_session: OnSession | None = None,
    tls: ssl.SSLContext | None = None,
) -> httpx2.AsyncClient:
    """Return an httpx2 client for the SDK's streamable HTTP client and one server. The caller enters and leaves it with the connection.

    Reads have no timeout, because a stream may be silent for a long time and every call has a deadline.
    """
    inner = _transport(server, url, credentials, tls)
    return _client(SteadyTransport(inner, server=server, max_body_bytes=max_body_bytes, on_session=on_session), headers)


def build_sse_client(server: str, url: str, headers: Mapping[str, str], credentials: Credentials | None) -> httpx2.AsyncClient:
    """Return an httpx2 client for one server with the HTTP+SSE transport of 2024-11-05."""
    return _client(_transport(server, url, credentials), headers)


def _transport(server: str, url: str, credentials: Credentials | None, tls: ssl.SSLContext | None = None) -> httpx2.AsyncBaseTransport:
    inner = build_transport(server, url, tls=tls)
    return inner if credentials is None else AuthorizedTransport(inner, credentials, server=server, url=url)


def _client(transport: httpx2.AsyncBaseTransport, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None, write=60.0, pool=None)
    return httpx2.AsyncClient(transport=transport, headers=dict(headers), timeout=timeout, follow_redirects=False)
