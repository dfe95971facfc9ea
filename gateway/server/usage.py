"""`Usages`: counts what each caller has in progress over HTTP. `policy.quotas` compares the counts with the quotas.

Over stdio nothing is counted.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import anyio

from gateway.auth.principal import LOCAL, Principal
from gateway.policy.decision import Reject
from gateway.policy.quotas import CallerQuotas, Quota, QuotaReached, judge_quota
from gateway.policy.scopes import is_admin
from gateway.server.bodies import COUNTED_SCOPE_KEY
from gateway.server.http_responses import LIMIT_REACHED, Refusal
from gateway.telemetry.sparse_log import SparseLog
from gateway.wire.json_limits import PartCounter, structure_of

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1
"""`Retry-After` of a refusal, in seconds."""

UNCOUNTED_METHODS = ("initialize", "ping", "subscriptions/listen")
"""Methods that are not counted as calls: they are answered at once, or are streams, which `KeyGate` counts."""

SMALL_BYTES = 4_096
"""Bodies up to this size do not count for the quota of bytes if the fast path serves the call: the quota of calls bounds their total."""

PACED_BYTES = 262_144
"""Bodies over this size, or over `PACED_PARTS`, are parsed one after the other for each caller."""

PACED_PARTS = 4_000
"""Maximum members, objects, lists and values of a body that is parsed at once: about 2 ms of the event loop."""

BYTE_SECONDS, PART_SECONDS = 1e-8, 5e-7
"""Time on the event loop per byte, and per member, object, list or value, of a body on the SDK path."""

PACE = 2
"""The large bodies of one caller use at most one second of the event loop in this many seconds."""

MAX_WAIT_SECONDS = 10.0
"""If large bodies of a caller wait longer, its further bodies over `SMALL_BYTES` are refused with 429."""

MAX_KNOWN = 1_024
"""Number of callers from which on callers without anything in progress are forgotten."""


class Totals:
    """The sums over all callers of open streams, sessions and bytes of unfinished requests."""

    __slots__ = ("bytes", "sessions", "streams")

    def __init__(self) -> None:
        self.bytes = self.streams = self.sessions = 0


class Usage:
    """Counts the calls, requests, streams, sessions and bytes of one caller, and refuses more than the quotas allow."""

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
        """`name` is the id of the principal, for logs. With `is_paced`, large bodies are parsed one after the other."""
        self.is_paced = is_paced
        self._next = 0.0
        """Time when the next large body may be parsed (monotonic)."""
        self.name = name
        self._quotas = quotas
        self._all = totals
        self._log = log
        self.is_admin = is_admin
        self.max_calls = quotas.calls.per_caller
        """While fewer calls than this are in progress, a small call is not refused; 0 while the caller has too many unread bytes."""
        self.calls = self.requests = self.streams = self.sessions = self.bytes = self.unread = 0

    @property
    def is_empty(self) -> bool:
        """Whether the caller has nothing in progress."""
        return not (self.calls or self.requests or self.streams or self.sessions or self.bytes or self.unread)

    @property
    def unread_quota(self) -> Quota:
        """The quota of bytes of unread responses."""
        return self._quotas.unread

    def refuse_call(self, size: int = 0) -> Refusal | None:
        """Return the refusal of one more call with a body of `size` bytes; `None` if the quotas allow the call."""
        if self.calls < self.max_calls and (size <= SMALL_BYTES or self.refuse_bytes(size) is None):
            return None
        return self.refuse_unread() or self._judge(self._quotas.calls, self.calls, 0) or self.refuse_bytes(size)

    def refuse_request(self) -> Refusal | None:
        """Return the refusal of one more HTTP request; `None` if the quota allows the request."""
        return self._judge(self._quotas.requests, self.requests, 0)

    def refuse_stream(self) -> Refusal | None:
        """Return the refusal of one more stream; `None` if the quotas allow the stream."""
        return self.refuse_unread() or self._judge(self._quotas.streams, self.streams, self._all.streams)

    def refuse_unread(self) -> Refusal | None:
        """Return the refusal of a request whose response the caller would have to read, if the caller has too many unread bytes."""
        return self._judge(self._quotas.unread, self.unread, 0)

    def refuse_bytes(self, size: int) -> Refusal | None:
        """Return the refusal of a request body of `size` bytes; `None` if the quota allows the body."""
        if size > SMALL_BYTES and self.wait_seconds() > MAX_WAIT_SECONDS:
            text = f"Large bodies of this caller wait for more than {MAX_WAIT_SECONDS:g} s. Send fewer of them at a time."
            return self.refuse(QuotaReached(self._quotas.request_bytes.caller_key, text, is_own_share=True))
        return self._judge(self._quotas.request_bytes, self.bytes, self._all.bytes, size)

    def judge_session(self) -> QuotaReached | None:
        """Return the quota that one more session would exceed; `None` if the quotas allow the session."""
        verdict = judge_quota(self._quotas.sessions, own=self.sessions, total=self._all.sessions, is_admin=self.is_admin)
        return verdict if isinstance(verdict, QuotaReached) else None

    def refuse(self, reached: QuotaReached) -> Refusal:
        """Log and return the refusal for a quota that was reached: HTTP 429 for the caller's share, 503 for the total of all callers."""
        self._log.warning("request refused caller=%s setting=%s", self.name, reached.rule)
        return Refusal(429 if reached.is_own_share else 503, LIMIT_REACHED, reached.reason, RETRY_SECONDS)

    def _judge(self, quota: Quota, own: int, total: int, wanted: int = 1) -> Refusal | None:
        verdict = judge_quota(quota, own=own, total=total, wanted=wanted, is_admin=self.is_admin)
        return self.refuse(verdict) if isinstance(verdict, Reject) else None

    def release_call(self) -> None:
        """Stop counting a call, because it ended."""
        self.calls -= 1

    def hold_bytes(self, size: int) -> None:
        """Add `size` bytes of request bodies; a negative `size` subtracts them."""
        self.bytes += size
        self._all.bytes += size

    def set_unread(self, size: int) -> None:
        """Set the number of bytes in responses that the caller's clients have not read yet. From the quota on, calls are refused."""
        self.unread = size
        self.max_calls = self._quotas.calls.per_caller if self.unread < self._quotas.unread.per_caller else 0

    def seconds_of(self, body: bytes) -> float:
        """Estimate how many seconds parsing a large body takes on the event loop; 0 for a small body."""
        if not self.is_paced or (len(body) <= PACED_BYTES and structure_of(body) + body.count(b",") <= PACED_PARTS):
            return 0.0
        counted = PartCounter()
        counted.feed(body)
        return _seconds(len(body), counted)

    def wait_seconds(self) -> float:
        """Return how many seconds the next large body of this caller must wait before it is parsed."""
        return max(0.0, self._next - time.monotonic())

    def read_large(self, seconds: float) -> None:
        """Count a large body whose parsing takes `seconds`: the next large body of this caller must wait `PACE` times as long."""
        self._next = max(self._next, time.monotonic()) + seconds * PACE

    def hold_request(self, count: int) -> None:
        """Add `count` HTTP requests in progress; a negative `count` subtracts them."""
        self.requests += count

    def hold_stream(self, count: int) -> None:
        """Add `count` open streams; a negative `count` subtracts them."""
        self.streams += count
        self._all.streams += count

    def hold_session(self, count: int) -> None:
        """Add `count` open sessions; a negative `count` subtracts them."""
        self.sessions += count
        self._all.sessions += count


class Usages:
    """The usage of every caller. `bound_by` sets the quotas; until then nothing is refused."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._log = SparseLog(logger)
        self.by_id: dict[str, Usage] = {}
        """Usage of each known caller, by the id of its principal. `of` adds a caller that is not known yet."""
        self.bound_by(CallerQuotas())

    def bound_by(self, quotas: CallerQuotas) -> None:
        """Set the quotas. Call it before the first request."""
        self._quotas, self._unshared = quotas, quotas.unshared()
        self.by_id.clear()

    def of(self, principal: Principal) -> Usage:
        """Return the usage of a caller."""
        usage = self.by_id.get(principal.id)
        return usage if usage is not None else self._new(principal)

    def known(self, principal_id: str) -> Usage:
        """Return the usage of the caller whose principal has this id."""
        return self.by_id.get(principal_id) or self._new(LOCAL if principal_id == LOCAL.id else Principal(principal_id))

    def _new(self, principal: Principal) -> Usage:
        if len(self.by_id) >= MAX_KNOWN:
            for empty in [id_ for id_, usage in self.by_id.items() if usage.is_empty]:
                del self.by_id[empty]
        quotas = self._unshared if principal is LOCAL else self._quotas
        facts = {"is_admin": is_admin(principal), "is_paced": principal is not LOCAL}
        usage = self.by_id[principal.id] = Usage(principal.id, quotas, self._totals, self._log, **facts)
        return usage


class CountedBody:
    """The ASGI `receive` of a request, which counts its body for the caller and delays large bodies.

    A body of unknown length counts as one of the largest allowed length until it has arrived.
    """

    def __init__(self, receive: Receive, scope: Scope, usage: Usage, size: int, *, is_known: bool) -> None:
        """`size` is the length of the body; unless `is_known`, the largest allowed length.

        When the parts of a body were counted and are within the limits, `COUNTED_SCOPE_KEY` is set in `scope`.
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
        """Return the next ASGI message. The last part of a large body is delayed to spread the caller's large bodies over time."""
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
        """Stop counting the body, and drop the references to the request, because the application may keep this object for long."""
        self._usage.hold_bytes(-self._size)
        self._receive, self._scope = _disconnected, {}


def _seconds(size: int, counted: PartCounter) -> float:
    parts = counted.parts + counted.values
    return size * BYTE_SECONDS + parts * PART_SECONDS if size > PACED_BYTES or parts > PACED_PARTS else 0.0


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}
