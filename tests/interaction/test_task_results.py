"""Results of servers' tasks are judged like results of plain calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.running import gateway_http
from tests.interaction.tasks import ERAS, heard, scripted, start, until
from tests.interaction.test_hidden_text import CLEAN, NASTY, assert_clean
from tests.interaction.ways import Way, connected
from tests.interaction.wire import Era, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

WORKING: dict[str, Any] = {"taskId": "t1", "status": "working"}
DONE: dict[str, Any] = {"taskId": "t1", "status": "completed"}
MADE: dict[str, Any] = {"result": {**WORKING, "resultType": "task"}}
CREATED: dict[str, Any] = {"result": {"task": {**WORKING, "createdAt": "2026-01-01T00:00:00Z"}}}
DECLINED: dict[str, Any] = {"error": {"code": -32601, "message": "no tasks"}}


@pytest.mark.requirement(77)
@pytest.mark.parametrize("odd", [{"content": [None]}, {"content": "?"}, {}], ids=["no block", "no list", "nothing"])
async def test_task_result_no_client_could_read_is_a_named_error(tmp_path: Path, odd: dict[str, Any]) -> None:
    old: dict[str, Any] = {"support": "required", "tasks_get": [{"result": DONE}], "tasks_result": [{"result": odd}]}
    configs = {
        "new": scripted(tmp_path / "new", "--modern", tools_call=[MADE], tasks_get=[{"result": {**DONE, "result": odd}}]),
        "old": scripted(tmp_path / "old", **old, tools_call=[CREATED]),
        "none": scripted(tmp_path / "none", **old, tools_call=[DECLINED, {"result": odd}] * 2),
    }
    servers = {name: config["mcpServers"]["up"] for name, config in configs.items()}
    with gateway_http(tmp_path, {"mcpServers": servers}) as front:
        for era in ERAS:
            async with connected(Way("http", era, "up"), front) as (client, _):
                for name in servers:
                    answer: Any = await client.call_tool(f"{name}__job", {})
                    said = "neither a result nor a task" if name == "none" else "a result that cannot be read"
                    assert answer.is_error and said in answer.content[0].text, (name, answer)
        async with over_http(front, "modern") as wire:
            made = await start(wire, "modern", "new__job")
            ended = await until(wire, made["taskId"], "completed", "failed")
    assert (ended["status"], "result" in ended) == ("failed", False)
    assert "a result that cannot be read" in ended["statusMessage"] and ended["error"]["message"] == ended["statusMessage"]
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()


@pytest.mark.requirement(78)
async def test_task_may_end_with_structured_content_alone(tmp_path: Path) -> None:
    done: dict[str, Any] = {"result": {**DONE, "result": {"structuredContent": {"n": 1}}}}
    with gateway_http(tmp_path, scripted(tmp_path / "log", "--modern", tools_call=[MADE], tasks_get=[done])) as front:
        async with connected(Way("http", "modern", "up"), front) as (client, _):
            answer: Any = await client.call_tool("up__job", {})
    assert (answer.is_error, answer.structured_content) == (False, {"n": 1})


@pytest.mark.requirement(72, 74)
async def test_task_survives_server_death_during_a_poll_and_a_result_read(tmp_path: Path) -> None:
    text: dict[str, Any] = {"content": [{"type": "text", "text": "done"}]}
    ends = {"new": {"result": {**DONE, "result": text}}, "old": {"result": DONE}}
    old: dict[str, Any] = {"support": "required", "tasks_get": ["die", ends["old"]], "tasks_result": ["die", {"result": text}]}
    configs = {
        "new": scripted(tmp_path / "new", "--modern", tools_call=[MADE], tasks_get=["die", ends["new"]]),
        "old": scripted(tmp_path / "old", **old, tools_call=[CREATED]),
    }
    servers = {name: config["mcpServers"]["up"] for name, config in configs.items()}
    with gateway_http(tmp_path, {"mcpServers": servers}) as front:
        async with connected(Way("http", "modern", "up"), front) as (client, _):
            answers: dict[str, Any] = {name: await client.call_tool(f"{name}__job", {}) for name in servers}
    assert [answer.content[0].text for answer in answers.values()] == ["done", "done"]
    assert [request["method"] for request in heard(tmp_path / "new")] == ["tools/call", "tasks/get", "tasks/get"]
    requests = ["tools/call", "tasks/get", "tasks/get", "tasks/result", "tasks/result"]
    assert [request["method"] for request in heard(tmp_path / "old")] == requests


@pytest.mark.attack(11)
@pytest.mark.parametrize("era", ERAS)
async def test_hidden_text_is_stripped_from_tasks_of_servers(tmp_path: Path, era: Era) -> None:
    """Each client speaks its server's dialect, so that the gateway relays the server's own task."""
    hidden: dict[str, Any] = {"content": [{"type": "text", "text": NASTY}], "structuredContent": {"said": NASTY}}
    if era == "modern":
        ended: dict[str, Any] = {"result": {**DONE, "statusMessage": NASTY, "result": hidden}}
        config = scripted(tmp_path / "log", "--modern", tools_call=[MADE], tasks_get=[ended])
    else:
        old: dict[str, Any] = {"support": "required", "tasks_get": [{"result": {**DONE, "statusMessage": NASTY}}]}
        config = scripted(tmp_path / "log", **old, tools_call=[CREATED], tasks_result=[{"result": hidden}])
    with gateway_http(tmp_path, config) as front:
        async with over_http(front, era) as wire:
            made = await start(wire, era, "up__job")
            task = await until(wire, made["taskId"], "completed")
            result = task["result"] if era == "modern" else (await wire.send("tasks/result", taskId=made["taskId"]))["result"]
    assert_clean(json.dumps([task, result]))
    ended_as = CLEAN if era == "modern" else "Completed"  # a task of a 2025 server is followed by a task of the gateway
    assert (task["statusMessage"], result["structuredContent"]) == (ended_as, {"said": CLEAN})
    assert [block["text"] for block in result["content"]] == [CLEAN]


@pytest.mark.attack(11)
@pytest.mark.parametrize("era", ERAS)
async def test_hidden_text_in_upstream_task_results_is_rejected_by_policy(tmp_path: Path, era: Era) -> None:
    hidden: dict[str, Any] = {"content": [{"type": "text", "text": NASTY}]}
    if era == "modern":
        config = scripted(tmp_path / "log", "--modern", tools_call=[MADE], tasks_get=[{"result": {**DONE, "result": hidden}}])
    else:
        old: dict[str, Any] = {"support": "required", "tasks_get": [{"result": DONE}]}
        config = scripted(tmp_path / "log", **old, tools_call=[CREATED], tasks_result=[{"result": hidden}])
    with gateway_http(tmp_path, {**config, "policies": {"up": {"hiddenText": "refuse"}}}) as front:
        async with over_http(front, era) as wire:
            made = await start(wire, era, "up__job")
            task = await until(wire, made["taskId"], "completed", "failed")
            result = task["result"] if era == "modern" else (await wire.send("tasks/result", taskId=made["taskId"]))["result"]
    assert_clean(json.dumps([task, result]))
    assert (result["isError"], result["_meta"]["dev.moongate/rule"]) == (True, "hiddenText")
