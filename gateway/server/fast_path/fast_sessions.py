"""`FastSessions`: serves 2025 sessions over HTTP without the MCP SDK, as long as their requests need no feature of the SDK.

It answers the handshake, `ping`, `logging/setLevel` and listings, and keeps open the GET on which the client listens for notifications;
`dispatch` starts the tool calls. The first other request (for a resource, a prompt or a task, a call with a progress token, a request with
an unusual header) moves the session to the SDK path: the SDK opens a session with the same id and receives the client's handshake again,
and the GET continues there. In-flight calls continue, and the move itself loses no notification.

`KeyGate`, which authenticates requests, also bounds their size. `HttpDispatch` then parses them and calls this module. A session on the
fast path has no `asyncio` task. `session_table` bounds the number of sessions on the fast path and the SDK path together.

Decided: `FastSessions` has its own table of sessions, in addition to the table in `Clients`, in which calls of both paths find their
session. Because: while a session moves, `Clients` and `SessionTable` already have the SDK's entry for it, and requests of the session must
wait until the move has ended. Revisit when: the SDK can open a session with a given state, without receiving the handshake again.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import anyio
import anyio.lowlevel
from pydantic_core import to_json

from gateway.auth.principal import Principal
from gateway.json_types import JsonObject
from gateway.protocol import HANDSHAKE_PROTOCOL_VERSIONS
from gateway.server.bodies import BufferedReceive
from gateway.server.clients import Clients
from gateway.server.event_ids import is_listening, token_of
from gateway.server.fast_path.fast_session import FastSession, Stream
from gateway.server.fast_path.handshake import plain_initialize
from gateway.server.fast_path.plain_answers import PlainAnswers, PlainRequest
from gateway.server.fast_path.session_messages import INITIALIZED, handle_message
from gateway.server.handover import SdkPath, SessionTakeover
from gateway.server.head import Head
from gateway.server.in_flight import InFlightCall
from gateway.server.replicas import Replicas
from gateway.server.sealed_sessions import SealedSessions
from gateway.server.session_table import SHOWN_CHARACTERS, Reason, SessionTable, owned_id
from gateway.server.usage import Usages
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.ports import ClientProfile
from gateway.wire.rpc_envelope import response
from gateway.wire.sse import encode_comment, encode_retry

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

PULSE_SECONDS = 5.0
"""Seconds between two checks of all sessions. A check ends idle sessions, and sends a comment on streams that had no event for
`SILENCE_SECONDS`."""

SILENCE_SECONDS = 9.0
"""Seconds without an event after which a stream gets an SSE comment at the next check, so that no proxy closes the stream."""

IDLE_SECONDS = 1_800.0
"""Seconds without a request and without an open stream after which a session ends. The MCP SDK has the same timeout."""

REOPEN_SECONDS = (1.0, 5.0, 10.0)
"""Seconds after which a client opens a broken listening GET again, chosen at random for each stream, with several replicas.

When a replica dies, its clients open their streams at the others. At their default of one second, hundreds would do this at once, and calls
would wait meanwhile (`make bench-fleet`). The second value is the longest time at a replica with few streams, the third with many.
"""

REOPENED_PER_SECOND = 100
"""Streams of a dead replica that clients open again per second, as long as that keeps the time between the limits of `REOPEN_SECONDS`.
Each stream takes 1 ms to 3 ms of another replica."""

MOVE_SECONDS = 10.0
"""Timeout in seconds for moving a session to the MCP SDK, and again for then moving its listening GET. Both usually take milliseconds.

If the session is not moved in time, it is lost: its client receives 404 and opens a new session."""

MOVE_CHECKS = 200
"""Number of short sleeps by which the timeout `MOVE_SECONDS` is measured.

If the process gets no processor time for a while, only one of the sleeps passes in that time, not the whole timeout."""

_SESSION, _VERSION = b"mcp-session-id", b"mcp-protocol-version"
_VERSIONS = frozenset({None, *(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)})
"""Values of the `MCP-Protocol-Version` header with which a request can belong to a 2025 session. `None`: the header is missing."""


class SessionParts(Protocol):
    """The part of `GatewayServer`'s interface that is needed to serve 2025 sessions without the MCP SDK."""

    clients: Clients
    usages: Usages
    plain: PlainAnswers
    replicas: Replicas | None
    sealed: SealedSessions | None
    """Makes session ids that every replica can continue; `None` without replicas."""

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        ...


class FastSessions:
    """Serves 2025 sessions without the MCP SDK, and passes all other requests to the SDK path. `run` ends idle sessions."""

    def __init__(self, app: SdkPath, parts: SessionParts, table: SessionTable, *, only_opens: bool = False) -> None:
        """`app` is the SDK path. `table` counts and limits all 2025 sessions.

        If `only_opens`, a session moves to the SDK path at its first request after `initialize`, as while requests are traced.
        """
        self._only_opens = only_opens
        self._app = app
        self._parts = parts
        self._clients = parts.clients
        self._sessions: dict[str, FastSession] = {}
        self._table = table
        self._listening = 0
        """Number of open listening GETs."""

    def reads(self, head: Head, principal: Principal) -> bool:
        """Whether `serve` needs the message in a request's body, because the request may open a session, or belongs to a session."""
        if not (head.is_single and head.is_json_post):
            return False
        session = self._find(head, principal)
        if session is not None:
            return self._is_usual(session, head)
        # With replicas, a session is always opened here, because the SDK would give it an id that other replicas cannot read.
        return _may_open(head) and (self._parts.sealed is not None or not OBSERVABILITY_SETTINGS.enable_instrumentation)

    async def serve(
        self, head: Head, principal: Principal, message: JsonObject | None, scope: Scope, receive: BufferedReceive, send: Send
    ) -> None:
        """Answer a request that needs no feature of the MCP SDK. Pass any other request to the SDK path, after moving its session there.

        `message` is the decoded body; `None` for a GET or DELETE, and for a body that only the SDK path may read.
        """
        session = self._find(head, principal)
        if session is not None:
            session.legacy.seen = time.monotonic()
            if self._is_usual(session, head):
                if head.method == "GET":
                    is_answered = await self._listen(session, head, scope, receive, send)
                elif head.method == "DELETE":
                    await self._end(session, "deleted")
                    is_answered = await _send(session, send)
                else:
                    is_answered = message is not None and await self._answers(session, principal, message, scope, receive, send)
                if is_answered:
                    return
            await self._move(session.wire_id, scope)
        elif message is not None and _may_open(head) and await self._opens(principal, message, scope, receive, send):
            return
        await self._app(scope, receive, send)

    async def delegate(self, wire_id: str, call: InFlightCall, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK path answer the request of the running call `call`, after moving the session `wire_id` there.

        A session that is not on the fast path is not moved.
        """
        await self._move(wire_id, scope)
        await self._app(call.in_scope(scope), receive, send)

    async def run(self) -> None:
        """Send comments on silent streams and end idle sessions, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(PULSE_SECONDS)
                now = time.monotonic()
                comment = encode_comment(f"ping - {datetime.now(UTC)}")
                for session in list(self._sessions.values()):
                    stream = session.stream
                    if self._is_over(session) and session.moving is None:
                        await self._end(session, "idle")
                    elif stream is not None and not stream.pending and now - stream.sent >= SILENCE_SECONDS:
                        tasks.start_soon(stream.write, comment)

    # -- handshake -----------------------------------------------------------------------------------------------

    async def _opens(self, principal: Principal, message: JsonObject, scope: Scope, receive: Receive, send: Send) -> bool:
        """Open a session, or refuse it, and return true. Return false if `message` is not a plain `initialize` request."""
        hello = plain_initialize(message)
        if hello is None:
            return False
        usage = self._parts.usages.of(principal)
        refusal = self._table.admit(usage)
        if refusal is not None:
            await refusal.to_response(is_rpc=True, number=hello.number)(scope, receive, send)
            return True
        result = self._parts.introduction(hello.client.protocol_version, principal)
        body, sealed = to_json(message), self._parts.sealed
        wire_id = sealed.seal(body, principal.id) if sealed is not None else ""
        session = self.open(wire_id or self._own_id(), body, hello.client, principal)
        return await _send(session, send, to_json(response(hello.number, result)))

    def _own_id(self) -> str:
        """Return a new id for a session that no other replica can continue."""
        return uuid4().hex if self._parts.replicas is None else owned_id(self._parts.replicas.id)

    def open(self, wire_id: str, body: bytes, client: ClientProfile, principal: Principal) -> FastSession:
        """Open the session `wire_id` of a client, whose `initialize` request has the given body. The caller has checked the quotas."""
        session = FastSession(wire_id, body, self._evict, self._parts.replicas.id if self._parts.replicas is not None else "")
        session.legacy = self._clients.open_session(wire_id, client, session, principal, idle_seconds=IDLE_SECONDS)
        self._sessions[wire_id] = session
        self._table.opened(self._parts.usages.of(principal), session)
        return session

    # -- requests of a session -----------------------------------------------------------------------------------

    def _find(self, head: Head, principal: Principal) -> FastSession | None:
        """Return the session that a request names.

        Return `None` if the request has no 2025 protocol version, if no session that is served without the MCP SDK has the id, if another
        principal opened it, or if its idle timeout has passed.
        """
        if head.fields.get(_VERSION) not in _VERSIONS:
            return None
        wire_id = next((value for name, value in head.headers if name == _SESSION), b"")
        session = self._sessions.get(wire_id.decode("latin-1"))
        if session is None or session.legacy.opened_by != principal.id or self._is_over(session):
            return None
        return session

    async def _answers(
        self, session: FastSession, principal: Principal, message: JsonObject, scope: Scope, receive: Receive, send: Send
    ) -> bool:
        """Answer a message of a session without the MCP SDK, and return true. Return false, without any effect, if it needs the SDK."""
        level = session.legacy.log_level
        answer = handle_message(session.legacy, message)
        if session.legacy.log_level != level:
            await self._clients.share(session.legacy)
        if isinstance(answer, PlainRequest):
            owner = str(session.legacy.profile.session_id)
            listed = await self._parts.plain.answer_in_session(answer, principal, owner, is_resumable=True)
            return listed is not None and session.moving is None and await _send(session, send, listed)
        if answer == "applied":
            return await _send(session, send, status=202)
        if answer is not None:
            return await _send(session, send, to_json(answer))
        if message.get("id") is None:
            return False
        refusal = self._parts.usages.of(principal).refuse_call(message["method"]) if "method" in message else None
        if refusal is None:
            return False
        await refusal.to_response(is_rpc=True, number=message["id"])(scope, receive, send)
        return True

    # -- the listening GET ---------------------------------------------------------------------------------------

    async def _listen(self, session: FastSession, head: Head, scope: Scope, receive: BufferedReceive, send: Send) -> bool:
        """Serve the GET on which a client listens for notifications, and return true when its response has ended.

        If the session moves to the MCP SDK, the SDK continues the response. Return false, without any effect, if the SDK must answer the
        GET from its start.
        """
        if b"text/event-stream" not in head.accepted or self._replays(session, head):
            return False
        if await receive.read(0) is None or session.stream is not None or session.moving is not None:
            return False
        stream = session.stream = Stream(send)
        session.legacy.idle_seconds = math.inf
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _stream_headers(session)})
            with stream.scope:
                if self._parts.replicas is not None:
                    await stream.write(encode_retry(_reopen_seconds(self._listening)))
                self._listening += 1
                try:
                    await receive.ended()
                finally:
                    self._listening -= 1
                return True
            await stream.flush()
            if stream.moved is not None:
                await self._app(scope, receive, stream.go_on)
            if stream.status != 200:
                await stream.close()
        finally:
            if stream.moved is not None:
                stream.moved.set()
            else:
                session.legacy.idle_seconds = IDLE_SECONDS
            session.stream = None
            session.legacy.seen = time.monotonic()
        return True

    @staticmethod
    def _replays(session: FastSession, head: Head) -> bool:
        """Whether the SDK path must answer a GET because of its `Last-Event-ID`.

        Notifications of a listening GET that this process does not store are gone with their replica: the client listens from now on.
        """
        last = head.last_event_id
        return last != "" and not (is_listening(last) and (session.log is None or session.log.token != token_of(last)))

    # -- its end -------------------------------------------------------------------------------------------------

    async def _move(self, wire_id: str, scope: Scope) -> None:
        """Move a session, with the stream of its listening GET, to the SDK path: from now on, the MCP SDK serves the session.

        If the move has already begun, wait until it has ended. Do nothing if the session is not on the fast path.
        """
        session = self._sessions.get(wire_id)
        if session is None:
            return
        if session.moving is not None:
            await session.moving.wait()
            return
        session.moving = anyio.Event()
        is_moved = False
        try:
            with anyio.CancelScope(shield=True):
                manager = await self._app.sessions(scope)
                if session.stream is not None:
                    session.stream.moved = anyio.Event()
                self._clients.delegate_session(session.wire_id, session.inherit)
                handshake = [session.body, *([INITIALIZED] if session.legacy.is_initialized else [])]
                is_moved = await _in_time(manager.take_over(session.wire_id, session.log, scope, handshake))
                if is_moved:  # if the client does not read its stream, the stream moves after the timeout
                    await _in_time(_move_stream(manager, session))
        finally:
            self._sessions.pop(session.wire_id, None)
            if not is_moved:
                logger.warning("session lost reason=not-moved session=%s client_status=404", session.wire_id[:SHOWN_CHARACTERS])
                self._table.closed(session, "failed")
            session.moving.set()
            with anyio.CancelScope(shield=True):
                await self._clients.end_session(session.wire_id)
            if session.stream is not None:
                session.stream.scope.cancel()

    def _evict(self, session: FastSession) -> None:
        """End a session in the background, to make room for a new session. From now on, the client's requests in it get 404."""
        self._sessions.pop(session.wire_id, None)
        if self._clients.tasks is not None:
            self._clients.tasks.start_soon(self._end, session, "evicted")

    async def _end(self, session: FastSession, reason: Reason) -> None:
        """End a session, and the stream of its listening GET. `reason` is logged."""
        self._sessions.pop(session.wire_id, None)
        self._table.closed(session, reason)
        await self._clients.end_session(session.wire_id)
        if session.stream is not None:
            session.stream.scope.cancel()

    def _is_usual(self, session: FastSession, head: Head) -> bool:
        """Whether the fast path (without the MCP SDK) may answer a request of a session, as far as the request's head shows.

        The request repeats no header and names no other protocol version than its session's, and the session is not moving to the SDK path.
        """
        if self._only_opens or OBSERVABILITY_SETTINGS.enable_instrumentation:
            return False
        version = head.fields.get(_VERSION)
        is_same = version is None or version.decode() == session.legacy.profile.protocol_version
        return is_same and head.is_single and session.moving is None

    def _is_over(self, session: FastSession) -> bool:
        return session.stream is None and time.monotonic() - session.legacy.seen >= IDLE_SECONDS


def _may_open(head: Head) -> bool:
    """Whether a request may open a 2025 session: it names no session, and no protocol version other than 2025."""
    return _SESSION not in head.fields and head.fields.get(_VERSION) in _VERSIONS


async def _move_stream(manager: SessionTakeover, session: FastSession) -> bool:
    """Move the open listening GET of a session to the SDK path (requests that the MCP SDK serves). Wait until the GET continues there.

    Call this after the SDK has opened a session with the same id. Always return true, even if no GET is open.
    """
    stream = session.stream
    if stream is not None and stream.moved is not None:
        stream.scope.cancel()
        await stream.moved.wait()
        while session.stream is stream and stream.status == 200 and not manager.is_listening(session.wire_id):
            await anyio.lowlevel.checkpoint()
    return True


async def _in_time(work: Awaitable[bool]) -> bool:
    """Await `work` and return its result. If it takes longer than `MOVE_SECONDS`, cancel it and return false."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_expire, tasks.cancel_scope)
        result = await work
        tasks.cancel_scope.cancel()
        return result
    return False


async def _expire(scope: anyio.CancelScope) -> None:
    for _ in range(MOVE_CHECKS):
        await anyio.sleep(MOVE_SECONDS / MOVE_CHECKS)
    scope.cancel()


def _reopen_seconds(streams: int) -> float:
    """Return the `retry` value, in seconds, of a listening GET of a replica with `streams` others."""
    soonest, latest_of_few, latest_of_many = REOPEN_SECONDS
    return random.uniform(soonest, min(max(latest_of_few, soonest + streams / REOPENED_PER_SECOND), latest_of_many))


def _stream_headers(session: FastSession) -> list[tuple[bytes, bytes]]:
    return [
        (b"cache-control", b"no-cache, no-transform"),
        (b"connection", b"keep-alive"),
        (b"content-type", b"text/event-stream"),
        (b"mcp-session-id", session.wire_id.encode()),
        (b"x-accel-buffering", b"no"),
    ]


async def _send(session: FastSession, send: Send, body: bytes = b"", status: int = 200) -> bool:
    """Send a complete HTTP response with the `Mcp-Session-Id` of the session. `body` is JSON or empty. Return true."""
    headers = [(b"content-length", b"%d" % len(body)), (b"mcp-session-id", session.wire_id.encode())]
    headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return True
