"""Who is connected: legacy sessions with what they asked for, and the facts of one request.

A legacy client is a session with state (log level, watched resources, a channel for notifications); a modern one
is whatever its request says. This is the only module that looks into the SDK's per-connection object.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.disclosure import scope_of
from gateway.json_types import JsonMapping, JsonObject
from gateway.policy.metadata import request_meta
from gateway.protocol import LOG_LEVEL_META_KEY, MODERN_PROTOCOL_VERSIONS
from gateway.server.attendance import ATTENDANCE_SCOPE_KEY, Attendance
from gateway.server.handshake import Hello
from gateway.tools.context import CallContext, Caller, ClientProfile, LateClock, LogLevel, Presence

if TYPE_CHECKING:
    from typing import Any

    from anyio.abc import TaskGroup
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession
    from starlette.types import Scope

logger = logging.getLogger(__name__)

PRINCIPAL_SCOPE_KEY = "moongate.principal"
"""ASGI scope key under which the HTTP transport leaves the verified principal."""

SEEN_SECONDS = 120.0
"""How long after a request the SDK has served its session is known without it: the SDK ends a session that it sees no request of."""

_NO_META: JsonMapping = {}

DEFAULT_LOG_LEVEL: LogLevel = "info"
"""What a legacy client that never set a level is sent (the spec leaves it to the server)."""

RequestContext: TypeAlias = "ServerRequestContext[Any, Any]"
"""What the SDK tells a handler."""


class Channel(Protocol):
    """The way to a client of 2025 that no request of its own opened; where there is none, what is sent is dropped."""

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification."""
        ...


@dataclass(slots=True, eq=False)
class LegacySession:
    """One handshake-era connection."""

    profile: ClientProfile
    channel: Channel
    """Its standalone channel."""
    log_level: LogLevel = DEFAULT_LOG_LEVEL
    watched: Counter[str] = field(default_factory=lambda: Counter[str]())
    wire_id: str = ""
    """Its `Mcp-Session-Id`; empty over lines."""
    opened_by: str = ""
    """Id of its principal."""
    seen: float = 0.0
    """When its keeper last served it (monotonic)."""
    used: float = 0.0
    """When the direct path last served it, if the SDK keeps it."""
    idle_seconds: float | None = None
    """How long after that `lean` keeps it; `None` where the SDK keeps it."""
    is_here: bool = True
    """Whether its client is through with the handshake, or behaves so; it is notified of changes from then on."""
    is_initialized: bool = False
    """Whether the fast path received `notifications/initialized`."""
    calls: int = 0
    """Calls in progress."""
    plain: CallContext | None = None
    """What contexts of its plain calls are made of; kept for as long as the level is the same."""


class LeveledCaller(Caller, Protocol):
    """A way back that filters logs by the client's level."""

    log_level: LogLevel | None


class PresentCaller(LeveledCaller, Presence, Protocol):
    """A way back to a client that may be lost while a person is asked."""


class Clients:
    """The legacy sessions of one server. `on_close` runs once per session when its connection ends."""

    def __init__(self, on_close: Callable[[LegacySession], Awaitable[None]], *, ask_timeout_seconds: float) -> None:
        """`ask_timeout_seconds` is how long a question to a client waits for its answer."""
        self._sessions: dict[Connection, LegacySession] = {}
        self._by_wire_id: dict[str, LegacySession] = {}
        self._lean: dict[str, LegacySession] = {}
        self._moving: dict[str, Callable[[Channel], None]] = {}
        """Those of `lean` that the SDK is about to keep."""
        self._on_close = on_close
        self._ask_timeout_seconds = ask_timeout_seconds
        self._count = 0
        self._last_plain: CallContext | None = None
        self.tasks: TaskGroup | None = None
        """Task group of the running server, for what is sent to clients later."""

    def all(self) -> list[LegacySession]:
        """Every open legacy session."""
        return [session for session in (*self._sessions.values(), *self._lean.values()) if session.is_here]

    def session_of(self, ctx: RequestContext) -> LegacySession:
        """The legacy session a request came on; recorded on its first request."""
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
                known = LegacySession(legacy_profile(ctx, self._next_id()), connection, opened_by=principal_of(ctx).id)
            else:
                known = self._lean.pop(wire_id)
                inherit(connection)
            self._sessions[connection] = known
            connection.exit_stack.push_async_callback(self._forget, connection)
        if connection.session_id is not None:
            known.wire_id = connection.session_id
            self._by_wire_id[known.wire_id] = known
            known.seen = time.monotonic()
        return known

    def seen_session(self, wire_id: str, principal: Principal) -> LegacySession | None:
        """The session with this `Mcp-Session-Id`, if it is this principal's and whoever keeps it has it for certain."""
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
        """How many calls of a session are in progress, and when the direct path last served it."""
        known = self._by_wire_id.get(wire_id)
        return (0, 0.0) if known is None else (known.calls, known.used)

    def part_with(self, wire_id: str) -> None:
        """The session is about to end: only the SDK says whether it is still there."""
        known = self._by_wire_id.get(wire_id)
        if known is not None and known.idle_seconds is None:
            del self._by_wire_id[wire_id]

    def open_lean(self, wire_id: str, hello: Hello, channel: Channel, principal: Principal, *, idle_seconds: float) -> LegacySession:
        """Open a session that the fast path keeps; `wire_id` is empty for the one session over stdio."""
        profile = ClientProfile(
            era="legacy",
            protocol_version=hello.version,
            name=hello.name,
            version=hello.client_version,
            capabilities=hello.capabilities,
            session_id=self._next_id(),
        )
        session = LegacySession(
            profile, channel, wire_id=wire_id, opened_by=principal.id, seen=time.monotonic(), idle_seconds=idle_seconds, is_here=False
        )
        self._lean[wire_id] = session
        if wire_id:
            self._by_wire_id[wire_id] = session
        return session

    def move_lean(self, wire_id: str, inherit: Callable[[Channel], None]) -> None:
        """The SDK path takes over a session of the fast path; `inherit` receives the session's channel there."""
        self._lean[wire_id].idle_seconds = None
        self._moving[wire_id] = inherit

    async def end_lean(self, wire_id: str) -> None:
        """End a session of the fast path, unless the SDK path has taken it over."""
        self._moving.pop(wire_id, None)
        session = self._lean.pop(wire_id, None)
        if session is not None:
            self._by_wire_id.pop(wire_id, None)
            await self._on_close(session)

    def inherit_lean(self, ctx: RequestContext) -> None:
        """Take over the session of the fast path that this connection goes on with, if there is one."""
        connection = _connection_of(ctx.session)
        if (connection.session_id or "") in self._moving:
            self._recorded(ctx)

    def _next_id(self) -> str:
        self._count += 1
        return f"session-{self._count}"

    def scope(self, ctx: RequestContext) -> str:
        """Whose listing a request sees: its legacy session's, else its principal's."""
        return scope_of(None if is_modern(ctx) else self.session_of(ctx).profile.session_id, principal_of(ctx).id)

    async def _forget(self, connection: Connection) -> None:
        self.part_with(connection.session_id or "")
        session = self._sessions.pop(connection, None)
        if session is not None:
            await self._on_close(session)

    def context(self, ctx: RequestContext, caller: LeveledCaller) -> CallContext:
        """The call context of one request; `caller` is its way back and is told the log level."""
        raw = ctx.params or {}
        if is_modern(ctx):
            profile = modern_profile(ctx.protocol_version, cast("JsonMapping", raw.get("_meta") or {}))
            return self.modern_context(principal_of(ctx), profile, raw, caller)
        session = self.session_of(ctx)
        facts = self._context(principal_of(ctx), session.profile, session.log_level, raw, caller)
        attendance = attendance_of(ctx)
        return facts if attendance is None else dataclasses.replace(facts, presence=attendance)

    def plain_legacy_context(
        self, principal: Principal, session: LegacySession, meta: JsonMapping, caller: PresentCaller, late_clock: LateClock
    ) -> CallContext:
        """As `context`, for a request in a 2025 session whose `_meta` asks for nothing."""
        session.is_here = True
        caller.log_level = level = session.log_level
        last = session.plain
        if last is None or last.log_level != level:
            last = CallContext(client=session.profile, log_level=level, ask_timeout_seconds=self._ask_timeout_seconds)
            session.plain = last
        return last.of_request(principal, caller, request_meta(meta) if meta else _NO_META, late_clock, caller)

    def modern_context(
        self,
        principal: Principal,
        profile: ClientProfile,
        params: JsonMapping,
        caller: LeveledCaller,
    ) -> CallContext:
        """The call context of one 2026 request, all of which is in its parameters; `profile` is its `modern_profile`."""
        meta = cast("JsonMapping", params.get("_meta") or {})
        level = cast("LogLevel | None", meta.get(LOG_LEVEL_META_KEY))
        return self._context(principal, profile, level, params, caller)

    def plain_context(
        self, principal: Principal, profile: ClientProfile, crossing: JsonMapping, caller: LeveledCaller, late_clock: LateClock
    ) -> CallContext:
        """As `modern_context`, for a request whose `_meta` asks for nothing and that has neither answers nor state.

        `crossing` is the part of it that is taken (`request_meta`).
        """
        last = self._last_plain
        if last is None or last.client is not profile:  # many calls in a row are of one client
            last = self._last_plain = CallContext(client=profile, ask_timeout_seconds=self._ask_timeout_seconds)
        return last.of_request(principal, caller, crossing, late_clock)

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
            principal=principal,
            client=profile,
            caller=caller,
            meta=request_meta(meta),
            input_responses=cast("JsonObject | None", raw.get("inputResponses")),
            request_state=cast("str | None", raw.get("requestState")),
            wants_progress=meta.get("progressToken") is not None,
            log_level=log_level,
            ask_timeout_seconds=self._ask_timeout_seconds,
        )


def is_modern(ctx: RequestContext) -> bool:
    """Whether the request is of the stateless era."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def principal_of(ctx: RequestContext) -> Principal:
    """The verified caller; over stdio and on a gateway without keys that is the local user."""
    scope = scope_of_request(ctx)
    return LOCAL if scope is None else cast("Principal", scope.get(PRINCIPAL_SCOPE_KEY, LOCAL))


def scope_of_request(ctx: RequestContext) -> Scope | None:
    """The ASGI scope of a request that came over HTTP."""
    return None if ctx.request is None else cast("Scope | None", getattr(ctx.request, "scope", None))


def attendance_of(ctx: RequestContext) -> Attendance | None:
    """The `Attendance` of a request in a 2025 HTTP session."""
    scope = scope_of_request(ctx)
    return None if scope is None else cast("Attendance | None", scope.get(ATTENDANCE_SCOPE_KEY))


def _connection_of(session: ServerSession) -> Connection:
    # The SDK enumerates connections nowhere and has no close hook but `Connection.exit_stack` (protocol.md §5.1).
    return session._connection  # pyright: ignore[reportPrivateUsage]  # the only handle there is


def legacy_profile(ctx: RequestContext, session_id: str | None) -> ClientProfile:
    """What a 2025 client said of itself at its handshake."""
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
    """What a 2026 client says of itself in the `_meta` of a request."""
    info = cast("JsonMapping", meta.get("io.modelcontextprotocol/clientInfo") or {})
    return ClientProfile(
        era="modern",
        protocol_version=version,
        name=str(info.get("name") or ""),
        version=str(info.get("version") or ""),
        capabilities=cast("JsonMapping", meta.get("io.modelcontextprotocol/clientCapabilities") or {}),
    )
