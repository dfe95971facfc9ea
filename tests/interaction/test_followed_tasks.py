"""Tasks of servers that the gateway follows for its clients: cancellation, elicitation, failures and arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client

from tests.fakes.running import gateway_http
from tests.interaction.tasks import ERAS, NAME_ANSWER, heard, scripted, start, text, until
from tests.interaction.ways import MODERN, Way, connected
from tests.interaction.wire import Era, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.mark.requirement(94)
async def test_cancelling_our_task_cancels_the_server_task_it_follows(tmp_path: Path) -> None:
    """Each client speaks the other dialect than its server, so that the task is the gateway's own."""
    working: dict[str, Any] = {"taskId": "t1", "status": "working"}
    common: dict[str, Any] = {"tasks_get": [{"result": working}], "tasks_cancel": [{"result": {**working, "status": "cancelled"}}]}
    created: dict[str, Any] = {"result": {"task": {**working, "createdAt": "2026-01-01T00:00:00Z"}}}
    logs: dict[Era, Path] = {era: tmp_path / f"{era}.jsonl" for era in ERAS}
    old = scripted(logs["legacy"], **common, support="required", tools_call=[created])
    new = scripted(logs["modern"], "--modern", **common, tools_call=[{"result": {**working, "resultType": "task"}}])
    servers = {"old": old["mcpServers"]["up"], "new": new["mcpServers"]["up"]}
    rows: list[tuple[Era, str, Path]] = [("modern", "old__job", logs["legacy"]), ("legacy", "new__job", logs["modern"])]
    with gateway_http(tmp_path, {"mcpServers": servers}) as front:
        for client, tool, log in rows:
            async with over_http(front, client) as wire:
                made = await start(wire, client, tool)
                assert made["taskId"] != "t1"
                with anyio.fail_after(20):
                    while "tasks/get" not in [entry["method"] for entry in heard(log)]:
                        await anyio.sleep(0.02)
                assert "result" in await wire.send("tasks/cancel", taskId=made["taskId"])
                await until(wire, made["taskId"], "cancelled")
            cancelled = [entry["params"]["taskId"] for entry in heard(log) if entry["method"] == "tasks/cancel"]
            assert cancelled == ["t1"]


@pytest.mark.requirement(89)
@pytest.mark.parametrize("era", ERAS)
async def test_client_without_tasks_is_elicited_and_gets_result(tmp_path: Path, era: Era) -> None:
    log = tmp_path / "requests.jsonl"
    form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    ask = {"confirm": {"method": "elicitation/create", "params": {"mode": "form", **form}}}
    working = {"result": {"taskId": "t1", "status": "working", "statusMessage": "half way"}}
    asking = {"result": {"taskId": "t1", "status": "input_required", "inputRequests": ask}}
    done = {"result": {"taskId": "t1", "status": "completed", "result": {"content": [{"type": "text", "text": "deleted"}]}}}
    told = {"tools_call": [{"result": {"resultType": "task", "taskId": "t1", "status": "working"}}], "tasks_get": [working, asking, done]}
    config = scripted(log, "--modern", **told, tasks_update=[{"result": {}}])
    with gateway_http(tmp_path, config) as front:
        asked, progress, result = await call_as_person(front, era)
    assert [params.message for params in asked] == ["Server 'up' asks:\n│ Sure?"]
    assert "half way" in progress
    assert result.content[0].text == "deleted"
    updates = [entry["params"]["inputResponses"] for entry in heard(log) if entry["method"] == "tasks/update"]
    assert [set(update) for update in updates] == [{"confirm"}]
    assert updates[0]["confirm"]["content"] == {"name": "Ada"}


async def call_as_person(front: str, era: Era) -> tuple[list[Any], list[str | None], Any]:
    """Call `up__job` with the SDK's client, which answers elicitations."""
    messages: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)

    async with connected(Way("http", era, "up"), front) as (client, told):
        result = await client.call_tool("up__job", {}, progress_callback=note)
    return told.asked, messages, result


SURE = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
ASKING: dict[str, Any] = {
    "support": "required",
    "tools_call": [{"result": {"task": {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z"}}}],
    "tasks_get": [{"result": {"taskId": "t1", "status": "input_required"}}],
    "tasks_result": [
        {"ask": {"method": "elicitation/create", "params": SURE}, "result": {"content": [{"type": "text", "text": "deleted"}]}}
    ],
}
"""A 2025 server that sends an elicitation while the gateway fetches the result of its task."""


@pytest.mark.requirement(79, 89)
@pytest.mark.parametrize("era", ERAS)
async def test_elicitation_during_2025_result_fetch_reaches_the_caller(tmp_path: Path, era: Era) -> None:
    log = tmp_path / "requests.jsonl"
    with gateway_http(tmp_path, scripted(log, **ASKING)) as front:
        asked, _, result = await call_as_person(front, era)
    assert [params.message for params in asked] == ["Server 'up' asks:\n│ Sure?"]
    assert result.content[0].text == "deleted"
    assert [entry["params"]["content"] for entry in heard(log) if entry["method"] == "answer"] == [{"name": "Ada"}]


@pytest.mark.requirement(89)
async def test_elicitation_during_2025_result_fetch_waits_with_modern_task(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with gateway_http(tmp_path, scripted(log, **ASKING)) as front:
        async with over_http(front, "modern") as wire:
            made = await start(wire, "modern", "up__job")
            waiting = await until(wire, made["taskId"], "input_required")
            [(key, ask)] = waiting["inputRequests"].items()
            assert ask["params"]["message"] == "Server 'up' asks:\n│ Sure?"
            await wire.send("tasks/update", taskId=made["taskId"], inputResponses={"other": NAME_ANSWER, key: NAME_ANSWER})
            done = await until(wire, made["taskId"], "completed", "failed")
    assert text(done["result"]) == "deleted"


@pytest.mark.requirement(79, 89)
async def test_task_that_elicits_without_capability_names_the_request(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    form: dict[str, Any] = {"mode": "form", "message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
    asks: dict[str, Any] = {"confirm": {"method": "elicitation/create", "params": form}}
    asking: dict[str, Any] = {"result": {"taskId": "t1", "status": "input_required", "statusMessage": "needs a yes", "inputRequests": asks}}
    created = {"result": {"resultType": "task", "taskId": "t1", "status": "working"}}
    config = scripted(log, "--modern", tools_call=[created], tasks_get=[asking], tasks_update=[{"result": {}}])
    with gateway_http(tmp_path, config) as front:
        async with Client(front, mode=MODERN) as client:
            result: Any = await client.call_tool("up__job", {})
    assert result.is_error
    assert "'job' ended as input_required: needs a yes" in result.content[0].text
    assert "tasks/update" not in [entry["method"] for entry in heard(log)]


@pytest.mark.requirement(83)
async def test_server_timeout_inside_task_is_not_reported_as_our_deadline(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    late = {"result": {"taskId": "t1", "status": "failed", "statusMessage": "TimeoutError: the database was slow"}}
    created = {"result": {"resultType": "task", "taskId": "t1", "status": "working"}}
    config = scripted(log, "--modern", tools_call=[created], tasks_get=[late], tasks_cancel=[{"result": {}}])
    config["policies"] = {"up": {"tasks": {"maxWaitSeconds": 30}}}
    with gateway_http(tmp_path, config) as front:
        async with Client(front, mode=MODERN) as client:
            result: Any = await client.call_tool("up__job", {})
    assert "TimeoutError: the database was slow" in result.content[0].text
    assert "limit of" not in result.content[0].text and "Timed out after" not in result.content[0].text
    assert "tasks/cancel" not in [entry["method"] for entry in heard(log)]


@pytest.mark.requirement(21)
@pytest.mark.parametrize("era", ERAS)
async def test_undeclared_argument_is_dropped_when_call_becomes_a_task(tmp_path: Path, era: Era) -> None:
    log = tmp_path / "requests.jsonl"
    created = {"result": {"task": {"taskId": "t1", "status": "working", "createdAt": "2026-01-01T00:00:00Z"}}}
    done = {"result": {"taskId": "t1", "status": "completed"}}
    result = {"result": {"content": [{"type": "text", "text": "done"}]}}
    config = scripted(log, support="required", tools_call=[created], tasks_get=[done], tasks_result=[result])
    with gateway_http(tmp_path, config) as front:
        async with over_http(front, era) as wire:
            made = await start(wire, era, "up__job", of="sea", session="secret")
            await until(wire, made["taskId"], "completed")
    calls = [entry["params"] for entry in heard(log) if entry["method"] == "tools/call"]
    assert [call["arguments"] for call in calls] == [{"of": "sea"}]
    assert calls[0]["task"] == {}


@pytest.mark.requirement(21)
async def test_undeclared_argument_is_dropped_when_server_makes_the_task(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    created = {"result": {"resultType": "task", "taskId": "t1", "status": "working"}}
    with gateway_http(tmp_path, scripted(log, "--modern", tools_call=[created])) as front:
        async with over_http(front, "modern") as wire:
            await start(wire, "modern", "up__job", of="sea", session="secret")
    assert [entry["params"]["arguments"] for entry in heard(log)] == [{"of": "sea"}]
