"""Passes each authenticated client message to the fast path or the SDK path: `HttpDispatch` over HTTP, `LineDispatch` over stdio.

The fast path answers plain requests without the MCP SDK; the SDK path handles all other messages. A call that the fast path started but
cannot answer is delegated to the SDK path while it runs (`in_flight`). If `server.http.directPath` is `off`, the SDK path serves every HTTP
request. Two kinds of requests do not pass through this module: those that `startup_answers` answers from stored results while the gateway
loads, and runs of agents over the AG-UI protocol (`agui_runs`), which are not MCP.

Over stdio the first request decides the protocol era (2025 or 2026) of the connection. If the fast path answered the first request, and
the SDK is needed later, the SDK first receives a request of the same era, whose response is dropped. In a 2025 session this is the
client's own `initialize`, so that the two paths share the session; else it is `server/discover`, so that the SDK refuses a later
handshake. If the first request went to the SDK and is of the 2025 era, all later messages go to the SDK.
"""

from __future__ import annotations

import logging
import math
import secrets
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
from gateway.server.event_ids import REQUEST_ID_SCOPE_KEY
from gateway.server.fast_path.continued_sessions import ContinuedParts, ContinuedSessions
from gateway.server.fast_path.fast_sessions import FastSessions, SessionParts
from gateway.server.fast_path.handshake import plain_initialize
from gateway.server.fast_path.plain_answers import DISCOVER, METHODS, PlainRequest, plain_request
from gateway.server.fast_path.plain_calls import CallParts, PlainCalls, StartedCall
from gateway.server.fast_path.session_messages import INITIALIZED, handle_message
from gateway.server.fast_path.started_requests import RefusedRequest, StartedAnswer, StartedRequest
from gateway.server.handover import SdkPath
from gateway.server.head import Head
from gateway.server.in_flight import InFlightCall
from gateway.server.line_session import LineSession, Write
from gateway.server.replica_routes import ReplicaRoutes
from gateway.server.replicas import Replicas
from gateway.server.sdk_path.lazy_application import SdkParts
from gateway.server.session_table import SessionTable
from gateway.server.startup_answers import Listed
from gateway.server.usage import SMALL_BYTES
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.wire.jsonrpc import decode_object
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY, error_response, request, response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from gateway.server.owned_servers import Relays
    from gateway.server.sdk_path.sdk_lines import DelegatedLine
    from gateway.server.step_up import StepUp

logger = logging.getLogger(__name__)

MAX_PLAIN = 256
"""Maximum number of requests of one stdio client that are handled without the MCP SDK at once. At the limit, the gateway stops reading from
the client. Requests that the SDK handles do not count."""

END_SECONDS = 5.0
"""Maximum seconds for which the gateway answers the remaining requests of a stdio client after the client closed its end of the pipe."""

LOAD_SECONDS = 1.0
"""Seconds between the first listing of a 2025 session over stdio and the import of the MCP SDK in the background.

The SDK is imported early so that the first request that needs it does not wait. The import is delayed because clients send their first
requests together; a model takes longer than this delay to choose a tool.
"""

_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_METHODS = frozenset({b"tools/call", *(method.encode() for method in METHODS)})

class ServerParts(CallParts, SdkParts, SessionParts, ContinuedParts, Protocol):
    """The interface of `GatewayServer` that is needed to answer requests without the MCP SDK, and to start the SDK for other requests."""

    replicas: Replicas | None
    """The other replicas of this gateway; `None` if it has no database server to share with them."""
    relay_of: Relays
    """Finds the stdio servers with `single: true`, for messages of other replicas."""


class HttpDispatch:
    """ASGI application that answers authenticated requests which need no MCP SDK, and passes all other requests to the SDK path.

    It parses a request body only if the fast path may serve the request. `KeyGate`, in front of it, authenticates requests.
    """

    def __init__(
        self,
        app: SdkPath,
        server: ServerParts,
        table: SessionTable,
        *,
        path: str,
        max_request_bytes: int,
        uses_fast_path: bool = True,
        step_up: StepUp | None = None,
    ) -> None:
        """`app` is the SDK path. `path` is the URL path of the MCP endpoint. `table` counts and limits all 2025 sessions.

        `step_up` judges calls with access tokens; `None` if the gateway accepts none.

        If `uses_fast_path` is false, all requests are passed to the SDK path. Requests whose `Content-Length` is more than
        `max_request_bytes` are always passed to it, and it rejects them.
        """
        self._uses_fast_path = uses_fast_path
        self._step_up = step_up
        self._app = app
        self._server = server
        self._path = path
        self._max_request_bytes = max_request_bytes
        self._sessions = FastSessions(app, server, table, only_opens=not uses_fast_path)
        self._continued = ContinuedSessions(server.sealed, self._sessions, server, table)
        self._calls = PlainCalls(server, self._sessions.delegate)
        self._routes = ReplicaRoutes(server.replicas)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request without the MCP SDK if possible, else pass the request to the SDK path."""
        if scope["type"] == "lifespan":
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._sessions.run)
                await self._app(scope, receive, send)
                tasks.cancel_scope.cancel()
            return
        principal: Principal | None = scope.get(PRINCIPAL_SCOPE_KEY)
        if principal is None or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        head, replay = Head(scope), BufferedReceive(receive)
        refusal = await self._continued.prepare(head, principal, scope)
        if refusal is not None:
            await refusal.to_response(is_rpc=True)(scope, receive, send)
            return
        if head.method == "DELETE":
            self._server.clients.leave_to_sdk(head.session_id, principal)
        if self._step_up is not None and (stepped := await self._step_up.judge(head, principal, scope, replay)) is not None:
            await stepped(scope, replay, send)
            return
        if not self._uses_fast_path and self._server.sealed is None:
            await self._app(scope, replay, send)
            return
        session = self._plain_session(head, principal)
        message: JsonObject | None = None
        body: bytes | None = b""
        if session is not False or self._sessions.reads(head, principal) or self._routes.reads(head):
            body = await replay.read(head.length)
            message = None if body is None else decode_object(body, is_counted=COUNTED_SCOPE_KEY in scope)
            if message is not None and "method" in message:
                scope[REQUEST_ID_SCOPE_KEY] = message.get("id")
        if await self._routes.forwards(head, principal, message, body or b"", scope, replay, send):
            return
        if message is not None and not isinstance(session, bool) and message.get("method") == "notifications/cancelled":
            await self._delegate_cancelled(message, session.wire_id)
        started = None if message is None or session is False else self._start(message, head, session, principal)
        if started is None:
            await self._sessions.serve(head, principal, message, scope, replay, send)
        else:
            await started.respond(scope, replay, send)

    def take(self, head: Head, body: bytes, principal: Principal) -> StartedRequest | None:
        """Start to serve a completely received request without the MCP SDK. If the request needs the SDK, do nothing and return `None`.

        `KeyGate.take` calls this after it has authenticated the request, and before the ASGI application runs: a request that is answered
        here needs no `asyncio` task for the ASGI application.
        """
        session = self._plain_session(head, principal)
        if session is False or len(body) != head.length:
            return None
        message = decode_object(body)
        return None if message is None else self._start(message, head, session, principal)

    def _start(self, message: JsonObject, head: Head, session: LegacySession | bool, principal: Principal) -> StartedRequest | None:
        """Start to serve a request without the MCP SDK, or refuse the request if a quota of its caller is used up.

        `session` is the 2025 session of the request, or true for a 2026-07-28 request. Return `None` if the SDK must serve the request.
        """
        if self._step_up is not None and self._step_up.refusal(message, principal) is not None:
            return None  # `StepUp.judge` answers, after it has stored the refusal in the audit log
        usages = self._server.usages
        usage = usages.by_id.get(principal.id) or usages.of(principal)
        if (usage.calls >= usage.max_calls or head.length > SMALL_BYTES) and "method" in message and "id" in message:
            refusal = usage.refuse_call(message["method"], head.length)
            if refusal is not None:
                return RefusedRequest(refusal, message["id"])
        if not isinstance(session, bool):
            return self._calls.start_in_session(message, session, principal, usage, head.length)
        if head.fields.get(b"mcp-method") == b"tools/call":
            return self._calls.start(message, head, principal, usage)
        request = plain_request(message)
        if request is None or not self._calls.envelopes.agree(message, head.fields):
            return None
        if not self._calls.envelopes.profile_of(message["params"]["_meta"]):
            return None
        return StartedAnswer(self._app, self._server.plain.answer(request, principal), principal, usage)

    async def _delegate_cancelled(self, message: JsonObject, wire_id: str) -> None:
        """Hand a call of the 2025 session `wire_id` over to the MCP SDK (on the SDK path), so that the SDK can cancel the call.

        `message` is the `notifications/cancelled` that names the call. The SDK receives it after this method returns.
        """
        params: JsonValue = message.get("params")
        number = cast("JsonMapping", params).get("requestId") if isinstance(params, dict) else None
        call = self._calls.in_session(wire_id, number)
        if call is not None:
            await call.taken()

    def _plain_session(self, head: Head, principal: Principal) -> LegacySession | bool:
        """Decide by the head of a request whether the request may be served without the MCP SDK.

        Return the session for a request of a 2025 session, true for a 2026-07-28 request, and false if the SDK must serve the request.
        """
        if head.is_plain is None:
            head.is_plain = self._is_plain(head)
        if not head.is_plain or head.length > self._max_request_bytes or OBSERVABILITY_SETTINGS.enable_instrumentation:
            return False
        version = head.fields.get(b"mcp-protocol-version")
        if version in _MODERN:
            return True
        session = self._server.clients.seen_session(head.session_id, principal)
        if session is None or (version is not None and version.decode("latin-1") != session.profile.protocol_version):
            return False
        return session

    def _is_plain(self, head: Head) -> bool:
        """Whether a request with this head may be served without the MCP SDK. The length of the body is checked elsewhere."""
        fields = head.fields
        if not self._uses_fast_path or head.path != self._path or not head.is_single:
            return False
        if fields.get(b"mcp-method") not in _METHODS and b"mcp-session-id" not in fields:
            return False
        return b"mcp-param-" not in b" ".join(fields) and head.is_json_post


class LineDispatch:
    """Serves one stdio client, each line of which is a JSON-RPC message. `take` receives every line; call `end` after the last line."""

    def __init__(self, server: ServerParts, write: Write, tasks: TaskGroup, listed: Listed | None = None) -> None:
        """`write` sends lines to the client. Requests are answered in the task group `tasks`, which must outlive the connection.

        `listed` is a function that stores results for the next start. It runs in `tasks`, at most once, after the first listing that was
        started without the MCP SDK in a 2025 session.
        """
        self._listed = listed
        self._server = server
        self._write = write
        self._tasks = tasks
        self._plain_calls = PlainCalls(server)
        self._answering: dict[str, anyio.CancelScope] = {}
        """Cancel scopes of the listing and discovery requests that are being answered without the MCP SDK, by JSON-RPC id."""
        self._calls: dict[str, StartedCall] = {}
        """Tool calls that run on the fast path (without the MCP SDK), by JSON-RPC id."""
        self._delegated: set[InFlightCall] = set()
        """Calls that were delegated from the fast path to the MCP SDK. `end` cancels a call that the SDK does not await by then."""
        self._slots = anyio.Semaphore(MAX_PLAIN)
        self._passing = anyio.Lock()
        self._session: LineSession | None = None
        self._lines: MemoryObjectSendStream[DelegatedLine] | None = None
        self._opening = ""
        """JSON-RPC id of the request that this class itself sent to the SDK as the first one, while its response is awaited; else empty."""
        self._has_answered = self._is_open = False
        """Whether a request was accepted without the MCP SDK; whether the SDK has received a request, which fixes its protocol era."""
        self._uses_fast_path = True
        self._grace = anyio.CancelScope()
        """Scope in which the SDK's requests are answered after the client closed its end of the pipe; `end` sets its deadline."""
        self._over = anyio.Event()

    async def take(self, line: bytes) -> None:
        """Answer the message in a line without the MCP SDK, or pass the line to the SDK.

        A line that is not UTF-8, or has too many JSON members or values, is answered with a JSON-RPC error.
        """
        message = decode_object(line)
        if message is None and (problem := problem_of(line)) is not None:
            await self._write(to_json(error_response(None, RpcError(*problem))) + b"\n")
            return
        is_traced = OBSERVABILITY_SETTINGS.enable_instrumentation  # only the SDK path records traces
        if message is not None and self._uses_fast_path and not is_traced and await self._answers(message, line):
            return
        await self._pass_on(message, line)

    async def end(self) -> None:
        """Shut down after the client closed its end of the pipe.

        Requests that run, with or without the MCP SDK, have `END_SECONDS` to finish. Then they are cancelled.
        """
        self._grace.deadline = anyio.current_time() + END_SECONDS
        with anyio.move_on_after(END_SECONDS):
            for _ in range(MAX_PLAIN):
                await self._slots.acquire()
        for scope in list(self._answering.values()):
            scope.cancel()
        if self._lines is not None:
            await self._lines.aclose()
            blocked = self._grace.deadline + END_SECONDS  # a client that does not read would block the task that writes to it
            with anyio.CancelScope(deadline=blocked):
                await self._over.wait()
        if self._session is not None:
            await self._server.clients.end_session(self._session.legacy.wire_id)
        for call in self._delegated:
            if not call.is_taken:
                await call.end()

    # -- fast path -----------------------------------------------------------------------------------------------

    async def _answers(self, message: JsonObject, line: bytes) -> bool:
        """Start to answer a message without the MCP SDK, and return true; return false if the SDK must handle the message."""
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
        if meta.get(PROTOCOL_VERSION_META_KEY) not in MODERN_PROTOCOL_VERSIONS or self._plain_calls.envelopes.profile_of(meta) is None:
            return False
        await self._start_answer(request, message, line)
        return True

    async def _opens_session(self, message: JsonObject) -> bool:
        """Answer an `initialize` request that `plain_initialize` accepts, open a 2025 session, and return true; else return false."""
        initialize = plain_initialize(message)
        if initialize is None:
            return False
        session = self._session = LineSession(message, self._write)
        session.legacy = self._server.clients.open_session("", initialize.client, session, LOCAL, idle_seconds=math.inf)
        result = self._server.introduction(initialize.client.protocol_version, LOCAL)
        await self._write(to_json(response(initialize.number, result)) + b"\n")
        return True

    async def _answers_in_session(self, session: LineSession, message: JsonObject, line: bytes) -> bool:
        """Answer a message of a 2025 session, other than a tool call, and return true; return false if the MCP SDK must receive it."""
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
        """Apply a `notifications/cancelled` with these parameters to a request that runs on the fast path (without the MCP SDK).

        A listing is cancelled; a tool call is handed over to the SDK, which then cancels the call. Return false if the SDK must receive the
        notification too.
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
                except Exception as error:  # the SDK path gets the request, finds the same error, and reports it
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
            await serve_lines(sdk, lines, self._write_from_sdk, self._grace)
            self._over.set()

        self._tasks.start_soon(serve)
        return self._lines

    async def _open(self, lines: MemoryObjectSendStream[DelegatedLine]) -> None:
        """Send the MCP SDK a request that fixes its protocol era (2025 or 2026), because the first request was answered without the SDK.

        In a 2025 session, the request is the client's `initialize`, so that the SDK has the session's state; otherwise it is
        `server/discover`.
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


def _is_request(message: JsonMapping) -> bool:
    number = message.get("id")
    has_id = isinstance(number, int | str) and not isinstance(number, bool)
    return has_id and message.get(VERSION_KEY) == VERSION and isinstance(message.get("method"), str)


def _opens_modern(message: JsonMapping) -> bool:
    """Whether the SDK would treat a stdio connection whose first request is `message` as a connection of a 2026 client."""
    params = message.get("params")
    meta: JsonValue = cast("JsonMapping", params).get("_meta") if isinstance(params, dict) else None
    return message.get("method") != "initialize" and isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
