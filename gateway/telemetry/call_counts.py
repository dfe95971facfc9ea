"""`CallCounts`: counts finished calls by source, tool, endpoint and principal for metrics. `BoundedLabels`: limits the values of a label.

The gate appends each finished call to a queue. The calls are counted when the metrics are read, at the latest after `MAX_QUEUED` calls, so
that the path of a call only pays for the append. Used by `gate.call_journal` and `telemetry.prometheus`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.json_types import JsonObject

OTHER = "other"
"""Label value of all tools and principals that have no label value of their own."""

MAX_QUEUED = 10_000
"""Number of queued calls at which the next call first counts them."""

MAX_TOOLS = 200
"""Maximum number of tools that have a label value of their own. Calls of all others are counted as `other`."""

MAX_PRINCIPALS = 100
"""Maximum number of principals that have a label value of their own. Calls of all others are counted as `other`."""

FREQUENT = 100
"""Number of calls after which a tool or principal gets one of the label values that are reserved for frequent ones."""


class HasId(Protocol):
    """Protocol of a principal."""

    @property
    def id(self) -> str:
        """Identifier of the principal, which is not a secret."""
        ...


Call = tuple[float, str, str, str, HasId, str, JsonObject, int | None, JsonObject | None]
"""A finished call, as `gate.call_journal` queues it."""


class BoundedLabels:
    """Gives at most `limit` values a label of their own, for as long as the process runs, and `other` to the rest.

    Half of the labels go to the values that come first. The other half go to values that come often, so that many rare values, such as the
    tools that one caller tries once, cannot take all labels.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._own: set[str] = set()
        self._seen: Counter[str] = Counter()
        """Approximate counts of values without a label: at most four times `limit` values, of which the rarest is replaced."""

    def of(self, value: str) -> str:
        """Return the label for one more occurrence of `value`: the value itself, or `other`."""
        if value in self._own:
            return value
        if len(self._own) < self._limit // 2:
            self._own.add(value)
            return value
        if len(self._own) >= self._limit:
            return OTHER
        if value not in self._seen and len(self._seen) >= 4 * self._limit:
            del self._seen[min(self._seen, key=self._seen.__getitem__)]
        self._seen[value] += 1
        if self._seen[value] < FREQUENT:
            return OTHER
        del self._seen[value]
        self._own.add(value)
        return value


@dataclass(frozen=True, slots=True)
class CountedCall:
    """One call that was counted just now."""

    kind: str
    """Kind of the event that ended the call, such as `call.finished`."""
    source: str
    endpoint: str
    fields: JsonObject
    """The fields of the event: `outcome`, `milliseconds`, …"""


class CallCounts:
    """Counts finished calls. The counts only grow, as counters of Prometheus do."""

    def __init__(self, endpoint: Callable[[], str], *, tools: int = MAX_TOOLS, principals: int = MAX_PRINCIPALS) -> None:
        """`endpoint` returns the endpoint of the calls. `tools` and `principals` are the maximum numbers of label values."""
        self._endpoint = endpoint
        self._queue: deque[Call] = deque()
        self._tools = BoundedLabels(tools)
        self._principals = BoundedLabels(principals)
        self._by_tool: Counter[tuple[str, str, str, str]] = Counter()
        self._by_principal: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._counting = threading.Lock()  # exporters read metrics in threads of their own
        self.on_counted: Callable[[CountedCall], None] | None = None
        """Called for each call that is counted, to record its duration."""

    @property
    def queued(self) -> int:
        """Number of calls that are not counted yet."""
        return len(self._queue)

    def note(self, call: Call) -> None:
        """Queue a finished call or read."""
        self._queue.append(call)
        if len(self._queue) >= MAX_QUEUED:
            self.count()

    def count(self) -> None:
        """Count the queued calls. If another thread counts them now, return at once."""
        if not self._counting.acquire(blocking=False):
            return
        try:
            for _ in range(len(self._queue)):
                self._count(self._queue.popleft())
        finally:
            self._counting.release()

    def _count(self, call: Call) -> None:
        _, kind, source, name, principal, _, fields, size, _ = call
        outcome, endpoint = str(fields.get("outcome", "")), self._endpoint()
        if kind.startswith("call."):
            is_other = self._tools.of(f"{source}/{name}") == OTHER
            self._by_tool[source, OTHER if is_other else name, endpoint, outcome] += 1
        self._by_principal[self._principals.of(principal.id), endpoint, outcome] += 1
        if size is not None:
            self._bytes[source, endpoint] += size
        if self.on_counted is not None:
            self.on_counted(CountedCall(kind, source, endpoint, fields))

    def by_tool(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the numbers of calls with their labels `source`, `tool`, `endpoint` and `outcome`."""
        for (source, tool, endpoint, outcome), number in list(self._by_tool.items()):
            yield number, {"source": source, "tool": tool, "endpoint": endpoint, "outcome": outcome}

    def by_principal(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the numbers of calls and reads with their labels `principal`, `endpoint` and `outcome`."""
        for (principal, endpoint, outcome), number in list(self._by_principal.items()):
            yield number, {"principal": principal, "endpoint": endpoint, "outcome": outcome}

    def result_bytes(self) -> Iterator[tuple[int, Mapping[str, str]]]:
        """Yield the bytes of results with their labels `source` and `endpoint`."""
        for (source, endpoint), number in list(self._bytes.items()):
            yield number, {"source": source, "endpoint": endpoint}
