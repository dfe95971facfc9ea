"""How much of a shared gateway one address or one caller may hold over HTTP: numbers, and one decision about them.

Nothing is counted here. `app.connections` counts connections and incomplete requests, `server.usage` what callers have in progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.policy.decision import PASS, Pass, Reject

if TYPE_CHECKING:
    from gateway.config.models import LimitSettings

NO_LIMIT = 1 << 62

REQUEST_BYTES = 268_435_456
"""Of bodies in progress, unless configured."""

UNREAD_BYTES = 268_435_456
"""Of answers that clients have not read, likewise."""

UNREAD_EXCESS = 2
"""Calls in progress still answer when a quota of unread bytes is used up. At so many times the quota, connections are cut."""

INCOMPLETE_BYTES = 67_108_864
"""Of requests that are still arriving, likewise."""

RESERVE = 16
"""Connections beyond `server.http.maxConnections` for health checks and administrators, at least."""

RESERVED_SHARE = 64
"""One in so many connections is reserved likewise."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A bound on something that requests hold."""

    of: str
    """For people: "open streams"."""
    caller_key: str
    """The setting that bounds one caller; refusals name it."""
    total_key: str
    """The setting that bounds all callers together."""
    per_caller: int = NO_LIMIT
    total: int = NO_LIMIT
    reserve: int = 0
    """Beyond `total`, for administrators."""

    def unshared(self) -> Quota:
        """The same for the one caller of a gateway without keys: the whole is its share."""
        return replace(self, per_caller=self.total)


@dataclass(frozen=True, slots=True)
class QuotaReached(Reject):
    """A quota is used up; `rule` is the setting that says so."""

    is_own_share: bool = False
    """The caller has its share; else all callers together have the whole."""


def judge_quota(quota: Quota, *, own: int, total: int, wanted: int = 1, is_admin: bool = False) -> Pass | QuotaReached:
    """Whether a caller that holds `own` may have `wanted` more, while all callers together hold `total`."""
    if own + wanted > quota.per_caller:
        text = f"This caller has too many {quota.of}: {quota.per_caller} at most (`{quota.caller_key}`). Try again when there are fewer."
        return QuotaReached(quota.caller_key, text, is_own_share=True)
    if total + wanted > quota.total + (quota.reserve if is_admin else 0):
        text = f"The gateway has too many {quota.of}: {quota.total} at most (`{quota.total_key}`). Try again in a moment."
        return QuotaReached(quota.total_key, text)
    return PASS


@dataclass(frozen=True, slots=True)
class CallerQuotas:
    """Bounds on what callers hold, each for one caller and for all."""

    calls: Quota = Quota("calls in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    requests: Quota = Quota("requests in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    """HTTP requests: a caller at its bound of calls still gets to cancel one and to answer a server's question."""
    streams: Quota = Quota("open streams", "server.limits.streamsPerCaller", "server.limits.streams")
    sessions: Quota = Quota("open sessions", "server.limits.sessionsPerCaller", "server.limits.sessions")
    request_bytes: Quota = Quota("bytes of requests in progress", "server.limits.requestBytesPerCaller", "server.limits.requestBytes")

    unread: Quota = Quota("bytes of unread answers", "server.limits.unreadBytesPerCaller", "server.limits.unreadBytes")

    def unshared(self) -> CallerQuotas:
        """The same for the one caller of a gateway without keys."""
        quotas = (self.calls, self.requests, self.streams, self.sessions, self.request_bytes, self.unread)
        return CallerQuotas(*(quota.unshared() for quota in quotas))


def caller_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> CallerQuotas:
    """Return the bounds of a process that serves so many `connections`. A setting that is left out is a share of them, at most half."""
    calls = limits.calls_per_caller or max(1, connections // 4)
    streams = limits.streams or max(1, connections // 2)
    reserve = max(RESERVE, connections // RESERVED_SHARE)
    size = limits.request_bytes or max(REQUEST_BYTES, 64 * max_request_bytes)
    unread = limits.unread_bytes or UNREAD_BYTES
    bounds = CallerQuotas()
    return CallerQuotas(
        calls=replace(bounds.calls, per_caller=calls),
        requests=replace(bounds.requests, per_caller=calls + max(calls // 4, RESERVE)),
        streams=replace(
            bounds.streams, per_caller=limits.streams_per_caller or max(1, connections // 8), total=streams, reserve=reserve
        ),
        sessions=replace(
            bounds.sessions,
            per_caller=limits.sessions_per_caller or max(1, limits.sessions // 4),
            total=limits.sessions,
            reserve=reserve,
        ),
        request_bytes=replace(
            bounds.request_bytes,
            per_caller=limits.request_bytes_per_caller or max(size // 4, max_request_bytes),
            total=size,
            reserve=4 * max_request_bytes,
        ),
        unread=replace(bounds.unread, per_caller=limits.unread_bytes_per_caller or max(1, unread // 4), total=unread),
    )


@dataclass(frozen=True, slots=True)
class ConnectionQuotas:
    """Bounds on connections and on requests of which the end is still to come."""

    connections: int
    reserve: int
    connections_per_address: int | None
    """Left out: half of all, and any number for this machine's own addresses."""
    incomplete_bytes: int
    max_request_bytes: int

    def per_address(self, *, is_local: bool) -> int:
        """Connections of one address. A user's own programs, and a reverse proxy on this machine, are not bounded unless configured."""
        if self.connections_per_address is not None:
            return self.connections_per_address
        return NO_LIMIT if is_local else max(1, self.connections // 2)

    def incomplete_of_one(self, *, is_local: bool) -> int:
        """Incomplete requests of one address or caller."""
        return NO_LIMIT if is_local else max(1, self.connections // 8)

    def incomplete_bytes_of_one(self, *, is_local: bool) -> int:
        """Bytes of them: a quarter of all, and always one whole request."""
        return NO_LIMIT if is_local else max(self.incomplete_bytes // 4, self.max_request_bytes)


def connection_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> ConnectionQuotas:
    """Return the bounds of a process that serves so many `connections`."""
    reserve = max(RESERVE, connections // RESERVED_SHARE)
    incomplete = limits.incomplete_bytes or max(INCOMPLETE_BYTES, 16 * max_request_bytes)
    return ConnectionQuotas(connections, reserve, limits.connections_per_address, incomplete, max_request_bytes)
