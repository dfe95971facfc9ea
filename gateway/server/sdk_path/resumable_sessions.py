"""`SessionManager`: the 2025 sessions on the SDK path. `ReplayStore`: the events of a session, so that its client can resume a stream.

Each session has its own store, because the SDK names streams after request ids, which are not unique across sessions. Stores are in memory
and bounded: beyond the limits the oldest stream is dropped and can no longer be resumed. The 2026 protocol has no resumption.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext, authorization_context
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import DEFAULT_SESSION_IDLE_TIMEOUT, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import JSONRPCMessage, JSONRPCNotification, JSONRPCResponse

from gateway.auth.principal import LOCAL
from gateway.json_types import JsonObject
from gateway.server.clients import Clients
from gateway.server.fast_path.fast_session import NotificationLog
from gateway.server.http_responses import Refusal
from gateway.server.sdk_path.request_presence import PRESENCE_SCOPE_KEY, RequestPresence
from gateway.server.session_table import Reason, SessionTable
from gateway.server.usage import Usage, Usages
from gateway.wire.rpc_envelope import notification

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

MAX_STREAMS = 100
"""Maximum number of streams per session whose events are kept."""

MAX_CHARACTERS = 1_000_000
"""Approximate maximum size of the messages kept per session. A larger message cannot be sent again."""

MAX_EVENTS_PER_STREAM = 200
"""Maximum number of events kept per stream."""

RETRY_MILLISECONDS = 500
"""The SSE `retry` value: milliseconds that clients wait before they reconnect a stream."""


@dataclass(slots=True)
class _Stream:
    first: int = 1
    events: list[JSONRPCMessage | None] = field(default_factory=lambda: list[JSONRPCMessage | None]())
    size: int = 0


class ReplayStore(EventStore):
    """Implements the SDK's `EventStore` for one session; event ids are `<stream token>.<number>`."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._tokens: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._size = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store an event and return its id."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream()
            token = secrets.token_urlsafe(9)
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
        """Send the events that follow an event on its stream, and return the name of the stream; `None` if it is no longer stored."""
        token, _, number = last_event_id.partition(".")
        name = self._names.get(token)
        stream = self._streams.get(name) if name is not None else None
        if name is None or stream is None or not number.isdecimal() or len(number) > 12:
            return None
        position = int(number)
        if not stream.first - 1 <= position < stream.first + len(stream.events):
            return None
        for index, message in enumerate(stream.events[position - stream.first + 1 :], start=position + 1):
            if message is not None:
                await send_callback(EventMessage(message, f"{token}.{index}"))
        return name

    def stream_of(self, event_id: str) -> str | None:
        """Return the name of the stream on which an event was sent: a request id as text, or `GET_STREAM_KEY`."""
        return self._names.get(event_id.partition(".")[0])

    def resume(self, stream_id: str, token: str, first: int, messages: Sequence[JSONRPCMessage]) -> None:
        """Add a stream that began on the fast path. Its event ids are `<token>.<number>`; `messages` are those from number `first` on."""
        self._tokens[stream_id], self._names[token] = token, stream_id
        stream = self._streams[stream_id] = _Stream(first, list(messages))
        stream.size = sum(size_of(message) for message in messages)
        self._size += stream.size

    def _forget_oldest(self) -> None:
        stream_id, stream = self._streams.popitem(last=False)
        self._size -= stream.size
        del self._names[self._tokens.pop(stream_id)]


class SessionRefused(Exception):
    """A quota refuses a new session: raised while the SDK opens the session, and answered with `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Keeping:
    """The parts of the server that count and limit sessions."""

    table: SessionTable
    usages: Usages
    clients: Clients


class _KeptSession:
    """The entry in the session table for a session that the SDK serves."""

    def __init__(self, transport: StreamableHTTPServerTransport, clients: Clients, end: Callable[[_KeptSession], None]) -> None:
        self.wire_id = transport.mcp_session_id or ""
        self.transport = transport
        self.is_established = False
        """Whether the SDK accepted the request that opened the session."""
        self._clients = clients
        self._end = end
        self._running: dict[str, RequestPresence] = {}

    def attended(self, scope: Scope) -> AbstractContextManager[None]:
        """While the context is entered, count an open stream: for the request in this POST, or for the request that this GET resumes."""
        attendance: RequestPresence | None = None
        if scope["method"] == "POST":
            attendance = scope[PRESENCE_SCOPE_KEY] = RequestPresence(self._running)
        elif self._running:
            last = next((value for name, value in scope["headers"] if name == b"last-event-id"), b"").decode("latin-1")
            store = cast("ReplayStore", self.transport._event_store)  # pyright: ignore[reportPrivateUsage]  # as `SessionManager.event_store` made it
            attendance = self._running.get(store.stream_of(last) or "")
        return nullcontext() if attendance is None else attendance.stream()

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
        """Return 0 and the time since when the session is idle (monotonic); `None` while it is in use.

        The SDK sets the deadline of a session when its last request ends, so the deadline tells the time.
        """
        scope = self.transport.idle_scope
        calls, used = self._clients.use_of(self.wire_id)
        if scope is None or scope.deadline == math.inf or calls:
            return None
        return 0, max(used, scope.deadline - DEFAULT_SESSION_IDLE_TIMEOUT)

    def evict(self) -> None:
        """End the session, because a new session replaces it."""
        self._end(self)


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's session manager with an event store per session, which can also take over sessions of the fast path."""

    def __init__(
        self, app: Server[Any], keep: Keeping, *, security_settings: TransportSecuritySettings, max_request_bytes: int
    ) -> None:
        """`keep` has the session table, which counts the sessions and limits their number."""
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
        """A new event store: the SDK reads this property once for each session."""
        return ReplayStore()

    @event_store.setter
    def event_store(self, value: EventStore | None) -> None:
        """Do nothing. The SDK's constructor sets this property."""

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
        self._server_instances.pop(session.wire_id, None)  # answered 404 from here on
        self._session_owners.pop(session.wire_id, None)
        if self._task_group is not None:
            self._task_group.start_soon(self._discard_session, session.wire_id, session.transport)

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire_id = next((value for name, value in scope["headers"] if name == b"mcp-session-id"), b"").decode("latin-1")
        kept = self._kept.get(wire_id)
        with nullcontext() if kept is None else kept.attended(scope):
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

    async def take_over(self, wire_id: str, told: NotificationLog | None, opening: Scope, body: bytes) -> bool:
        """Open a session with the id of a session of the fast path. Return whether the SDK accepted its `initialize`.

        `opening` and `body` are the client's `initialize`, which was answered before. `told` are the notifications of its listening GET,
        which a client can resume.
        """
        store = ReplayStore()
        if told is not None:
            store.resume(GET_STREAM_KEY, told.token, told.first, [_notification(*one) for one in told.messages])
        user = opening.get("user")
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
        await self._serve_opening_request(transport, opening, _said(body), _unheard)
        return wire_id in self._server_instances

    async def tell(self, wire_id: str, scope: Scope, body: bytes) -> None:
        """Pass a notification of the client to the SDK's session."""
        await self._server_instances[wire_id].handle_request(scope, _said(body), _unheard)

    def is_listening(self, wire_id: str) -> bool:
        """Whether the listening GET of a session is open on the SDK path."""
        transport = self._server_instances.get(wire_id)
        return transport is not None and GET_STREAM_KEY in transport._request_streams  # pyright: ignore[reportPrivateUsage]  # nothing else tells


def _notification(method: str, params: JsonObject | None) -> JSONRPCNotification:
    return JSONRPCNotification.model_validate(notification(method, params))


def _said(body: bytes) -> Receive:
    """Return the ASGI `receive` of a request with this body that the gateway makes itself."""
    parts = [body]

    async def receive() -> Message:
        if not parts:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return receive


async def _unheard(message: Message) -> None:
    """Drop the response to a request that the gateway makes itself; used as its ASGI `send`."""


def size_of(message: JSONRPCMessage | None) -> int:
    """Return the approximate size of a message in characters."""
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
