"""Long-running tasks over three gateways in a row, their links of mixed eras: started, asked, answered and cancelled at the far end.

    client ── A ── B ── C ── a 2026 server that makes tasks

Real processes; all links are HTTP. Links of the 2025 era carry the 2025 dialect or follow the task, so a client sees a task of
its own era wherever its first gateway can make one.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.fakes.running import gateway_http, upstream_http
from tests.interaction.tasks import http_server, start, text, until
from tests.interaction.wire import over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LINKS = [("modern", "modern", "modern"), ("modern", "legacy", "modern"), ("legacy", "modern", "modern")]
"""Eras of A to B, B to C, and C to the server."""


@pytest.fixture(scope="module", params=LINKS, ids="-".join)
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """The URL of A; names pass unchanged on every hop. A makes tasks of plain tools where its link carries none."""
    folder = tmp_path_factory.mktemp("tasks")
    with ExitStack() as stack:
        url = stack.enter_context(upstream_http(module="tests.conformance.upstream"))
        for name, era in zip("cba", reversed(request.param), strict=True):
            policy: dict[str, Any] = {"era": era, "prefix": ""}
            if era == "legacy":
                policy["tasks"] = {"promote": ["*"]}
            config = {**http_server(url, **policy), "server": {"statusTool": False}}
            url = stack.enter_context(gateway_http(folder, config, name))
        yield url


async def test_task_started_at_front_ends_with_far_server_result(front: str) -> None:
    async with over_http(front, "modern") as wire:
        made = await start(wire, "modern", "slow_compute", seconds=1, label="far")
        done = await until(wire, made["taskId"], "completed", "failed")
    assert done["status"] == "completed", done
    assert "far" in text(done["result"])


async def test_far_server_question_is_answered_at_the_front(front: str) -> None:
    async with over_http(front, "modern", capabilities={"elicitation": {"form": {}}}) as wire:
        made = await start(wire, "modern", "confirm_delete", filename="far.txt")
        asking = await until(wire, made["taskId"], "input_required", "completed", "failed")
        assert asking["status"] == "input_required", asking
        answers = {key: {"action": "accept", "content": {"confirm": True}} for key in asking["inputRequests"]}
        await wire.send("tasks/update", taskId=made["taskId"], inputResponses=answers)
        done = await until(wire, made["taskId"], "completed", "failed")
    assert done["status"] == "completed", done
    assert text(done["result"]) == "deleted"


async def test_task_cancelled_at_the_front_ends_at_the_far_server(front: str) -> None:
    async with over_http(front, "modern") as wire:
        made = await start(wire, "modern", "slow_compute", seconds=60)
        await wire.send("tasks/cancel", taskId=made["taskId"])
        ended = await until(wire, made["taskId"], "cancelled")
    assert ended["taskId"] == made["taskId"]
