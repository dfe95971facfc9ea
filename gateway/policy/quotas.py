"""Quotas for a gateway over HTTP: how much of a resource, such as open streams, one network address or one caller may use.

The module also decides whether a quota is exhausted. The functions are pure: `server.connections` counts connections and incomplete
requests, and `server.usage` counts what callers use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.policy.decision import PASS, Pass, Reject

if TYPE_CHECKING:
    from gateway.config.models import LimitSettings

NO_LIMIT = 1 << 62

REQUEST_BYTES = 268_435_456
"""Default limit on the total bytes of the bodies of all requests in progress; it is higher if 64 requests of maximum size exceed it."""

UNREAD_BYTES = 268_435_456
"""Default limit on the total bytes of responses that the gateway stores because clients have not read them."""

UNREAD_EXCESS = 2
"""Multiple of the quota of unread bytes (of responses that clients have not read yet) above which the gateway closes connections.

At the quota itself, it only rejects new calls.
"""

INCOMPLETE_BYTES = 67_108_864
"""Default limit on the total bytes of all requests that have only partly arrived; it is higher if 16 of maximum size exceed it."""

RESERVE = 16
"""Minimum number of connections beyond `server.http.maxConnections` that are reserved for health checks and operators.

Operators are callers whose API key has the scope `admin`.
"""

RESERVED_SHARE = 64
"""Divisor of `server.http.maxConnections` that gives the number of connections reserved for health checks and operators.

`RESERVE` is the minimum. Operators are callers whose API key has the scope `admin`.
"""


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits on a resource that callers use, such as open streams: for one caller, and for all callers together."""

    of: str
    """Name of the resource for people, such as "open streams"."""
    caller_key: str
    """Key of the configuration that limits one caller; rejections name the key."""
    total_key: str
    """Key of the configuration that limits all callers together; rejections name the key."""
    per_caller: int = NO_LIMIT
    """Maximum amount of the resource that one caller may use, such as the number of its open streams."""
    total: int = NO_LIMIT
    """Maximum amount of the resource that all callers together may use."""
    reserve: int = 0
    """Amount of the resource beyond `total` that only operators may use: callers whose API key has the scope `admin`."""

    def unshared(self) -> Quota:
        """Return a copy for a gateway without API keys: its only caller may use the total of all callers."""
        return replace(self, per_caller=self.total)


@dataclass(frozen=True, slots=True)
class QuotaReached(Reject):
    """Rejection because a quota is exhausted. `rule` is the key of the configuration that sets the quota."""

    is_own_share: bool = False
    """Whether the caller has reached its own limit. Otherwise all callers together have reached the total."""


def judge_quota(quota: Quota, *, own: int, total: int, wanted: int = 1, is_admin: bool = False) -> Pass | QuotaReached:
    """Decide whether a caller may use more of a resource: the additional amount `wanted`, such as one more open stream.

    The caller already uses the amount `own`, and all callers together use the amount `total`. `is_admin`: the caller is an operator.
    """
    if own + wanted > quota.per_caller:
        text = f"This caller has too many {quota.of}: {quota.per_caller} at most (`{quota.caller_key}`). Try again when there are fewer."
        return QuotaReached(quota.caller_key, text, is_own_share=True)
    if total + wanted > quota.total + (quota.reserve if is_admin else 0):
        text = f"The gateway has too many {quota.of}: {quota.total} at most (`{quota.total_key}`). Try again in a moment."
        return QuotaReached(quota.total_key, text)
    return PASS


@dataclass(frozen=True, slots=True)
class CallerQuotas:
    """The quotas of callers: on calls, requests, streams, sessions, bytes of requests, and bytes of responses that they have not read."""

    calls: Quota = Quota("calls in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    requests: Quota = Quota("requests in progress", "server.limits.callsPerCaller", "server.http.maxConnections")
    """Quota of HTTP requests of all kinds. It is higher than `calls`, so that a caller with many calls can still send cancellations and
    answers."""
    streams: Quota = Quota("open streams", "server.limits.streamsPerCaller", "server.limits.streams")
    sessions: Quota = Quota("open sessions", "server.limits.sessionsPerCaller", "server.limits.sessions")
    request_bytes: Quota = Quota("bytes of requests in progress", "server.limits.requestBytesPerCaller", "server.limits.requestBytes")

    unread: Quota = Quota("bytes of unread answers", "server.limits.unreadBytesPerCaller", "server.limits.unreadBytes")

    def unshared(self) -> CallerQuotas:
        """Return a copy for a gateway without API keys: its only caller may use the totals of all callers."""
        quotas = (self.calls, self.requests, self.streams, self.sessions, self.request_bytes, self.unread)
        return CallerQuotas(*(quota.unshared() for quota in quotas))


def caller_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> CallerQuotas:
    """Return the quotas of callers from the configured `limits`. Limits that are not configured get defaults.

    The defaults depend on the maximum number of `connections` of the process and the maximum size of one request, in bytes.
    """
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
    """Limits of one process on connections, and on incomplete requests, which have only partly arrived."""

    connections: int
    """Maximum number of open HTTP connections of clients to the process, without those of `reserve`."""
    reserve: int
    """Number of connections beyond `connections` that are reserved for health checks and operators (API keys with the scope `admin`)."""
    connections_per_address: int | None
    """Maximum connections of one address. `None`: half of `connections` for a remote address, no limit for an address of this machine."""
    incomplete_bytes: int
    """Maximum bytes of all incomplete requests (those that have only partly arrived) together."""
    max_request_bytes: int
    """Maximum bytes of one request."""

    def per_address(self, *, is_local: bool) -> int:
        """Return the maximum number of connections of one network address.

        `is_local`: the address is of this machine. Local programs and a local reverse proxy are limited only if a limit is configured.
        """
        if self.connections_per_address is not None:
            return self.connections_per_address
        return NO_LIMIT if is_local else max(1, self.connections // 2)

    def incomplete_of_one(self, *, is_local: bool) -> int:
        """Return the maximum number of incomplete requests of one address or caller. `is_local` (an address of this machine): no limit."""
        return NO_LIMIT if is_local else max(1, self.connections // 8)

    def incomplete_bytes_of_one(self, *, is_local: bool) -> int:
        """Return the maximum bytes of all incomplete requests of one address or caller.

        A quarter of `incomplete_bytes`, the limit for all addresses together, but at least the size of the largest allowed request.
        `is_local` (an address of this machine): no limit.
        """
        return NO_LIMIT if is_local else max(self.incomplete_bytes // 4, self.max_request_bytes)


def connection_quotas(limits: LimitSettings, connections: int, max_request_bytes: int) -> ConnectionQuotas:
    """Return the limits on connections and incomplete requests of a process that accepts up to `connections` connections.

    Limits that are not configured in `limits` get defaults. `max_request_bytes` is the maximum size of one request.
    """
    reserve = max(RESERVE, connections // RESERVED_SHARE)
    incomplete = limits.incomplete_bytes or max(INCOMPLETE_BYTES, 16 * max_request_bytes)
    return ConnectionQuotas(connections, reserve, limits.connections_per_address, incomplete, max_request_bytes)
