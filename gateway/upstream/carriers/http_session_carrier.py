"""`HttpSessionCarrier`: requests within a 2025 session over streamable HTTP, on the connections of an `HttpCarrier`.

The SDK opens and closes the session and reads its standalone stream; `HttpOrSdkCarrier` creates this carrier when the session is up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio
import anyio.abc

from gateway.errors import Malformed, NotSent, OutcomeUnknown, RequestFailure
from gateway.json_types import JsonObject
from gateway.tools.context import CallContext
from gateway.upstream.carriers.carrier import ACKNOWLEDGE_SECONDS, FIRST_REQUEST_ID, Headers, OutgoingRequest, Receiver, cancellation
from gateway.upstream.carriers.http_carrier import HttpCarrier
from gateway.upstream.carriers.http_failures import is_session_gone, session_gone
from gateway.upstream.carriers.notification_dispatcher import NotificationDispatcher
from gateway.wire.http1_messages import get_request, post_request
from gateway.wire.http1_response import Response
from gateway.wire.sse import EventStream

logger = logging.getLogger(__name__)

RESUME_ATTEMPTS = 4
"""Attempts to resume a stream that broke off before its response (`Last-Event-ID`)."""

RESUME_SECONDS = 1.0
"""Wait before a stream is resumed if the server sent no `retry`, as in the SDK's transport."""

MIN_RESUME_SECONDS, MAX_RESUME_SECONDS = 0.1, 60.0
"""Bounds of the wait that a server may choose."""

MAX_UNACKNOWLEDGED = 64
"""Maximum number of cancellations and responses that are being sent to one server at once; further ones wait."""


class HttpSessionCarrier(HttpCarrier):
    """Sends requests within one session. Closing the connection does not cancel a request in 2025, so a notification does."""

    def __init__(
        self, carrier: HttpCarrier, session: Mapping[str, str], receiver: Receiver, tasks: anyio.abc.TaskGroup, leave: Callable[[], None]
    ) -> None:
        """`session` are the headers that identify the session, `tasks` ends with the connection.

        `leave` is called when the SDK must send the further requests of this session.
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
        """As `HttpCarrier`, with those of the session."""
        return tuple({**dict(request.headers), **self._session}.items())

    def note_response(self, answer: Response) -> None:
        """Leave the session to the SDK if the server sets a cookie, because only its client keeps cookies, which may route requests."""
        if b"set-cookie" in answer.headers:
            self._leave()

    def note_cancelled(self, number: int) -> None:
        """Send `notifications/cancelled`."""
        self._tasks.start_soon(self._post, cancellation(number))

    def check_refused(self, status: int, body: bytes) -> None:
        """Raise `SessionGone` if the server does not know the session any more."""
        if "mcp-session-id" in self._session and is_session_gone(status, body):
            raise session_gone(self.server)

    async def receive_request(self, message: JsonObject, ctx: CallContext | None) -> None:
        """Answer a request of the server in a task of its own."""
        self._dispatcher.dispatch(message, ctx)

    async def read_stream(self, stream: EventStream, number: int, request: OutgoingRequest) -> JsonObject:
        """Return the result at the end of an event stream, which is resumed if it breaks off and has event ids."""
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
            last_id = stream.last_id or last_id
            if not last_id:
                raise failure
            if stream.retry_seconds is not None:
                seconds = min(max(stream.retry_seconds, MIN_RESUME_SECONDS), MAX_RESUME_SECONDS)
            stream = await self._resume(last_id, seconds)

    async def _resume(self, last_id: bytes, seconds: float) -> EventStream:
        """Return the rest of a stream (2025-11-25, Streamable HTTP, Resumability and Redelivery)."""
        head = self.heads.head((*self._session.items(), ("last-event-id", last_id.decode("latin-1"))))
        for _ in range(RESUME_ATTEMPTS if head is not None else 0):
            await anyio.sleep(seconds)
            with suppress(NotSent, OutcomeUnknown):
                answer = await self.pool.send(get_request(head or b""))
                if answer.stream is not None:
                    return answer.stream
        raise OutcomeUnknown("the event stream ended without a response", server=self.server)

    async def _post(self, message: bytes) -> None:
        """Send a message that has no response. After `ACKNOWLEDGE_SECONDS` without `202 Accepted` it is dropped."""
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
