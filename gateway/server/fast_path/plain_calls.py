"""`PlainCalls`: starts plain `tools/call` requests without the SDK and encodes their plain results; used by `dispatch`.

A call is plain if it is a valid request for a tool of a remote server and needs nothing else: no progress, no answers to requests for
input, no task. A call that is not plain is left to the SDK path before anything happened. A started call that ends with an error, requests
input, sends a log message, becomes a task, has content that protocol versions encode differently, or is slow, is delegated to the SDK path
as it runs (`started_requests`), so nothing is decided or worded twice. Policy is applied by the gate, as on the SDK path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.metadata import request_meta
from gateway.protocol import MODERN_PROTOCOL_VERSIONS, PROTOCOL_VERSION_META_KEY, SERVER_INFO_META_KEY
from gateway.server.calls import CallHandler, is_plain_result, to_wire
from gateway.server.clients import Clients, LegacySession
from gateway.server.envelopes import ENVELOPE, Envelopes, KnownClient, is_named, is_plain_meta
from gateway.server.fast_path.deferred_caller import DeferredCaller, PlainCaller
from gateway.server.fast_path.in_flight import HAND_OVER_SECONDS, Deadlines, InFlightCall, StartedCall
from gateway.server.fast_path.started_requests import Body
from gateway.server.head import Head
from gateway.server.task_calls import declares_tasks
from gateway.server.usage import Usage
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext, CallPorts, LateClock
from gateway.wire.jsonrpc import encode_response
from gateway.wire.rpc_envelope import VERSION, VERSION_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MAX_KNOWN_TOOLS = 50_000
"""Maximum number of tools of which the fast path remembers whether it may call them. At the limit all are forgotten."""

_NOTHING: JsonMapping = {}
_PARAMS = frozenset({"name", "arguments", "_meta"})
_ID_TYPES = frozenset({int, str})


class CallParts(Protocol):
    """The parts of the server that `PlainCalls` needs."""

    catalog: Catalog
    clients: Clients
    calls: CallHandler
    identity: JsonObject


class PlainCalls:
    """Starts those `tools/call` requests of an HTTP endpoint, or of a connection over stdio, that need no SDK."""

    def __init__(self, parts: CallParts, envelopes: Envelopes, app: ASGIApp | None = None) -> None:
        """`app` is the ASGI application to which calls over HTTP are delegated; `None` over lines."""
        self._parts = parts
        self._envelopes = envelopes
        self._app = app
        self._ports = CallPorts(caller=PlainCaller())
        self._known_tools: dict[str, tuple[GuardedTool, bool]] = {}
        self._last_client: KnownClient | None = None
        """The client that declared itself in the last 2026 call over lines."""
        self._server_info: JsonObject = {SERVER_INFO_META_KEY: parts.identity}
        self._deadlines = Deadlines()
        self._in_session: dict[tuple[str, int | str], InFlightCall] = {}
        """Calls in flight in 2025 sessions, by `Mcp-Session-Id` and request id."""

    # -- starting ------------------------------------------------------------------------------------------------

    def start_in_session(
        self, message: JsonObject, session: LegacySession, principal: Principal, usage: Usage | None = None, size: int = 0
    ) -> StartedCall | None:
        """Start a call of a 2025 session, whose request body has `size` bytes. Return `None` if the call needs the SDK."""
        params = _plain_params(message)
        if params is None:
            return None
        key: tuple[str, int | str] = session.wire_id, message["id"]
        meta: JsonValue = params.get("_meta", _NOTHING)
        if key in self._in_session or (meta is not _NOTHING and not _is_plain_meta(meta, has_envelope=False)):
            return None
        tool = self._tool(params["name"])
        if tool is None:
            return None
        clock, deferred = LateClock(HAND_OVER_SECONDS), DeferredCaller()
        ctx = self._parts.clients.plain_legacy_context(principal, session, meta, deferred, clock)
        work = self._parts.calls.run_legacy(tool, params.get("arguments") or {}, ctx, deferred)
        running = InFlightCall(work, clock, self._deadlines, deferred, usage=usage, size=size, session=session)
        self._in_session[key] = running
        return StartedCall(self._app, running, partial(self._encode, key[1], is_modern=False), principal, key, self._in_session)

    def start(self, message: JsonObject, head: Head, principal: Principal, usage: Usage) -> StartedCall | None:
        """Start a 2026 call over HTTP, whose request has the head `head`. Return `None` if the call needs the SDK."""
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
        """Start a call over stdio: of the 2025 session `session`, or a 2026 call. Return `None` if the call needs the SDK."""
        if session is not None:
            return self.start_in_session(message, session, principal)
        params = _plain_params(message)
        declared = None if params is None else self._declared(message, params, None, self._last_client)
        if params is None or declared is None:
            return None
        self._last_client = declared[0]
        return self._start(message, params, *declared, principal)

    def in_session(self, wire_id: str, number: JsonValue) -> InFlightCall | None:
        """Return the call of a 2025 session with this request id; `None` if the fast path has no such call in flight."""
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
        """Start a 2026 call. `forwarded` is the part of the call's `_meta` that is sent to the tool's server."""
        tool = self._tool(params["name"])
        if tool is None or (tool.definition.may_ask and client.facts.client.can_be_asked):
            return None
        clock = LateClock(HAND_OVER_SECONDS)
        ctx = CallContext.of_request(client.facts, principal, forwarded, self._ports, clock)
        work = self._parts.calls.run_plain(tool, params.get("arguments") or {}, ctx)
        running = InFlightCall(work, clock, self._deadlines, usage=usage, size=size)
        return StartedCall(self._app, running, partial(self._encode, message["id"], is_modern=True), principal, None, self._in_session)

    def _declared(
        self, message: JsonObject, params: JsonObject, headers: Mapping[bytes, bytes] | None, last: KnownClient | None
    ) -> tuple[KnownClient, JsonMapping] | None:
        """Return the client and the forwardable `_meta` of a 2026 request; `None` if they are invalid or differ from the headers.

        `last` is the client of an earlier request with the same headers.
        """
        meta = params.get("_meta")
        if last is not None and (forwarded := _forwarded(last, meta)) is not None:
            return last, forwarded
        if not _is_plain_meta(meta) or (headers is not None and not self._envelopes.agree(message, headers)):
            return None
        profile = self._envelopes.profile_of(meta) if meta.get(PROTOCOL_VERSION_META_KEY) in MODERN_PROTOCOL_VERSIONS else None
        if profile is None:
            return None
        return KnownClient(meta, self._parts.clients.template(profile, takes_tasks=declares_tasks(profile))), request_meta(meta)

    def _tool(self, name: str) -> GuardedTool | None:
        """Return the tool that clients call `name`; `None` if it does not exist or the fast path may not call it."""
        try:
            tool = self._parts.catalog.find(name)
        except NotFound:
            return None
        known = self._known_tools.get(name)
        if known is None or known[0] is not tool:
            if len(self._known_tools) > MAX_KNOWN_TOOLS:
                self._known_tools.clear()
            known = self._known_tools[name] = (tool, _is_supported(tool))
        return tool if known[1] else None

    # -- answering -----------------------------------------------------------------------------------------------

    def _encode(self, number: JsonValue, outcome: ToolOutcome, *, is_modern: bool) -> Body | None:
        """Return the JSON-RPC response with an outcome; `None` if only the SDK path can encode the outcome. Both encode it alike."""
        if not isinstance(outcome, Complete) or (result := self._plain_result(outcome, is_modern)) is None:
            return None
        return encode_response(number, result, outcome.long_text)

    def _plain_result(self, outcome: Complete, is_modern: bool) -> JsonObject | None:
        result = to_wire(outcome, modern=is_modern)
        if not is_plain_result(result):  # plain content is supported by every client (`client_limits`)
            return None
        if is_modern:
            meta: JsonObject | None = result.get("_meta")
            result["_meta"] = {**meta, **self._server_info} if meta else self._server_info
        elif not isinstance(result.get("structuredContent", {}), dict):
            return None
        return result


def _is_supported(tool: GuardedTool) -> bool:
    """Whether a tool is remote, never becomes a task, needs no approval, and has no arguments that headers must repeat."""
    may_be_long = tool.definition.task_by != "nobody" or tool.rules.needs_approval
    return not may_be_long and not tool.rules.is_local and "x-mcp-header" not in json.dumps(tool.definition.input_schema)


def _plain_params(message: JsonObject) -> JsonObject | None:
    """Return the parameters of a valid `tools/call` with only a name, arguments and `_meta`. The content of `_meta` is not checked."""
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
    """Return the part of `meta` that is sent to the tool's server; `None` unless `meta` declares this client and requests nothing."""
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
    """Whether `_meta` is an object that requests nothing, such as progress. Only if `has_envelope` may it have the 2026 envelope."""
    if not isinstance(meta, dict):
        return False
    fields = cast("JsonMapping", meta)
    return is_plain_meta(fields) and (has_envelope or fields.keys().isdisjoint(ENVELOPE))
