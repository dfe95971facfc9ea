"""`SseCarrier`: sends the requests of a session over the HTTP+SSE transport of 2024-11-05.

The server sends all messages on one event stream, and the gateway sends each message to the server in a POST. Decided: an implementation
of our own instead of the MCP SDK's. Because: in the SDK's transport, an event of more than 1 MiB, a failed POST, or five minutes without an
event end the connection, which all callers share. Revisit when: in the SDK, such a failure ends only its own request.
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
from gateway.upstream.carriers.http_failures import is_session_gone, refusal, session_gone, stays_at_origin
from gateway.upstream.carriers.message_carrier import MessageCarrier
from gateway.upstream.carriers.sdk_http_transport import beginning, build_sse_client, origin, undelivered
from gateway.upstream.credential_protocols import Credentials
from gateway.wire.jsonrpc import encode_message, id_of, number_of, to_message
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES, too_large
from gateway.wire.sse import SseParser

logger = logging.getLogger(__name__)

MAX_ENDPOINT_BYTES = 65_536
"""Maximum bytes of the event stream up to the end of the `endpoint` event, which must come first."""

MAX_REDIRECTS = 5
"""Maximum number of redirects that are followed for one request, all within the server's origin."""


@asynccontextmanager
async def open_sse(server: str, entry: SseServer, credentials: Credentials | None) -> AsyncGenerator[SseCarrier]:
    """Open the event stream of the server, read its `endpoint` event, and yield a carrier for the connection.

    Raises:
        NotSent: The server cannot be reached, rejects the credentials, or does not offer the HTTP+SSE transport at this URL.
        OutcomeUnknown: The connection broke before the response to the GET arrived.
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
    """Send an HTTP request, and return the response with its body unread.

    Redirects within the server's origin are followed, for example those that add a slash to the path.
    """
    for _ in range(MAX_REDIRECTS):
        response = await client.send(request, stream=True)
        following = response.next_request
        if following is None or following.method != request.method or not stays_at_origin(str(request.url), str(following.url)):
            return response
        await response.aclose()
        request = following
    return await client.send(request, stream=True)


class _EventStream:
    """Reads one event stream of a server: first the `endpoint` event, then JSON-RPC messages."""

    def __init__(self, server: str, chunks: AsyncIterator[bytes]) -> None:
        self._server = server
        self._chunks = chunks
        self._events = SseParser(MAX_MESSAGE_BYTES, truncates=True)
        self._early: list[bytes] = []
        """Messages that arrived in the same chunk as the `endpoint` event, for `messages` to yield."""

    async def endpoint(self) -> str:
        """Read the `endpoint` event, and return the URL in it, to which messages are sent. Raises `NotSent` if the event does not come."""
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
        """Yield the data of each event, and whether the data was cut off because it is too large, until the stream ends."""
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
    """Sends the requests of one session over HTTP+SSE, each in a POST. A failed POST fails only its own request. `open_sse` creates it."""

    has_headers = False

    def __init__(self, server: str, client: httpx2.AsyncClient, url: str, stream: _EventStream) -> None:
        """Send messages with `client` to `url`, which was in the `endpoint` event, and receive them from `stream`."""
        super().__init__(server)
        self._client = client
        self._url = url
        self._stream = stream

    def failure(self, method: str, error: RpcError) -> RequestFailure:
        """Convert a JSON-RPC error of the server to a failure of the request that it answers."""
        return rejected(self.server, error)

    async def listen(self) -> None:
        """Pass each message on the event stream to `receive`, until the stream ends.

        If an event is malformed or too large, fail the request that it answers.
        """
        async for data, is_cut in self._stream.messages():
            if is_cut:
                logger.warning("event cut off max_bytes=%d server=%s", MAX_MESSAGE_BYTES, self.server)
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
        """Send a message to the server in a POST. If the POST of a request fails, the request fails, too.

        A message without an id is dropped if the server does not accept it within `ACKNOWLEDGE_SECONDS`.
        """
        content = encode_message(message)
        if "id" not in message:
            await self.send_answer(content)
        elif (failure := await self._post(content)) is not None:
            self.settle(number_of(message["id"]), failure)

    async def send_answer(self, message: bytes) -> None:
        """Send the JSON of a message that has no JSON-RPC response to the server.

        Drop the message if it cannot be sent, or if the server does not accept it within `ACKNOWLEDGE_SECONDS`.
        """
        with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
            await self._post(message)

    async def _post(self, content: bytes) -> RequestFailure | None:
        """Send a message in a POST. Return the failure if the server did not accept the message, or `None` if it did."""
        request = self._client.build_request("POST", self._url, content=content, headers={"content-type": "application/json"})
        try:
            response = await _send(self._client, request)
        except (httpx2.TransportError, GatewayError) as error:
            return undelivered(self.server, error)
        if response.is_success and self.tasks is not None:
            self.tasks.start_soon(beginning, response)  # reads the body, so that the connection can be reused
            return None
        body, status = await beginning(response), response.status_code
        if is_session_gone(status, body):
            return session_gone(self.server)
        refused = refusal(self.server, status, response.headers.get("retry-after", ""))
        return refused or Malformed(f"it answered a message with {status}", server=self.server)
