"""Checks of definitions for tool poisoning when many servers connect at once."""

from __future__ import annotations

import threading
import time

import anyio
import pytest

from gateway.json_types import JsonMapping
from gateway.upstream import poisoning_check
from gateway.upstream.poisoning_check import Lists, PoisoningCheck


async def test_checks_of_many_servers_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0
    counting = threading.Lock()

    def signs(definition: JsonMapping) -> tuple[str, ...]:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with counting:
            running -= 1
        return (f"sign of {definition['name']}",)

    monkeypatch.setattr(poisoning_check, "poisoning_signs", signs)
    lists: Lists = {"tools": [{"name": "a"}], "prompts": [], "resources": [], "templates": []}
    checks = [PoisoningCheck(f"s{n}", lambda: lists) for n in range(8)]
    async with anyio.create_task_group() as tasks:
        for check in checks:
            tasks.start_soon(check.judge)
    assert [check.found for check in checks] == [{"tool a": "sign of a"}] * 8
    assert most == 1
