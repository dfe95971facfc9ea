"""The order in which queued tasks start."""

from __future__ import annotations

from typing import Any

from gateway.policy.task_scheduling import choose_next
from gateway.storage.record_types import WaitingTask


def task(name: str, *limits: dict[str, Any]) -> WaitingTask:
    return WaitingTask(name, name.partition("-")[0], list(limits))


def test_caller_with_the_fewest_running_tasks_is_next() -> None:
    slow: dict[str, Any] = {"scope": "tool:agent/slow", "running": 3}
    waiting = [task(name, slow) for name in ("ann-1", "ann-2", "ann-3", "bob-1", "cid-1")]
    assert choose_next(waiting, [], {}) == ["ann-1", "bob-1", "cid-1"]
    assert choose_next(waiting, [task("bob-0", slow)], {}) == ["ann-1", "cid-1"]
    assert choose_next(waiting, [task(f"x-{number}", slow) for number in range(3)], {}) == []


def test_task_without_room_does_not_hold_up_others_of_its_caller() -> None:
    waiting = [task("ann-1", {"scope": "source:up", "running": 1}), task("ann-2", {"scope": "source:other", "running": 1})]
    assert choose_next(waiting, [task("bob-1", {"scope": "source:up", "running": 1})], {}) == ["ann-2"]


def test_starts_of_the_last_minute_count_with_those_given_now() -> None:
    paced: dict[str, Any] = {"scope": "caller:ann", "running": None, "perMinute": 3}
    waiting = [task(f"ann-{number}", paced) for number in range(5)]
    assert choose_next(waiting, [], {"caller:ann": 1}) == ["ann-0", "ann-1"]
    assert choose_next(waiting, [], {"caller:ann": 3}) == []
