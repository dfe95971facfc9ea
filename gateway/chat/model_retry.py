"""Decisions about retries of failed model requests: whether to retry, and how long to wait. Sends no requests itself.

Failures that may be temporary are retried (status 408, 409, 429, 5xx, no connection, no response). A server's `Retry-After` is respected up
to a limit. A budget per client prevents retries from multiplying the load when everything fails, like gRPC's retry throttling
(https://grpc.io/docs/guides/retry/).
"""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

RETRIED_STATUSES = frozenset({408, 409, 429})
"""HTTP statuses below 500 that are retried: request timeout, conflict, too many requests."""

MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest wait in seconds that a server may request with `Retry-After`. If it requests a longer wait, the error is raised at once."""

BUDGET_CAPACITY = 10.0
"""Number of retries that a client may make, over all its requests, before it stops retrying. Successful requests restore the budget."""

BUDGET_REFUND = 0.125
"""Number of retries by which each successful request restores the budget: in the long run, one retry per eight responses."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of retries of a failed request, and the waits before them."""

    max_retries: int = 2
    base_seconds: float = 0.5
    """Upper bound of the wait before the first retry, in seconds. The bound doubles with each retry, up to `cap_seconds`."""
    cap_seconds: float = 8.0

    def wait_seconds(self, retry: int) -> float:
        """Return the seconds to wait before retry number `retry` (from 1): a random time below the bound for this retry.

        The time is random so that clients do not retry simultaneously.
        """
        return random.uniform(0, min(self.cap_seconds, self.base_seconds * 2 ** min(retry - 1, 30)))


class RetryBudget:
    """Number of retries that a chat client may still make, shared by all of its requests."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = BUDGET_CAPACITY

    def answered(self) -> None:
        """Record a successful request, which restores a part of the budget."""
        if self._left < BUDGET_CAPACITY:
            self._left = min(BUDGET_CAPACITY, self._left + BUDGET_REFUND)

    def take(self) -> bool:
        """Use one retry of the budget. Return false if none is left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True


def may_retry(status: int | None, headers: Mapping[str, str]) -> bool:
    """Return whether a request that failed with the HTTP status `status` may be retried. `None` means that no response arrived.

    If the response has the header `x-should-retry` (`true` or `false`), the header decides instead of the status.
    """
    said = headers.get("x-should-retry")
    if said in ("true", "false"):
        return said == "true"
    return status is None or status in RETRIED_STATUSES or status >= 500


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the server asks to wait, in the header `retry-after-ms` or `Retry-After` (RFC 9110 §10.2.3), else `None`."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    moment = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if moment is None else max(0.0, email.utils.mktime_tz(moment) - time.time())
