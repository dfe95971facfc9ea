"""`SseCarrier`: the HTTP+SSE transport of 2024-11-05. The server sends all messages on one event stream and receives each in a POST.

Decided: our own transport in place of the SDK's. Because: with that one, an event of more than 1 MiB, a failed POST, and five minutes
without an event end the connection, which all callers share. Revisit when: the SDK limits such a failure to its own request.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urljoin

import anyio
import httpx2
from pydantic_core import from_json

from gateway.config.models import SseServer
from gateway.errors import GatewayError, Malformed, NotSent, RequestFailure, TooLarge, Unauthorized
from gateway.json_types import JsonObject
from gateway.protocol import RpcError
from gateway.tools.context import CallContext
from gateway.upstream.carriers.carrier import ACKNOWLEDGE_SECONDS, Headers, rejected
from gateway.upstream.carriers.http_failures import is_session_gone, refusal, session_gone
from gateway.upstream.carriers.message_carrier import MessageCarrier
from gateway.upstream.carriers.sdk_http_transport import beginning, build_sse_client, origin, undelivered
from gateway.upstream.credential_protocols import Credentials
from gateway.wire.jsonrpc import encode_message, id_of, number_of, to_message
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES, too_large
from gateway.wire.sse import SseParser

logger = logging.getLogger(__name__)

MAX_ENDPOINT_BYTES = 65_536
"""Maximum size of the `endpoint` event together with everything before it."""

MAX_REDIRECTS = 5
"""Redirects of one request that are followed, all within the server's origin."""


@asynccontextmanager
async def open_sse(server: str, entry: SseServer, credentials: Credentials | None) -> AsyncGenerator[SseCarrier]:
    """Open the event stream, read the `endpoint` event, and yield the carrier.

    Raises:
        NotSent: The server does not offer the HTTP+SSE transport at this URL.
    """
    async with (
        build_sse_client(server, entry.url, entry.headers, credentials) as client,
        _event_stream(server, client, entry.url) as response,
    ):
        stream = _EventStream(server, response.aiter_raw())
        url = urljoin(str(response.request.url), await stream.endpoint())
        if origin(httpx2.URL(url)) != origin(response.request.url):
            text = f"Server {server!r} names a message endpoint at another origin than its `url`, which is not allowed."
            raise NotSent(text, server=server)
        yield SseCarrier(server, client, url, stream)


@asynccontextmanager
async def _event_stream(server: str, client: httpx2.AsyncClient, url: str) -> AsyncGenerator[httpx2.Response]:
    request = client.build_request("GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"})
    try:
        response = await _send(client, request)
    except httpx2.TransportError as error:
        raise undelivered(server, error) from None
    try:
        _check_stream(server, response)
        yield response
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


def _check_stream(server: str, response: httpx2.Response) -> None:
    status = response.status_code
    refused = refusal(server, status, response.headers.get("retry-after", ""))
    if refused is not None:
        raise refused if isinstance(refused, Unauthorized) else NotSent(str(refused), server=server)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_success and kind == "text/event-stream":
        return
    answer = f"{kind[:100] or 'nothing'!r} instead of an event stream" if response.is_success else str(status)
    fix = "" if status >= 500 else f'; does it have the newer transport (`mcpServers.{server}.type`: "http")?'
    raise NotSent(f"Server {server!r} answered {answer}{fix}", server=server)


async def _send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Return the response with its body unread. Redirects are followed within the server's origin, for example to add a slash."""
    for _ in range(MAX_REDIRECTS):
        response = await client.send(request, stream=True)
        following = response.next_request
        if following is None or following.method != request.method or not _stays(request.url, following.url):
            return response
        await response.aclose()
        request = following
    return await client.send(request, stream=True)


def _stays(url: httpx2.URL, following: httpx2.URL) -> bool:
    """Return whether a redirect keeps the origin, or changes it from http to https on the default ports, and adds no user name."""
    is_upgrade = (url.scheme, url.port, following.scheme, following.port) == ("http", None, "https", None) and url.host == following.host
    return following.userinfo in (b"", url.userinfo) and (is_upgrade or origin(url) == origin(following))


class _EventStream:
    """Reads the server's event stream: the `endpoint` event first, then messages."""

    def __init__(self, server: str, chunks: AsyncIterator[bytes]) -> None:
        self._server = server
        self._chunks = chunks
        self._events = SseParser(MAX_MESSAGE_BYTES, truncates=True)
        self._early: list[bytes] = []
        """Messages that arrived together with the endpoint."""

    async def endpoint(self) -> str:
        """Return the URL for messages, which the first event names. Raises `NotSent`."""
        events, seen = SseParser(MAX_ENDPOINT_BYTES, event=b"endpoint"), 0
        with suppress(httpx2.TransportError, httpx2.StreamError):
            async for chunk in self._chunks:
                self._early += self._events.feed(chunk)
                seen += len(chunk)
                if found := events.feed(chunk):
                    return found[0].decode(errors="replace")
                if seen > MAX_ENDPOINT_BYTES:
                    break
        raise NotSent(f"Server {self._server!r} sent no `endpoint` event, which names the URL for messages.", server=self._server)

    async def messages(self) -> AsyncGenerator[tuple[bytes, bool]]:
        """Yield the data of each event until the stream ends, and whether it was cut off because it is too large."""
        for data in self._early:
            yield data, False
        self._early.clear()
        try:
            async for chunk in self._chunks:
                for data in self._events.feed(chunk):
                    yield data, False
                while self._events.truncated:
                    yield self._events.truncated.pop(0), True
        except (httpx2.TransportError, httpx2.StreamError) as error:
            logger.info("event stream broke server=%s error=%s", self._server, type(error).__name__)


class SseCarrier(MessageCarrier):
    """Sends requests as POSTs; a failed POST fails only its own request. Made by `open_sse`."""

    has_headers = False

    def __init__(self, server: str, client: httpx2.AsyncClient, url: str, stream: _EventStream) -> None:
        """Messages are sent to `url`, which the `endpoint` event named."""
        super().__init__(server)
        self._client = client
        self._url = url
        self._stream = stream

    def failure(self, method: str, error: RpcError) -> RequestFailure:
        """Return the failure for a JSON-RPC error that answered a request with the method `method`."""
        return rejected(self.server, error)

    async def listen(self) -> None:
        """Pass every message on the event stream to `receive`, until the stream ends."""
        async for data, is_cut in self._stream.messages():
            if is_cut:
                logger.warning("event larger than %d bytes cut off server=%s", MAX_MESSAGE_BYTES, self.server)
                self.settle(number_of(id_of(data)), TooLarge(too_large(MAX_MESSAGE_BYTES), server=self.server))
                continue
            try:
                message = to_message(from_json(data))
            except ValueError:
                message = None
            if message is not None:
                self.receive(message)
            else:
                logger.debug("event that is not JSON-RPC dropped server=%s", self.server)
                self.settle(number_of(id_of(data)), Malformed("an event is not JSON-RPC", server=self.server))

    async def send(self, message: JsonObject, headers: Headers, ctx: CallContext | None) -> None:
        """Send a message. A request whose POST fails ends with that failure; any other message is dropped after `ACKNOWLEDGE_SECONDS`."""
        content = encode_message(message)
        if "id" not in message:
            await self.send_answer(content)
        elif (failure := await self._post(content)) is not None:
            self.settle(number_of(message["id"]), failure)

    async def send_answer(self, message: bytes) -> None:
        """Send the answer to a request of the server. A failure is not reported."""
        with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
            await self._post(message)

    async def _post(self, content: bytes) -> RequestFailure | None:
        """Send a POST, and return why the server did not accept it; `None` if it did."""
        request = self._client.build_request("POST", self._url, content=content, headers={"content-type": "application/json"})
        try:
            response = await _send(self._client, request)
        except (httpx2.TransportError, GatewayError) as error:
            return undelivered(self.server, error)
        if response.is_success and self.tasks is not None:
            self.tasks.start_soon(beginning, response)  # reads the body, so that the connection can be used again
            return None
        body, status = await beginning(response), response.status_code
        if is_session_gone(status, body):
            return session_gone(self.server)
        refused = refusal(self.server, status, response.headers.get("retry-after", ""))
        return refused or Malformed(f"it answered a message with {status}", server=self.server)
