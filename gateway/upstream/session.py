"""`Session`: one negotiated MCP connection to a remote server, speaking decoded JSON.

Sits on the SDK's `JSONRPCDispatcher` instead of its `ClientSession`, because a relay needs what that one
fixes: per-request client capabilities, results passed through unmodelled, no output re-validation, no hidden
`tools/list` (protocol.md §5.2). The dispatcher's lifecycle is provisional in the SDK, so nothing outside this
module touches it. Policy, retries and lists are not here: `connection` and `source` own those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import anyio
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import encode_header_value
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext

from gateway.errors import (
    AskUnavailable,
    AuthNeeded,
    GatewayError,
    ModelError,
    SessionGone,
    UpstreamBusy,
    UpstreamError,
    UpstreamLost,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.hidden_text import strip_text, strip_value
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    CONNECTION_CLOSED,
    HANDSHAKE_PROTOCOL_VERSIONS,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    LOG_LEVEL_META_KEY,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
    RpcError,
)
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, is_traced
from gateway.telemetry.operations import CLIENT_DURATION, measured
from gateway.tools.context import CallContext, Era, LogLevel, nested_capability, severity
from gateway.tools.waits import own_task
from gateway.upstream.exchange import Exchange
from gateway.upstream.http import BUSY, DEFAULT_RETRY_SECONDS, FORBIDDEN, LOST, NOT_SENT, SESSION_GONE, TOO_LARGE, UNAUTHORIZED
from gateway.upstream.pipe import PipeExchange, PipeWriter

logger = logging.getLogger(__name__)

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
"""Id of the modern tasks extension (SEP-2663)."""

SKILLS_EXTENSION = "io.modelcontextprotocol/skills"
"""Id of the skills extension (SEP-2640)."""

PROBE_TIMEOUT_SECONDS = 10.0
"""How long `server/discover` may take before the server is taken for a legacy one."""

_NO_ANSWERS = frozenset(
    {
        (PARSE_ERROR, "Failed to parse JSON response"),
        (PARSE_ERROR, "Failed to parse SSE message"),
        (INVALID_REQUEST, "Unexpected content type"),
        (INTERNAL_ERROR, "Server returned an error response"),
    }
)
"""How the SDK's transport spells an answer that was no JSON-RPC, before a colon; not to be passed on as the server's own words."""

_NOT_FOUND = (METHOD_NOT_FOUND, "Not Found")
"""How it spells a bare 404, by which servers also refuse methods they do not have; none that is asked for these is without them."""

_NEVER_MISSING = frozenset({"tools/list", "tools/call", "resources/read", "prompts/get", "subscriptions/listen"})

_calling: ContextVar[CallContext | None] = ContextVar("moongate_calling", default=None)
"""The call on whose behalf a request goes out. The SDK's HTTP transport carries it along to whatever the server
sends on that request's stream, which is the only way to know whom an ask or log line is for (protocol.md §5.3)."""


class SessionHooks(Protocol):
    """What a session tells its owner. Awaited per message, never on the read loop."""

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Answer a server's request (`sampling/createMessage`, …) made during `ctx`'s call; may raise `GatewayError`."""
        ...

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """A notification, with the call it belongs to where that is known."""
        ...


@dataclass(frozen=True, slots=True)
class Negotiated:
    """What both sides agreed on."""

    era: Era
    protocol_version: str
    capabilities: JsonMapping
    instructions: str | None = None
    server_info: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))

    @property
    def has_tasks(self) -> bool:
        """Whether the server has the modern tasks extension."""
        return self.era == "modern" and TASKS_EXTENSION in (self.capabilities.get("extensions") or ())

    @property
    def skills(self) -> JsonMapping | None:
        """The server's settings of the skills extension; `None` without it."""
        extensions = self.capabilities.get("extensions")
        found = cast("JsonMapping", extensions).get(SKILLS_EXTENSION) if self.era == "modern" and isinstance(extensions, dict) else None
        return cast("JsonMapping", found) if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Per-request facts that are not parameters."""

    ctx: CallContext | None = None
    """Whose call this is; gets progress, logs and asks."""
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Client capabilities to declare for this request (modern era only)."""
    log_level: LogLevel | None = None
    """Opt-in to log messages for this request (modern era only)."""
    headers: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Extra HTTP headers, e.g. `Mcp-Param-*`."""


PLAIN = Envelope()


def with_extension(envelope: Envelope, extension: str) -> Envelope:
    """The envelope of a request that declares one more client extension."""
    extensions: JsonObject = {**(envelope.capabilities.get("extensions") or {}), extension: {}}
    return dataclasses.replace(envelope, capabilities={**envelope.capabilities, "extensions": extensions})


class Session:
    """One live connection. Made by `open_session`; `closed` is set when it can serve no more."""

    def __init__(self, server: str, dispatcher: JSONRPCDispatcher[TransportContext], hooks: SessionHooks, client: JsonObject) -> None:
        self.server = server
        self.closed = anyio.Event()
        self.negotiated = Negotiated("modern", LATEST_MODERN_VERSION, {})
        self._dispatcher = dispatcher
        self._hooks = hooks
        self._client = client
        self._running: dict[int, CallContext] = {}
        self._listens = 0
        self._level: LogLevel | None = None
        self.listed_tools: Mapping[str, str] | None = None
        """Digests of the tools as last listed on this session (`note_tools`); `None` once they may be others."""
        self.tool_changes = 0
        """How often the tools became others, or may have."""
        self.exchange: Exchange | PipeExchange | None = None
        """The short cut for plain calls, on a connection that has one; closed with the session."""
        self._is_plain = True

    def note_tools(self, digests: Mapping[str, str], *, as_of: int) -> None:
        """Keep what a listing said that began at `tool_changes` `as_of`; a change in between makes it worthless."""
        self.listed_tools = digests if as_of == self.tool_changes else None

    def forget_tools(self) -> None:
        """The server says that its tools changed, or may have been started anew unseen."""
        self.tool_changes += 1
        self.listed_tools = None

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks the stateless era."""
        return self.negotiated.era == "modern"

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """Send one request and return its result unmodelled. Cancelling it cancels the request at the server.

        Raises:
            UpstreamUnavailable: Nothing was delivered.
            UpstreamLost: The connection broke while it ran.
            UpstreamRefused: A JSON-RPC error came back.
        """
        wire, options = self._stamp(method, params, envelope)
        ctx = envelope.ctx
        if ctx is None:
            return await self._send(method, wire, options)
        exchange = self.exchange if method == "tools/call" and not ctx.wants_progress else None
        if exchange is not None and self._is_plain and (ctx.late_clock is not None or not is_traced()):
            result = await self._exchange(exchange, method, wire, options, ctx)
            if result is not None:
                return result
        await own_task()
        if ctx.wants_progress:
            options["on_progress"] = ctx.progress
        key = id(options)
        self._running[key] = ctx
        token = _calling.set(ctx)
        try:
            return await self._send(method, wire, options)
        finally:
            _calling.reset(token)
            self._running.pop(key, None)

    async def _exchange(
        self, exchange: Exchange | PipeExchange, method: str, wire: JsonObject, options: CallOptions, ctx: CallContext
    ) -> JsonObject | None:
        """The result by the short cut, or `None` where it does not lead there; then it is not tried again on this connection."""

        async def hear(method: str, params: JsonMapping) -> None:
            await self._take_notice(method, params, ctx)

        if self.closed.is_set():
            raise SessionGone(f"The connection to {self.server!r} has ended.", server=self.server)
        key = id(options)
        if isinstance(exchange, PipeExchange):
            self._running[key] = ctx  # what the server says meanwhile does not name the call it is for
        try:
            result = await exchange.request(method, wire, options.get("headers") or {}, hear)
        except RpcError as error:
            raise self._translate(method, error) from None
        finally:
            self._running.pop(key, None)
        if result is None:
            logger.info("%s: asks for more than plain requests; calls go by the longer way", self.server)
            self._is_plain = False
        return result

    async def want_level(self, level: LogLevel | None) -> None:
        """Have a legacy server send log messages of `level`; its most talkative caller decides, `server.caller` filters."""
        if level is None or self.is_modern or "logging" not in self.negotiated.capabilities:
            return
        if self._level is not None and severity(self._level) <= severity(level):
            return
        self._level = level
        try:
            await self.request("logging/setLevel", {"level": level})
        except UpstreamRefused as error:
            logger.debug("%s: log level not taken: %s", self.server, error)

    async def notify(self, method: str, params: JsonMapping | None = None) -> None:
        """Send a notification (legacy era; the modern one has none)."""
        headers = {MCP_PROTOCOL_VERSION_HEADER: self.negotiated.protocol_version}
        await self._dispatcher.notify(method, params, {"headers": headers})

    async def listen(self, notifications: JsonObject) -> None:
        """Hold one `subscriptions/listen` stream open; returns or raises when it ends. Events go to the hooks."""
        self._listens += 1
        wire, options = self._stamp("subscriptions/listen", {"notifications": notifications}, PLAIN)
        options["request_id"] = f"listen-{self._listens}"
        await self._send("subscriptions/listen", wire, options)

    def _stamp(self, method: str, params: JsonMapping, envelope: Envelope) -> tuple[JsonObject, CallOptions]:
        wire = dict(params)
        agreed = self.negotiated
        headers = {MCP_PROTOCOL_VERSION_HEADER: agreed.protocol_version, **envelope.headers}
        meta = dict(envelope.meta)
        if agreed.era == "modern":
            meta[PROTOCOL_VERSION_META_KEY] = agreed.protocol_version
            meta[CLIENT_INFO_META_KEY] = self._client
            meta[CLIENT_CAPABILITIES_META_KEY] = envelope.capabilities
            if envelope.log_level is not None:
                meta[LOG_LEVEL_META_KEY] = envelope.log_level
            headers[MCP_METHOD_HEADER] = method
            name_key = "taskId" if method.startswith("tasks/") else NAME_BEARING_METHODS.get(method)
            if name_key is not None and isinstance(name := wire.get(name_key), str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
        if meta:
            wire["_meta"] = meta
        return wire, {"headers": headers}

    async def _send(self, method: str, wire: JsonObject, options: CallOptions) -> JsonObject:
        if self.closed.is_set():
            raise SessionGone(f"The connection to {self.server!r} has ended.", server=self.server)
        try:
            if OBSERVABILITY_SETTINGS.enable_instrumentation:
                return await measured(
                    CLIENT_DURATION,
                    method,
                    wire,
                    lambda: self._raw(method, wire, options),
                    protocol_version=self.negotiated.protocol_version,
                    code_of=lambda error: error.code if isinstance(error, RpcError) else None,
                )
            return await self._raw(method, wire, options)
        except RpcError as error:
            raise self._translate(method, error) from None

    async def _raw(self, method: str, wire: JsonObject, options: CallOptions) -> JsonObject:
        try:
            return await self._dispatcher.send_raw_request(method, wire, options)
        except MCPError as error:
            raise RpcError(error.code, error.message, error.data) from None

    def _translate(self, method: str, error: RpcError) -> UpstreamError:
        code, text = error.code, error.message
        if code == NOT_SENT:
            return UpstreamUnavailable(text, server=self.server)
        if code == CONNECTION_CLOSED and text == "Connection closed":
            self.closed.set()
            code = LOST
        if code == LOST or (code == CONNECTION_CLOSED and text.startswith("SSE stream ")):
            return UpstreamLost(f"The connection to {self.server!r} broke during {method!r}; the call may have run.", server=self.server)
        spelled = (code, text.partition(":")[0])
        if (spelled in _NO_ANSWERS and method != "server/discover") or (spelled == _NOT_FOUND and method in _NEVER_MISSING):
            return UpstreamLost(f"Server {self.server!r} answered {method!r} with what is no MCP; it may have run.", server=self.server)
        if code == TOO_LARGE:
            return UpstreamError(f"Server {self.server!r}: {text}.", server=self.server)
        if code == UNAUTHORIZED:
            return AuthNeeded(text, server=self.server)
        if code == FORBIDDEN:
            return UpstreamError(text, server=self.server)
        if code == SESSION_GONE:
            self.closed.set()
            return SessionGone(f"Server {self.server!r} no longer knows our session.", server=self.server)
        if code == BUSY:
            data = error.data
            return UpstreamBusy(text, server=self.server, retry_after_seconds=data if isinstance(data, float) else DEFAULT_RETRY_SECONDS)
        return UpstreamRefused(strip_text(text), server=self.server, code=code, data=strip_value(error.data))

    async def negotiate(self, era: str, capabilities: JsonMapping) -> None:
        """Find out the era (`auto`) or take the pinned one, then agree; `capabilities` are declared to a legacy server.

        Raises:
            UpstreamError: It is no MCP server we can speak to; the text says why.
        """
        if era != "legacy":
            discovered = await self._discover(required=era == "modern")
            if discovered is not None:
                self.negotiated = discovered
                return
        self.negotiated = await self._initialize(capabilities)

    async def _discover(self, *, required: bool) -> Negotiated | None:
        try:
            with anyio.fail_after(PROBE_TIMEOUT_SECONDS):
                result = await self.request("server/discover", {})
        except UpstreamRefused as error:
            data: JsonValue = error.data
            supported = cast("JsonMapping", data).get("supported") if isinstance(data, dict) else None
            if required or (error.code == UNSUPPORTED_PROTOCOL_VERSION and not _shares(supported, HANDSHAKE_PROTOCOL_VERSIONS)):
                raise
            return None
        except TimeoutError:
            if required:
                raise UpstreamTimeout(f"No answer to server/discover within {PROBE_TIMEOUT_SECONDS:g} s.", server=self.server) from None
            return None
        shared = _shares(result.get("supportedVersions"), MODERN_PROTOCOL_VERSIONS)
        if not shared:
            return None
        meta = cast("JsonMapping", result.get("_meta") or {})
        return Negotiated(
            "modern",
            shared[-1],
            cast("JsonMapping", result.get("capabilities") or {}),
            _text(result.get("instructions")),
            cast("JsonMapping", meta.get("io.modelcontextprotocol/serverInfo") or {}),
        )

    async def _initialize(self, capabilities: JsonMapping) -> Negotiated:
        self.negotiated = Negotiated("legacy", LATEST_HANDSHAKE_VERSION, {})
        params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": capabilities, "clientInfo": self._client}
        options: CallOptions = {"cancel_on_abandon": False}
        result = await self._send("initialize", params, options)
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise UpstreamError(f"Server {self.server!r} answered with protocol version {version!r}, which is unknown.", server=self.server)
        agreed = Negotiated(
            "legacy",
            str(version),
            cast("JsonMapping", result.get("capabilities") or {}),
            _text(result.get("instructions")),
            cast("JsonMapping", result.get("serverInfo") or {}),
        )
        self.negotiated = agreed
        await self.notify("notifications/initialized")
        return agreed

    async def _on_request(self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> JsonObject:
        try:
            return await self._answer(method, params or {})
        except RpcError as error:
            raise MCPError(error.code, error.message, error.data) from None

    async def _answer(self, method: str, params: JsonMapping) -> JsonObject:
        if method == "ping":
            return {}
        if method not in ("sampling/createMessage", "elicitation/create", "roots/list"):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        ctx = _calling.get() or self._only_caller()
        try:
            return await self._hooks.answer({"method": method, "params": dict(params)}, ctx)
        except ModelError as error:
            raise RpcError(INTERNAL_ERROR, str(error)) from None
        except AskUnavailable as error:
            # Servers hand an error they do not expect on to their caller: so ours learns what it would have to declare.
            data = {"requiredCapabilities": nested_capability(error.capability)} if error.capability else None
            raise RpcError(MISSING_REQUIRED_CLIENT_CAPABILITY if data else INVALID_REQUEST, str(error), data) from None
        except GatewayError as error:
            raise RpcError(INVALID_REQUEST, str(error)) from None

    async def _on_notify(self, dctx: DispatchContext[TransportContext], method: str, params: Mapping[str, Any] | None) -> None:
        await self._take_notice(method, params or {}, _calling.get() or self._only_caller())

    async def _take_notice(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        if method in ("notifications/progress", "notifications/cancelled"):
            return
        if method == "notifications/tools/list_changed":
            self.forget_tools()
        await self._hooks.notified(method, params, ctx)

    def _only_caller(self) -> CallContext | None:
        """The call a message belongs to when only one downstream session has calls running, else `None`."""
        calls = list(self._running.values())
        if len(calls) <= 1:
            return calls[0] if calls else None
        owners = {c.client.session_id for c in calls}
        return calls[-1] if len(owners) == 1 and None not in owners else None

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Run the read loop until the connection ends; `open_session` starts it."""
        try:
            await self._dispatcher.run(self._on_request, self._on_notify, task_status=task_status)
        finally:
            self.closed.set()
            if self.exchange is not None:
                self.exchange.close()


def _shares(versions: JsonValue, known: tuple[str, ...] | list[str]) -> list[str]:
    offered = cast("list[JsonValue]", versions) if isinstance(versions, list) else []
    return [v for v in known if v in offered]


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value else None


@asynccontextmanager
async def open_session(
    server: str, streams: tuple[Any, Any], hooks: SessionHooks, *, client: JsonObject
) -> AsyncGenerator[Session, None]:
    """Run a session over a transport's stream pair; `negotiate` is the caller's next step.

    Leaving cancels what is in flight. `client` is the `clientInfo` we present.
    """
    read, write = streams

    async def note(error: Exception) -> None:
        logger.debug("%s: transport said %s", server, type(error).__name__)

    dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
        cast("contextlib.AbstractAsyncContextManager[SessionMessage]", read),  # pyright: ignore[reportArgumentType]  # a private Protocol of the SDK
        write,
        on_stream_exception=note,
    )
    session = Session(server, dispatcher, hooks, client)
    session.exchange = write.exchange if isinstance(write, PipeWriter) else None
    async with anyio.create_task_group() as tasks:
        await tasks.start(session.serve)
        try:
            yield session
        finally:
            tasks.cancel_scope.cancel()
