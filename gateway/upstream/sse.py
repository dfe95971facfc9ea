"""The transport of 2024-11-05: an event stream that stays open, on which everything comes, and a POST for each message to the server.

Decided: our own in place of the SDK's. Because: over that one an event of more than a mebibyte, a POST that is not taken, and five
minutes without a word end the connection, which is every caller's. Revisit when: the SDK keeps such a failure to the call it is of.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urljoin

import anyio
import anyio.abc
import httpx2
from mcp_types import JSONRPCMessage, JSONRPCRequest
from pydantic_core import from_json

from gateway.config.models import SseServer
from gateway.errors import AuthNeeded, GatewayError, UpstreamUnavailable
from gateway.json_types import JsonObject
from gateway.protocol import INTERNAL_ERROR, PARSE_ERROR, RpcError
from gateway.upstream.answers import failed, id_of
from gateway.upstream.credentials import Credentials
from gateway.upstream.dispatching import Writer, message_streams
from gateway.upstream.events import Events
from gateway.upstream.http import beginning, build_sse_client, origin, undelivered
from gateway.upstream.link import Streams
from gateway.upstream.pipe import to_message
from gateway.upstream.standins import (
    ACKNOWLEDGE_SECONDS,
    MAX_MESSAGE_BYTES,
    NO_SESSION,
    SESSION_GONE,
    TOO_LARGE,
    UNAUTHORIZED,
    is_session_gone,
    too_large,
    turned_away,
)

logger = logging.getLogger(__name__)

MAX_ENDPOINT_BYTES = 65_536
"""Of the event that says where messages go, and of what comes before it."""

MAX_REDIRECTS = 5
"""Of one request, within the server's origin."""

_Put = Callable[[JsonObject], Awaitable[None]]


@asynccontextmanager
async def open_sse(server: str, entry: SseServer, credentials: Credentials | None) -> AsyncGenerator[Streams]:
    """Open the event stream, and learn where messages go.

    Raises:
        UpstreamUnavailable: There is no such stream.
    """
    async with (
        build_sse_client(server, entry.url, entry.headers, credentials) as client,
        _listening(server, client, entry.url) as response,
    ):
        heard = _Heard(server, response.aiter_raw())
        url = urljoin(str(response.request.url), await heard.endpoint())
        if origin(httpx2.URL(url)) != origin(response.request.url):
            raise UpstreamUnavailable(f"Server {server!r} wants its messages at another origin; they stay here.", server=server)
        out, read, put = message_streams()
        async with anyio.create_task_group() as tasks:
            with out, read:

                async def listen() -> None:
                    with out:
                        await heard.pass_on(put)

                tasks.start_soon(listen)
                yield read, _Poster(server, client, url, tasks, put)
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def _listening(server: str, client: httpx2.AsyncClient, url: str) -> AsyncGenerator[httpx2.Response]:
    request = client.build_request("GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"})
    try:
        response = await _send(client, request)
    except httpx2.TransportError as error:
        raise UpstreamUnavailable(undelivered(error).message, server=server) from None
    try:
        _check_stream(server, response)
        yield response
    finally:
        with anyio.CancelScope(shield=True):
            await response.aclose()


def _check_stream(server: str, response: httpx2.Response) -> None:
    status = response.status_code
    refused = turned_away(server, status, response.headers.get("retry-after", ""))
    if refused is not None:
        raise (AuthNeeded if refused.code == UNAUTHORIZED else UpstreamUnavailable)(refused.message, server=server)
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_success and kind == "text/event-stream":
        return
    said = f"{kind[:100] or 'nothing'!r} instead of an event stream" if response.is_success else str(status)
    fix = "" if status >= 500 else f'; has it the newer transport (`mcpServers.{server}.type`: "http")?'
    raise UpstreamUnavailable(f"Server {server!r} answered {said}{fix}", server=server)


async def _send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """The answer, its body unread; sent on where the server says so within its origin, as it does for a slash at the end."""
    for _ in range(MAX_REDIRECTS):
        response = await client.send(request, stream=True)
        following = response.next_request
        if following is None or following.method != request.method or not _stays(request.url, following.url):
            return response
        await response.aclose()
        request = following
    return await client.send(request, stream=True)


def _stays(url: httpx2.URL, following: httpx2.URL) -> bool:
    """Whether it is the same origin, or its secure form on the usual port, and brings no user of its own."""
    is_upgrade = (url.scheme, url.port, following.scheme, following.port) == ("http", None, "https", None) and url.host == following.host
    return following.userinfo in (b"", url.userinfo) and (is_upgrade or origin(url) == origin(following))


class _Heard:
    """What comes on the stream."""

    def __init__(self, server: str, chunks: AsyncIterator[bytes]) -> None:
        self._server = server
        self._chunks = chunks
        self._events = Events(MAX_MESSAGE_BYTES, cuts=True)
        self._early: list[bytes] = []
        """Messages that came with the endpoint."""

    async def endpoint(self) -> str:
        """Where messages go, which is said first. Raises `UpstreamUnavailable`."""
        events, seen = Events(MAX_ENDPOINT_BYTES, name=b"endpoint"), 0
        with suppress(httpx2.TransportError, httpx2.StreamError):
            async for chunk in self._chunks:
                self._early += self._events.feed(chunk)
                seen += len(chunk)
                if found := events.feed(chunk):
                    return found[0].decode(errors="replace")
                if seen > MAX_ENDPOINT_BYTES:
                    break
        raise UpstreamUnavailable(f"Server {self._server!r} did not say on its event stream where messages go.", server=self._server)

    async def pass_on(self, put: _Put) -> None:
        """Hand on every message, until the stream ends. What cannot be read, or is too large, is an error to who waits for it."""
        for data in self._early:
            await self._hand_on(data, put)
        self._early.clear()
        try:
            async for chunk in self._chunks:
                for data in self._events.feed(chunk):
                    await self._hand_on(data, put)
                while self._events.cut:
                    logger.warning("%s: an event larger than %d bytes was cut off", self._server, MAX_MESSAGE_BYTES)
                    await _fail(put, self._events.cut.pop(0), RpcError(TOO_LARGE, too_large(MAX_MESSAGE_BYTES)))
        except (httpx2.TransportError, httpx2.StreamError) as error:
            logger.info("%s: its event stream broke off: %s", self._server, type(error).__name__)

    async def _hand_on(self, data: bytes, put: _Put) -> None:
        try:
            message = to_message(from_json(data))
        except ValueError:
            message = None
        if message is not None:
            await put(message)
        else:
            logger.debug("%s: an event that is not JSON-RPC", self._server)
            await _fail(put, data, RpcError(PARSE_ERROR, "Failed to parse SSE message"))


async def _fail(put: _Put, data: bytes, error: RpcError) -> None:
    """Give an error to who waits for an answer that is none, as far as it says who that is."""
    number = id_of(data)
    if number is not None:
        await put(failed(number, error))


class _Poster(Writer):
    """Makes a POST for each message, so that one that is not taken is that caller's."""

    def __init__(self, server: str, client: httpx2.AsyncClient, url: str, tasks: anyio.abc.TaskGroup, put: _Put) -> None:
        self._server = server
        self._client = client
        self._url = url
        self._tasks = tasks
        self._put = put

    async def deliver(self, message: JSONRPCMessage, content: bytes) -> None:
        """As `Writer`; what hinders a request answers it, and what is none has `ACKNOWLEDGE_SECONDS`."""
        if not isinstance(message, JSONRPCRequest):
            with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                await self._post(content)
            return
        failure = await self._post(content)
        if failure is not None:  # put by another task: who reads may wait for who sends
            self._tasks.start_soon(self._answer, message.id, failure)

    async def _answer(self, number: int | str, failure: RpcError) -> None:
        await self._put(failed(number, failure))

    async def _post(self, content: bytes) -> RpcError | None:
        """Why it was not taken; `None` where it was."""
        request = self._client.build_request("POST", self._url, content=content, headers={"content-type": "application/json"})
        try:
            response = await _send(self._client, request)
        except (httpx2.TransportError, GatewayError) as error:
            return undelivered(error)
        if response.is_success:
            self._tasks.start_soon(beginning, response)  # read, so that the connection can be used again
            return None
        body, status = await beginning(response), response.status_code
        if is_session_gone(status, body):
            return RpcError(SESSION_GONE, NO_SESSION)
        refused = turned_away(self._server, status, response.headers.get("retry-after", ""))
        return refused or RpcError(INTERNAL_ERROR, "Server returned an error response")
