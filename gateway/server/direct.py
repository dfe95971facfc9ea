"""`DirectPath`: the common `tools/call` past the SDK's HTTP machinery, in front of it and through the same gate.

It takes a plain request for a tool of a remote server, of 2026 or in a session of 2025 that the SDK opened, and answers a plain
result. All else goes on untouched, before anything happened: other methods, progress, answers to questions, odd headers and bodies,
every request that is not valid, sessions the SDK has not served of late, tools of our own and tools that may ask or become tasks. A
call that has begun and turns out not to be plain (an error, a question, a log message, a task, a block that versions differ in, or
just a slow call) is handed on as it runs: the SDK's path does all of its work and finds the call under way (`RUNNING_SCOPE_KEY`), so
nothing is decided or worded twice. Keys, Host and Origin are checked before (`http`), policy is the gate's (`calls`).

A call that stays plain has no task (`underway`), because a task group, a stream and a watcher per request cost more than the call
(performance.md §4). A client of 2026 that leaves ends its call; where the body did not come at once, after `HAND_ON_SECONDS`.
"""

from __future__ import annotations

import json
from asyncio import CancelledError  # noqa: TID251  # how a call ends that is ended
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard, cast

from pydantic_core import to_json

from gateway.auth.principal import Principal
from gateway.errors import NotFound
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import request_meta
from gateway.protocol import MODERN_PROTOCOL_VERSIONS, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from gateway.server.asked import Asked
from gateway.server.bodies import COUNTED_SCOPE_KEY
from gateway.server.calls import RUNNING_SCOPE_KEY, to_wire
from gateway.server.clients import PRINCIPAL_SCOPE_KEY, LegacySession
from gateway.server.envelopes import ENVELOPE, MAX_KNOWN_CLIENTS, Envelopes, Introduced, decoded, is_named, is_plain_meta
from gateway.server.head import Head
from gateway.server.plain import METHODS, plain_question
from gateway.server.plain_results import is_plain_result
from gateway.server.refused import Refused
from gateway.server.underway import HAND_ON_SECONDS, LateCaller, Patience, PlainCaller, Underway
from gateway.server.usage import SMALL_BYTES, Usage
from gateway.telemetry.instrumentation import is_traced
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import LateClock
from gateway.tools.guard import GuardedTool
from gateway.tools.verbatim import encode_around
from gateway.upstream.exchange import has_odd_number

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.server.build import GatewayServer

Headers = list[tuple[bytes, bytes]]

Takes = Callable[[str, GuardedTool], bool]
"""Whether a tool, by its exposed name, may be called here (`app.spread`)."""

MAX_KNOWN_TOOLS = 50_000
"""Tools remembered with whether they are for the direct path; then all are looked at again."""

_VERSIONS = frozenset(MODERN_PROTOCOL_VERSIONS)
_MODERN = frozenset(version.encode() for version in MODERN_PROTOCOL_VERSIONS)
_METHODS = frozenset({b"tools/call", *(method.encode() for method in METHODS)})
_WANTED = frozenset({b"application/json", b"text/event-stream"})
_NOTHING: JsonMapping = {}
_PARAMS = frozenset({"name", "arguments", "_meta"})
_NUMBERS = frozenset({int, str})
"""Of which types the id of a request is, as JSON is read."""


class DirectPath:
    """ASGI middleware behind the key gate and before the SDK's application."""

    def __init__(self, app: ASGIApp, server: GatewayServer, *, path: str, max_request_bytes: int, takes: Takes | None = None) -> None:
        """`path` is the endpoint's; a larger body than `max_request_bytes` is not looked at here; without `takes` every tool may be."""
        self._app = app
        self._server = server
        self._path = path
        self._max_request_bytes = max_request_bytes
        self._takes = takes
        self._envelopes = Envelopes(lambda: server.has_sdk)
        self._caller = PlainCaller()
        self._accepting: set[bytes] = set()
        self._known_tools: dict[str, tuple[GuardedTool, bool]] = {}
        """With whether they are for here."""
        self._on_line: Introduced | None = None
        self._stamp: JsonObject | None = None
        self._usages = server.usages
        self.patience = Patience()
        self.running: dict[tuple[str, int | str], Underway] = {}
        """Calls of 2025 sessions, by session and request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        head = Head(scope) if scope["type"] == "http" and PRINCIPAL_SCOPE_KEY in scope else None
        if head is not None and head.method == "DELETE" and head.path == self._path:
            self._server.clients.part_with(_session_id(head))
        looked = head is not None and self._look_at(head, scope[PRINCIPAL_SCOPE_KEY])
        if head is None or looked is False:
            await self._app(scope, receive, send)
            return
        replay = Replay(receive)
        body = await replay.read(head.length)
        message = None if body is None else decoded(body, is_counted=COUNTED_SCOPE_KEY in scope)
        if message is not None and looked is not True and message.get("method") == "notifications/cancelled":
            await self._hand_on_cancelled(message, _session_id(head))
        begun = None if message is None else self._begin_any(message, head, looked, scope[PRINCIPAL_SCOPE_KEY])
        if begun is None:
            await self._app(scope, replay, send)
            return
        try:
            await begun.settled()
            answer = begun.answer()
            if answer is None:
                await begun.go_on(scope, replay, send)
            else:
                session, body = answer[0], b"".join(answer[1])
                await send({"type": "http.response.start", "status": 200, "headers": _headers(session, body)})
                await send({"type": "http.response.body", "body": body})
        finally:
            await begun.end()

    def take(self, head: Head, body: bytes, principal: Principal) -> Begun | Asked | Refused | None:
        """Begin the call of a request that has come whole; `None` where it is not plain, and nothing was done.

        For a server that spares itself the application's task where this leads to an answer.
        """
        looked = self._look_at(head, principal)
        if looked is False or len(body) != head.length:
            return None
        message = decoded(body)
        return None if message is None else self._begin_any(message, head, looked, principal)

    def _look_at(self, head: Head, principal: Principal) -> LegacySession | bool:
        """Whether a request may be plain; where it is of 2025, its session."""
        if head.is_plain is None:
            head.is_plain = self._is_plain(head)
        if not head.is_plain or head.length > self._max_request_bytes or is_traced():
            return False
        return head.fields.get(b"mcp-protocol-version") in _MODERN or self._session(head, principal) or False

    def _begin_any(
        self, message: JsonObject, head: Head, session: LegacySession | bool, principal: Principal
    ) -> Begun | Asked | Refused | None:
        """Begin a plain call, or to answer a plain question (`plain`); refuse a request if its caller has too many in progress."""
        usage = self._usages.of(principal)
        if (usage.calls >= usage.max_calls or head.length > SMALL_BYTES) and "method" in message and "id" in message:
            refusal = usage.refuse_call(head.length)  # neither a notification nor an answer to a question
            if refusal is not None:
                return Refused(refusal, message["id"])
        if not isinstance(session, bool):
            return self._begin_in_session(message, session, principal, usage, head.length)
        if head.fields.get(b"mcp-method") == b"tools/call":
            return self._begin_for(message, head, principal, usage)
        question = plain_question(message) if self._takes is None else None
        if question is None or not self._envelopes.agree(message, head.fields):
            return None
        if not self._envelopes.profile_of(message["params"]["_meta"]):
            return None
        return Asked(self._app, self._server.plain.answer(question, principal), principal, usage)

    def _begin_in_session(
        self, message: JsonObject, session: LegacySession, principal: Principal, usage: Usage | None = None, size: int = 0
    ) -> Begun | None:
        """Begin a plain call of 2025."""
        params = _plain_params(message)
        if params is None:
            return None
        key: tuple[str, int | str] = session.wire_id, message["id"]
        meta: JsonValue = params.get("_meta", _NOTHING)
        if key in self.running or (meta is not _NOTHING and not _is_plain_meta(meta, is_enveloped=False)):
            return None
        tool = self._tool(params["name"])
        if tool is None:
            return None
        server, clock, late = self._server, LateClock(HAND_ON_SECONDS), LateCaller()
        ctx = server.clients.plain_legacy_context(principal, session, meta, late, clock)
        work = server.calls.run_legacy(tool, params.get("arguments") or {}, ctx, late)
        running = self.running[key] = Underway(work, clock, late, usage, size, session)
        return Begun(self, running, key[1], principal, key)

    def _begin_for(self, message: JsonObject, head: Head, principal: Principal, usage: Usage) -> Begun | None:
        """Begin a plain call of 2026 that came with this head."""
        params = _plain_params(message)
        if params is None:
            return None
        name, fields = params["name"], head.fields
        last = head.introduced if name == head.named or is_named(name, fields) else None
        introduced = self._introduced(message, params, fields, last)
        if introduced is None:
            return None
        head.introduced, head.named = introduced[0], name
        return self._begin_modern(message, params, *introduced, principal, usage, head.length)

    def begin_line(self, message: JsonObject, principal: Principal, session: LegacySession | None) -> Begun | None:
        """As `take`, for a message without headers: of 2026, or of a 2025 session. Its call is handed over by `CallHandler.handed`."""
        if session is not None:
            return self._begin_in_session(message, session, principal)
        params = _plain_params(message)
        if params is None:
            return None
        introduced = self._introduced(message, params, None, self._on_line)
        if introduced is None:
            return None
        self._on_line = introduced[0]
        return self._begin_modern(message, params, *introduced, principal)

    def _begin_modern(
        self,
        message: JsonObject,
        params: JsonObject,
        introduced: Introduced,
        crossing: JsonMapping,
        principal: Principal,
        usage: Usage | None = None,
        size: int = 0,
    ) -> Begun | None:
        """Begin a call whose client is introduced; `crossing` of its `_meta` goes on. It counts for `usage`, if any."""
        server = self._server
        tool = self._tool(params["name"])
        if tool is None or (tool.definition.may_ask and introduced.profile.can_be_asked):
            return None
        clock = LateClock(HAND_ON_SECONDS)
        ctx = server.clients.plain_context(principal, introduced.profile, crossing, self._caller, clock)
        running = Underway(server.calls.run(tool, params.get("arguments") or {}, ctx, ctx.caller), clock, None, usage, size)
        return Begun(self, running, message["id"], principal)

    async def _hand_on_cancelled(self, message: JsonObject, wire_id: str) -> None:
        """The SDK ends a request that is taken back, so it is to have it first."""
        params: JsonValue = message.get("params")
        number = cast("JsonMapping", params).get("requestId") if isinstance(params, dict) else None
        running = self.running.get((wire_id, number)) if isinstance(number, int | str) else None
        if running is not None:
            await running.taken()

    # -- what is taken -------------------------------------------------------------------------------------------

    def _is_plain(self, head: Head) -> bool:
        """Whether a request with this head may be plain, unless it is too long."""
        fields = head.fields
        if head.path != self._path or head.method != "POST" or not head.is_single:
            return False
        if fields.get(b"mcp-method") not in _METHODS and b"mcp-session-id" not in fields:
            return False
        if head.length < 0 or b"transfer-encoding" in fields or b"mcp-param-" in b" ".join(fields):
            return False
        return fields.get(b"content-type", b"").lower().startswith(b"application/json") and self._accepts(fields.get(b"accept", b""))

    def _accepts(self, accept: bytes) -> bool:
        """Whether a client takes both forms of an answer."""
        if accept in self._accepting:
            return True
        if not {kind.partition(b";")[0].strip().lower() for kind in accept.split(b",")} >= _WANTED:
            return False
        if len(self._accepting) < MAX_KNOWN_CLIENTS:
            self._accepting.add(accept)
        return True

    def _session(self, head: Head, principal: Principal) -> LegacySession | None:
        """The 2025 session of a request, where the SDK would find it too."""
        found = self._server.clients.seen_session(_session_id(head), principal)
        version = head.fields.get(b"mcp-protocol-version")
        return found if found is None or version is None or version.decode("latin-1") == found.profile.protocol_version else None

    def _introduced(
        self, message: JsonObject, params: JsonObject, headers: Mapping[bytes, bytes] | None, last: Introduced | None
    ) -> tuple[Introduced, JsonMapping] | None:
        """What a plain call of 2026 says of its client, and what of its `_meta` goes on, where its headers, if it has any, agree.

        `last` is what an earlier call said with which these headers agree too.
        """
        meta = params.get("_meta")
        if last is not None and (crossing := last.crossing(meta)) is not None:
            return last, crossing
        if not _is_plain_meta(meta) or (headers is not None and not self._envelopes.agree(message, headers)):
            return None
        profile = self._envelopes.profile_of(meta) if meta.get(PROTOCOL_VERSION_META_KEY) in _VERSIONS else None
        return None if profile is None else (Introduced(meta, profile), request_meta(meta))

    def _tool(self, name: str) -> GuardedTool | None:
        """The tool that is called; `None` where it is not for here."""
        try:
            tool = self._server.catalog.find(name)
        except NotFound:
            return None
        if self._takes is not None and not self._takes(name, tool):
            return None
        known = self._known_tools.get(name)
        if known is None or known[0] is not tool:
            if len(self._known_tools) > MAX_KNOWN_TOOLS:
                self._known_tools.clear()
            known = self._known_tools[name] = (tool, _is_for_here(tool))
        return tool if known[1] else None

    # -- what is answered ----------------------------------------------------------------------------------------

    def plain_result(self, outcome: ToolOutcome, is_modern: bool) -> JsonObject | None:
        """What the SDK's path would send of an outcome, where it would send it as it is."""
        if not isinstance(outcome, Complete):
            return None
        result = to_wire(outcome, modern=is_modern)
        if not is_plain_result(result):  # a plain one has nothing that a client cannot take (`profiles`)
            return None
        if is_modern:
            if self._stamp is None:
                self._stamp = {SERVER_INFO_META_KEY: self._server.identity}
            meta: JsonObject | None = result.get("_meta")
            result["_meta"] = {**meta, **self._stamp} if meta else self._stamp
        elif not isinstance(result.get("structuredContent", {}), dict):
            return None
        elif "resultType" in result:
            result = {key: value for key, value in result.items() if key != "resultType"}
        return result

    async def go_on(self, running: Underway, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a call on as it runs."""
        scope[PRINCIPAL_SCOPE_KEY], scope[RUNNING_SCOPE_KEY] = principal, running
        try:
            await self._app(scope, receive, send)
        finally:
            scope.pop(RUNNING_SCOPE_KEY, None)  # the connection keeps the scope, and so the result, until its next request


class Begun:
    """A plain call under way: its answer, or the longer path for it."""

    __slots__ = ("_key", "_number", "_path", "_principal", "running")

    def __init__(
        self, path: DirectPath, running: Underway, number: JsonValue, principal: Principal, key: tuple[str, int | str] | None = None
    ) -> None:
        """`key` is that of a call in a session."""
        self.running = running
        self._path = path
        self._number = number
        self._principal = principal
        self._key = key

    @property
    def is_cancelled(self) -> bool:
        """Whether it was ended before its time."""
        return self.running.is_over and isinstance(self.running.error, CancelledError)

    def cancel(self, msg: object = None) -> None:
        """End it before its time."""
        self.running.cancel()

    def left(self) -> None:
        """Its client is gone: by 2026-07-28 that takes a request back, in a session it is no cancellation (2025-11-25, Transports)."""
        if self._key is None:
            self.cancel()

    async def settled(self) -> None:
        """Wait until there is something to do: to answer, or to go on."""
        await self.running.settled(self._path.patience)

    def when_settled(self, then: Callable[[], None]) -> None:
        """Have `then` called at that time."""
        self.running.when_settled(self._path.patience, then)

    def answer(self) -> tuple[bytes, Sequence[bytes | memoryview]] | None:
        """The session it is of, if it is of one, and the JSON of the answer to a call that ended soon and plainly; all others go on."""
        outcome = self.running.result
        if outcome is None or not self.running.is_over:
            return None
        is_modern = self._key is None
        result = self._path.plain_result(outcome, is_modern)
        if result is None:
            return None
        message = {"jsonrpc": "2.0", "id": self._number, "result": result}
        verbatim = outcome.verbatim if isinstance(outcome, Complete) else None
        try:
            body = (to_json(message),) if verbatim is None else encode_around(message, verbatim)
        except (ValueError, TypeError, RecursionError):
            return None
        for part in body:
            if isinstance(part, bytes) and has_odd_number(part, result):
                return None
        return b"" if self._key is None else self._key[0].encode("latin-1"), body

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the call on as it runs, and see to its end."""
        try:
            await self._path.go_on(self.running, self._principal, scope, receive, send)
        finally:
            await self.end()

    async def end(self) -> None:
        """Its request is over: nobody waits for it any more, but for the session that has taken it."""
        self.forget()
        if self._key is None or not self.running.is_taken:
            await self.running.end()

    def forget(self) -> None:
        """It is over."""
        if self._key is not None and self._path.running.get(self._key) is self.running:
            del self._path.running[self._key]


def _is_for_here(tool: GuardedTool) -> bool:
    """Whether a tool is a server's, never becomes a task nor waits for a person, and has no arguments that headers may have to match."""
    may_be_long = tool.definition.task_by != "nobody" or tool.needs_approval
    return not may_be_long and not tool.is_local and "x-mcp-header" not in json.dumps(tool.definition.input_schema)


def _headers(session: bytes, body: bytes) -> Headers:
    """Of an answer that the path gives itself."""
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    return [*headers, (b"mcp-session-id", session)] if session else headers


def _session_id(head: Head) -> str:
    return head.fields.get(b"mcp-session-id", b"").decode("latin-1")


def _plain_params(message: JsonObject) -> JsonObject | None:
    """The parameters of a valid `tools/call` with nothing but a name and arguments, in either era; `_meta` is not looked at."""
    if len(message) != 4 or message.get("jsonrpc") != "2.0" or message.get("method") != "tools/call":
        return None
    number: JsonValue = message.get("id")
    params: JsonMapping | None = message.get("params")  # at best
    if type(number) not in _NUMBERS or not isinstance(params, dict):
        return None
    for key in params:  # at best three, compared one by one for less than as sets
        if key not in _PARAMS:
            return None
    return params if isinstance(params.get("name"), str) and isinstance(params.get("arguments", _NOTHING), dict) else None


def _is_plain_meta(meta: JsonValue, *, is_enveloped: bool = True) -> TypeGuard[JsonMapping]:
    """Whether nothing in `_meta` asks for something, beside the envelope where there is one."""
    if not isinstance(meta, dict):
        return False
    fields = cast("JsonMapping", meta)
    return is_plain_meta(fields) and (is_enveloped or fields.keys().isdisjoint(ENVELOPE))


class Replay:
    """The ASGI `receive` of a request that was looked at, from its beginning."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen: deque[Message] = deque()

    async def read(self, length: int) -> bytes | None:
        """The whole body, if it has this length; whatever comes is given again."""
        parts: list[bytes] = []
        size, is_more = 0, True
        while is_more:
            message = await self._receive()
            self._seen.append(message)
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            is_more = message.get("more_body", False)
            if size > length:
                return None
        return (parts[0] if len(parts) == 1 else b"".join(parts)) if size == length else None

    async def ended(self) -> None:
        """Wait until the client is gone, after the whole body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def __call__(self) -> Message:
        """As `receive`."""
        return self._seen.popleft() if self._seen else await self._receive()
