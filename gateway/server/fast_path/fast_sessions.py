"""`FastSessions`: serves 2025 sessions over HTTP without the MCP SDK, as long as their requests need no feature of the SDK.

It answers the handshake, `ping`, `logging/setLevel` and listings, and keeps open the GET on which the client listens for notifications;
`dispatch` starts the tool calls. The first other request (for a resource, a prompt or a task, a call with a progress token, a request with
an unusual header) moves the session to the SDK path: the SDK opens a session with the same id and receives the client's handshake again,
and the GET continues there. In-flight calls continue, and no notification is lost.

This is ASGI middleware between `HttpDispatch` and `LazyApplication`, behind `KeyGate`, which bounds the size of bodies. A session on the
fast path has no `asyncio` task. `session_table` bounds the number of sessions on the fast path and the SDK path together.
"""

from __future__ import annotations

import logging
import math
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
from gateway.server.bodies import COUNTED_SCOPE_KEY, BufferedReceive
from gateway.server.clients import PRINCIPAL_SCOPE_KEY, Clients
from gateway.server.fast_path.fast_session import FastSession, Stream
from gateway.server.fast_path.handshake import plain_initialize
from gateway.server.fast_path.in_flight import STARTED_SCOPE_KEY
from gateway.server.fast_path.plain_answers import PlainAnswers, PlainRequest
from gateway.server.fast_path.session_messages import INITIALIZED, handle_message
from gateway.server.head import Head
from gateway.server.sdk_path.lazy_application import LazyApplication
from gateway.server.session_table import SHOWN_CHARACTERS, Reason, SessionTable
from gateway.server.usage import Usages
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.wire.jsonrpc import decode_object
from gateway.wire.rpc_envelope import response
from gateway.wire.sse import encode_comment

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from starlette.types import Receive, Scope, Send

    from gateway.server.sdk_path.resumable_sessions import SessionManager

logger = logging.getLogger(__name__)

PULSE_SECONDS = 5.0
"""Seconds between two checks of all sessions, which end idle sessions and send a comment on streams that had no events for a while."""

SILENCE_SECONDS = 9.0
"""Seconds without an event after which a stream gets an SSE comment at the next check, so that no proxy closes the stream."""

IDLE_SECONDS = 1_800.0
"""Seconds without a request and without an open stream after which a session ends. The MCP SDK has the same timeout."""

MOVE_SECONDS = 10.0
"""Timeout in seconds for moving a session to the MCP SDK, which usually takes milliseconds. After a timeout the session is lost: its client
receives 404 and opens a new session."""

MOVE_CHECKS = 200
"""Number of short sleeps by which the timeout `MOVE_SECONDS` is measured.

If the process gets no processor time for a while, only one of the sleeps passes meanwhile, and not the whole timeout."""

_VERSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)


class SessionParts(Protocol):
    """The interface of `GatewayServer` that serving 2025 sessions without the MCP SDK needs."""

    clients: Clients
    usages: Usages

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        ...


class FastSessions:
    """ASGI middleware that serves 2025 sessions without the MCP SDK, and passes all other requests to `app`, the SDK path.

    While its lifespan runs, it keeps streams alive and ends idle sessions.
    """

    def __init__(self, app: LazyApplication, parts: SessionParts, answers: PlainAnswers, table: SessionTable, *, path: str) -> None:
        """`path` is the URL path of the MCP endpoint. `answers` answers listing requests. `table` counts and limits all 2025 sessions."""
        self._app = app
        self._parts = parts
        self._answers = answers
        self._clients = parts.clients
        self._path = path
        self._sessions: dict[str, FastSession] = {}
        self._tasks: TaskGroup | None = None
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that needs no feature of the MCP SDK. Pass any other request to the SDK path, after moving its session there."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        if scope["type"] != "http" or scope["path"] != self._path or PRINCIPAL_SCOPE_KEY not in scope:
            await self._app(scope, receive, send)
            return
        head = Head(scope)
        is_odd = not head.is_single or STARTED_SCOPE_KEY in scope
        version = head.fields.get(b"mcp-protocol-version")
        if version is not None and version not in _VERSIONS:
            await self._app(scope, receive, send)  # not a 2025 protocol version
            return
        wire_id = next((value for name, value in head.headers if name == b"mcp-session-id"), None)
        if wire_id is None:
            if is_odd or not head.is_json_post or OBSERVABILITY_SETTINGS.enable_instrumentation:
                await self._app(scope, receive, send)
            else:
                await self._open(scope, head.length, receive, send)
            return
        session = self._find(wire_id.decode("latin-1"), scope[PRINCIPAL_SCOPE_KEY])
        if session is None:
            await self._app(scope, receive, send)
            return
        session.legacy.seen = time.monotonic()
        replay = BufferedReceive(receive)
        is_same_version = version is None or version.decode() == session.legacy.profile.protocol_version
        if session.moving is None and not is_odd and is_same_version and await self._serves(session, scope, head, replay, send):
            return
        await self._move(session, scope)
        await self._app(scope, replay, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._pulse)
            await self._app(scope, receive, send)
            self._tasks.cancel_scope.cancel()
        self._tasks = None

    # -- handshake -----------------------------------------------------------------------------------------------

    async def _open(self, scope: Scope, length: int, receive: Receive, send: Send) -> None:
        replay = BufferedReceive(receive)
        body = await replay.read(length)
        message = None if body is None else decode_object(body, is_counted=COUNTED_SCOPE_KEY in scope)
        hello = None if message is None else plain_initialize(message)
        if body is None or hello is None:
            await self._app(scope, replay, send)
            return
        principal: Principal = scope[PRINCIPAL_SCOPE_KEY]
        usage = self._parts.usages.of(principal)
        refusal = self._table.admit(usage)
        if refusal is not None:
            await refusal.to_response(is_rpc=True, number=hello.number)(scope, receive, send)
            return
        result = self._parts.introduction(hello.version, principal)
        session = FastSession(uuid4().hex, body, self._evict)
        session.legacy = self._clients.open_session(session.wire_id, hello, session, principal, idle_seconds=IDLE_SECONDS)
        self._sessions[session.wire_id] = session
        self._table.opened(usage, session)
        await _answer(session, send, response(hello.number, result))

    # -- requests of a session -----------------------------------------------------------------------------------

    def _find(self, wire_id: str, principal: Principal) -> FastSession | None:
        """Return the session with this `Mcp-Session-Id`.

        Return `None` if no session that is served without the MCP SDK has this id, if another principal opened it, or if its idle timeout
        has passed.
        """
        session = self._sessions.get(wire_id)
        if session is None or session.legacy.opened_by != principal.id or self._is_over(session):
            return None
        return session

    async def _serves(self, session: FastSession, scope: Scope, head: Head, receive: BufferedReceive, send: Send) -> bool:
        """Answer a request of a session without the MCP SDK, and return true. Return false, without any effect, if it needs the SDK."""
        method = scope["method"]
        if method == "GET":
            return await self._listen(session, scope, head, receive, send)
        if method == "DELETE":
            await self._end(session, "deleted")
            await _answer(session, send, None)
            return True
        if not head.is_json_post:
            return False
        body = await receive.read(head.length)
        message = None if body is None else decode_object(body, is_counted=COUNTED_SCOPE_KEY in scope)
        if message is None or session.moving is not None:
            return False
        answer = handle_message(session.legacy, message)
        if isinstance(answer, PlainRequest):
            owner = str(session.legacy.profile.session_id)
            listed = await self._answers.answer_in_session(answer, scope[PRINCIPAL_SCOPE_KEY], owner, is_resumable=True)
            return listed is not None and session.moving is None and await _send(session, send, listed)
        if answer == "applied":
            return await _answer(session, send, None, 202)
        if answer is not None:
            return await _answer(session, send, answer)
        if message.get("id") is None:
            return False
        refusal = self._parts.usages.of(scope[PRINCIPAL_SCOPE_KEY]).refuse_call() if "method" in message else None
        if refusal is None:
            return False
        await refusal.to_response(is_rpc=True, number=message["id"])(scope, receive, send)
        return True

    # -- the listening GET ---------------------------------------------------------------------------------------

    async def _listen(self, session: FastSession, scope: Scope, head: Head, receive: BufferedReceive, send: Send) -> bool:
        """Serve the GET on which a client listens for notifications, and return true when its response has ended.

        If the session moves to the MCP SDK, the SDK continues the response. Return false, without any effect, if the SDK must answer the
        GET from its start.
        """
        if b"text/event-stream" not in head.accepted or b"last-event-id" in head.fields:
            return False
        if await receive.read(0) is None or session.stream is not None or session.moving is not None:
            return False
        stream = session.stream = Stream(send)
        session.legacy.idle_seconds = math.inf
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _stream_headers(session)})
            with stream.scope:
                await receive.ended()
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

    # -- its end -------------------------------------------------------------------------------------------------

    async def _move(self, session: FastSession, scope: Scope) -> None:
        """Move a session, with the stream of its listening GET, to the SDK path: from now on, the MCP SDK serves it.

        If the move has already begun, wait until it has ended.
        """
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
                is_moved = await _in_time(_repeat(manager, session, scope))
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
        if self._tasks is not None:
            self._tasks.start_soon(self._end, session, "evicted")

    async def _end(self, session: FastSession, reason: Reason) -> None:
        """End a session, and the stream of its listening GET. `reason` is logged."""
        self._sessions.pop(session.wire_id, None)
        self._table.closed(session, reason)
        await self._clients.end_session(session.wire_id)
        if session.stream is not None:
            session.stream.scope.cancel()

    def _is_over(self, session: FastSession) -> bool:
        return session.stream is None and time.monotonic() - session.legacy.seen >= IDLE_SECONDS

    async def _pulse(self) -> None:
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


async def _repeat(manager: SessionManager, session: FastSession, scope: Scope) -> bool:
    """Repeat the handshake of a session's client to the MCP SDK, so that the SDK opens a session with the same id.

    `scope` is a later request of the session, whose `Host`, `Origin`, path and addresses the repeated requests get. Return whether the SDK
    accepted the handshake.
    """
    place = [(name, value) for name, value in scope["headers"] if name in (b"host", b"origin")]
    kept = {key: value for key, value in scope.items() if key != STARTED_SCOPE_KEY}
    headers = [*place, (b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream")]
    opening = {**kept, "method": "POST", "headers": headers}
    if not await manager.take_over(session.wire_id, session.told, opening, session.body):
        return False
    if session.legacy.is_initialized:
        later = {**opening, "headers": [*headers, (b"mcp-session-id", session.wire_id.encode())]}
        await manager.send_notification(session.wire_id, later, INITIALIZED)
    return True


async def _move_stream(manager: SessionManager, session: FastSession) -> bool:
    """Move the open listening GET of a session to the SDK path (requests that the MCP SDK serves). Wait until the GET continues there.

    This is done after the SDK has opened a session with the same id. Return true, also if no GET is open.
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


def _stream_headers(session: FastSession) -> list[tuple[bytes, bytes]]:
    return [
        (b"cache-control", b"no-cache, no-transform"),
        (b"connection", b"keep-alive"),
        (b"content-type", b"text/event-stream"),
        (b"mcp-session-id", session.wire_id.encode()),
        (b"x-accel-buffering", b"no"),
    ]


async def _answer(session: FastSession, send: Send, message: JsonObject | None, status: int = 200) -> bool:
    """Send a complete HTTP response with the `Mcp-Session-Id` of the session. `message` is the JSON body; without it the body is empty."""
    return await _send(session, send, b"" if message is None else to_json(message), status)


async def _send(session: FastSession, send: Send, body: bytes, status: int = 200) -> bool:
    headers = [(b"content-length", b"%d" % len(body)), (b"mcp-session-id", session.wire_id.encode())]
    headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return True
