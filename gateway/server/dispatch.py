"""Where requests enter after authentication: `HttpDispatch` for HTTP, `LineDispatch` for a client over lines (stdio).

Only the requests that `startup_answers` answers from stored results while the gateway loads never come here.

There are four entries: the fast path and the SDK path, each over HTTP and over lines. The fast path answers plain requests; all others are
passed to the SDK path, as are all requests over HTTP if `server.http.directPath` is `off`. A call that the fast path started and cannot
answer is delegated as it runs (`started_requests`).

Over lines the first request decides the era of the connection. If the fast path answered it, the SDK's loop starts with a request of the
same era whose response is dropped: the client's own `initialize` in a 2025 session, which both paths then share, else `server/discover`,
so that the SDK refuses a later handshake. If the SDK received a 2025 request first, it receives all later requests.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, cast

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from pydantic_core import to_json

from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
    PROTOCOL_VERSION_META_KEY,
    RpcError,
)
from gateway.sdk import load
from gateway.server.bodies import COUNTED_SCOPE_KEY, BufferedReceive, problem_of
from gateway.server.clients import PRINCIPAL_SCOPE_KEY, LegacySession
from gateway.server.envelopes import Envelopes
from gateway.server.fast_path.handshake import plain_initialize
from gateway.server.fast_path.in_flight import InFlightCall, StartedCall
from gateway.server.fast_path.plain_answers import DISCOVER, METHODS, PlainAnswers, PlainRequest, plain_request
from gateway.server.fast_path.plain_calls import CallParts, PlainCalls
from gateway.server.fast_path.session_messages import INITIALIZED, handle_message
from gateway.server.fast_path.started_requests import RefusedRequest, StartedAnswer, StartedRequest
from gateway.server.head import Head
from gateway.server.sdk_path.lazy_application import SdkParts
from gateway.server.startup_answers import Listed
from gateway.server.usage import SMALL_BYTES, UNCOUNTED_METHODS
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.wire.jsonrpc import decode_object
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY, error_response, notification, request, response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.server.sdk_path.sdk_lines import DelegatedLine

logger = logging.getLogger(__name__)

MAX_PLAIN = 256
"""Maximum plain requests of one line connection in progress at once; at the limit, reading pauses. Calls on the SDK path do not count."""

END_SECONDS = 5.0
"""Time to answer the remaining requests after a client over lines closed its end."""

LOAD_SECONDS = 1.0
"""Delay between a 2025 session's first listing and importing the SDK in the background, so that the first request that needs the SDK does
not wait for the import. Clients send their first requests together, and a model takes longer to choose a tool."""

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_METHODS = frozenset({b"tools/call", *(method.encode() for method in METHODS)})

Write = Callable[[bytes], Awaitable[None]]
"""Sends whole lines to the client."""


class ServerParts(CallParts, SdkParts, Protocol):
    """The parts of `GatewayServer` that the fast path and the SDK path need."""

    plain: PlainAnswers

    @property
    def has_sdk(self) -> bool:
        """Whether the SDK path was created."""
        ...

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        ...


class HttpDispatch:
    """ASGI application behind the key gate: starts requests that need no SDK on the fast path, and passes all others to `app`."""

    def __init__(self, app: ASGIApp, server: ServerParts, *, path: str, max_request_bytes: int, uses_fast_path: bool = True) -> None:
        """`path` is the path of the MCP endpoint. Requests with more than `max_request_bytes` are passed to `app`, which rejects them."""
        self._uses_fast_path = uses_fast_path
        self._app = app
        self._server = server
        self._path = path
        self._max_request_bytes = max_request_bytes
        self._envelopes = Envelopes(lambda: server.has_sdk)
        self._calls = PlainCalls(server, self._envelopes, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request on the fast path, or pass the request to `app`."""
        head = Head(scope) if scope["type"] == "http" and PRINCIPAL_SCOPE_KEY in scope else None
        if head is not None and head.method == "DELETE" and head.path == self._path:
            self._server.clients.part_with(_session_id(head))
        session = head is not None and self._plain_session(head, scope[PRINCIPAL_SCOPE_KEY])
        if head is None or session is False:
            await self._app(scope, receive, send)
            return
        replay = BufferedReceive(receive)
        body = await replay.read(head.length)
        message = None if body is None else decode_object(body, is_counted=COUNTED_SCOPE_KEY in scope)
        if message is not None and session is not True and message.get("method") == "notifications/cancelled":
            await self._delegate_cancelled(message, _session_id(head))
        started = None if message is None else self._start(message, head, session, scope[PRINCIPAL_SCOPE_KEY])
        if started is None:
            await self._app(scope, replay, send)
            return
        try:
            await started.settled()
            answer = started.answer()
            if answer is None:
                await started.go_on(scope, replay, send)
            else:
                field, body = answer[0], b"".join(answer[1])
                headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
                if field is not None:
                    headers.append(field)
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        finally:
            await started.end()

    def take(self, head: Head, body: bytes, principal: Principal) -> StartedRequest | None:
        """Start a request that arrived complete. Return `None`, without any effect, if the fast path cannot serve the request.

        The HTTP server calls this first: if the fast path answers, the server needs no task for the ASGI application.
        """
        session = self._plain_session(head, principal)
        if session is False or len(body) != head.length:
            return None
        message = decode_object(body)
        return None if message is None else self._start(message, head, session, principal)

    def _start(self, message: JsonObject, head: Head, session: LegacySession | bool, principal: Principal) -> StartedRequest | None:
        """Start a request on the fast path, or refuse it if a quota of its caller is used up; `None` if the SDK path must serve it."""
        usages = self._server.usages
        usage = usages.by_id.get(principal.id) or usages.of(principal)
        if (usage.calls >= usage.max_calls or head.length > SMALL_BYTES) and "method" in message and "id" in message:
            refusal = None if message["method"] in UNCOUNTED_METHODS else usage.refuse_call(head.length)
            if refusal is not None:
                return RefusedRequest(refusal, message["id"])
        if not isinstance(session, bool):
            return self._calls.start_in_session(message, session, principal, usage, head.length)
        if head.fields.get(b"mcp-method") == b"tools/call":
            return self._calls.start(message, head, principal, usage)
        request = plain_request(message)
        if request is None or not self._envelopes.agree(message, head.fields):
            return None
        if not self._envelopes.profile_of(message["params"]["_meta"]):
            return None
        return StartedAnswer(self._app, self._server.plain.answer(request, principal), principal, usage)

    async def _delegate_cancelled(self, message: JsonObject, wire_id: str) -> None:
        """Hand the call that a notification cancels over to the SDK path, which will receive the notification and cancel the call."""
        params: JsonValue = message.get("params")
        number = cast("JsonMapping", params).get("requestId") if isinstance(params, dict) else None
        call = self._calls.in_session(wire_id, number)
        if call is not None:
            await call.taken()

    def _plain_session(self, head: Head, principal: Principal) -> LegacySession | bool:
        """Return whether the fast path may serve a request with this head: its 2025 session, true for a 2026 request, else false."""
        if head.is_plain is None:
            head.is_plain = self._is_plain(head)
        if not head.is_plain or head.length > self._max_request_bytes or OBSERVABILITY_SETTINGS.enable_instrumentation:
            return False
        version = head.fields.get(b"mcp-protocol-version")
        if version in _MODERN:
            return True
        session = self._server.clients.seen_session(_session_id(head), principal)
        if session is None or (version is not None and version.decode("latin-1") != session.profile.protocol_version):
            return False
        return session

    def _is_plain(self, head: Head) -> bool:
        """Whether, judged by its head, the fast path may serve the request. The length of the body is not judged."""
        fields = head.fields
        if not self._uses_fast_path or head.path != self._path or not head.is_single:
            return False
        if fields.get(b"mcp-method") not in _METHODS and b"mcp-session-id" not in fields:
            return False
        return b"mcp-param-" not in b" ".join(fields) and head.is_json_post


class LineSession:
    """A stdio session of a 2025 client whose `initialize` was answered without the SDK.

    If the SDK receives later messages, the session keeps its channel to the client.
    """

    def __init__(self, initialize: JsonObject, write: Write) -> None:
        """`initialize` is the client's `initialize` request, which is repeated to the SDK when the SDK path joins."""
        self.initialize = initialize
        self.legacy: LegacySession
        self.is_loading = False
        """Whether the import of the SDK in the background was scheduled."""
        self._write = write

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification with this method to the client.

        Raises:
            anyio.BrokenResourceError: The client closed its end.
        """
        try:
            await self._write(to_json(notification(method, params)) + b"\n")
        except OSError as error:
            raise anyio.BrokenResourceError from error


class LineDispatch:
    """Serves one client over lines, each of which is a JSON-RPC message. `take` receives every line; call `end` after the last."""

    def __init__(self, server: ServerParts, write: Write, tasks: TaskGroup, listed: Listed | None = None) -> None:
        """`tasks` must outlive the connection. After the first listing of a 2025 session, `listed` runs in this task group."""
        self._listed = listed
        self._server = server
        self._write = write
        self._tasks = tasks
        self._envelopes = Envelopes(lambda: server.has_sdk)
        self._plain_calls = PlainCalls(server, self._envelopes)
        self._answering: dict[str, anyio.CancelScope] = {}
        """Plain requests other than calls in progress, by id."""
        self._calls: dict[str, StartedCall] = {}
        """Plain calls in progress, by id."""
        self._delegated: set[InFlightCall] = set()
        """Calls delegated to the SDK path that may not be awaited there yet. `end` cancels those."""
        self._slots = anyio.Semaphore(MAX_PLAIN)
        self._passing = anyio.Lock()
        self._session: LineSession | None = None
        self._lines: MemoryObjectSendStream[DelegatedLine] | None = None
        self._opening = ""
        """Id of the request with which this class started the SDK's loop; empty before, and when the response was dropped."""
        self._has_answered = self._is_open = False
        """Whether the fast path took a request, and whether the SDK received a request, from which it knows the era."""
        self._uses_fast_path = True
        self._over = anyio.Event()

    async def take(self, line: bytes) -> None:
        """Answer a line, or pass it to the SDK path. A line that `problem_of` rejects is answered with an error."""
        message = decode_object(line)
        if message is None and (problem := problem_of(line)) is not None:
            await self._write(to_json(error_response(None, RpcError(*problem))) + b"\n")
            return
        is_traced = OBSERVABILITY_SETTINGS.enable_instrumentation  # the SDK path records traces
        if message is not None and self._uses_fast_path and not is_traced and await self._answers(message, line):
            return
        await self._pass_on(message, line)

    async def end(self) -> None:
        """Finish answering the requests that arrived before the client closed its end, for at most `END_SECONDS`, then end everything."""
        with anyio.move_on_after(END_SECONDS):
            for _ in range(MAX_PLAIN):
                await self._slots.acquire()
        for scope in list(self._answering.values()):
            scope.cancel()
        if self._lines is not None:
            await self._lines.aclose()
            with anyio.move_on_after(END_SECONDS):  # a client that does not read blocks the writer
                await self._over.wait()
        if self._session is not None:
            await self._server.clients.end_session(self._session.legacy.wire_id)
        for call in self._delegated:
            if not call.is_taken:
                await call.end()

    # -- fast path -----------------------------------------------------------------------------------------------

    async def _answers(self, message: JsonObject, line: bytes) -> bool:
        """Start to answer a message on the fast path; return false if the SDK path must handle the message."""
        if message.get("method") == "notifications/cancelled" and "id" not in message:
            return await self._cancel(message.get("params"))
        key = str(message.get("id"))
        if key in self._answering or key in self._calls:
            return False
        if self._session is None and not self._has_answered and self._lines is None and await self._opens_session(message):
            return True
        started = self._plain_calls.start_line(message, LOCAL, self._session.legacy if self._session is not None else None)
        if started is not None:
            self._calls[key] = started
            self._tasks.start_soon(self._call, started, message, line)  # ends the call, also if the wait for a slot is cancelled
            await self._take_slot()
            return True
        if self._session is not None:
            return await self._answers_in_session(self._session, message, line)
        request = plain_request(message)
        if request is None:
            return False
        meta = cast("JsonMapping", message["params"]["_meta"])
        if meta.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS or self._envelopes.profile_of(meta) is None:
            return False
        await self._start_answer(request, message, line)
        return True

    async def _opens_session(self, message: JsonObject) -> bool:
        """Open a 2025 session and answer the request, if it is an `initialize` without unusual fields; else return false."""
        initialize = plain_initialize(message)
        if initialize is None:
            return False
        session = self._session = LineSession(message, self._write)
        session.legacy = self._server.clients.open_session("", initialize, session, LOCAL, idle_seconds=math.inf)
        result = self._server.introduction(initialize.version, LOCAL)
        await self._write(to_json(response(initialize.number, result)) + b"\n")
        return True

    async def _answers_in_session(self, session: LineSession, message: JsonObject, line: bytes) -> bool:
        """Answer a message of a 2025 session that is not a call; return false if the SDK path must handle the message."""
        answer = handle_message(session.legacy, message)
        if isinstance(answer, PlainRequest):
            await self._start_answer(answer, message, line)
        elif isinstance(answer, dict):
            await self._write(to_json(answer) + b"\n")
        return answer is not None and (answer != "applied" or not self._is_open)

    async def _start_answer(self, request: PlainRequest, message: JsonObject, line: bytes) -> None:
        await self._take_slot()
        scope = self._answering[str(request.number)] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, request, scope, message, line)

    async def _take_slot(self) -> None:
        self._has_answered = True
        await self._slots.acquire()

    async def _cancel(self, params: JsonValue) -> bool:
        """Cancel a request of the fast path. A call is handed over to the SDK path, which then cancels it.

        Return false if the SDK path must receive the notification too.
        """
        number: JsonValue = cast("JsonMapping", params).get("requestId") if isinstance(params, dict) else None
        key = str(number)
        scope, started = self._answering.get(key), self._calls.get(key)
        if scope is not None:
            scope.cancel()
        if started is not None:
            await started.running.taken()
        return scope is not None or self._lines is None

    async def _answer(self, request: PlainRequest, scope: anyio.CancelScope, message: JsonObject, line: bytes) -> None:
        body: bytes | None = None
        try:
            with scope:
                try:
                    if self._session is None:
                        body = await self._server.plain.answer(request, LOCAL)
                    else:
                        owner = str(self._session.legacy.profile.session_id)
                        body = await self._server.plain.answer_in_session(request, LOCAL, owner)
                except Exception as error:  # the call-handler boundary: the SDK path finds the same error, and reports it
                    logger.debug("request passed to the SDK path error=%s", error)
            if scope.cancelled_caught:
                return
            await (self._pass_on(message, line) if body is None else self._write(body + b"\n"))
            if self._session is not None and not self._session.is_loading:
                self._session.is_loading = True
                self._tasks.start_soon(_load_later)
                if self._listed is not None:
                    self._tasks.start_soon(self._listed)
        finally:
            del self._answering[str(request.number)]
            self._slots.release()

    async def _call(self, started: StartedCall, message: JsonObject, line: bytes) -> None:
        is_delegated = False
        try:
            await started.settled()
            answer = started.answer()
            if answer is not None:
                await self._write(b"".join((*answer[1], b"\n")))
            else:
                is_delegated = True
                self._delegated = {call for call in self._delegated if not (call.is_taken or call.is_over)} | {started.running}
                await self._pass_on(message, line, started.running)
        finally:
            del self._calls[str(message["id"])]
            self._slots.release()
            if is_delegated:
                started.forget()
            else:
                with anyio.move_on_after(END_SECONDS, shield=True):
                    await started.end()

    # -- SDK path ------------------------------------------------------------------------------------------------

    async def _pass_on(self, message: JsonObject | None, line: bytes, call: InFlightCall | None = None) -> None:
        async with self._passing:
            lines = self._lines or await self._start_sdk()
            if not self._is_open and (self._has_answered or self._session is not None):
                self._is_open = True
                await self._open(lines)
            elif not self._is_open:
                self._is_open = message is None or _is_request(message)
                self._uses_fast_path = not self._is_open or (message is not None and _opens_modern(message))
            await lines.send((line.decode(), call))

    async def _start_sdk(self) -> MemoryObjectSendStream[DelegatedLine]:
        sdk = await self._server.load_sdk()
        await load("gateway.server.sdk_path.sdk_lines")
        from gateway.server.sdk_path.sdk_lines import DelegatedLine, serve_lines

        self._lines, lines = anyio.create_memory_object_stream[DelegatedLine]()

        async def serve() -> None:
            await serve_lines(sdk, lines, self._write_from_sdk)
            self._over.set()

        self._tasks.start_soon(serve)
        return self._lines

    async def _open(self, lines: MemoryObjectSendStream[DelegatedLine]) -> None:
        """Send the SDK its first request on this connection, in the connection's protocol era.

        In a 2025 session this is the client's `initialize`, so that the SDK has the session's state.
        """
        self._opening = secrets.token_hex(16)
        session = self._session
        if session is not None:
            self._server.clients.delegate_session(session.legacy.wire_id, lambda heir: None)
            await lines.send((to_json({**session.initialize, "id": self._opening}).decode(), None))
            if session.legacy.is_initialized:
                await lines.send((INITIALIZED.decode(), None))
            return
        meta: JsonObject = {PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION, CLIENT_CAPABILITIES_META_KEY: {}}
        await lines.send((to_json(request(self._opening, DISCOVER, {"_meta": meta})).decode(), None))

    async def _write_from_sdk(self, line: bytes) -> None:
        if self._opening and self._opening.encode() in line:
            self._opening = ""
            return
        await self._write(line)


async def _load_later() -> None:
    await anyio.sleep(LOAD_SECONDS)
    await load("gateway.server.sdk_path.sdk_lines")


def _session_id(head: Head) -> str:
    return head.fields.get(b"mcp-session-id", b"").decode("latin-1")


def _is_request(message: JsonMapping) -> bool:
    number = message.get("id")
    has_id = isinstance(number, int | str) and not isinstance(number, bool)
    return has_id and message.get(VERSION_KEY) == VERSION and isinstance(message.get("method"), str)


def _opens_modern(message: JsonMapping) -> bool:
    """Whether a connection over stdio whose first request is this one is, for the SDK, a connection of a 2026 client."""
    params = message.get("params")
    meta: JsonValue = cast("JsonMapping", params).get("_meta") if isinstance(params, dict) else None
    return message.get("method") != "initialize" and isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
