"""Chooses which queued tasks to start: one pure function, called inside a database transaction.

A task occupies a slot in several scopes: its caller's, its source's and its tool's. It starts when each of them has a free slot. Among
the callers with queued tasks, the one with the fewest running tasks is served next, so that one long queue does not block other callers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.json_types import JsonObject


class Claim(Protocol):
    """A queued or running task, which uses or will use slots."""

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
        """The scopes whose slots the task uses: each with its name `scope`, and the limits `running` and `perMinute` if they are set."""
        ...


def choose_next(waiting: Sequence[Claim], running: Sequence[Claim], started: Mapping[str, int]) -> list[str]:
    """Return the ids of the tasks to start now, in order.

    `waiting` is in order of arrival; `started` counts the tasks started within the last minute, by scope.
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
            del queues[principal]  # none of its tasks fits, and starting others frees no slot
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
