"""Chooses which queued background tasks to start. The pure function `choose_next` is called inside a database transaction.

A task occupies a slot of its caller, a slot of its source (such as a server) and a slot of its tool. It starts when each of the three has a
free slot and has not reached its limit of tasks started per minute. Among the callers with a task that can start, the caller with the
fewest running tasks is next, so that one caller's long queue does not block other callers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.json_types import JsonObject


class Claim(Protocol):
    """Protocol of a queued or running background task: its id, its caller, and the limits that apply to it."""

    @property
    def id(self) -> str:
        """Id of the task."""
        ...

    @property
    def principal(self) -> str:
        """Id of the caller."""
        ...

    @property
    def limits(self) -> Sequence[JsonObject]:
        """The limits that apply to the task: of its caller, its source and its tool.

        Each limit is an object. `scope` is the name of the group of tasks to which the limit applies, such as the tasks of one caller. Two
        optional members limit this group: `running` (tasks that run at the same time), and `perMinute` (tasks started per minute).
        """
        ...


def choose_next(waiting: Sequence[Claim], running: Sequence[Claim], started: Mapping[str, int]) -> list[str]:
    """Return the ids of the queued tasks to start now, in order.

    `waiting` are the queued tasks in order of arrival, `running` the running tasks. `started` maps the `scope` of each limit (the name of a
    group of tasks, such as those of one caller) to the number of tasks of this group that were started within the last minute.
    """
    busy = Counter(str(limit["scope"]) for claim in running for limit in claim.limits)
    rates = Counter(started)
    share = Counter(claim.principal for claim in running)
    queues: dict[str, list[Claim]] = {}
    for claim in waiting:
        queues.setdefault(claim.principal, []).append(claim)
    chosen: list[str] = []
    while queues:
        principal = min(queues, key=lambda name: share[name])
        queue = queues[principal]
        found = next((claim for claim in queue if _has_room(claim, busy, rates)), None)
        if found is None:
            del queues[principal]  # no task of this caller can start, and starting tasks of other callers frees no slot
            continue
        queue.remove(found)
        if not queue:
            del queues[principal]
        chosen.append(found.id)
        share[principal] += 1
        for limit in found.limits:
            busy[str(limit["scope"])] += 1
            rates[str(limit["scope"])] += 1
    return chosen


def _has_room(claim: Claim, busy: Mapping[str, int], rates: Mapping[str, int]) -> bool:
    for limit in claim.limits:
        scope, most, rate = str(limit["scope"]), limit.get("running"), limit.get("perMinute")
        if most is not None and busy.get(scope, 0) >= most:
            return False
        if rate is not None and rates.get(scope, 0) >= rate:
            return False
    return True
