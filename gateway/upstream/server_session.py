"""`Session`: one MCP session with a remote server: handshake, requests, notifications, headers and `_meta`.

It works on decoded JSON; a carrier (`carriers`) sends and receives the messages. `connection` opens and supervises sessions, and `delivery`
chooses one for each call.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.abc

from gateway.errors import Malformed, NotSent, Rejected, RequestFailure, SessionGone, UpstreamError, UpstreamTimeout
from gateway.json_types import JsonMapping, JsonObject, JsonValue, items_of, members_of
from gateway.protocol import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    LOG_LEVEL_META_KEY,
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    MODERN_PROTOCOL_VERSIONS,
    NAME_BEARING_METHODS,
    PROTOCOL_VERSION_META_KEY,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel, severity
from gateway.upstream.carriers.carrier import Carrier, Headers, OutgoingRequest, describe
from gateway.upstream.carriers.pipe_carrier import PipeCarrier
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.param_headers import encode_header_value
from gateway.upstream.progress_relay import ProgressRelay
from gateway.upstream.server_messages import ServerMessages, SessionHooks
from gateway.upstream.tracing import request_in_span

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_SECONDS = 10.0
"""Timeout of `server/discover`. A server that does not answer in time is treated as an MCP 2025 server, unless policy sets its era."""

MAX_CACHED_HEADERS = 1024
"""Maximum number of entries in a session's cache of MCP headers for HTTP requests (`MCP-Protocol-Version`, `Mcp-Method`, `Mcp-Name`).

An entry has all these headers of one request. `Mcp-Name` is the name of the called tool or the URI of the read resource, so each tool and
each resource needs its own entry. A full cache is emptied.
"""


@dataclass(slots=True)  # not frozen: that would triple the cost of creating one, and every call creates one
class Envelope:
    """The data of one request to a server, except the method and the parameters. An envelope is not changed after its creation."""

    ctx: CallContext | None = None
    """The call for which the request is sent; `None` outside calls.

    The caller of `ctx` gets the progress reports, log messages and requests for input of the request.
    """
    meta: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    capabilities: JsonMapping = field(default_factory=lambda: cast("JsonObject", {}))
    """Client capabilities that the request declares (only in MCP 2026)."""
    log_level: LogLevel | None = None
    """Least severe level of the log messages that the server may send during the request (only in MCP 2026); `None` for no messages."""
    headers: Mapping[str, str] = field(default_factory=lambda: cast("dict[str, str]", {}))
    """Additional HTTP headers, such as `Mcp-Param-*`."""


PLAIN = Envelope()


def with_extension(envelope: Envelope, extension: str) -> Envelope:
    """Return a copy of `envelope` whose request declares `extension` as an additional client extension."""
    extensions: JsonObject = {**(envelope.capabilities.get("extensions") or {}), extension: {}}
    return dataclasses.replace(envelope, capabilities={**envelope.capabilities, "extensions": extensions})


class Session:
    """One live session with a server, created by `open_session`. The event `closed` is set when the session accepts no further requests."""

    def __init__(self, server: str, carrier: Carrier, hooks: SessionHooks, client: JsonObject, tasks: anyio.abc.TaskGroup) -> None:
        """`client` is the `clientInfo` that the server receives. The task group `tasks` ends with the connection."""
        self.server = server
        self.closed = anyio.Event()
        self._client = client
        self.carrier = carrier
        self._is_probing = False
        """Whether `negotiate` is testing if the server supports MCP 2026, so that a rejection or a timeout is not a failure."""
        self.negotiated = Negotiated("modern", LATEST_MODERN_VERSION, {})
        self.listed_tools: Mapping[str, str] | None = None
        """Digests of the tools as last listed on this session, by tool name; `None` if not listed yet or possibly changed since."""
        self.tool_changes = 0
        """Number of times that the server's tools changed, or may have changed, during this session."""
        self._tasks = tasks
        self.messages = ServerMessages(server, hooks)
        self._level: LogLevel | None = None
        self._last_meta: tuple[Negotiated, JsonMapping, JsonMapping, LogLevel | None, JsonObject] | None = None
        """The values from which the last request's `_meta` was made, and this `_meta`.

        If the values are the same, the next request gets the same object, whose JSON the carrier (which sends requests) then reuses."""
        self._headers_cache: dict[tuple[str, str, str | None], Headers] = {}
        """HTTP headers of earlier requests: (protocol version, method, name or URI) → headers."""

    def note_tools(self, digests: Mapping[str, str], *, as_of: int) -> None:
        """Store the digests of the tools in a listing, unless the tools changed while they were listed.

        `as_of` is the value of `tool_changes` when the listing began.
        """
        self.listed_tools = digests if as_of == self.tool_changes else None

    def forget_tools(self) -> None:
        """Drop the stored digests of the tools, because the server announced a change of its tools or may have been restarted."""
        self.tool_changes += 1
        self.listed_tools = None

    @property
    def is_modern(self) -> bool:
        """Whether the session uses the stateless protocol of MCP 2026."""
        return self.negotiated.era == "modern"

    async def request(self, method: str, params: JsonMapping, envelope: Envelope = PLAIN) -> JsonObject:
        """Send one request, and return the result as the server sent it.

        Cancelling this method cancels the request at the server, except `initialize`.

        Raises:
            RequestFailure: The request failed; the subclass tells whether the server may have acted on it.
            ToolFailed: The parameters cannot be encoded as JSON.
        """
        if self.closed.is_set():
            raise SessionGone(f"The connection to {self.server!r} has ended.", server=self.server)
        meta = self._meta(envelope)
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            return await request_in_span(
                method,
                params,
                meta,
                lambda traced: self._send(method, params, traced, envelope),
                protocol_version=self.negotiated.protocol_version,
                is_pipe=isinstance(self.carrier, PipeCarrier),
                is_probing=self._is_probing,
            )
        return await self._send(method, params, meta, envelope)

    async def _send(self, method: str, params: JsonMapping, meta: JsonMapping | None, envelope: Envelope) -> JsonObject:
        carrier, ctx, is_modern = self.carrier, envelope.ctx, self.negotiated.era == "modern"
        headers = self._headers(method, params, envelope) if carrier.has_headers else ()
        progress = ProgressRelay(self.server, ctx, self._tasks) if ctx is not None and ctx.facts.wants_progress else None
        key = 0
        if ctx is not None and (carrier.is_single_stream or not is_modern):
            key = id(envelope)
            self.messages.begin_call(key, ctx)
        try:
            return await carrier.request(OutgoingRequest(method, params, meta, headers, is_modern, ctx, progress))
        except RequestFailure as failure:
            if isinstance(failure, SessionGone) or not carrier.is_open:
                self.closed.set()
            raise describe(failure, method) from None
        finally:
            if key:
                self.messages.end_call(key, method)
            if progress is not None:
                await progress.finish()

    async def negotiate(self, era: str, capabilities: JsonMapping) -> None:
        """Carry out the handshake with the server, and store the result in `negotiated`.

        `era` selects the protocol: `modern` (2026-07-28), `legacy` (2025-11-25 or older), or `auto` for the newest that the server
        supports. `capabilities` are the client capabilities that an MCP 2025 server gets.

        Raises:
            UpstreamError: The server cannot be reached, does not speak MCP, or has no protocol version in common with the gateway; the
                message says why.
        """
        if era == "legacy":
            self.negotiated = await self._initialize(capabilities)
            return
        modern, started = self.negotiated, anyio.current_time()
        self._is_probing = era != "modern"
        agreed = await self._discover(required=era == "modern")
        self._is_probing = False
        was_silent = anyio.current_time() - started >= PROBE_TIMEOUT_SECONDS
        if agreed is None:
            try:
                agreed = await self._initialize(capabilities)
            except Rejected:
                # An MCP 2026 server that starts slowly reads `server/discover` only now, and then rejects `initialize`: ask it again.
                self.negotiated = modern
                if not was_silent or (agreed := await self._discover(required=True)) is None:
                    raise
        self.negotiated = agreed

    async def _discover(self, *, required: bool) -> Negotiated | None:
        """Send `server/discover`, and return the result of the handshake with an MCP 2026 server, or `None` for an MCP 2025 server.

        If `required`, raise the failure of the request instead of assuming an MCP 2025 server.
        """
        try:
            with anyio.fail_after(PROBE_TIMEOUT_SECONDS):
                result = await self.request("server/discover", {})
        except Rejected as error:
            supported = members_of(error.data).get("supported")
            if required or (error.code == UNSUPPORTED_PROTOCOL_VERSION and not _shared(supported, HANDSHAKE_PROTOCOL_VERSIONS)):
                raise
            return None
        except Malformed:
            if required:
                raise
            return None
        except TimeoutError:
            if required:
                raise UpstreamTimeout(f"No answer to server/discover within {PROBE_TIMEOUT_SECONDS:g} s.", server=self.server) from None
            return None
        shared = _shared(result.get("supportedVersions"), MODERN_PROTOCOL_VERSIONS)
        if not shared:
            return None
        meta = cast("JsonMapping", result.get("_meta") or {})
        return Negotiated.from_result("modern", shared[-1], result, meta.get("io.modelcontextprotocol/serverInfo"))

    async def _initialize(self, capabilities: JsonMapping) -> Negotiated:
        self.negotiated = Negotiated("legacy", LATEST_HANDSHAKE_VERSION, {})
        params = {"protocolVersion": LATEST_HANDSHAKE_VERSION, "capabilities": capabilities, "clientInfo": self._client}
        try:
            result = await self.request("initialize", params)
        except Malformed:
            raise NotSent("it answered 'initialize' with something that is not MCP; check its URL", server=self.server) from None
        except Rejected as error:
            raise Rejected(f"it refused 'initialize': {error}", server=self.server, code=error.code, data=error.data) from None
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            raise UpstreamError(f"Server {self.server!r} answered with protocol version {version!r}, which is unknown.", server=self.server)
        self.negotiated = agreed = Negotiated.from_result("legacy", str(version), result, result.get("serverInfo"))
        await self.notify("notifications/initialized")
        return agreed

    async def want_level(self, level: LogLevel | None) -> None:
        """Request log messages of `level` and above from an MCP 2025 server, unless the session already has this or a more verbose level.

        The level applies to all callers of the session; `server.detached_caller.wants_level` drops messages that a caller does not want.
        """
        if level is None or self.is_modern or "logging" not in self.negotiated.capabilities:
            return
        if self._level is not None and severity(self._level) <= severity(level):
            return
        self._level = level
        try:
            await self.request("logging/setLevel", {"level": level})
        except Rejected as error:
            logger.debug("log level rejected server=%s reason=%s", self.server, error)

    async def notify(self, method: str, params: JsonMapping | None = None) -> None:
        """Send a notification to an MCP 2025 server. Sessions with MCP 2026 servers send no notifications."""
        await self.carrier.notify(method, params, ((MCP_PROTOCOL_VERSION_HEADER, self.negotiated.protocol_version),))

    async def listen(self, notifications: JsonObject) -> None:
        """Hold one `subscriptions/listen` stream open, and return or raise when it ends. `SessionHooks.notified` gets its notifications."""
        await self.request("subscriptions/listen", {"notifications": notifications})

    def _meta(self, envelope: Envelope) -> JsonObject | None:
        """Return the `_meta` of a request, or `None` if the request has no `_meta`. The object must not be changed."""
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
        """Return the MCP headers of a request over HTTP, which are sent besides the configured headers. They are cached per name or URI."""
        agreed, more = self.negotiated, envelope.headers
        name_key = NAME_BEARING_METHODS.get(method) or ("taskId" if method.startswith("tasks/") else None)
        name: JsonValue = params.get(name_key) if name_key is not None else None
        key = agreed.protocol_version, method, name if isinstance(name, str) else None
        cached = None if more else self._headers_cache.get(key)
        if cached is not None:
            return cached
        headers = {MCP_PROTOCOL_VERSION_HEADER: agreed.protocol_version, **more}
        if agreed.era == "modern":
            headers[MCP_METHOD_HEADER] = method
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
        made = tuple(headers.items())
        if not more:
            if len(self._headers_cache) >= MAX_CACHED_HEADERS:
                self._headers_cache.clear()
            self._headers_cache[key] = made
        return made

    async def answer_request(self, method: str, params: JsonMapping, ctx: CallContext | None) -> JsonObject:
        """Return the result of a request that the server sent (interface `Receiver` of carriers). Raises `RpcError`."""
        return await self.messages.answer_request(method, params, ctx)

    async def receive_notification(self, method: str, params: JsonMapping, ctx: CallContext | None) -> None:
        """Process a notification of the server (interface `Receiver` of carriers). If it announces changed tools, drop their digests."""
        if method == "notifications/tools/list_changed":
            self.forget_tools()
        await self.messages.receive_notification(method, params, ctx)

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Process the requests and notifications of the server until the connection ends. `open_session` starts this as a task."""
        try:
            await self.carrier.serve(self, task_status=task_status)
        finally:
            self.closed.set()
            self.carrier.close()


def _shared(versions: JsonValue, known: tuple[str, ...]) -> list[str]:
    offered = items_of(versions)
    return [version for version in known if version in offered]


@asynccontextmanager
async def open_session(server: str, carrier: Carrier, hooks: SessionHooks, *, client: JsonObject) -> AsyncGenerator[Session, None]:
    """Run a session with `server`, and yield it before its handshake. Leaving ends the session and fails its pending requests.

    The caller calls `negotiate` next. `carrier` sends and receives the messages; it must be open. `client` is the `clientInfo` that the
    server receives.
    """
    async with anyio.create_task_group() as tasks:
        session = Session(server, carrier, hooks, client, tasks)
        await tasks.start(session.serve)
        try:
            yield session
        finally:
            tasks.cancel_scope.cancel()
