"""When a failed model request is sent again, and how long to wait before: decisions only, no sending.

Three rules. Only what may succeed next time is repeated (408, 409, 429, 5xx, no connection, no answer). A server that
names a time is obeyed, up to a limit. And a client as a whole may repeat only so often: when everything fails, a
budget keeps it from multiplying the load (the idea of gRPC's retry throttling, https://grpc.io/docs/guides/retry/).
"""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

RETRIED_STATUSES = frozenset({408, 409, 429})
"""Below 500: the server gave up waiting, was busy with the same thing, or had too much to do."""

MAX_RETRY_AFTER_SECONDS = 60.0
"""A server that wants longer than this is not waited for: the caller hears of it and decides."""

BUDGET_CAPACITY = 10.0
"""Repeats in a row, over all requests of one client, before it stops repeating."""

BUDGET_REFUND = 0.125
"""What one answered request gives back: in the long run one repeat for eight answers."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently one request is repeated."""

    max_retries: int = 2
    base_seconds: float = 0.5
    """Upper bound of the first wait; it doubles with each repeat."""
    cap_seconds: float = 8.0

    def wait_seconds(self, repeat: int) -> float:
        """The wait before the `repeat`th repeat, from 1: anything up to the bound, so that clients do not march in step."""
        return random.uniform(0, min(self.cap_seconds, self.base_seconds * 2 ** min(repeat - 1, 30)))


class RetryBudget:
    """What is left of one client's repeats. Shared by all requests of that client."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = BUDGET_CAPACITY

    def answered(self) -> None:
        """A request was answered."""
        if self._left < BUDGET_CAPACITY:
            self._left = min(BUDGET_CAPACITY, self._left + BUDGET_REFUND)

    def take(self) -> bool:
        """Whether one more repeat is allowed; counts it."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


def may_retry(status: int | None, headers: Mapping[str, str]) -> bool:
    """Whether a request that failed with `status` may be sent again; `None` is a failure without an answer."""
    said = headers.get("x-should-retry")
    if said in ("true", "false"):
        return said == "true"
    return status is None or status in RETRIED_STATUSES or status >= 500


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the server asks to wait; `None` where it says nothing usable (RFC 9110 §10.2.3, and `retry-after-ms`)."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    moment = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if moment is None else max(0.0, email.utils.mktime_tz(moment) - time.time())
