"""Quotas on what one address or one caller may use of a shared gateway over HTTP, and the decision about them.

Nothing is counted here: `server.connections` counts connections and incomplete requests, `server.usage` what callers have in progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.policy.decision import PASS, Pass, Reject

if TYPE_CHECKING:
    from gateway.config.models import LimitSettings

NO_LIMIT = 1 << 62

REQUEST_BYTES = 268_435_456
"""Default limit on bytes of request bodies in progress."""

UNREAD_BYTES = 268_435_456
"""Default limit on bytes of responses that clients have not read."""

UNREAD_EXCESS = 2
"""Multiple of a quota of unread bytes at which connections are closed. From the quota itself on, only new calls are rejected."""

INCOMPLETE_BYTES = 67_108_864
"""Default limit on bytes of requests that are still arriving."""

RESERVE = 16
"""Minimum number of connections that are reserved, beyond `server.http.maxConnections`, for health checks and administrators."""

RESERVED_SHARE = 64
"""One in this many connections is reserved for health checks and administrators, if that is more than `RESERVE`."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a resource that requests use, such as open streams: for one caller, and for all callers together."""

    of: str
    """Name for people, such as "open streams"."""
    caller_key: str
    """Setting that limits one caller; rejections name it."""
    total_key: str
    """Setting that limits all callers together."""
    per_caller: int = NO_LIMIT
    total: int = NO_LIMIT
    reserve: int = 0
    """Amount beyond `total` that only administrators may use."""

    def unshared(self) -> Quota:
        """Return this quota for a gateway without API keys, whose only caller may use the whole total."""
        return replace(self, per_caller=self.total)


@dataclass(frozen=True, slots=True)
class QuotaReached(Reject):
    """A quota is exhausted; `rule` is the setting that limits it."""

    is_own_share: bool = False
    """Whether the caller has used its own share; otherwise all callers together have used the total."""


def judge_quota(quota: Quota, *, own: int, total: int, wanted: int = 1, is_admin: bool = False) -> Pass | QuotaReached:
    """Judge whether a caller that uses the amount `own` may use `wanted` more, while all callers together use `total`."""
    if own + wanted > quota.per_caller:
        text = f"This caller has too many {quota.of}: {quota.per_caller} at most (`{quota.caller_key}`). Try again when there are fewer."
        return QuotaReached(quota.caller_key, text, is_own_share=True)
    if total + wanted > quota.total + (quota.reserve if is_admin else 0):
        text = f"The gateway has too many {quota.of}: {quota.total} at most (`{quota.total_key}`). Try again in a moment."
        return QuotaReached(quota.total_key, text)
    return PASS


@dataclass(frozen=True, slots=True)
class CallerQuotas:
    """Limits on calls, streams, request bytes and unread response bytes, each for one caller and for all callers together."""

    calls: Quota = Quota("calls in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    requests: Quota = Quota("requests in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    """HTTP requests of all kinds. The limit is above that of `calls`, so that a caller with many calls can still cancel or answer."""
    streams: Quota = Quota("open streams", "server.limits.streamsPerCaller", "server.limits.streams")
    sessions: Quota = Quota("open sessions", "server.limits.sessionsPerCaller", "server.limits.sessions")
    request_bytes: Quota = Quota("bytes of requests in progress", "server.limits.requestBytesPerCaller", "server.limits.requestBytes")

    unread: Quota = Quota("bytes of unread answers", "server.limits.unreadBytesPerCaller", "server.limits.unreadBytes")

    def unshared(self) -> CallerQuotas:
        """Return these limits for a gateway without API keys, whose only caller may use the whole totals."""
        quotas = (self.calls, self.requests, self.streams, self.sessions, self.request_bytes, self.unread)
        return CallerQuotas(*(quota.unshared() for quota in quotas))


def caller_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> CallerQuotas:
    """Return the limits of callers in a process with this many `connections`. Limits that are left out get defaults."""
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
    """Limits on connections and on requests that are still arriving (incomplete)."""

    connections: int
    reserve: int
    connections_per_address: int | None
    """Maximum connections of one address; `None` for half of all connections, and no limit for addresses of this machine."""
    incomplete_bytes: int
    max_request_bytes: int

    def per_address(self, *, is_local: bool) -> int:
        """Return the limit of connections of one address. Local programs and a local reverse proxy are limited only if configured."""
        if self.connections_per_address is not None:
            return self.connections_per_address
        return NO_LIMIT if is_local else max(1, self.connections // 2)

    def incomplete_of_one(self, *, is_local: bool) -> int:
        """Return the limit of incomplete requests of one address or caller."""
        return NO_LIMIT if is_local else max(1, self.connections // 8)

    def incomplete_bytes_of_one(self, *, is_local: bool) -> int:
        """Return the limit of bytes of incomplete requests: a quarter of all, and at least one whole request."""
        return NO_LIMIT if is_local else max(self.incomplete_bytes // 4, self.max_request_bytes)


def connection_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> ConnectionQuotas:
    """Return the limits on connections and incomplete requests for a process with this many `connections`."""
    reserve = max(RESERVE, connections // RESERVED_SHARE)
    incomplete = limits.incomplete_bytes or max(INCOMPLETE_BYTES, 16 * max_request_bytes)
    return ConnectionQuotas(connections, reserve, limits.connections_per_address, incomplete, max_request_bytes)
