"""Sends requests over streamable HTTP without the MCP SDK: `HttpCarrier` to 2026 servers, `HttpSessionCarrier` in sessions of 2025 servers.

These classes do not follow redirects and do not use a proxy or OAuth. `open_http_carrier` returns `None` for servers that need a proxy or
OAuth; `request` raises `NeedsSdk` for a request that was not processed, for example because of a redirect. `HttpOrSdkCarrier` then uses the
SDK, which also opens and closes MCP 2025 sessions and reads their standalone stream (HTTP GET).
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, cast

import anyio
import anyio.abc
import anyio.lowlevel
from pydantic_core import from_json

from gateway.config.models import HttpServer, ServerEntry
from gateway.egress.proxies import proxy_for
from gateway.egress.tls import tls_context
from gateway.errors import Malformed, NotSent, OutcomeUnknown, Rejected, RequestFailure, TooLarge, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import METHOD_NOT_FOUND, RpcError
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.base import Received, Releasable
from gateway.upstream.carriers.carrier import (
    ACKNOWLEDGE_SECONDS,
    FIRST_REQUEST_ID,
    Headers,
    OutgoingRequest,
    Receiver,
    cancellation,
    rejected,
    report,
)
from gateway.upstream.carriers.http_failures import NEVER_MISSING, is_session_gone, redirect_failure, refusal, session_gone
from gateway.upstream.carriers.notification_dispatcher import NotificationDispatcher
from gateway.upstream.carriers.sdk_carrier import SdkCarrier, Streams
from gateway.upstream.large_bodies import LargeBodies
from gateway.wire.content_coding import decompress
from gateway.wire.http1_messages import OutgoingHeads, get_request, post_request
from gateway.wire.jsonrpc import RequestWriter, decode_message, error_of, outcome_of
from gateway.wire.long_text import Decoded
from gateway.wire.message_sizes import LARGE_BYTES

if TYPE_CHECKING:
    from gateway.tools.context import CallContext
    from gateway.upstream.credential_protocols import Credentials
    from gateway.wire.http1_client import ConnectionPool
    from gateway.wire.http1_response import Response
    from gateway.wire.sse import EventStream

logger = logging.getLogger(__name__)

RESUME_ATTEMPTS = 4
"""Maximum number of attempts to resume an event stream, each time it ends before its response (`Last-Event-ID`)."""

RESUME_SECONDS = 1.0
"""Seconds before an event stream is resumed if the server sent no `retry` field. The SDK's transport waits the same time."""

MIN_RESUME_SECONDS, MAX_RESUME_SECONDS = 0.1, 60.0
"""Shortest and longest wait before an event stream is resumed, if the server sent a `retry` field."""

MAX_UNACKNOWLEDGED = 64
"""Maximum number of messages without a JSON-RPC response that are sent in the background in one session at the same time.

These messages are cancellations, and responses to requests of the server. Further messages wait.
"""

OnSession = Callable[[Mapping[str, str]], None]
"""Callback for the end of the handshake of an MCP 2025 session. It receives the HTTP headers that identify the session."""


class NeedsSdk(Exception):
    """Raised if only the MCP SDK's transport can send a request. The server has not processed the request."""


def open_http_carrier(
    server: str,
    entry: ServerEntry,
    credentials: Credentials | None,
    *,
    max_body_bytes: int,
    bodies: LargeBodies | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpCarrier | None:
    """Return a carrier that sends requests without the SDK, or `None` if the configuration entry needs the SDK. Opens no connection.

    `tls` replaces the context that all outgoing connections share.
    """
    if not isinstance(entry, HttpServer) or credentials is not None:
        return None
    fields = {
        "user-agent": "moongate",
        **{name.lower(): value for name, value in entry.headers.items()},
        "accept": "application/json, text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
    }
    try:
        heads = OutgoingHeads(entry.url, fields)
        if proxy_for(server, entry.url, os.environ) is not None:
            return None
    except (ValueError, NotSent):
        return None
    from gateway.egress.tcp import connector
    from gateway.wire.http1_client import ConnectionPool

    connect = connector(heads.host, heads.port, (tls or tls_context()) if heads.is_tls else None)
    return HttpCarrier(server, ConnectionPool(server, connect, max_body_bytes=max_body_bytes, claims=bodies), bodies, heads)


class HttpCarrier:
    """Sends requests to one MCP 2026 server over streamable HTTP. `open_http_carrier` creates it, and its owner closes it."""

    is_single_stream = False
    has_headers = True

    def __init__(self, server: str, pool: ConnectionPool, bodies: LargeBodies | None, heads: OutgoingHeads) -> None:
        self.server = server
        self.pool = pool
        self.bodies = bodies
        self.heads = heads
        self.receiver: Receiver | None = None
        """Receives notifications that arrive on the stream of a response. Set before the first request."""
        self.last_id = 0
        self._writer = RequestWriter("_meta")

    def close(self) -> None:
        """Close every connection to the server."""
        self.pool.close()

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result. Closing the connection cancels the request at an MCP 2026 server.

        Raises:
            NeedsSdk: Only the MCP SDK's transport can send the request.
            RequestFailure, ToolFailed: As for `Carrier.request`.
        """
        head = self.heads.head(self.headers_of(request))
        if head is None:
            raise NeedsSdk
        self.last_id = number = self.last_id + 1
        is_observed = request.progress is not None or OBSERVABILITY_SETTINGS.enable_instrumentation
        meta = request.begin(number) if is_observed else request.meta
        body = b"".join(self._writer.parts(number, request.method, request.params, meta))
        ctx = request.ctx
        try:
            caller = ctx.facts.principal.id if ctx is not None else ""
            answer = await self.pool.send(post_request(head, body), caller)
            if 300 <= answer.status < 400:
                location = answer.headers.get(b"location", b"").decode("latin-1")
                raise redirect_failure(self.server, request.method, self.heads.url, answer.status, location) or NeedsSdk
            self.note_response(answer)
            if answer.stream is not None:
                return await self.read_stream(answer.stream, number, request)
            if answer.claim is not None:
                return await self._read_large(answer, number, request)
            return self._read(answer, number, request.method)
        except anyio.get_cancelled_exc_class():
            self.note_cancelled(number)
            raise
        except RpcError as error:
            raise rejected(self.server, error) from None

    # -- overridden for 2025 sessions --------------------------------------------------------------------------

    def headers_of(self, request: OutgoingRequest) -> Headers:
        """Return the HTTP headers of a request that are sent in addition to those of the server's configuration entry."""
        return request.headers

    def note_response(self, answer: Response) -> None:
        """Process a response before its body is read. Does nothing in this class; a subclass uses it to react to cookies.

        Cookies matter only for MCP 2025 sessions, in which a load balancer may use them; an MCP 2026 server has no sessions.
        """

    def note_cancelled(self, number: int) -> None:
        """Notify the server that the request with the id `number` is cancelled. The connection of the request is closed already.

        Does nothing for an MCP 2026 server, for which the closed connection is the cancellation.
        """

    def check_refused(self, status: int, body: bytes) -> None:
        """Raise `SessionGone` if an error response means that the server does not know the session. Does nothing for an MCP 2026 server."""

    async def read_stream(self, stream: EventStream, number: int, request: OutgoingRequest) -> JsonObject:
        """Read a response that is an event stream, and return the result at its end. Raises `OutcomeUnknown` if the result is missing."""
        result = await self.result_in(stream, number, request)
        if result is None:
            raise OutcomeUnknown("the event stream ended without a response", server=self.server)
        return result

    async def receive_request(self, message: JsonObject, ctx: CallContext | None) -> None:
        """Handle a request that the server sends on the stream of a response. Drop it, because MCP 2026 servers must not send requests."""
        logger.debug("request of a 2026 server dropped, because such servers send requests for input in results server=%s", self.server)

    # -- reading responses -------------------------------------------------------------------------------------

    async def _read_large(self, answer: Response, number: int, request: OutgoingRequest) -> JsonObject:
        bodies = self.bodies
        assert bodies is not None, "a response has a claim only if the carrier has `bodies`"
        if request.method != "tools/call" or answer.status != 200 or not _is_json(answer):
            result = await bodies.work(lambda: self._read(answer, number, request.method))
            if isinstance(result, Received):
                result.claim = answer.claim
            return result
        parts = await bodies.work(lambda: self._body(answer))
        return self._received(*await self._decode_large(bodies, parts, answer.claim, is_call=True), number)

    async def _decode_large(
        self, bodies: LargeBodies, parts: list[bytes], claim: Releasable | None, *, is_call: bool
    ) -> tuple[Decoded, Releasable | None]:
        try:
            return await bodies.read(parts, claim, lambda number: is_call)
        except ValueError:
            raise self._malformed("the response is not JSON") from None
        except ToolFailed as error:
            raise TooLarge(str(error), server=self.server) from None

    def _read(self, answer: Response, number: int, method: str) -> JsonObject:
        """Return the JSON-RPC result of the request `number` from a response that is not an event stream, or raise the failure in it."""
        status = answer.status
        if status >= 400:
            raise self._failure(answer, method)
        if status == 202 or not _is_json(answer):
            raise self._malformed("the response is not JSON")
        try:
            decoded = decode_message(self._body(answer))
        except ValueError:
            raise self._malformed("the response is not JSON") from None
        return self._received(decoded, None, number)

    def _received(self, decoded: Decoded, claim: Releasable | None, number: int) -> JsonObject:
        message, encoded, long_text = decoded
        outcome = outcome_of(message, number)
        if isinstance(outcome, dict):
            return Received(outcome, encoded, long_text, claim)
        raise outcome or self._malformed("the response does not belong to the request")

    def _failure(self, answer: Response, method: str) -> Exception:
        """Convert a response with an HTTP error status to the failure of the request."""
        status = answer.status
        refused = refusal(self.server, status, answer.headers.get(b"retry-after", b"").decode("latin-1"))
        if refused is not None:
            return refused
        body = b"".join(self._body(answer))
        self.check_refused(status, body)
        error = None
        with contextlib.suppress(ValueError):
            error = error_of(from_json(body)) if _is_json(answer) else None
        if error is not None:
            return error
        if status == 404 and method not in NEVER_MISSING:
            return Rejected("Not Found", server=self.server, code=METHOD_NOT_FOUND)
        return self._malformed(f"it answered {status} without a JSON-RPC error")

    def _body(self, answer: Response) -> list[bytes]:
        """Return the decompressed body of a response, and remove the body from the response object to free its memory early."""
        parts, answer.parts = answer.parts, []
        coding = answer.headers.get(b"content-encoding")
        return parts if coding is None else decompress(parts, coding, server=self.server, max_bytes=self.pool.max_body_bytes)

    def _malformed(self, cause: str) -> Malformed:
        return Malformed(cause, server=self.server)

    # -- reading event streams ---------------------------------------------------------------------------------

    async def result_in(self, stream: EventStream, number: int, request: OutgoingRequest) -> JsonObject | None:
        """Read an event stream until the result of the request arrives, and return the result; `None` if the stream ends without a result.

        Progress on the request goes to `request.progress`, other notifications to the `Receiver`, and requests to `receive_request`.
        """
        is_call = request.method == "tools/call"
        try:
            while data := await stream.message():
                claim, bodies = stream.take_claim(), self.bodies
                parts = [data]
                del data
                if sum(map(len, parts)) >= LARGE_BYTES and bodies is not None:
                    decoded, claim = await self._decode_large(bodies, parts, claim, is_call=is_call)
                else:
                    try:
                        decoded = decode_message(parts)
                    except ValueError:
                        raise self._malformed("an event is not JSON") from None
                message, encoded, long_text = decoded
                outcome = outcome_of(message, number)
                if isinstance(outcome, dict):
                    return Received(outcome, encoded, long_text, claim)
                if outcome is not None:
                    raise outcome
                await self._receive(message, number, request)
                if stream.is_ready:
                    await anyio.lowlevel.checkpoint()  # many notifications in a row must not delay other requests
        except BaseException:
            stream.close()
            raise
        finally:
            stream.leave()
        return None

    async def _receive(self, message: JsonValue, number: int, request: OutgoingRequest) -> None:
        """Process a notification or a request of the server that arrived on the stream of a response."""
        if not isinstance(message, dict):
            return
        fields = cast("JsonObject", message)
        method, params = fields.get("method"), cast("JsonMapping | None", fields.get("params"))
        if not isinstance(method, str) or not isinstance(params, dict | None):
            logger.debug("message that is neither a request nor a notification dropped server=%s", self.server)
        elif "id" in fields:
            await self.receive_request(fields, request.ctx)
        elif request.progress is not None and method == "notifications/progress" and _is_about(params, number):
            report(params or {}, request.progress)
        elif self.receiver is not None:
            await self.receiver.receive_notification(method, params or {}, request.ctx)


class HttpSessionCarrier(HttpCarrier):
    """Sends requests in one MCP 2025 session over streamable HTTP.

    A request is cancelled by a notification, not by closing its connection.
    """

    def __init__(
        self, carrier: HttpCarrier, session: Mapping[str, str], receiver: Receiver, tasks: anyio.abc.TaskGroup, leave: Callable[[], None]
    ) -> None:
        """Use the connections of `carrier` for the session that the HTTP headers in `session` identify.

        The task group `tasks` ends with the connection. `leave` is called when the SDK must send all further requests of this session.
        """
        super().__init__(carrier.server, carrier.pool, carrier.bodies, carrier.heads)
        self.receiver = receiver
        self.last_id = FIRST_REQUEST_ID - 1
        self._session = dict(session)
        self._tasks = tasks
        self._leave = leave
        self._dispatcher = NotificationDispatcher(receiver, tasks, self._post)
        self._sending = anyio.Semaphore(MAX_UNACKNOWLEDGED)

    def headers_of(self, request: OutgoingRequest) -> Headers:
        """Return the HTTP headers of a request, with those that identify the session."""
        return tuple({**dict(request.headers), **self._session}.items())

    def note_response(self, answer: Response) -> None:
        """If the response sets a cookie, let the SDK send all further requests of the session.

        Only the SDK's HTTP client sends cookies, with which a load balancer may choose the server of the session.
        """
        if b"set-cookie" in answer.headers:
            self._leave()

    def note_cancelled(self, number: int) -> None:
        """Send `notifications/cancelled` for the request with the id `number`, in the background."""
        self._tasks.start_soon(self._post, cancellation(number))

    def check_refused(self, status: int, body: bytes) -> None:
        """Raise `SessionGone` if an error response means that the server no longer knows the session."""
        if "mcp-session-id" in self._session and is_session_gone(status, body):
            raise session_gone(self.server)

    async def receive_request(self, message: JsonObject, ctx: CallContext | None) -> None:
        """Start to answer a request of the server that arrived on the stream of a response, in a new task."""
        self._dispatcher.dispatch(message, ctx)

    async def read_stream(self, stream: EventStream, number: int, request: OutgoingRequest) -> JsonObject:
        """Read a response that is an event stream, and return the result at its end. A broken stream with event ids is resumed."""
        last_id, seconds = b"", RESUME_SECONDS
        while True:
            failure = OutcomeUnknown("the event stream ended without a response", server=self.server)
            try:
                result = await self.result_in(stream, number, request)
                if result is not None:
                    return result
            except Malformed:
                raise
            except OutcomeUnknown as error:
                failure = error
            last_id = stream.parser.last_id or last_id
            if not last_id:
                raise failure
            if stream.parser.retry_seconds is not None:
                seconds = min(max(stream.parser.retry_seconds, MIN_RESUME_SECONDS), MAX_RESUME_SECONDS)
            stream = await self._resume(last_id, seconds)

    async def _resume(self, last_id: bytes, seconds: float) -> EventStream:
        """Resume a broken event stream after the event `last_id`, and return the new stream (MCP 2025-11-25, Resumability and Redelivery).

        Wait `seconds` before each attempt. Raises `OutcomeUnknown` after `RESUME_ATTEMPTS` attempts.
        """
        head = self.heads.head((*self._session.items(), ("last-event-id", last_id.decode("latin-1"))))
        for _ in range(RESUME_ATTEMPTS if head is not None else 0):
            await anyio.sleep(seconds)
            with contextlib.suppress(NotSent, OutcomeUnknown):
                answer = await self.pool.send(get_request(head or b""))
                if answer.stream is not None:
                    return answer.stream
        raise OutcomeUnknown("the event stream ended without a response", server=self.server)

    async def _post(self, message: bytes) -> None:
        """Send a notification or a response to the server. Drop it if the server does not accept it within `ACKNOWLEDGE_SECONDS`."""
        head = self.heads.head(tuple(self._session.items()))
        if head is None:
            return
        async with self._sending:
            with anyio.move_on_after(ACKNOWLEDGE_SECONDS):
                try:
                    answer = await self.pool.send(post_request(head, message))
                    if answer.stream is not None:
                        answer.stream.close()
                except RequestFailure as error:
                    logger.debug("message not delivered server=%s reason=%s", self.server, error)


class HttpOrSdkCarrier:
    """Sends the requests of one session over streamable HTTP without the MCP SDK if possible, else with the SDK.

    If a request needed the SDK's message streams, `is_open` is true until these streams end. Otherwise, it is true until `close`.
    """

    is_single_stream = False
    has_headers = True

    def __init__(self, carrier: HttpCarrier, open_streams: Callable[[OnSession], AbstractAsyncContextManager[Streams]]) -> None:
        """`carrier` sends requests without the SDK. `open_streams` opens the SDK's streams when they are first needed.

        `open_streams` receives a callback for the end of the handshake of an MCP 2025 session.
        """
        self.direct = carrier
        """Sends requests of MCP 2026 without the SDK."""
        self.in_session: HttpCarrier | None = None
        """Sends requests in an MCP 2025 session without the SDK; `None` before the handshake is complete, and if the SDK must send them."""
        self._sdk = SdkCarrier(carrier.server, lambda: open_streams(self._join))
        self._is_direct = True
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent (`Carrier.is_open`)."""
        return self._sdk.is_open

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result (`Carrier.request`)."""
        carrier = self.direct if request.is_modern else self.in_session
        if carrier is None or not self._is_direct or (request.progress is not None and not request.is_modern):
            # An MCP 2025 server may send progress on its standalone stream, which the SDK reads.
            return await self._sdk.request(request)
        try:
            return await carrier.request(request)
        except NeedsSdk:
            pass
        except Malformed:
            raise
        except OutcomeUnknown:
            if request.method != "server/discover":
                raise
            # `server/discover` can be repeated without harm, and the SDK can read responses that `HttpCarrier` cannot.
        logger.info("requests need the SDK path for this session server=%s", carrier.server)
        self._is_direct = False
        return await self._sdk.request(request)

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to an MCP 2025 server if the SDK's streams are open (`Carrier.notify`)."""
        if self._sdk.is_used:
            await self._sdk.notify(method, params, headers)

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the server's requests and notifications to `receiver` until the connection ends (`Carrier.serve`)."""
        self.direct.receiver = receiver
        async with anyio.create_task_group() as self._tasks:
            await self._sdk.serve(receiver, task_status=task_status)
            self._tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Fail the pending requests and close all connections to the server (`Carrier.close`)."""
        self.direct.close()
        self._sdk.close()

    def _join(self, session: Mapping[str, str]) -> None:
        """From now on, send the requests of an MCP 2025 session without the SDK, because its handshake is complete."""
        if self.direct.receiver is not None and self._tasks is not None:
            self.in_session = HttpSessionCarrier(self.direct, session, self.direct.receiver, self._tasks, self._leave)

    def _leave(self) -> None:
        self.in_session = None


def _is_about(params: JsonMapping | None, number: int) -> bool:
    return params is not None and params.get("progressToken") in (number, str(number))


def _is_json(answer: Response) -> bool:
    return answer.headers.get(b"content-type", b"").lower().startswith(b"application/json")
