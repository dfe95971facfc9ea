"""Clients receive the status of their tasks: on a listen stream (2026), on their session (2025), over real processes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.fakes.running import gateway_http, upstream_http
from tests.interaction.tasks import http_server, start
from tests.interaction.wire import HttpWire, modern_params, over_http

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

FUNCTIONS = """\
import pathlib, time
HERE = pathlib.Path(__file__).parent

def slow(which: str) -> str:
    while not (HERE / f"go-{which}").exists():
        time.sleep(0.02)
    return f"done {which}"
"""
FLOW = """\
name: flow
description: One slow function.
input: {which: {type: string}}
executors:
  one: {python: "news_functions:slow", arguments: {which: "{{which}}"}}
start: one
output: one
"""
Messages = AsyncGenerator[dict[str, Any]]


async def messages(answer: httpx2.Response) -> Messages:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


@asynccontextmanager
async def listening(wire: HttpWire, task_ids: list[str], *, tasks: bool = True) -> AsyncGenerator[Messages]:
    params = modern_params({"notifications": {"taskIds": task_ids}}, tasks=tasks, capabilities={})
    body = {"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen", "params": params}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
    async with wire.http.stream("POST", wire.url, headers=headers, json=body) as answer:
        if "text/event-stream" not in answer.headers["content-type"]:
            await answer.aread()
            raise AssertionError(answer.text)
        yield messages(answer)


async def told_until(heard: Messages, method: str, task_id: str, status: str) -> list[dict[str, Any]]:
    """Return the notifications about a task up to the first with this status."""
    told: list[dict[str, Any]] = []
    with anyio.fail_after(20):
        async for message in heard:
            if message.get("method") == method and message["params"]["taskId"] == task_id:
                told.append(message["params"])
                if told[-1]["status"] == status:
                    break
    return told


@pytest.mark.requirement(95)
async def test_clients_are_notified_of_their_own_tasks_only(tmp_path: Path) -> None:
    (tmp_path / "news_functions.py").write_text(FUNCTIONS)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    with upstream_http(module="tests.conformance.upstream") as url:
        with gateway_http(tmp_path, {**http_server(url), "expose": {"agents": ["."]}}) as front:
            await listen_as_modern(front, tmp_path)
            await listen_as_legacy(front, tmp_path)


async def listen_as_modern(front: str, folder: Path) -> None:
    async with over_http(front, "modern") as wire:
        own = (await start(wire, "modern", "workflow__flow", which="one"))["taskId"]
        relayed = (await start(wire, "modern", "up__slow_compute", seconds=1, label="far"))["taskId"]
        other = (await start(wire, "modern", "workflow__flow", which="two"))["taskId"]
        async with listening(wire, [own, relayed, "unknown"]) as heard:
            first = await anext(heard)
            assert first["method"] == "notifications/subscriptions/acknowledged"
            assert first["params"]["notifications"] == {"taskIds": [own, relayed]}
            (folder / "go-one").touch()
            (folder / "go-two").touch()
            told = await told_until(heard, "notifications/tasks", own, "completed")
            assert told[-1]["result"]["content"] == [{"type": "text", "text": "done one"}]
            assert told[-1]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 7}
        async with listening(wire, [relayed]) as heard:
            told = await told_until(heard, "notifications/tasks", relayed, "completed")
            assert "far" in told[-1]["result"]["content"][0]["text"]
            assert all(params["taskId"] != other for params in told)
        with pytest.raises(AssertionError, match="-32021"):
            async with listening(wire, [own], tasks=False):
                pass


async def listen_as_legacy(front: str, folder: Path) -> None:
    async with over_http(front, "legacy") as wire:
        headers = {"Accept": "text/event-stream", **wire.headers}
        async with wire.http.stream("GET", front, headers=headers) as answer:
            made = await start(wire, "legacy", "workflow__flow", which="three")
            (folder / "go-three").touch()
            told = await told_until(messages(answer), "notifications/tasks/status", made["taskId"], "completed")
    assert set(told[-1]) >= {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl", "pollInterval"}
