"""`Clients`: stores the 2025 sessions of the server, and builds the call context of each request.

The call context contains the facts about a request and its client. For a 2025 client, the server stores a session with state: log level,
watched resources, a channel for notifications. For a 2026 client it stores nothing, because each 2026 request contains all facts about its
client. Only this module accesses the MCP SDK's connection object.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.disclosure import OWN_SESSION_PREFIX, scope_of
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.metadata import request_meta
from gateway.protocol import LOG_LEVEL_META_KEY, MODERN_PROTOCOL_VERSIONS
from gateway.server.request_presence import PRESENCE_SCOPE_KEY, RequestPresence
from gateway.server.session_table import name_of
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts, LateClock
from gateway.tools.ports import Caller, ClientProfile, LogLevel, Presence

if TYPE_CHECKING:
    from typing import Any

    from anyio.abc import TaskGroup
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from starlette.requests import Request
    from starlette.types import Scope

PRINCIPAL_SCOPE_KEY = "moongate.principal"
"""ASGI scope key of the authenticated principal."""

SEEN_SECONDS = 120.0
"""Seconds after a request during which the fast path (without the MCP SDK) may serve requests of a 2025 session that the SDK keeps.

Only the SDK decides when an idle session ends; during these seconds, the fast path assumes that the session still exists.
"""

_NO_META: JsonMapping = {}

DEFAULT_LOG_LEVEL: LogLevel = "info"
"""Log level of a 2025 client that did not set a level. The MCP specification lets the server choose."""

RequestContext: TypeAlias = "ServerRequestContext[Any, Any]"
"""The context object that the MCP SDK passes to the handler of a request."""


class Channel(Protocol):
    """Sends notifications that belong to no request to the client of a 2025 session.

    Over HTTP, a client without an open stream receives a notification only if the notification was stored, and the client reconnects its
    stream with `Last-Event-ID`.
    """

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification with this method to the client."""
        ...


@dataclass(slots=True, eq=False)
class LegacySession:
    """The state of one session of a 2025 client, whether the session is kept without the MCP SDK (fast path) or by the SDK (SDK path)."""

    profile: ClientProfile
    channel: Channel
    log_level: LogLevel = DEFAULT_LOG_LEVEL
    watched: Counter[str] = field(default_factory=lambda: Counter[str]())
    wire_id: str = ""
    """Value of the session's `Mcp-Session-Id` header; empty over stdio."""
    opened_by: str = ""
    """Id of the principal that opened the session. Requests of other principals cannot use it."""
    seen: float = 0.0
    """Monotonic time of the session's last request. If the MCP SDK keeps the session, requests served without the SDK do not count."""
    used: float = 0.0
    """Monotonic time of the last request that was served without the MCP SDK (on the fast path) after the SDK had taken the session."""
    idle_seconds: float | None = None
    """Seconds without a request after which a session on the fast path (without the MCP SDK) ends; `None` if the SDK keeps the session."""
    is_here: bool = True
    """Whether the client completed the handshake, or sent another request. Until then, the client is not notified of changes."""
    is_initialized: bool = False
    """Whether the fast path (without the MCP SDK) has received the client's `notifications/initialized`."""
    calls: int = 0
    """Number of tool calls in progress, and of requests that the MCP SDK handles. While it is not 0, the session is not idle."""
    plain: CallFacts | None = None
    """Facts about the client that all tool calls of the session share on the fast path (without the MCP SDK); `None` before the first call.

    They are replaced when the log level, the principal or the forwarded `_meta` changes.
    """


class LeveledCaller(Caller, Protocol):
    """A `Caller` (sends the messages of a call to its client) that drops log messages below the level in `log_level`."""

    log_level: LogLevel | None


class PresentCaller(LeveledCaller, Presence, Protocol):
    """A `Caller` (sends the messages of a call to its client) that also reports whether the client is still reachable."""


class CloseableCaller(Caller, Protocol):
    """A `Caller` (sends the messages of a call to its client) that sends some messages only when the call's result is known.

    `close` sends these messages. They report the completion of requests for input in URL mode whose URLs the client opened.
    """

    @property
    def presence(self) -> Presence | None:
        """Object that reports whether the client is reachable; `None` if the connection of the client is not tracked."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether `close` has messages to send: messages that had to wait until the call's result is known."""
        ...

    async def close(self) -> None:
        """Send the messages that may only be sent when the call's result is known."""
        ...


class SharedChanges(Protocol):
    """Interface of the object that shares changes of 2025 sessions with the replicas of the gateway (`SealedSessions`)."""

    async def share(self, session: LegacySession) -> None:
        """Store the log level and the watched resources of a session for the other replicas. Does not raise."""
        ...


class Clients:
    """Stores the 2025 sessions of the server, and builds the call context (`CallContext`) of each request of a 2025 or 2026 client."""

    def __init__(self, on_close: Callable[[LegacySession], Awaitable[None]], *, ask_timeout_seconds: float) -> None:
        """`on_close` is called once for each session when the session ends.

        `ask_timeout_seconds` is how long a request for input waits for the client's answer.
        """
        self._sessions: dict[Connection, LegacySession] = {}
        self._by_wire_id: dict[str, LegacySession] = {}
        self._fast: dict[str, LegacySession] = {}
        self._moving: dict[str, Callable[[Channel], None]] = {}
        """Sessions that the MCP SDK is about to take over from the fast path: by `Mcp-Session-Id`, the function that receives the session's
        new channel for notifications."""
        self._on_close = on_close
        self._ask_timeout_seconds = ask_timeout_seconds
        self._count = 0
        self.sealed: SharedChanges | None = None
        """Shares changes of sessions with the replicas of this gateway; `None` without replicas."""
        self.tasks: TaskGroup | None = None
        """Task group in which notifications are sent that a rate limit delays; `None` while the server is not running."""

    def all(self) -> list[LegacySession]:
        """Return every open 2025 session whose client completed the handshake, or sent another request (`LegacySession.is_here`)."""
        return [session for session in (*self._sessions.values(), *self._fast.values()) if session.is_here]

    def of_wire_id(self, wire_id: str) -> LegacySession | None:
        """Return the open 2025 session with this `Mcp-Session-Id`; `None` if this process has none."""
        return self._by_wire_id.get(wire_id)

    async def share(self, session: LegacySession) -> None:
        """Let the replicas of this gateway know the log level and the watched resources of a session, after its client changed them."""
        if self.sealed is not None:
            await self.sealed.share(session)

    def session_of(self, ctx: RequestContext) -> LegacySession:
        """Return the 2025 session of a request that the MCP SDK handles. The first request on the SDK's connection creates the session."""
        session = self._recorded(ctx)
        session.is_here = True
        return session

    def _recorded(self, ctx: RequestContext) -> LegacySession:
        connection = _connection_of(ctx.session)
        known = self._sessions.get(connection)
        if known is None:
            wire_id = connection.session_id or ""
            inherit = self._moving.pop(wire_id, None)
            if inherit is None:
                known = LegacySession(legacy_profile(ctx, name_of(wire_id) or self._next_id()), connection, opened_by=principal_of(ctx).id)
            else:
                known = self._fast.pop(wire_id)
                inherit(connection)
            self._sessions[connection] = known
            connection.exit_stack.push_async_callback(self._forget, connection)
        if connection.session_id is not None:
            known.wire_id = connection.session_id
            self._by_wire_id[known.wire_id] = known
            known.seen = time.monotonic()
        return known

    def seen_session(self, wire_id: str, principal: Principal) -> LegacySession | None:
        """Return the session with this `Mcp-Session-Id` for a request that may be served without the MCP SDK; record the request's time.

        Return `None` if another principal opened the session, or if the session may have ended.
        """
        known = self._by_wire_id.get(wire_id)
        if known is None or known.opened_by != principal.id:
            return None
        now = time.monotonic()
        if now - known.seen >= (SEEN_SECONDS if known.idle_seconds is None else known.idle_seconds):
            return None
        if known.idle_seconds is not None:
            known.seen = now
        else:
            known.used = now
        return known

    def use_of(self, wire_id: str) -> tuple[int, float]:
        """Return the number of calls in progress in a session, and the monotonic time when a request was last served without the MCP SDK.

        Both are 0 if no session has the `Mcp-Session-Id` `wire_id`. They show whether a session that the SDK keeps is idle, so that it may
        be ended.
        """
        known = self._by_wire_id.get(wire_id)
        return (0, 0.0) if known is None else (known.calls, known.used)

    def leave_to_sdk(self, wire_id: str, principal: Principal | None = None) -> None:
        """Stop serving a session without the MCP SDK (on the fast path), because the SDK, which keeps the session, is about to end it.

        Do nothing if `principal` did not open the session, because the SDK then does not end the session. `None` stands for any principal.
        """
        known = self._by_wire_id.get(wire_id)
        if known is not None and known.idle_seconds is None and (principal is None or known.opened_by == principal.id):
            del self._by_wire_id[wire_id]

    def open_session(
        self, wire_id: str, declared: ClientProfile, channel: Channel, principal: Principal, *, idle_seconds: float
    ) -> LegacySession:
        """Create and return the session of a 2025 client whose `initialize` request was answered without the MCP SDK.

        `wire_id` is the `Mcp-Session-Id`, which is empty over stdio. `declared` is what the request declares about the client. `channel`
        sends notifications to the client. `idle_seconds` is the idle timeout.
        """
        profile = dataclasses.replace(declared, session_id=name_of(wire_id) or self._next_id())
        session = LegacySession(
            profile, channel, wire_id=wire_id, opened_by=principal.id, seen=time.monotonic(), idle_seconds=idle_seconds, is_here=False
        )
        self._fast[wire_id] = session
        if wire_id:
            self._by_wire_id[wire_id] = session
        return session

    def delegate_session(self, wire_id: str, inherit: Callable[[Channel], None]) -> None:
        """Prepare the move of a session from the fast path (without the MCP SDK) to the SDK path.

        When the SDK has a connection for the session, `inherit` is called with the connection, the session's new channel for notifications.
        """
        self._fast[wire_id].idle_seconds = None
        self._moving[wire_id] = inherit

    async def end_session(self, wire_id: str) -> None:
        """Remove a session on the fast path (without the MCP SDK), and call `on_close`. A session that the SDK has taken over remains."""
        self._moving.pop(wire_id, None)
        session = self._fast.pop(wire_id, None)
        if session is not None:
            self._by_wire_id.pop(wire_id, None)
            await self._on_close(session)

    def adopt_session(self, ctx: RequestContext) -> None:
        """Attach the MCP SDK's connection of a request to the session that the SDK is taking over from the fast path (without the SDK).

        If the connection belongs to no session that is being taken over, nothing happens.
        """
        connection = _connection_of(ctx.session)
        if (connection.session_id or "") in self._moving:
            self._recorded(ctx)

    def _next_id(self) -> str:
        """Return an id for a session that no other replica can continue. The id of other sessions is the name in their `Mcp-Session-Id`."""
        self._count += 1
        return f"{OWN_SESSION_PREFIX}{self._count}"

    def scope(self, ctx: RequestContext) -> str:
        """Return the key under which the catalog stores the on-demand tools (listed only when loaded) that a request's client has loaded.

        There is one key per 2025 session, and one per principal for 2026 clients.
        """
        return scope_of(None if is_modern(ctx) else self.session_of(ctx).profile.session_id, principal_of(ctx).id)

    async def _forget(self, connection: Connection) -> None:
        self.leave_to_sdk(connection.session_id or "")
        session = self._sessions.pop(connection, None)
        if session is not None:
            await self._on_close(session)

    def context(self, ctx: RequestContext, caller: LeveledCaller) -> CallContext:
        """Build the call context of a request that the MCP SDK handles.

        `caller` sends messages to the client. This method sets the log level of `caller`, below which it drops log messages.
        """
        raw = ctx.params or {}
        if is_modern(ctx):
            profile = modern_profile(ctx.protocol_version, cast("JsonMapping", raw.get("_meta") or {}))
            return self.modern_context(principal_of(ctx), profile, raw, caller)
        session = self.session_of(ctx)
        made = self._context(principal_of(ctx), session.profile, session.log_level, raw, caller)
        attendance = presence_of(ctx)
        return made if attendance is None else dataclasses.replace(made, ports=CallPorts(caller=caller, presence=attendance))

    def plain_legacy_context(
        self, principal: Principal, session: LegacySession, meta: JsonMapping, caller: PresentCaller, late_clock: LateClock
    ) -> CallContext:
        """Build the call context of a tool call in a 2025 session that is handled without the MCP SDK.

        `meta` is the `_meta` of the request. `caller` sends messages to the client; this method sets its log level to the session's level,
        so that it drops log messages below that level. `late_clock` is the deadline of the call.
        """
        session.is_here = True
        caller.log_level = level = session.log_level
        last = session.plain
        if last is None or last.log_level != level:
            last = session.plain = CallFacts(client=session.profile, log_level=level, ask_timeout_seconds=self._ask_timeout_seconds)
        ports = CallPorts(caller=caller, presence=caller)
        made = CallContext.of_request(last, principal, request_meta(meta) if meta else _NO_META, ports, late_clock)
        session.plain = made.facts
        return made

    def own_context(self, session: LegacySession, principal: Principal) -> CallContext:
        """Build the context in which the gateway itself acts for a 2025 session, without a request of its client."""
        facts = CallFacts(principal=principal, client=session.profile, ask_timeout_seconds=self._ask_timeout_seconds)
        return CallContext(facts, CallPorts())

    def modern_context(
        self,
        principal: Principal,
        profile: ClientProfile,
        params: JsonMapping,
        caller: LeveledCaller,
    ) -> CallContext:
        """Build the call context of a 2026-07-28 request. `profile` describes its client (`modern_profile`); `params` are its parameters.

        `caller` sends messages to the client. This method sets the log level of `caller` to the level that the request declares. `caller`
        drops log messages below this level, and all log messages if the request declares no level.
        """
        meta = cast("JsonMapping", params.get("_meta") or {})
        level = cast("LogLevel | None", meta.get(LOG_LEVEL_META_KEY))
        return self._context(principal, profile, level, params, caller)

    def template(self, profile: ClientProfile, *, takes_tasks: bool) -> CallFacts:
        """Return the facts about a 2026 client that all its calls without the MCP SDK share.

        `CallContext.of_request` adds the facts about one call. `takes_tasks` is whether the client supports tasks as results.
        """
        return CallFacts(client=profile, ask_timeout_seconds=self._ask_timeout_seconds, takes_tasks=takes_tasks)

    def _context(
        self,
        principal: Principal,
        profile: ClientProfile,
        log_level: LogLevel | None,
        raw: JsonMapping,
        caller: LeveledCaller,
    ) -> CallContext:
        meta = cast("JsonMapping", raw.get("_meta") or {})
        caller.log_level = log_level
        return CallContext(
            CallFacts(
                principal=principal,
                client=profile,
                meta=request_meta(meta),
                input_responses=cast("JsonObject | None", raw.get("inputResponses")),
                request_state=cast("str | None", raw.get("requestState")),
                wants_progress=meta.get("progressToken") is not None,
                log_level=log_level,
                ask_timeout_seconds=self._ask_timeout_seconds,
            ),
            CallPorts(caller=caller),
        )


def is_modern(ctx: RequestContext) -> bool:
    """Whether a request uses a 2026 protocol version."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def viewer_of(request: Request) -> Principal:
    """Return the authenticated principal of a Starlette request to a path other than the MCP endpoint.

    On a gateway without API keys this is the local user.
    """
    return cast("Principal", request.scope.get(PRINCIPAL_SCOPE_KEY, LOCAL))


def principal_of(ctx: RequestContext) -> Principal:
    """Return the authenticated principal of an MCP request. Over stdio, and on a gateway without API keys, this is the local user."""
    scope = scope_of_request(ctx)
    return LOCAL if scope is None else cast("Principal", scope.get(PRINCIPAL_SCOPE_KEY, LOCAL))


def scope_of_request(ctx: RequestContext) -> Scope | None:
    """Return the ASGI scope of an MCP request; `None` if the request arrived over stdio."""
    return None if ctx.request is None else cast("Scope | None", getattr(ctx.request, "scope", None))


def presence_of(ctx: RequestContext) -> RequestPresence | None:
    """Return the object that tracks whether the client of a request is reachable.

    Return `None` for requests over stdio and for requests of 2026 clients, because the gateway does not track these clients.
    """
    scope = scope_of_request(ctx)
    return None if scope is None else cast("RequestPresence | None", scope.get(PRESENCE_SCOPE_KEY))


def _connection_of(session: ServerSession) -> Connection:
    return session._connection  # pyright: ignore[reportPrivateUsage]  # the SDK has no public handle of a connection


def legacy_profile(ctx: RequestContext, session_id: str | None) -> ClientProfile:
    """Return the name, version and capabilities that a 2025 client declared at its handshake.

    `ctx` is the context of a request of the client, and `session_id` the gateway's id of its session.
    """
    params = ctx.session.client_params
    if params is None:
        return ClientProfile(era="legacy", protocol_version=ctx.protocol_version, session_id=session_id)
    return ClientProfile(
        era="legacy",
        protocol_version=ctx.protocol_version,
        name=params.client_info.name,
        version=params.client_info.version,
        capabilities=params.capabilities.model_dump(mode="json", by_alias=True, exclude_none=True),
        session_id=session_id,
    )


def modern_profile(version: str, meta: JsonMapping) -> ClientProfile:
    """Return the name, version and capabilities that a 2026 client declares in `meta`, the `_meta` of a request.

    `version` is the protocol version of the request.
    """
    info = cast("JsonMapping", meta.get("io.modelcontextprotocol/clientInfo") or {})
    return ClientProfile(
        era="modern",
        protocol_version=version,
        name=str(info.get("name") or ""),
        version=str(info.get("version") or ""),
        capabilities=cast("JsonMapping", meta.get("io.modelcontextprotocol/clientCapabilities") or {}),
    )
