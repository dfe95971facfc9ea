"""`Session`: one negotiated MCP connection to a remote server, speaking decoded JSON.

What the link's short way can carry goes by it, everything else through the SDK's dispatcher (`dispatching`), which is loaded and
opened when the first such request comes. Policy, retries and lists are not here:
`connection` and `source` own those.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import anyio
import anyio.abc

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
from gateway.sdk import load
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, is_traced
from gateway.tools.context import CallContext, LogLevel, nested_capability, severity
from gateway.tools.waits import own_task
from gateway.upstream.hop import received_data
from gateway.upstream.link import Link
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.param_headers import encode_header_value
from gateway.upstream.pipe import PipeExchange
from gateway.upstream.progress import ProgressRelay
from gateway.upstream.standins import (
    BUSY,
    DEFAULT_RETRY_SECONDS,
    FORBIDDEN,
    LOST,
    NOT_MCP,
    NOT_SENT,
    SESSION_GONE,
    TOO_LARGE,
    UNAUTHORIZED,
    no_endpoint,
)
from gateway.upstream.tracing import request_in_span
from gateway.upstream.turns import SETTLE_SECONDS

if TYPE_CHECKING:
    from gateway.upstream.dispatching import Dispatcher
    from gateway.upstream.exchange import Headers

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0
"""Head start of a call's cancellation over the refusal of its unanswered question, after which a server might go on."""

MAX_ASKED = 1_000
"""Requests of one server that are being answered; further ones are refused."""

MAX_UNHEARD = 1_000
"""Notifications of one server that wait for slow callers; further log messages are dropped."""

PROBE_TIMEOUT_SECONDS = 10.0
"""How long `server/discover` may take before the server is taken for a legacy one."""

MAX_KNOWN_HEADERS = 1024
"""Headers of requests remembered: of calls of each tool, and of what was lately read."""

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

_NEVER_MISSING = frozenset({"initialize", "tools/list", "tools/call", "resources/read", "prompts/get", "subscriptions/listen"})


class SessionHooks(Protocol):
    """What a session tells its owner. Awaited per message, never on the read loop."""

    async def answer(self, request: JsonObject, ctx: CallContext | None) -> JsonObject:
        """Answer a server's request (`sampling/createMessage`, …) made during `ctx`'s call; may raise `GatewayError`."""
        ...

    async def notified(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """A notification, with the call it belongs to where that is known."""
        ...


@dataclass(slots=True)  # not frozen, which would make it three times dearer: there is one for every call
class Envelope:
    """Per-request facts that are not parameters; not changed once it is made."""

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
    """One live connection (a `Taker` to its link). Made by `open_session`; `closed` is set when it can serve no more."""

    def __init__(self, server: str, link: Link, hooks: SessionHooks, client: JsonObject, tasks: anyio.abc.TaskGroup) -> None:
        """`tasks` ends with the connection."""
        self.server = server
        self._tasks = tasks
        self.closed = anyio.Event()
        self.negotiated = Negotiated("modern", LATEST_MODERN_VERSION, {})
        self._link = link
        self._hooks = hooks
        self._client = client
        self._running: dict[int, CallContext] = {}
        """Calls to which the server may say something without naming them."""
        self._questions: dict[anyio.CancelScope, set[int]] = {}
        """Requests of the server that wait for an answer, with the keys of the calls that each may belong to."""
        self._withdrawn: set[anyio.CancelScope] = set()
        """Open requests of the server, to be refused, because their calls have ended."""
        self._asked = self._unheard = 0
        """Requests being answered, notifications being passed on."""
        self._listens = 0
        self._level: LogLevel | None = None
        self.listed_tools: Mapping[str, str] | None = None
        """Digests of the tools as last listed on this session (`note_tools`); `None` once they may be others."""
        self.tool_changes = 0
        """How often the tools became others, or may have."""
        self.exchange = link.exchange
        """The short way, on a connection that has one; closed with the session."""
        self._is_plain = True
        self._is_probing = False
        self._dispatcher: Dispatcher | None = None
        """The long way, once it was wanted."""
        self._last_meta: tuple[Negotiated, JsonMapping, JsonMapping, LogLevel | None, JsonObject] | None = None
        """`_meta` as it was last sent, after what it was made of. Its identity tells the exchange that it knows its JSON."""
        self._known_headers: dict[tuple[str, str, str | None], Headers] = {}
        """What requests say beside their bodies, by protocol version, method and the name they bear."""
        self._wanted = anyio.Event()
        self._widened = anyio.Event()

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
        meta, ctx = self._meta(envelope), envelope.ctx
        result = await self._exchange(method, params, meta, envelope)
        if result is not None:
            return result
        await own_task()
        key = id(envelope)
        if ctx is not None:
            self._running[key] = ctx
        try:
            return await self._dispatch(method, _with_meta(params, meta), dict(self._headers(method, params, envelope)), ctx)
        finally:
            self._forget(key, method)

    def _forget(self, key: int, method: str) -> None:
        """A call ended, and with it the questions that belong to no other. A poll of a task ends none: they are the task's."""
        self._running.pop(key, None)
        for scope, calls in list(self._questions.items()) if self._questions else ():
            calls.discard(key)
            if not calls and method != "tasks/get":
                scope.cancel()
                self._withdrawn.add(scope)
                del self._questions[scope]

    def lingers(self) -> float:
        """Return the seconds until open questions of ended calls are refused and the server has reacted; 0 if no question is open."""
        return CANCEL_SECONDS + SETTLE_SECONDS if self._withdrawn else 0

    async def _exchange(self, method: str, params: JsonMapping, meta: JsonObject | None, envelope: Envelope) -> JsonObject | None:
        """The result by the short way, or `None` where it does not lead there; then it is not tried again on this connection."""
        exchange, ctx = self.exchange, envelope.ctx
        is_modern = self.negotiated.era == "modern"
        if exchange is None or not self._is_plain or not (is_modern or exchange.speaks_both_eras):
            return None
        is_piped = isinstance(exchange, PipeExchange)
        if ctx is not None and ctx.wants_progress and not is_piped and not is_modern:
            return None  # a 2025 server may tell it on the stream that the SDK hears
        if (ctx is None or ctx.late_clock is None) and is_traced():
            return None
        if self.closed.is_set():
            raise self._gone()
        progress = ProgressRelay(self.server, ctx, self._tasks) if ctx is not None and ctx.wants_progress else None
        key = 0
        if ctx is not None and (is_piped or not is_modern):
            key = id(envelope)
            self._running[key] = ctx  # what the server says meanwhile may not name the call it is for
        try:
            if is_piped:
                result = await exchange.request(method, params, progress, meta)
            else:
                headers = self._headers(method, params, envelope)
                result = await exchange.request(method, params, headers, self.hear, progress, meta, ctx)
        except RpcError as error:
            await own_task()
            raise self._translate(method, error) from None
        finally:
            if key:
                self._forget(key, method)
            if progress is not None:
                await progress.finish()
        if result is None:
            logger.info("%s: asks for more than plain requests; they go by the longer way", self.server)
            self._is_plain = False
        elif result.get("resultType", "complete") != "complete":
            await own_task()  # what comes of a question or a task, as of an error, may take more than a plain result does
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
        if isinstance(self.exchange, PipeExchange):
            await self.exchange.notify(method, params)
        elif self._dispatcher is not None:
            headers = {MCP_PROTOCOL_VERSION_HEADER: self.negotiated.protocol_version}
            await self._dispatcher.notify(method, params, headers)

    async def listen(self, notifications: JsonObject) -> None:
        """Hold one `subscriptions/listen` stream open; returns or raises when it ends. Events go to the hooks."""
        method = "subscriptions/listen"
        self._listens += 1
        params: JsonObject = {"notifications": notifications}
        meta = self._meta(PLAIN)
        if await self._exchange(method, params, meta, PLAIN) is None:
            headers = dict(self._headers(method, params, PLAIN))
            await self._dispatch(method, _with_meta(params, meta), headers, None, f"listen-{self._listens}")

    def _meta(self, envelope: Envelope) -> JsonObject | None:
        """`_meta` of a request, not to be changed; `None` where it has none."""
        agreed, given, capabilities, level = self.negotiated, envelope.meta, envelope.capabilities, envelope.log_level
        if agreed.era != "modern":
            return dict(given) if given else None
        last = self._last_meta
        if last is not None and last[0] is agreed and last[1] is given and last[2] is capabilities and last[3] == level:
            return last[4]
        meta = dict(given)
        meta[PROTOCOL_VERSION_META_KEY] = agreed.protocol_version
        meta[CLIENT_INFO_META_KEY] = self._client
        meta[CLIENT_CAPABILITIES_META_KEY] = capabilities
        if level is not None:
            meta[LOG_LEVEL_META_KEY] = level
        self._last_meta = agreed, given, capabilities, level, meta
        return meta

    def _headers(self, method: str, params: JsonMapping, envelope: Envelope) -> Headers:
        """What a request over HTTP says beside its body."""
        agreed, more = self.negotiated, envelope.headers
        name_key = NAME_BEARING_METHODS.get(method) or ("taskId" if method.startswith("tasks/") else None)
        name: JsonValue = params.get(name_key) if name_key is not None else None
        key = agreed.protocol_version, method, name if isinstance(name, str) else None
        known = None if more else self._known_headers.get(key)
        if known is not None:
            return known
        headers = {MCP_PROTOCOL_VERSION_HEADER: agreed.protocol_version, **more}
        if agreed.era == "modern":
            headers[MCP_METHOD_HEADER] = method
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
        made = tuple(headers.items())
        if not more:
            if len(self._known_headers) >= MAX_KNOWN_HEADERS:
                self._known_headers.clear()
            self._known_headers[key] = made
        return made

    async def _dispatch(
        self, method: str, wire: JsonObject, headers: Mapping[str, str], ctx: CallContext | None, name: str | None = None
    ) -> JsonObject:
        """The result by the SDK path, within a span if instrumentation is on."""
        if not OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await self._deliver(method, wire, headers, ctx, name)
        return await request_in_span(
            method,
            wire,
            lambda traced: self._deliver(method, traced, headers, ctx, name),
            protocol_version=self.negotiated.protocol_version,
            is_pipe=isinstance(self.exchange, PipeExchange),
            is_probing=self._is_probing,
        )

    async def _deliver(
        self, method: str, wire: JsonObject, headers: Mapping[str, str], ctx: CallContext | None, name: str | None
    ) -> JsonObject:
        if self.closed.is_set():
            raise self._gone()
        dispatcher = self._dispatcher or await self._widen()
        try:
            return await dispatcher.request(method, wire, headers, ctx, name)
        except RpcError as error:
            raise self._translate(method, error) from None

    async def _widen(self) -> Dispatcher:
        """Have the long way opened, by the task that owns the session."""
        self._wanted.set()
        await self._widened.wait()
        if self._dispatcher is None:
            raise self._gone()
        return self._dispatcher

    def _gone(self) -> SessionGone:
        return SessionGone(f"The connection to {self.server!r} has ended.", server=self.server)

    def _translate(self, method: str, error: RpcError) -> UpstreamError:
        code, text = error.code, error.message
        if code in (NOT_SENT, NOT_MCP):
            return UpstreamUnavailable(text, server=self.server)
        if code == CONNECTION_CLOSED and text == "Connection closed":
            self.closed.set()
            code = LOST
        if code == LOST or (code == CONNECTION_CLOSED and text.startswith("SSE stream ")):
            return UpstreamLost(f"The connection to {self.server!r} broke during {method!r}; the call may have run.", server=self.server)
        spelled = (code, text.partition(":")[0])
        if (spelled in _NO_ANSWERS and method != "server/discover") or (spelled == _NOT_FOUND and method in _NEVER_MISSING):
            if method == "initialize":
                text = "it answered 'initialize' with something that is not MCP; check its URL"
                return UpstreamUnavailable(no_endpoint(404) if spelled == _NOT_FOUND else text, server=self.server)
            text = f"Server {self.server!r} answered {method!r} with something that is not MCP; the call may have run."
            return UpstreamLost(text, server=self.server)
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
        text = strip_text(text)
        if method == "initialize":
            text = f"it refused 'initialize': {text}"
        return UpstreamRefused(text, server=self.server, code=code, data=received_data(strip_value(error.data)))

    async def negotiate(self, era: str, capabilities: JsonMapping) -> None:
        """Find out the era (`auto`) or take the pinned one, then agree; `capabilities` are declared to a legacy server.

        Raises:
            UpstreamError: It is no MCP server we can speak to; the text says why.
        """
        if era == "legacy":
            self.negotiated = await self._initialize(capabilities)
            return
        modern, started = self.negotiated, anyio.current_time()
        self._is_probing = era != "modern"  # a refusal, or silence, then says 2025
        agreed = await self._discover(required=era == "modern")
        self._is_probing = False
        was_silent = anyio.current_time() - started >= PROBE_TIMEOUT_SECONDS
        if agreed is None:
            try:
                agreed = await self._initialize(capabilities)
            except UpstreamRefused:
                # A 2026 server that takes longer to start reads the probe first, and then refuses a handshake.
                self.negotiated = modern
                if not was_silent or (agreed := await self._discover(required=True)) is None:
                    raise
        self.negotiated = agreed

    async def _discover(self, *, required: bool) -> Negotiated | None:
        try:
            with anyio.fail_after(PROBE_TIMEOUT_SECONDS):
                result = await self._probe()
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
        return Negotiated.from_result("modern", shared[-1], result, meta.get("io.modelcontextprotocol/serverInfo"))

    async def _probe(self) -> JsonObject:
        try:
            return await self.request("server/discover", {})
        except UpstreamLost:
            if self.exchange is None or isinstance(self.exchange, PipeExchange):
                raise
            self._is_plain = False  # the SDK's client reads answers that the exchange does not
            return await self.request("server/discover", {})

    async def _initialize(self, capabilities: JsonMapping) -> Negotiated:
        self.negotiated = Negotiated("legacy", LATEST_HANDSHAKE_VERSION, {})
        params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": capabilities, "clientInfo": self._client}
        result = await self._exchange("initialize", params, None, PLAIN) or await self._dispatch("initialize", params, {}, None)
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise UpstreamError(f"Server {self.server!r} answered with protocol version {version!r}, which is unknown.", server=self.server)
        self.negotiated = agreed = Negotiated.from_result("legacy", str(version), result, result.get("serverInfo"))
        await self.notify("notifications/initialized")
        return agreed

    async def answer(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """As `Taker`."""
        if method == "ping":
            return {}
        if method not in ("sampling/createMessage", "elicitation/create", "roots/list"):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        if self._asked >= MAX_ASKED:
            raise RpcError(INTERNAL_ERROR, f"{MAX_ASKED} requests wait for their answers already; wait for some of them.")
        scope, calls = anyio.CancelScope(), {key for key, call in self._running.items() if ctx is None or call is ctx}
        if calls:
            self._questions[scope] = calls
        self._asked += 1
        try:
            with scope:
                return await self._ask(method, params, ctx or self._only_caller())
            await anyio.sleep(CANCEL_SECONDS)
        finally:
            self._asked -= 1
            self._questions.pop(scope, None)
            self._withdrawn.discard(scope)
        raise RpcError(INVALID_REQUEST, "The call that this request belongs to has ended.")

    async def _ask(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Have the owner answer a request of the server."""
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
        except Exception:  # as the SDK's dispatcher: a mistake of ours costs this one answer
            logger.exception("%s: %s could not be answered", self.server, method)
            raise RpcError(INTERNAL_ERROR, "Internal server error") from None

    async def hear(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """As `Taker`."""
        if method in ("notifications/progress", "notifications/cancelled"):
            return
        if method == "notifications/tools/list_changed":
            self.forget_tools()
        if self._unheard >= MAX_UNHEARD and method == "notifications/message":
            logger.debug("%s: a log message was dropped, as those before it are not taken", self.server)
            return
        self._unheard += 1
        try:
            await self._hooks.notified(method, params, ctx or self._only_caller())
        except Exception:  # as the SDK's dispatcher: what a caller does with it is no affair of the server's connection
            logger.exception("%s: %s could not be taken", self.server, method)
        finally:
            self._unheard -= 1

    def _only_caller(self) -> CallContext | None:
        """The call a message belongs to when only one downstream session has calls running, else `None`."""
        calls = list(self._running.values())
        if len(calls) <= 1:
            return calls[0] if calls else None
        owners = {c.client.session_id for c in calls}
        return calls[-1] if len(owners) == 1 and None not in owners else None

    async def serve(self) -> None:
        """Take what the server says by itself, until the connection ends; `open_session` starts it."""
        try:
            await self._link.serve(self)
        finally:
            self._end()

    async def serve_widened(self) -> None:
        """The same for the long way, from when it is wanted."""
        await self._wanted.wait()
        await load("gateway.upstream.dispatching")
        from gateway.upstream.dispatching import Dispatcher

        try:
            async with self._link.widen() as streams:
                dispatcher = Dispatcher(self.server, streams, self)
                async with anyio.create_task_group() as tasks:
                    await tasks.start(dispatcher.run)
                    self._dispatcher = dispatcher
                    self._widened.set()
        finally:
            self._end()

    def _end(self) -> None:
        self.closed.set()
        self._widened.set()
        if self.exchange is not None:
            self.exchange.close()


def _with_meta(params: JsonMapping, meta: JsonObject | None) -> JsonObject:
    return {**params, "_meta": meta} if meta else dict(params)


def _shares(versions: JsonValue, known: tuple[str, ...] | list[str]) -> list[str]:
    offered = cast("list[JsonValue]", versions) if isinstance(versions, list) else []
    return [v for v in known if v in offered]


@asynccontextmanager
async def open_session(server: str, link: Link, hooks: SessionHooks, *, client: JsonObject) -> AsyncGenerator[Session, None]:
    """Run a session over an open link; `negotiate` is the caller's next step.

    Leaving cancels what is in flight. `client` is the `clientInfo` we present.
    """
    async with anyio.create_task_group() as tasks:
        session = Session(server, link, hooks, client, tasks)
        tasks.start_soon(session.serve)
        tasks.start_soon(session.serve_widened)
        try:
            yield session
        finally:
            tasks.cancel_scope.cancel()
