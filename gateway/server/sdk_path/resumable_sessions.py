"""`SessionManager`: manages the 2025 HTTP sessions that the MCP SDK serves. `ReplayStore`: stores the SSE events of a session.

With the stored events a client can resume a broken stream. Each session has its own store, because the SDK names streams after JSON-RPC
ids, which are not unique across sessions. Stores are in memory and bounded: beyond the limits, the stream that has had no event for the
longest time is dropped, and can no longer be resumed. The 2026 protocol has no resumption.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import DEFAULT_SESSION_IDLE_TIMEOUT, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from gateway.auth.principal import LOCAL
from gateway.json_types import JsonValue
from gateway.protocol import INTERNAL_ERROR
from gateway.server.clients import Clients
from gateway.server.event_ids import (
    FORGOTTEN,
    LOST,
    REQUEST_ID_SCOPE_KEY,
    is_listening,
    is_of_request,
    listening_token,
    replica_of_event,
    request_of,
    request_token,
    token_of,
)
from gateway.server.handover import NotificationLog
from gateway.server.http_responses import Refusal
from gateway.server.replica_routes import REPLICA_SCOPE_KEY
from gateway.server.request_presence import PRESENCE_SCOPE_KEY, RequestPresence
from gateway.server.session_table import Reason, SessionTable
from gateway.server.usage import Usage, Usages
from gateway.wire.rpc_envelope import VERSION, notification
from gateway.wire.sse import leading_id

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

MAX_STREAMS = 100
"""Maximum number of streams per session whose events are stored for resumption."""

MAX_CHARACTERS = 1_000_000
"""Maximum total size, in approximate characters, of the messages that are stored per session for resumption. If one message is larger, all
streams of the session are dropped."""

MAX_EVENTS_PER_STREAM = 200
"""Maximum number of events that are stored per stream for resumption. The oldest event is dropped first."""

MAX_DIGITS = 12
"""Maximum number of digits of the number in an event id. An id with a longer number is unknown."""

RETRY_MILLISECONDS = 500
"""The SSE `retry` value: milliseconds that clients wait before they reconnect a stream."""


@dataclass(slots=True)
class _Stream:
    first: int = 1
    events: list[JSONRPCMessage | None] = field(default_factory=lambda: list[JSONRPCMessage | None]())
    size: int = 0


class ReplayStore(EventStore):
    """Stores the SSE events of one 2025 session in memory, so that its client can resume a stream; implements the SDK's `EventStore`.

    An event id is `<stream token>.<number>` (`event_ids`).
    """

    def __init__(self, replica: str = "") -> None:
        """`replica` is the id of this replica of the gateway, with which event ids begin; empty without replicas."""
        self._replica = replica
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._tokens: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._size = 0
        self.requests: dict[str, JsonValue] = {}
        """JSON-RPC ids of the requests whose POST is open, by the names that the SDK gives to their streams."""

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message as the next event of a stream, and return the event id.

        Beyond `MAX_EVENTS_PER_STREAM`, the oldest event of the stream is dropped. Beyond `MAX_STREAMS` or `MAX_CHARACTERS`, the streams
        that have had no event for the longest time are dropped.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream()
            token = self._new_token(stream_id)
            self._tokens[stream_id], self._names[token] = token, stream_id
        self._streams.move_to_end(stream_id)
        stream.events.append(message)
        stream.size += (size := size_of(message))
        self._size += size
        if len(stream.events) > MAX_EVENTS_PER_STREAM:
            size = size_of(stream.events.pop(0))
            stream.size -= size
            self._size -= size
            stream.first += 1
        event_id = f"{self._tokens[stream_id]}.{stream.first + len(stream.events) - 1}"
        while len(self._streams) > MAX_STREAMS or self._size > MAX_CHARACTERS:
            self._forget_oldest()
        return event_id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the stored events that follow the event `last_event_id` on its stream. Return the name of the stream.

        If the event is unknown, or an event that follows it is no longer stored, send an error response to the request of the stream, and
        return `None`. Without this error, the MCP SDK's client would resume the stream again and again, because every attempt succeeds.
        """
        events = self._events_after(last_event_id)
        if events is None:
            text = FORGOTTEN if replica_of_event(last_event_id) == self._replica or not self._replica else LOST
            error = ErrorData(code=INTERNAL_ERROR, message=text)
            await send_callback(EventMessage(JSONRPCError(jsonrpc=VERSION, id=request_of(last_event_id), error=error)))
            return None
        for event in events:
            await send_callback(event)
        return self.stream_of(last_event_id)

    def has(self, event_id: str) -> bool:
        """Whether all events that follow an event on its stream are stored."""
        return self._events_after(event_id) is not None

    def is_response(self, event_id: str) -> bool:
        """Whether an event is the JSON-RPC response of a request, after which its stream has no further events."""
        token, _, number = event_id.partition(".")
        stream = self._streams.get(self._names.get(token, ""))
        if stream is None or not number.isdecimal() or len(number) > MAX_DIGITS:
            return False
        position = int(number) - stream.first
        return 0 <= position < len(stream.events) and isinstance(stream.events[position], JSONRPCResponse | JSONRPCError)

    def stream_of(self, event_id: str) -> str | None:
        """Return the name of the stream to which an event id belongs: a JSON-RPC id as text, or `GET_STREAM_KEY`; `None` if unknown."""
        return self._names.get(token_of(event_id))

    def _events_after(self, event_id: str) -> list[EventMessage] | None:
        token, _, number = event_id.partition(".")
        stream = self._streams.get(self._names.get(token, ""))
        if stream is None or not number.isdecimal() or len(number) > MAX_DIGITS:
            return None
        position = int(number)
        if not stream.first - 1 <= position < stream.first + len(stream.events):
            return None
        following = enumerate(stream.events[position - stream.first + 1 :], start=position + 1)
        return [EventMessage(message, f"{token}.{index}") for index, message in following if message is not None]

    def _new_token(self, stream_id: str) -> str:
        if stream_id == GET_STREAM_KEY:
            return listening_token(self._replica)
        return request_token(self._replica, self.requests.get(stream_id))

    def resume(self, stream_id: str, token: str, first: int, messages: Sequence[JSONRPCMessage]) -> None:
        """Add a stream that began on the fast path, without the SDK, so that its client can resume it here.

        Its event ids are `<token>.<number>`; `messages` are its last messages, of which the first has the number `first`.
        """
        self._tokens[stream_id], self._names[token] = token, stream_id
        stream = self._streams[stream_id] = _Stream(first, list(messages))
        stream.size = sum(size_of(message) for message in messages)
        self._size += stream.size

    def _forget_oldest(self) -> None:
        stream_id, stream = self._streams.popitem(last=False)
        self._size -= stream.size
        del self._names[self._tokens.pop(stream_id)]


class SessionRefused(Exception):
    """Raised while the MCP SDK opens a session that a quota does not allow. The client's request is answered with `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Keeping:
    """The objects of `GatewayServer` with which `SessionManager` counts and limits sessions."""

    table: SessionTable
    usages: Usages
    clients: Clients
    replica: str = ""
    """Id of this replica of the gateway, with which the ids of events begin; empty without replicas."""


class _KeptSession:
    """A 2025 session that the MCP SDK serves, as an entry of `SessionTable`, which counts and limits all sessions."""

    def __init__(self, transport: StreamableHTTPServerTransport, clients: Clients, end: Callable[[_KeptSession], None]) -> None:
        self.wire_id = transport.mcp_session_id or ""
        self.transport = transport
        self.is_established = False
        """Whether the SDK accepted the `initialize` request that opened the session."""
        self._clients = clients
        self._end = end
        self._running: dict[str, RequestPresence] = {}

    def attended(self, scope: Scope) -> AbstractContextManager[None]:
        """Return a context in which the response to an HTTP request counts as an open stream of its JSON-RPC request.

        The JSON-RPC request is the one in a POST, or the one whose stream a GET resumes; a GET that resumes no request is not counted.
        """
        attendance: RequestPresence | None = None
        if scope["method"] == "POST":
            attendance = scope[PRESENCE_SCOPE_KEY] = RequestPresence(self._running)
        elif self._running:
            attendance = self._running.get(self.store.stream_of(_last_event_id(scope)) or "")
        return nullcontext() if attendance is None else attendance.stream()

    @property
    def store(self) -> ReplayStore:
        """The events of the session."""
        return cast("ReplayStore", self.transport._event_store)  # pyright: ignore[reportPrivateUsage]  # as `SessionManager.event_store` made it

    @contextmanager
    def naming(self, scope: Scope) -> Generator[None]:
        """While this context is entered, the events of a request contain its JSON-RPC id, which is in the ASGI scope of its POST."""
        request = scope.get(REQUEST_ID_SCOPE_KEY)
        if request is None:
            yield
            return
        self.store.requests[str(request)] = request
        try:
            yield
        finally:
            self.store.requests.pop(str(request), None)

    @property
    def reason(self) -> Reason:
        """Why the session ended, for the log."""
        scope = self.transport.idle_scope
        if self.transport.is_terminated:
            return "deleted"
        if scope is not None and scope.cancel_called:
            return "idle"
        return "failed" if self.is_established else "refused"

    def waits(self) -> tuple[int, float] | None:
        """Return 0 and the monotonic time at which the session became idle; `None` while it has a request or stream open.

        The time is computed from the session's idle deadline, which the SDK sets when the last request of the session ends.
        """
        scope = self.transport.idle_scope
        calls, used = self._clients.use_of(self.wire_id)
        if scope is None or scope.deadline == math.inf or calls:
            return None
        return 0, max(used, scope.deadline - DEFAULT_SESSION_IDLE_TIMEOUT)

    def evict(self) -> None:
        """End the session to make room for a new session."""
        self._end(self)


class _ResumedResponse:
    """ASGI `send` of a GET that resumes the response to a request. Ends the stream after the JSON-RPC response.

    The MCP SDK would leave the stream open, so that a stopping gateway could not know when the client has everything.
    """

    def __init__(self, store: ReplayStore, last: str, send: Send) -> None:
        """`last` is the `Last-Event-ID` of the GET."""
        self._store = store
        self._last = last
        self._send = send
        self._is_over = False

    async def __call__(self, message: Message) -> None:
        """Send an ASGI message, and the end of the stream after it if it contains the response to the request."""
        if self._is_over:
            return
        await self._send(message)
        if message["type"] == "http.response.start":
            event_id = self._last if message["status"] == 200 else ""
        else:
            self._is_over = not message.get("more_body")
            event_id = leading_id(message.get("body", b""))
        if not self._is_over and event_id and self._store.is_response(event_id):
            self._is_over = True
            await self._send({"type": "http.response.body", "body": b""})


class SessionManager(StreamableHTTPSessionManager):
    """The MCP SDK's manager of 2025 HTTP sessions, extended: each session has its own event store, and the number of sessions is limited.

    It can also take over sessions that were opened and served without the SDK (on the fast path).
    """

    def __init__(self, app: Server[Any], keep: Keeping, *, security_settings: TransportSecuritySettings, max_request_bytes: int) -> None:
        """`app` is the SDK's server. `keep` has the session table, which counts the sessions and limits their number."""
        super().__init__(
            app,
            security_settings=security_settings,
            retry_interval=RETRY_MILLISECONDS,
            max_request_body_size=max_request_bytes,
            max_sessions=None,
        )
        self._keep = keep
        self._kept: dict[str, _KeptSession] = {}

    @property
    def event_store(self) -> EventStore:
        """A new `ReplayStore`, which stores the events of one session. The SDK reads this property once for each new session."""
        return ReplayStore(self._keep.replica)

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        """Ignore the value. This setter exists only because the constructor of the SDK's class assigns the property."""

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        usage = self._usage_of(requestor)
        refusal = self._keep.table.admit(usage)
        if refusal is not None:
            raise SessionRefused(refusal)
        transport = super()._admit_session(requestor)
        if transport is not None:
            self._count(usage, transport)
        return transport

    def _usage_of(self, requestor: AuthorizationContext | None) -> Usage:
        return self._keep.usages.known(LOCAL.id if requestor is None else requestor["client_id"])

    def _count(self, usage: Usage, transport: StreamableHTTPServerTransport) -> None:
        kept = _KeptSession(transport, self._keep.clients, self._evict)
        self._kept[kept.wire_id] = kept
        self._keep.table.opened(usage, kept)

    def _evict(self, session: _KeptSession) -> None:
        self._server_instances.pop(session.wire_id, None)  # from now on, the SDK answers requests of the session with 404
        self._session_owners.pop(session.wire_id, None)
        if self._task_group is not None:
            self._task_group.start_soon(self._discard_session, session.wire_id, session.transport)

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire_id = next((value for name, value in scope["headers"] if name == b"mcp-session-id"), b"").decode("latin-1")
        kept = self._kept.get(wire_id)
        scope[REPLICA_SCOPE_KEY] = self._keep.replica
        if kept is None:
            await super()._handle_stateful_request(scope, receive, send)
            return
        last = _last_event_id(scope)
        if scope["method"] == "GET" and is_listening(last) and not kept.store.has(last):
            # The notifications after this event are gone with their replica, or were too many: the client listens from now on.
            scope = {**scope, "headers": [field for field in scope["headers"] if field[0] != b"last-event-id"]}
        if scope["method"] == "GET" and is_of_request(last):
            send = _ResumedResponse(kept.store, last, send)
        with kept.attended(scope), kept.naming(scope):
            await super()._handle_stateful_request(scope, receive, send)

    async def _serve_opening_request(
        self, http_transport: StreamableHTTPServerTransport, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await super()._serve_opening_request(http_transport, scope, receive, send)
        kept = self._kept.get(http_transport.mcp_session_id or "")
        if kept is not None:
            kept.is_established = True

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        kept = self._kept.get(session_id)
        if kept is not None and kept.transport is transport:
            del self._kept[session_id]
            self._keep.table.closed(kept, "stopped" if self._task_group is None else kept.reason)
        await super()._discard_session(session_id, transport)

    async def take_over(self, wire_id: str, log: NotificationLog | None, scope: Scope, handshake: Sequence[bytes]) -> bool:
        """Open an SDK session that continues the session `wire_id`, which was served without the SDK. Return whether this succeeded.

        `handshake` are the bodies of the client's `initialize` request and, if it was sent, of `notifications/initialized`; the SDK gets
        them again. `scope` is the ASGI scope of a later request of the session; the repeated requests get its `Host`, `Origin`, path and
        addresses. `log` has the notifications of the listening GET, so that the client can resume this stream; `None` if there was no GET.
        """
        store = ReplayStore(self._keep.replica)
        if log is not None:
            sent = [JSONRPCNotification.model_validate(notification(*message)) for message in log.messages]
            store.resume(GET_STREAM_KEY, log.token, log.first, sent)
        user = scope.get("user")
        requestor = authorization_context(user) if isinstance(user, AuthenticatedUser) else None
        transport = StreamableHTTPServerTransport(
            mcp_session_id=wire_id,
            event_store=store,
            security_settings=self.security_settings,
            retry_interval=self.retry_interval,
            idle_timeout=self.session_idle_timeout,
        )
        if requestor is not None:
            self._session_owners[wire_id] = requestor
        self._server_instances[wire_id] = transport
        self._count(self._usage_of(requestor), transport)
        place = [(name, value) for name, value in scope["headers"] if name in (b"host", b"origin")]
        headers = [*place, (b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
        opening = {**scope, "method": "POST", "headers": headers}
        await self._serve_opening_request(transport, opening, _receive_of(handshake[0]), _drop)
        if wire_id not in self._server_instances:
            return False
        later = {**opening, "headers": [*headers, (b"mcp-session-id", wire_id.encode())]}
        for body in handshake[1:]:
            await transport.handle_request(later, _receive_of(body), _drop)
        return True

    def is_listening(self, wire_id: str) -> bool:
        """Whether the SDK serves a listening GET of the session `wire_id`, on which the client receives notifications."""
        transport = self._server_instances.get(wire_id)
        return transport is not None and GET_STREAM_KEY in transport._request_streams  # pyright: ignore[reportPrivateUsage]  # there is no public way to know


def _last_event_id(scope: Scope) -> str:
    return next((value for name, value in scope["headers"] if name == b"last-event-id"), b"").decode("latin-1")


def _receive_of(body: bytes) -> Receive:
    """Return an ASGI `receive` callable that provides `body` as request body, for a request that the gateway makes itself."""
    parts = [body]

    async def receive() -> Message:
        if not parts:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return receive


async def _drop(message: Message) -> None:
    """Drop an ASGI message. Used as `send` of a request that the gateway makes itself and whose response is not needed."""


def size_of(message: JSONRPCMessage | None) -> int:
    """Return the approximate size of a JSON-RPC message in characters; 0 for `None`."""
    if message is None:
        return 0
    value: object = message.result if isinstance(message, JSONRPCResponse) else getattr(message, "params", None)
    size, left = 0, [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            left += cast("dict[str, object]", value).values()
        elif isinstance(value, list):
            left += cast("list[object]", value)
        size += 50
    return size
