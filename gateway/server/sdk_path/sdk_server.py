"""`SdkServer`: the server of the SDK path, which is the MCP SDK's low-level `Server` with the gateway's request handlers and middleware.

`GatewayServer` creates it when a request first needs the SDK.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import anyio.abc
from mcp.server.context import CallNext, HandlerResult, ServerMiddleware
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolRequestParams,
    CompleteRequestParams,
    GetPromptRequestParams,
    NotificationParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    RequestParams,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)
from pydantic import ValidationError

from gateway.auth.principal import Principal
from gateway.catalog import Catalog
from gateway.catalog.skill_catalog import SkillCatalog
from gateway.gate.rpc_errors import to_rpc_error
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.metadata import via_of
from gateway.server.calls import CallHandler
from gateway.server.changes import Changes
from gateway.server.clients import Clients, RequestContext, is_modern, presence_of, principal_of, scope_of_request
from gateway.server.in_flight import call_in
from gateway.server.listings import LISTINGS, ListingRequest, Listings
from gateway.server.parked import ParkedCalls
from gateway.server.replicas import Replicas
from gateway.server.sdk_path.call_methods import CallMethods
from gateway.server.sdk_path.listen_streams import ListenStreams
from gateway.server.sdk_path.read_methods import ReadMethods
from gateway.server.sdk_path.routed_states import RoutedStates
from gateway.server.sdk_path.skill_methods import bind_skills
from gateway.server.sdk_path.task_methods import TaskMethods
from gateway.server.sdk_path.task_notifications import TaskNotifications
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.server.task_calls import TaskHandler
from gateway.server.usage import UNCOUNTED_METHODS, Usages
from gateway.server.watches import Watches
from gateway.tasks.runner import TaskRunner
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.telemetry.mcp_operations import measured
from gateway.upstream.gateway_chain import configuration_of


async def keep_internals(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware around the gateway's other middleware: convert exceptions to JSON-RPC errors whose text is fit for clients.

    The SDK itself handles `MCPError` and `ValidationError`. Without this middleware, the SDK would send the text of an unexpected exception
    to 2025 clients. If instrumentation is on, the middleware also records the request in traces and metrics.
    """
    if OBSERVABILITY_SETTINGS.enable_instrumentation:
        transport = "pipe" if scope_of_request(ctx) is None else "tcp"
        return await measured(
            ctx.method,
            ctx.params,
            lambda: _without_internals(ctx, call_next),
            protocol_version=ctx.protocol_version,
            transport=transport,
            code_of=lambda error: error.code if isinstance(error, MCPError) else None,
        )
    return await _without_internals(ctx, call_next)


def _if_traced(spans: ServerMiddleware[Any]) -> ServerMiddleware[Any]:
    """Return a middleware that applies `spans`, the SDK's middleware for tracing spans, only while instrumentation is on."""

    async def middleware(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        return await (spans(ctx, call_next) if OBSERVABILITY_SETTINGS.enable_instrumentation else call_next(ctx))

    return middleware


async def _without_internals(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:  # clients must not receive the text of an unexpected exception
        shown = to_rpc_error(error, "modern" if is_modern(ctx) else "legacy")
        raise MCPError(shown.code, shown.message, shown.data) from None


LOST_CLIENT = (
    "The client closed its stream while the request waited for an answer, or while other callers waited for the request, "
    "so the request was ended."
)


async def end_lost(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Middleware: end a request in a 2025 HTTP session with an error if it needs its client and the client is lost (`request_presence`)."""
    attendance = presence_of(ctx)
    if attendance is None or ctx.request_id is None:
        return await call_next(ctx)
    with attendance.request(ctx.request_id):
        return await call_next(ctx)
    raise MCPError(REQUEST_CANCELLED, LOST_CLIENT)


class Parts(Protocol):
    """The part of `GatewayServer`'s interface that the gateway's request handlers need."""

    catalog: Catalog
    clients: Clients
    changes: Changes
    watches: Watches
    replicas: Replicas | None
    usages: Usages
    lists: Listings
    skills: SkillCatalog
    parked: ParkedCalls
    tasks: TaskHandler
    runner: TaskRunner | None
    calls: CallHandler
    group: anyio.abc.TaskGroup
    """Task group of the running server, which outlives every request."""
    identity: JsonObject
    own_id: str
    """Id of this gateway in a chain of gateways."""
    state_key: bytes
    """Key that encrypts the request state in results."""
    ask_timeout_seconds: float

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        ...

    def discovery(self, principal: Principal) -> JsonObject:
        """Return the result of `server/discover` for a caller."""
        ...


class SdkServer:
    """The server of the SDK path: registers the gateway's handlers and middleware with the MCP SDK's low-level server `mcp`.

    Create it while `GatewayServer` runs. `close` ends its listen streams.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        methods = TaskMethods(parts.tasks, parts.catalog, parts.clients)
        task_notifications = TaskNotifications(parts.tasks, methods, parts.clients, parts.group, parts.runner)
        self._listening = ListenStreams(parts.catalog, parts.clients, task_notifications)
        parts.changes.streams = self._listening
        self._reads = ReadMethods(parts.catalog, parts.clients, parts.parked, parts.watches)
        name, version = str(parts.identity["name"]), str(parts.identity["version"])
        self.mcp = Server[Any](name, version=version, get_tool_input_schema=parts.catalog.input_schema)
        self._register(parts)
        self.mcp.middleware[:] = [_if_traced(spans) for spans in self.mcp.middleware]
        self.mcp.middleware.append(keep_internals)
        self.mcp.middleware.append(end_lost)
        self.mcp.middleware.append(self._count_call)
        self.mcp.middleware.append(self._introduce)
        self.mcp.middleware.append(
            RequestStateBoundary(
                RequestStateSecurity(
                    keys=[parts.state_key], ttl=parts.ask_timeout_seconds, bind_principal=lambda ctx: principal_of(ctx).id
                ),
                default_audience=configuration_of(parts.own_id),
            )
        )
        if parts.replicas is not None:
            self.mcp.middleware.insert(0, RoutedStates(parts.replicas.id))
        methods.bind(self.mcp)

    def close(self) -> None:
        """End every listen stream of 2026 clients, with a proper response to its request."""
        self._listening.close()

    async def _count_call(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: count an HTTP request as a call of its caller while it runs, or refuse the request if a quota is used up.

        `UNCOUNTED_METHODS` and notifications are not counted, nor are calls that were started without the MCP SDK (on the fast path),
        because these have been counted already.
        """
        scope = scope_of_request(ctx)
        if scope is None or ctx.request_id is None or ctx.method in UNCOUNTED_METHODS or call_in(scope):
            return await call_next(ctx)
        usage = self._parts.usages.of(principal_of(ctx))
        refusal = usage.refuse_call(ctx.method)
        if refusal is not None:
            raise MCPError(refusal.code, refusal.message)
        session = None if is_modern(ctx) else self._parts.clients.session_of(ctx)
        usage.calls += 1
        if session is not None:
            session.calls += 1
        try:
            return await call_next(ctx)
        finally:
            usage.release_call()
            if session is not None:
                session.calls -= 1

    def _register(self, parts: Parts) -> None:
        """Register the request handlers with the SDK's server.

        They are not passed to the SDK's constructor, because its types do not allow handlers that return JSON objects.
        """
        add, reads = self.mcp.add_request_handler, self._reads
        for method in LISTINGS:
            add(method, PaginatedRequestParams, self._list)
        add("tools/call", CallToolRequestParams, CallMethods(parts.calls, parts.catalog, parts.clients, parts.parked))
        add("resources/read", ReadResourceRequestParams, reads.read)
        add("resources/subscribe", SubscribeRequestParams, reads.subscribe)
        add("resources/unsubscribe", UnsubscribeRequestParams, reads.unsubscribe)
        add("prompts/get", GetPromptRequestParams, reads.get_prompt)
        add("completion/complete", CompleteRequestParams, reads.complete)
        add("logging/setLevel", SetLevelRequestParams, reads.set_level)
        add("subscriptions/listen", SubscriptionsListenRequestParams, self._listening.listen)
        add("server/discover", RequestParams, self._discover)
        self.mcp.add_notification_handler("notifications/initialized", NotificationParams, self._arrived)
        bind_skills(self.mcp, parts.skills, lambda ctx: parts.clients.context(ctx, WireCaller(ctx)))

    async def _list(self, ctx: RequestContext, params: PaginatedRequestParams | None) -> JsonObject:
        """Serve a `tools/list`, `resources/list`, `resources/templates/list` or `prompts/list` request."""
        asking = ListingRequest(
            principal_of(ctx),
            self._parts.clients.scope(ctx),
            is_modern=is_modern(ctx),
            via=via_of(cast("JsonMapping", (ctx.params or {}).get("_meta") or {})),
            cursor=params.cursor if params is not None else None,
        )
        return await self._parts.lists.page(ctx.method, asking)

    async def _arrived(self, ctx: RequestContext, params: NotificationParams) -> None:
        """Handle `notifications/initialized`: from now on, notify the 2025 client of changes, because it completed the handshake."""
        if not is_modern(ctx):
            self._parts.clients.session_of(ctx)

    async def _discover(self, ctx: RequestContext, params: RequestParams | None) -> JsonObject:
        """Serve a `server/discover` request."""
        return self._parts.discovery(principal_of(ctx))

    async def _introduce(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Middleware: replace the SDK's result of `initialize` with the gateway's. Only the protocol version is the SDK's.

        The middleware also attaches the SDK's connection to a session that was served without the SDK before.
        """
        result = await call_next(ctx)
        if ctx.method != "initialize" or result is None:  # no result: a notification of this name
            return result
        self._parts.clients.adopt_session(ctx)
        version = str(cast("JsonMapping", result)["protocolVersion"])  # the SDK has converted its result to JSON at this point
        return self._parts.introduction(version, principal_of(ctx))
