"""Whose turn it is: which of the tasks that wait may begin. One pure function, asked inside the database's transaction.

A task takes up room in scopes: its caller's, its source's, its tool's. It begins when each of them has room. Callers take turns:
of those whose tasks wait, the one with the fewest running is served next, so that nobody waits behind another's long queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.json_types import JsonObject


class Claim(Protocol):
    """A task as it is judged: one that waits, or one that runs."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def principal(self) -> str:
        """Its caller."""
        ...

    @property
    def limits(self) -> Sequence[JsonObject]:
        """Its scopes: `scope`, and `running` and `perMinute` where they are limited."""
        ...


def choose_next(waiting: Sequence[Claim], running: Sequence[Claim], started: Mapping[str, int]) -> list[str]:
    """The ids of those that may begin now, in the order of their turns.

    `waiting` is in the order they came; `started` counts what began within the last minute, by scope.
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
            del queues[principal]  # none of its tasks has room, and what others take leaves no more
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
