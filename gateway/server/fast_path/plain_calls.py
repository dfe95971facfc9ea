"""`PlainCalls`: runs plain `tools/call` requests without the MCP SDK, and encodes their results. `StartedCall`: one of these requests.

A call is plain if it is a valid request for a tool of a remote server and uses no other feature: no progress, no answers to requests for
input, no task. A call that is not plain is left to the SDK path before it has any effect. A started call is delegated to the SDK path
(`in_flight`) if it raises an exception, requests input, sends a log message, becomes a task, has content that protocol versions encode
differently, or is slow. So only the SDK path implements these cases. The gate (the checks that every call passes) applies policy, as for
calls of the SDK path. Used by `dispatch`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.caller_rights import is_hidden
from gateway.policy.metadata import request_meta
from gateway.protocol import MODERN_PROTOCOL_VERSIONS, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from gateway.server.calls import CallHandler, add_server_info, is_plain_result, to_wire
from gateway.server.clients import PRINCIPAL_SCOPE_KEY, Clients, LegacySession
from gateway.server.deferred_caller import DeferredCaller, PlainCaller
from gateway.server.envelopes import ENVELOPE, Envelopes, KnownClient, is_named, is_plain_meta
from gateway.server.event_ids import REQUEST_ID_SCOPE_KEY
from gateway.server.fast_path.started_requests import Body, StartedRequest
from gateway.server.head import Head
from gateway.server.in_flight import HAND_OVER_SECONDS, Deadlines, InFlightCall
from gateway.server.task_calls import declares_tasks
from gateway.server.usage import Usage
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, CallPorts, LateClock
from gateway.wire.http1_interfaces import Field
from gateway.wire.jsonrpc import encode_response
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MAX_KNOWN_TOOLS = 50_000
"""Maximum number of tools in the cache that stores whether a tool may be called without the MCP SDK. At the limit the cache is cleared."""

Delegate = Callable[[str, InFlightCall, "Scope", "Receive", "Send"], Awaitable[None]]
"""A function that lets the SDK path (with the MCP SDK) answer the HTTP request of a running call.

It gets the `Mcp-Session-Id` (empty for a 2026 request), the call, and the arguments of an ASGI call."""

_NOTHING: JsonMapping = {}
_PARAMS = frozenset({"name", "arguments", "_meta"})
_ID_TYPES = frozenset({int, str})


class CallParts(Protocol):
    """The part of `GatewayServer`'s interface that is needed to run plain tool calls.

    A call is plain if it is a valid request for a tool of a remote server, without progress, answers to requests for input, or a task.
    """

    catalog: Catalog
    clients: Clients
    calls: CallHandler
    identity: JsonObject

    @property
    def has_sdk(self) -> bool:
        """Whether the MCP SDK's server exists. It is created when a request first needs the SDK."""
        ...


class StartedCall(StartedRequest):
    """A `tools/call` request that was started without the MCP SDK (on the fast path). `running` is its call, which runs in a task."""

    __slots__ = ("_delegate", "_encode", "_in_session", "_key", "_principal", "running")

    def __init__(
        self,
        delegate: Delegate | None,
        running: InFlightCall,
        encode: Callable[[ToolOutcome], Body | None],
        principal: Principal,
        key: tuple[str, int | str] | None,
        in_session: dict[tuple[str, int | str], InFlightCall],
    ) -> None:
        """`delegate` passes the request of a running call to the MCP SDK; `None` over stdio. `principal` is the caller.

        `encode` converts the outcome of the call to the response; it returns `None` for an outcome that only the SDK can encode.
        `in_session` contains the in-flight calls of all 2025 sessions. `key` is this call's key in `in_session`: its `Mcp-Session-Id` and
        JSON-RPC id; `None` for a 2026 call.
        """
        self.running = running
        self._delegate = delegate
        self._encode = encode
        self._principal = principal
        self._key = key
        self._in_session = in_session

    @property
    def is_cancelled(self) -> bool:
        """Whether the call has ended because it was cancelled."""
        return self.running.has_ended_cancelled

    def cancel(self, msg: object = None) -> None:
        """Cancel the call."""
        self.running.cancel()

    def left(self) -> None:
        """Handle a disconnect of the client: cancel the call of a 2026 client, and do nothing for a call of a 2025 session.

        In a 2025 session, a disconnect does not cancel a request (2025-11-25, Transports).
        """
        if self._key is None:
            self.cancel()

    def when_settled(self, then: Callable[[], None]) -> None:
        """Register `then` to be called once, when the call has ended or was handed over to the SDK path (with the MCP SDK)."""
        self.running.when_settled(then)

    def answer(self) -> tuple[Field | None, Body] | None:
        """Return the `Mcp-Session-Id` header field (`None` for a 2026 call) and the encoded response.

        Return `None` instead if the MCP SDK must answer: the call still runs, failed, or has a result that only the SDK can encode.
        """
        outcome = self.running.result
        body = None if outcome is None else self._encode(outcome)
        if body is None:
            return None
        return None if self._key is None else (b"mcp-session-id", self._key[0].encode("latin-1")), body

    async def go_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Delegate the request to the SDK path, which awaits the running call and answers with the MCP SDK. Then call `end`."""
        assert self._delegate is not None, "calls over lines are delegated by their connection"
        scope[PRINCIPAL_SCOPE_KEY] = self._principal
        if self._key is not None:
            scope[REQUEST_ID_SCOPE_KEY] = self._key[1]
        try:
            await self._delegate("" if self._key is None else self._key[0], self.running, scope, receive, send)
        finally:
            await self.end()

    async def end(self) -> None:
        """Cancel the call if it still runs, because its request was answered or its client disconnected.

        A call of a 2025 session that was handed over to the MCP SDK continues, because calls of 2025 sessions survive a disconnect.
        """
        self.forget()
        if self._key is None or not self.running.is_taken:
            await self.running.end()

    def forget(self) -> None:
        """Remove a call of a 2025 session from the calls in flight, so that the client can use its JSON-RPC id again."""
        if self._key is not None and self._in_session.get(self._key) is self.running:
            del self._in_session[self._key]


class PlainCalls:
    """Starts `tools/call` requests that need no feature of the MCP SDK. Each HTTP endpoint and each stdio connection has its own object."""

    def __init__(self, parts: CallParts, delegate: Delegate | None = None) -> None:
        """`delegate` passes the HTTP request of a started call to the MCP SDK if the call turns out to need it; `None` over stdio."""
        self._parts = parts
        self.envelopes = Envelopes(lambda: parts.has_sdk)
        """Checks what 2026 requests declare about their client."""
        self._delegate = delegate
        self._ports = CallPorts(caller=PlainCaller())
        self._known_tools: dict[str, tuple[GuardedTool, bool]] = {}
        self._last_client: KnownClient | None = None
        """The client that the last 2026 call over stdio declared in `_meta`; an equal declaration is not checked again."""
        self._server_info: JsonObject = {SERVER_INFO_META_KEY: parts.identity}
        self._deadlines = Deadlines()
        self._in_session: dict[tuple[str, int | str], InFlightCall] = {}
        """The calls of 2025 sessions that are in flight, by `Mcp-Session-Id` and JSON-RPC id."""

    # -- starting ------------------------------------------------------------------------------------------------

    def start_in_session(
        self, message: JsonObject, session: LegacySession, principal: Principal, usage: Usage | None = None, size: int = 0
    ) -> StartedCall | None:
        """Start the tool call of a request in a 2025 session. Return `None`, without any effect, if the request needs the MCP SDK.

        `usage` counts what the caller has in progress over HTTP. It includes the call, and its body of `size` bytes, until the call ends.
        """
        params = _plain_params(message)
        if params is None:
            return None
        key: tuple[str, int | str] = session.wire_id, message["id"]
        meta: JsonValue = params.get("_meta", _NOTHING)
        if key in self._in_session or (meta is not _NOTHING and not _is_plain_meta(meta, has_envelope=False)):
            return None
        tool = self._tool(params["name"], principal)
        if tool is None:
            return None
        clock, deferred = LateClock(HAND_OVER_SECONDS), DeferredCaller()
        ctx = self._parts.clients.plain_legacy_context(principal, session, meta, deferred, clock)
        work = self._parts.calls.run_legacy(tool, params.get("arguments") or {}, ctx, deferred)
        running = InFlightCall(work, clock, self._deadlines, deferred, usage=usage, size=size, session=session)
        self._in_session[key] = running
        return StartedCall(self._delegate, running, partial(self._encode, key[1], is_modern=False), principal, key, self._in_session)

    def start(self, message: JsonObject, head: Head, principal: Principal, usage: Usage) -> StartedCall | None:
        """Start the tool call of a 2026-07-28 request over HTTP. Return `None`, without any effect, if the request needs the MCP SDK.

        `head` has the request's headers. `usage` counts what the caller has in progress, including this call until it ends.
        """
        params = _plain_params(message)
        if params is None:
            return None
        name, fields = params["name"], head.fields
        last = head.client if name == head.named or is_named(name, fields) else None
        declared = self._declared(message, params, fields, last)
        if declared is None:
            return None
        head.client, head.named = declared[0], name
        return self._start(message, params, *declared, principal, usage, head.length)

    def start_line(self, message: JsonObject, principal: Principal, session: LegacySession | None) -> StartedCall | None:
        """Start the tool call of a request over stdio. Return `None`, without any effect, if the request needs the MCP SDK.

        `session` is the client's 2025 session; `None` for a 2026 client.
        """
        if session is not None:
            return self.start_in_session(message, session, principal)
        params = _plain_params(message)
        declared = None if params is None else self._declared(message, params, None, self._last_client)
        if params is None or declared is None:
            return None
        self._last_client = declared[0]
        return self._start(message, params, *declared, principal)

    def in_session(self, wire_id: str, number: JsonValue) -> InFlightCall | None:
        """Return the call in flight of the 2025 session `wire_id` whose request has the JSON-RPC id `number`.

        Return `None` if no such call was started without the MCP SDK.
        """
        return self._in_session.get((wire_id, number)) if isinstance(number, int | str) else None

    def _start(
        self,
        message: JsonObject,
        params: JsonObject,
        client: KnownClient,
        forwarded: JsonMapping,
        principal: Principal,
        usage: Usage | None = None,
        size: int = 0,
    ) -> StartedCall | None:
        """Start a tool call of a 2026 client. Return `None` if the MCP SDK must serve the call.

        The SDK must serve it if the tool needs the SDK, or if the tool may request input and the client supports such requests.
        `forwarded` is the part of the request's `_meta` that is sent on to the tool's server.
        """
        tool = self._tool(params["name"], principal)
        if tool is None or (tool.definition.may_request_input and client.facts.client.takes_input_requests):
            return None
        clock = LateClock(HAND_OVER_SECONDS)
        ctx = CallContext.of_request(client.facts, principal, forwarded, self._ports, clock)
        client.facts = ctx.facts
        work = self._parts.calls.run_plain(tool, params.get("arguments") or {}, ctx)
        running = InFlightCall(work, clock, self._deadlines, usage=usage, size=size)
        return StartedCall(self._delegate, running, partial(self._encode, message["id"], is_modern=True), principal, None, self._in_session)

    def _declared(
        self, message: JsonObject, params: JsonObject, headers: Mapping[bytes, bytes] | None, last: KnownClient | None
    ) -> tuple[KnownClient, JsonMapping] | None:
        """Return the client that a 2026-07-28 request declares, and the part of its `_meta` that is sent on to the tool's server.

        Return `None` if the declaration is invalid, differs from `headers`, or requests a feature. `last` is the client of an earlier
        request with the same headers; if this request declares the same client, it is not checked again.
        """
        meta = params.get("_meta")
        if last is not None and (forwarded := _forwarded(last, meta)) is not None:
            return last, forwarded
        if not _is_plain_meta(meta) or (headers is not None and not self.envelopes.agree(message, headers)):
            return None
        profile = self.envelopes.profile_of(meta) if meta.get(PROTOCOL_VERSION_META_KEY) in MODERN_PROTOCOL_VERSIONS else None
        if profile is None:
            return None
        return KnownClient(meta, self._parts.clients.template(profile, takes_tasks=declares_tasks(profile))), request_meta(meta)

    def _tool(self, name: str, principal: Principal) -> GuardedTool | None:
        """Return the tool with the exposed name `name`; `None` if it must not be called without the MCP SDK, or does not exist.

        A tool does not exist for a caller from whom it is hidden. The SDK also serves calls for which the caller's roles need an approval.
        """
        try:
            tool = self._parts.catalog.find(name)
        except NotFound:
            return None
        known = self._known_tools.get(name)
        if known is None or known[0] is not tool:
            if len(self._known_tools) > MAX_KNOWN_TOOLS:
                self._known_tools.clear()
            known = self._known_tools[name] = (tool, _is_supported(tool))
        if not known[1]:
            return None
        if principal.rights is not None and ((decision := tool.decide(principal)).needs_approval or is_hidden(decision.verdict)):
            return None
        return tool

    # -- answering -----------------------------------------------------------------------------------------------

    def _encode(self, number: JsonValue, outcome: ToolOutcome, *, is_modern: bool) -> Body | None:
        """Encode the outcome of a call as the JSON-RPC response to the request with the id `number`, in the same form as the MCP SDK.

        Return `None` if only the SDK can encode the outcome.
        """
        if not isinstance(outcome, Complete) or (result := self._plain_result(outcome, is_modern)) is None:
            return None
        return encode_response(number, result, outcome.long_text)

    def _plain_result(self, outcome: Complete, is_modern: bool) -> JsonObject | None:
        result = to_wire(outcome, modern=is_modern)
        if not is_plain_result(result):  # plain content is supported by every client (`client_limits`)
            return None
        if is_modern:
            return add_server_info(result, self._server_info)
        if not isinstance(result.get("structuredContent", {}), dict):
            return None
        return result


def _is_supported(tool: GuardedTool) -> bool:
    """Whether a tool may be called without the MCP SDK: the tool is remote, its calls never become tasks or need approval, and none of its
    arguments must be repeated in HTTP headers (`x-mcp-header`)."""
    may_be_long = tool.definition.task_by != "nobody" or tool.rules.needs_approval
    return not may_be_long and not tool.rules.is_local and "x-mcp-header" not in json.dumps(tool.definition.input_schema)


def _plain_params(message: JsonObject) -> JsonObject | None:
    """Return the parameters of a valid `tools/call` request that has only a name, arguments and `_meta`; `None` for any other message.

    The content of `_meta` is not checked.
    """
    if len(message) != 4 or message.get(VERSION_KEY) != VERSION or message.get("method") != "tools/call":
        return None
    number: JsonValue = message.get("id")
    params: JsonMapping | None = message.get("params")  # checked in the next line
    if type(number) not in _ID_TYPES or not isinstance(params, dict):
        return None
    for key in params:  # at most three; faster than comparing sets
        if key not in _PARAMS:
            return None
    return params if isinstance(params.get("name"), str) and isinstance(params.get("arguments", _NOTHING), dict) else None


def _forwarded(client: KnownClient, meta: JsonValue) -> JsonMapping | None:
    """Return the part of `meta`, the `_meta` of a 2026-07-28 request, that is sent on to the tool's server.

    Return `None` if `meta` declares a client other than `client`, or requests a feature such as progress.
    """
    known, own = client.envelope, _NOTHING
    envelope: JsonMapping | None = meta  # checked in the next line
    if known is None or not isinstance(envelope, dict):
        return None
    if len(envelope) != len(known):
        if not is_plain_meta(envelope):
            return None
        own = request_meta(envelope)
        envelope = {key: value for key, value in envelope.items() if key in ENVELOPE}
    if envelope != known or (client.spelled and repr(envelope) != client.spelled):
        return None
    return own


def _is_plain_meta(meta: JsonValue, *, has_envelope: bool = True) -> TypeGuard[JsonMapping]:
    """Whether `_meta` of a request is an object that requests no feature, such as progress.

    With `has_envelope`, `_meta` may contain the keys in which a 2026-07-28 request describes its client; otherwise it may not.
    """
    if not isinstance(meta, dict):
        return False
    fields = cast("JsonMapping", meta)
    return is_plain_meta(fields) and (has_envelope or fields.keys().isdisjoint(ENVELOPE))
