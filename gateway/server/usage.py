"""`Usages`: counts the calls, requests, streams, sessions and bytes that each caller has in progress over HTTP.

`policy.quotas` compares the counts with the configured quotas. Over stdio nothing is counted.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.json_types import JsonValue
from gateway.policy.caller_rights import is_admin
from gateway.policy.decision import Reject
from gateway.policy.quotas import CallerQuotas, Quota, QuotaReached, judge_quota
from gateway.server.bodies import COUNTED_SCOPE_KEY
from gateway.server.http_responses import LIMIT_REACHED, Refusal
from gateway.telemetry.sparse_log import SparseLog
from gateway.wire.json_limits import PartCounter, structure_of

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1
"""Value of the `Retry-After` header, in seconds, in a response that refuses a request because of a quota."""

UNCOUNTED_METHODS = ("initialize", "ping", "subscriptions/listen")
"""MCP methods that do not count for the quota of calls: they are answered at once, or are streams, which have their own quota."""

SMALL_BYTES = 4_096
"""Maximum bytes of a request body that does not count for the quota of bytes if the call is served without the MCP SDK.

The quota of calls already bounds the total size of such bodies.
"""

PACED_BYTES = 262_144
"""Number of bytes above which a request body is large.

Each caller's large bodies are parsed one after the other, with pauses between them.
"""

PACED_PARTS = 4_000
"""Number of JSON members, objects, lists and values above which a request body is large.

Each caller's large bodies are parsed one after the other, with pauses between them. Parsing this many parts takes about 2 ms on the event
loop.
"""

BYTE_SECONDS, PART_SECONDS = 1e-8, 5e-7
"""Estimated seconds that parsing a request body with the MCP SDK takes: per byte, and per JSON member, object, list or value."""

PACE = 2
"""Minimum time from the start of parsing a large request body to the start of parsing the same caller's next large body, as a
multiple of the time that parsing the first body takes.

With the value 2, parsing the large bodies of one caller takes at most half of the event loop's time."""

MAX_WAIT_SECONDS = 10.0
"""Number of seconds above which the wait for parsing large request bodies of a caller is too long.

While the wait is longer, further bodies of the caller that exceed `SMALL_BYTES` are refused (HTTP 429). Bodies that arrived before may
wait longer."""

MAX_KNOWN = 1_024
"""Number of counted callers at which the callers without requests in progress are removed before a new caller is added."""


class Totals:
    """Counts over all callers together: open streams, open sessions, and bytes of unfinished requests."""

    __slots__ = ("bytes", "sessions", "streams")

    def __init__(self) -> None:
        self.bytes = self.streams = self.sessions = 0


class Usage:
    """Counts the calls, requests, streams, sessions and bytes that one caller has in progress, and refuses more than the quotas allow."""

    __slots__ = (
        "_all",
        "_log",
        "_next",
        "_quotas",
        "bytes",
        "calls",
        "is_admin",
        "is_paced",
        "max_calls",
        "name",
        "requests",
        "sessions",
        "streams",
        "unread",
    )

    def __init__(self, name: str, quotas: CallerQuotas, totals: Totals, log: SparseLog, *, is_admin: bool, is_paced: bool) -> None:
        """`name` is the id of the caller's principal, for logs. `totals` contains the counts over all callers; this object updates them.

        If `is_paced`, the caller's large request bodies are parsed one after the other, with pauses between them.
        """
        self.is_paced = is_paced
        self._next = 0.0
        """Monotonic time from which on the caller's next large request body may be parsed."""
        self.name = name
        self._quotas = quotas
        self._all = totals
        self._log = log
        self.is_admin = is_admin
        self.max_calls = quotas.calls.per_caller
        """Number of calls in progress below which a call with a short body is certainly allowed, so that no other quota need be checked.

        0 while the caller leaves too many bytes of responses unread.
        """
        self.calls = self.requests = self.streams = self.sessions = self.bytes = self.unread = 0

    @property
    def is_empty(self) -> bool:
        """Whether the caller has no calls, requests, streams, sessions or bytes in progress."""
        return not (self.calls or self.requests or self.streams or self.sessions or self.bytes or self.unread)

    @property
    def unread_quota(self) -> Quota:
        """The quota for response bytes that the caller's clients have not read yet."""
        return self._quotas.unread

    def refuse_call(self, method: JsonValue, size: int = 0) -> Refusal | None:
        """Return a refusal if a further request would exceed a quota of the caller; `None` if it is allowed.

        `method` is the MCP method of the request, `size` the number of bytes of its body. Requests of `UNCOUNTED_METHODS` are allowed.
        """
        if method in UNCOUNTED_METHODS or (self.calls < self.max_calls and (size <= SMALL_BYTES or self.refuse_bytes(size) is None)):
            return None
        return self.refuse_unread() or self._judge(self._quotas.calls, self.calls, 0) or self.refuse_bytes(size)

    def refuse_request(self) -> Refusal | None:
        """Return a refusal if a further HTTP request would exceed the caller's quota of requests; `None` if it is allowed."""
        return self._judge(self._quotas.requests, self.requests, 0)

    def refuse_stream(self) -> Refusal | None:
        """Return a refusal if a further stream would exceed a quota of the caller, or of all callers together; `None` if it is allowed."""
        return self.refuse_unread() or self._judge(self._quotas.streams, self.streams, self._all.streams)

    def refuse_unread(self) -> Refusal | None:
        """Return a refusal if the caller has left too many bytes of earlier responses unread; `None` if it is within the quota."""
        return self._judge(self._quotas.unread, self.unread, 0)

    def refuse_bytes(self, size: int) -> Refusal | None:
        """Return a refusal if a request body of `size` bytes would exceed the caller's quota of bytes; `None` if it is allowed.

        A body is also refused while large bodies of the caller must wait longer than `MAX_WAIT_SECONDS` until they are parsed.
        """
        if size > SMALL_BYTES and self.wait_seconds() > MAX_WAIT_SECONDS:
            text = f"Large bodies of this caller wait for more than {MAX_WAIT_SECONDS:g} s. Send fewer of them at a time."
            return self.refuse(QuotaReached(self._quotas.request_bytes.caller_key, text, is_own_share=True))
        return self._judge(self._quotas.request_bytes, self.bytes, self._all.bytes, size)

    def judge_session(self) -> QuotaReached | None:
        """Return which quota a further session would exceed; `None` if the session is allowed."""
        verdict = judge_quota(self._quotas.sessions, own=self.sessions, total=self._all.sessions, is_admin=self.is_admin)
        return verdict if isinstance(verdict, QuotaReached) else None

    def refuse(self, reached: QuotaReached) -> Refusal:
        """Return the refusal of a request because of the quota `reached`, and log it.

        The HTTP status is 429 if the caller exceeded its own share, and 503 if all callers together reached the limit.
        """
        self._log.warning("request refused caller=%s setting=%s", self.name, reached.rule)
        return Refusal(429 if reached.is_own_share else 503, LIMIT_REACHED, reached.reason, RETRY_SECONDS)

    def _judge(self, quota: Quota, own: int, total: int, wanted: int = 1) -> Refusal | None:
        verdict = judge_quota(quota, own=own, total=total, wanted=wanted, is_admin=self.is_admin)
        return self.refuse(verdict) if isinstance(verdict, Reject) else None

    def release_call(self) -> None:
        """Decrease the number of the caller's calls in progress, because a call ended."""
        self.calls -= 1

    def hold_bytes(self, size: int) -> None:
        """Add `size` to the bytes of request bodies that the caller has in progress; a negative `size` subtracts."""
        self.bytes += size
        self._all.bytes += size

    def set_unread(self, size: int) -> None:
        """Set how many bytes of responses the caller's clients have not read yet. Further calls are refused if the quota is reached."""
        self.unread = size
        self.max_calls = self._quotas.calls.per_caller if self.unread < self._quotas.unread.per_caller else 0

    def seconds_of(self, body: bytes) -> float:
        """Estimate how many seconds parsing a request body takes on the event loop; 0 if the body is not large.

        A body is large if it exceeds `PACED_BYTES` or `PACED_PARTS`.
        """
        if not self.is_paced or (len(body) <= PACED_BYTES and structure_of(body) + body.count(b",") <= PACED_PARTS):
            return 0.0
        counted = PartCounter()
        counted.feed(body)
        return _seconds(len(body), counted)

    def wait_seconds(self) -> float:
        """Return how many seconds the caller's next large request body must wait before it is parsed."""
        return max(0.0, self._next - time.monotonic())

    def read_large(self, seconds: float) -> None:
        """Record a large request body whose parsing takes `seconds`. The caller's next large body must wait `PACE` times `seconds`."""
        self._next = max(self._next, time.monotonic()) + seconds * PACE

    def hold_request(self, count: int) -> None:
        """Add `count` to the caller's HTTP requests in progress; a negative `count` subtracts."""
        self.requests += count

    def hold_stream(self, count: int) -> None:
        """Add `count` to the caller's open streams; a negative `count` subtracts."""
        self.streams += count
        self._all.streams += count

    def hold_session(self, count: int) -> None:
        """Add `count` to the caller's open sessions; a negative `count` subtracts."""
        self.sessions += count
        self._all.sessions += count


class Usages:
    """Finds or creates the `Usage` of each caller, which counts the caller's requests, calls, streams, sessions and bytes in progress.

    `bound_by` sets the configured quotas; before that, no request is refused because of a quota.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        """The counts over all callers together."""
        self._log = SparseLog(logger)
        self.by_id: dict[str, Usage] = {}
        """The calls, requests, streams, sessions and bytes of each caller, by the id of its principal. `of` adds a new caller."""
        self.bound_by(CallerQuotas())

    def bound_by(self, quotas: CallerQuotas) -> None:
        """Set the quotas of all callers, and forget the counts of each caller. Call this before the first request."""
        self._quotas, self._unshared = quotas, quotas.unshared()
        self.by_id.clear()

    def of(self, principal: Principal) -> Usage:
        """Return the counts of a caller's calls, requests, streams, sessions and bytes in progress; all 0 for a new caller."""
        usage = self.by_id.get(principal.id)
        return usage if usage is not None else self._new(principal)

    def known(self, principal_id: str) -> Usage:
        """Return the `Usage` (counts of calls, requests, … in progress) of the caller with this principal id; all 0 for a new caller."""
        return self.by_id.get(principal_id) or self._new(LOCAL if principal_id == LOCAL.id else Principal(principal_id))

    def _new(self, principal: Principal) -> Usage:
        if len(self.by_id) >= MAX_KNOWN:
            for empty in [id_ for id_, usage in self.by_id.items() if usage.is_empty]:
                del self.by_id[empty]
        quotas = self._unshared if principal is LOCAL else self._quotas
        facts = {"is_admin": is_admin(principal), "is_paced": principal is not LOCAL}
        usage = self.by_id[principal.id] = Usage(principal.id, quotas, self.totals, self._log, **facts)
        return usage


class CountedBody:
    """An ASGI `receive` callable that counts a request body against its caller's quota of bytes in progress, and delays large bodies.

    A large body is delayed until the caller's earlier large bodies were parsed and a pause has passed. A body of unknown length counts as
    if it had the largest allowed length, until it has arrived. The body is counted until `release` is called.
    """

    def __init__(self, receive: Receive, scope: Scope, usage: Usage, size: int, *, is_known: bool) -> None:
        """`size` is the length of the body in bytes; unless `is_known`, the largest allowed length. `receive` is the server's callable.

        When the whole body has arrived, `COUNTED_SCOPE_KEY` is set in `scope` if the JSON members and values of the body were counted here
        and are within the limits. The application then does not count them again.
        """
        self._receive = receive
        self._scope: Scope = scope
        self._usage = usage
        self._is_known = is_known
        self._size = size
        self._came = 0
        self._parts = PartCounter() if usage.is_paced and size > SMALL_BYTES else None
        usage.hold_bytes(size)

    async def __call__(self) -> Message:
        """Return the next ASGI message of the request. The last message of a large body is delayed, so that parsing is spread over time."""
        message = await self._receive()
        if message["type"] == "http.request" and (self._parts is not None or not self._is_known):
            body = message.get("body", b"")
            self._came += len(body)
            if self._parts is not None:
                self._parts.feed(body)
            if not message.get("more_body"):
                await self._ended()
        return message

    async def _ended(self) -> None:
        if not self._is_known:
            self._is_known = True
            self._usage.hold_bytes(self._came - self._size)
            self._size = self._came
        parts, self._parts = self._parts, None
        if parts is not None and not parts.is_over:
            self._scope[COUNTED_SCOPE_KEY] = True
        if parts is not None and (seconds := _seconds(self._came, parts)):
            wait = self._usage.wait_seconds()
            self._usage.read_large(seconds)
            if wait:
                await anyio.sleep(wait)

    def release(self) -> None:
        """Stop counting the body for its caller, because the request ended.

        References to the request are dropped, because the application may keep this object for long.
        """
        self._usage.hold_bytes(-self._size)
        self._receive, self._scope = _disconnected, {}


def _seconds(size: int, counted: PartCounter) -> float:
    parts = counted.parts + counted.values
    return size * BYTE_SECONDS + parts * PART_SECONDS if size > PACED_BYTES or parts > PACED_PARTS else 0.0


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}
