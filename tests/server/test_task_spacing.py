"""How often a client is notified of one task: a burst of changes is sent at intervals, and the end always."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.json_types import JsonObject
from gateway.server.task_calls import SPACING_SECONDS, TaskHandler
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.tasks.dying import running

QUESTIONS = 8


@pytest.mark.requirement(95)
async def test_burst_of_task_changes_is_limited_and_its_end_always_sent(tmp_path: Path) -> None:
    ctx = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        for number in range(QUESTIONS):
            params: JsonObject = {"mode": "form", "message": f"{number}?", "requestedSchema": {}}
            await ctx.ask({"method": "elicitation/create", "params": params})
        return Complete.text("done")

    told: list[tuple[float, str]] = []

    async def tell(state: JsonObject) -> None:
        told.append((anyio.current_time(), str(state["status"])))

    answered = 0
    nobody: Any = None  # `follow` uses neither tools nor clients
    async with running(tmp_path, call) as runner, anyio.create_task_group() as tasks:
        handler = TaskHandler(nobody, bytes(32))
        handler.run_with(runner)
        task = await runner.start("tool", {}, ctx)
        tasks.start_soon(handler.follow, task.id, ctx, tell)
        with anyio.fail_after(30):
            while not task.is_over:
                if open_now := dict(task.open_requests):
                    await runner.answer(task, {key: {"action": "accept"} for key in open_now})
                    answered += len(open_now)
                else:
                    await runner.wait_for_change(task)
    assert answered == QUESTIONS
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(told)]
    assert all(pause > SPACING_SECONDS - 0.01 for pause in pauses), pauses
    assert told[-1][1] == "completed"
