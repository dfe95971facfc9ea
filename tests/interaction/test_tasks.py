"""Long-running tasks through the gateway, in both dialects, over real processes."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from gateway.auth.api_keys import KeyStore
from tests.fakes.openai_server import openai_server
from tests.fakes.running import child, free_port, gateway_http, upstream_http, upstream_stdio, wait_until_ready, write_config
from tests.interaction.tasks import ERAS, NAME_ANSWER, http_server, jobs, start, text, until
from tests.interaction.wire import Era, HttpWire, Wire, modern_params, over_http, over_stdio

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]

UNKNOWN = {"code": -32602, "message": "Task not found"}
PROMOTED: dict[str, Any] = {"up": {"tasks": {"promote": ["*"]}}}
AGUI_REST: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}


# -- relayed ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(90, 92)
async def test_modern_task_is_relayed_under_own_id_and_fully_controllable(tmp_path: Path) -> None:
    with jobs() as url, gateway_http(tmp_path, http_server(url)) as front:
        async with over_http(front, "modern") as wire, over_http(url, "modern") as direct:
            made = await start(wire, "modern", "up__multi_input")
            asking = await until(wire, made["taskId"], "input_required")
            assert set(asking["inputRequests"]) == {"first", "second"}
            answers = {"first": NAME_ANSWER, "second": {"action": "accept", "content": {"color": "red"}}}
            taken = await wire.send("tasks/update", taskId=made["taskId"], inputResponses=answers)
            assert taken["result"]["resultType"] == "complete"
            done = await until(wire, made["taskId"], "completed", "failed")
            slow = await start(wire, "modern", "up__slow_compute", seconds=60)
            assert "result" in await wire.send("tasks/cancel", taskId=slow["taskId"])
            ended = await until(wire, slow["taskId"], "cancelled")
            behind = await direct.send("tasks/get", taskId=made["taskId"])
    assert text(done["result"]) == "both answered"
    assert ended["taskId"] == slow["taskId"]
    assert behind["error"]["code"] == -32602  # the server's own id of the task is different


@pytest.mark.requirement(90)
@pytest.mark.attack(5)
async def test_task_id_of_another_principal_reads_as_unknown(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    ada, bob = (store.add(name).token for name in ("ada", "bob"))
    with jobs() as url, upstream_http() as plain:
        config = http_server(url)
        config["mcpServers"]["slow"] = {"type": "http", "url": plain}
        config["policies"]["slow"] = {"tasks": {"promote": ["hang"]}}
        with gateway_http(tmp_path, config) as front:
            async with over_http(front, "modern", token=ada) as owner, over_http(front, "modern", token=bob) as other:
                relayed = (await start(owner, "modern", "up__slow_compute", seconds=60))["taskId"]
                promoted = (await start(owner, "modern", "slow__hang"))["taskId"]
                made_up = relayed[:-6] + ("AAAAAA" if relayed[-6:] != "AAAAAA" else "BBBBBB")
                for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                    for task_id in (relayed, promoted, made_up, "r.x", "no-such-task"):
                        assert (await other.send(method, taskId=task_id, inputResponses={}))["error"] == UNKNOWN
                assert (await owner.send("tasks/get", taskId=made_up))["error"] == UNKNOWN
                assert [(await owner.send("tasks/get", taskId=i))["result"]["status"] for i in (relayed, promoted)] == ["working"] * 2
            async with over_http(front, "legacy", token=bob) as other:
                for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                    assert (await other.send(method, taskId=promoted))["error"] == UNKNOWN
                assert (await other.send("tasks/list"))["result"]["tasks"] == []
            async with over_http(front, "modern", token=ada) as owner:
                await owner.send("tasks/cancel", taskId=relayed)


@pytest.mark.requirement(90)
async def test_the_task_of_a_revoked_key_is_refused_at_once_and_stops(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    ada, bob = (store.add(name) for name in ("ada", "bob"))
    with upstream_http() as plain:
        policies = {"slow": {"tasks": {"promote": ["hang"]}}}
        with gateway_http(tmp_path, {"mcpServers": {"slow": {"type": "http", "url": plain}}, "policies": policies}) as front:
            async with over_http(front, "modern", token=ada.token) as owner, over_http(front, "modern", token=bob.token) as other:
                begun = [(await start(caller, "modern", "slow__hang"))["taskId"] for caller in (owner, other)]
                store.revoke(ada.id)
                assert (await owner.send("tasks/get", taskId=begun[0]))["error"] == "invalid_token"
                ended: dict[str, int] = {}
                with anyio.fail_after(20):
                    while not ended:  # it stops within seconds
                        await anyio.sleep(0.1)
                        seen = await other.send("tools/call", name="slow__stats", arguments={})
                        ended = seen["result"]["structuredContent"]["cancelled"]
                assert ended == {"hang": 1}
                assert (await other.send("tasks/get", taskId=begun[1]))["result"]["status"] == "working"
                await other.send("tasks/cancel", taskId=begun[1])


async def test_plain_call_of_revoked_key_ends_like_its_tasks(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "gateway-state" / "keys.json")
    ada, bob = (store.add(name) for name in ("ada", "bob"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thinker.agent.md").write_text("---\ndescription: Thinks.\nmodel: openai-chat:scripted\n---\nThink.\n")
    ended: dict[str, Any] = {}

    async def ask(name: str, wire: Wire) -> None:
        ended[name] = (await wire.send("tools/call", name="agent__thinker", arguments={"task": "Think."}))["result"]

    async def ask_as_application(front: str, token: str) -> None:
        body = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Think."}], **AGUI_REST}
        async with httpx2.AsyncClient(timeout=60) as http:
            url = f"{front.removesuffix('/mcp')}/agui/thinker"
            ended["agui"] = (await http.post(url, json=body, headers={"Authorization": f"Bearer {token}"})).text

    with openai_server() as model:
        await model.play({"fault": "hang", "repeat": True})
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": ""}
        with gateway_http(tmp_path, {"mcpServers": {}, "expose": {"agents": ["own"]}}, env=env) as front:
            async with (
                over_http(front, "legacy", token=ada.token) as legacy,
                over_http(front, "modern", token=ada.token, tasks=False) as modern,
                over_http(front, "modern", token=bob.token, tasks=False) as other,
                anyio.create_task_group() as group,
            ):
                for name, wire in (("legacy", legacy), ("modern", modern), ("other", other)):
                    group.start_soon(ask, name, wire)
                group.start_soon(ask_as_application, front, ada.token)
                with anyio.fail_after(20):
                    while len(await model.requests()) < 4:
                        await anyio.sleep(0.05)
                    store.revoke(ada.id)
                    while len(ended) < 3:
                        await anyio.sleep(0.05)
                assert set(ended) == {"legacy", "modern", "agui"}
                assert [ended[name]["isError"] for name in ("legacy", "modern")] == [True, True]
                assert "RUN_ERROR" in ended["agui"]
                group.cancel_scope.cancel()


@pytest.mark.requirement(90)
async def test_relayed_task_id_is_valid_after_gateway_kill(tmp_path: Path) -> None:
    with jobs() as url:
        path = write_config(tmp_path, http_server(url))
        port, log = free_port(), tmp_path / "gateway.log"
        argv = ("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path))
        front = f"http://127.0.0.1:{port}/mcp"
        with child(*argv, log=log) as first:
            wait_until_ready(first, f"http://127.0.0.1:{port}/ready", log)
            async with over_http(front, "modern") as wire:
                made = await start(wire, "modern", "up__slow_compute", seconds=2, label="twice")
            first.send_signal(signal.SIGKILL)
            first.wait()
        with child(*argv, log=log) as second:
            wait_until_ready(second, f"http://127.0.0.1:{port}/ready", log)
            async with over_http(front, "modern") as wire:
                done = await until(wire, made["taskId"], "completed", "failed")
    assert text(done["result"]) == "computed twice"


async def test_narrowed_key_cannot_follow_tasks_of_tool_it_lost(tmp_path: Path) -> None:
    """The rule covers tasks that a server runs and finished tasks of this gateway. A key with the tool's scope keeps its access."""
    keys = tmp_path / "gateway-state" / "keys.json"
    ada = KeyStore(keys).add("ada")
    with jobs() as url, upstream_http() as plain:
        config = {
            "mcpServers": {"up": {"type": "http", "url": url}, "own": {"type": "http", "url": plain}},
            "policies": {"own": {"tasks": {"promote": ["*"]}}},
        }
        with gateway_http(tmp_path, config) as front:
            async with over_http(front, "modern", token=ada.token) as wire:
                relayed = (await start(wire, "modern", "up__slow_compute", seconds=60))["taskId"]
                finished = (await start(wire, "modern", "own__stats"))["taskId"]
                await until(wire, finished, "completed")
                rights_of(keys, "tools:up/slow_compute", "tools:own/stats")
                for task_id, status in ((relayed, "working"), (finished, "completed")):
                    assert (await wire.send("tasks/get", taskId=task_id))["result"]["status"] == status
                rights_of(keys, "tools:up/other")
                for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                    for task_id in (relayed, finished):
                        answer = await wire.send(method, taskId=task_id, inputResponses={})
                        assert answer["error"]["data"] == {"error": "insufficient_scope"}, (method, answer)


def rights_of(keys: Path, *scopes: str) -> None:
    """Give every key these scopes by editing the key file, as an operator may do."""
    document = json.loads(keys.read_text())
    document["keys"] = [{**key, "scopes": list(scopes)} for key in document["keys"]]
    keys.write_text(json.dumps({**document, "version": 2}))


@pytest.mark.requirement(92)
async def test_modern_client_gets_task_only_if_request_declared_extension(tmp_path: Path) -> None:
    with jobs() as url, gateway_http(tmp_path, http_server(url)) as front:
        async with over_http(front, "modern", tasks=False) as plain, over_http(front, "modern") as wire:
            inline = await plain.send("tools/call", name="up__slow_compute", arguments={"seconds": 0.1, "label": "x"})
            made = await start(wire, "modern", "up__slow_compute", seconds=0.1)
            refused = await plain.send("tasks/get", taskId=made["taskId"])
    assert inline["result"]["resultType"] == "complete"
    assert text(inline["result"]) == "computed x"
    assert refused["error"]["code"] == -32021


# -- promoted --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement(91, 94, 96)
@pytest.mark.parametrize("front", ["http", "stdio"])
@pytest.mark.parametrize("era", ERAS)
async def test_slow_plain_tool_runs_as_task_until_cancelled(tmp_path: Path, era: Era, front: str) -> None:
    with upstream_http("--legacy") as url:
        config = {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": PROMOTED}
        if front == "stdio":
            async with over_stdio(write_config(tmp_path, config), era) as wire:
                await check_promotion(wire, wire, era)
            return
        with gateway_http(tmp_path, config) as gateway:
            async with over_http(gateway, era) as gone:
                left = await start(gone, era, "up__echo", text="left behind")
            async with over_http(gateway, era) as wire:
                assert (await until(wire, left["taskId"], "completed"))["taskId"] == left["taskId"]
                await check_promotion(wire, wire, era)


async def check_promotion(wire: Wire, other: Wire, era: Era) -> None:
    """Check that a cancelled task cancels the server's call, and that a completed task stays completed."""
    hanging = await start(wire, era, "up__hang")
    assert hanging["status"] == "working"
    with anyio.fail_after(20):
        while await count(wire, "calls") < 1:
            await anyio.sleep(0.02)
    cancelled = await wire.send("tasks/cancel", taskId=hanging["taskId"])
    assert "result" in cancelled
    with anyio.fail_after(20):
        while await count(other, "cancelled") < 1:
            await anyio.sleep(0.02)
    again = await wire.send("tasks/cancel", taskId=hanging["taskId"])
    assert ("result" in again) if era == "modern" else again["error"]["code"] == -32602
    assert (await until(wire, hanging["taskId"], "cancelled"))["status"] == "cancelled"
    done = await start(wire, era, "up__echo", text="hi", secret="not declared")
    shown = await until(wire, done["taskId"], "completed", "failed")
    await wire.send("tasks/cancel", taskId=done["taskId"])
    after = await until(wire, done["taskId"], "completed", "cancelled")
    result = shown["result"] if era == "modern" else (await wire.send("tasks/result", taskId=done["taskId"]))["result"]
    assert result["structuredContent"] == {"got": {"text": "hi"}}
    assert after["status"] == "completed"


async def count(wire: Wire, what: str) -> int:
    """Return how often the server's tool `hang` was called or cancelled (`what`)."""
    answer = (await wire.send("tools/call", name="up__stats", arguments={}))["result"]
    if answer.get("resultType") == "task":
        answer = (await until(wire, answer["taskId"], "completed"))["result"]
    return answer["structuredContent"][what].get("hang", 0)


@pytest.mark.requirement(91)
@pytest.mark.parametrize("era", ERAS)
async def test_error_result_is_a_failed_task_in_2025_and_completed_in_2026(tmp_path: Path, era: Era) -> None:
    with gateway_http(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "policies": PROMOTED}) as front:
        async with over_http(front, era) as wire:
            made = await start(wire, era, "up__fail")
            ended = await until(wire, made["taskId"], "completed", "failed")
            result = ended["result"] if era == "modern" else (await wire.send("tasks/result", taskId=made["taskId"]))["result"]
    assert ended["status"] == ("failed" if era == "legacy" else "completed")
    assert result["isError"] is True
    assert text(result) == "it did not work"


@pytest.mark.requirement(91)
async def test_client_2025_sees_which_tools_have_tasks_and_gets_no_other(tmp_path: Path) -> None:
    policies = {"up": {"tasks": {"promote": ["echo"]}}}
    with gateway_http(tmp_path, {"mcpServers": {"up": upstream_stdio()}, "policies": policies}) as front:
        async with over_http(front, "legacy") as wire:
            tools = {tool["name"]: tool.get("execution") for tool in (await wire.send("tools/list"))["result"]["tools"]}
            refused = await wire.send("tools/call", name="up__add", arguments={"a": 1, "b": 2}, task={})
            inline = await wire.send("tools/call", name="up__echo", arguments={"text": "x"})
    assert (tools["up__echo"], tools["up__add"]) == ({"taskSupport": "optional"}, None)
    assert refused["error"]["code"] == -32601
    assert "up__add" in refused["error"]["message"]
    assert text(inline["result"]) == "x"


@pytest.mark.parametrize("era", ERAS)
async def test_call_run_as_task_has_the_task_time_limit(tmp_path: Path, era: Era) -> None:
    both = {"promote": ["hang"]}
    with upstream_http() as url:
        config: dict[str, Any] = {
            "mcpServers": {name: {"type": "http", "url": url} for name in ("free", "short")},
            "policies": {
                "free": {"timeoutSeconds": 0.5, "tasks": both},
                "short": {"timeoutSeconds": 60, "tasks": {**both, "maxWaitSeconds": 1}},
            },
        }
        with gateway_http(tmp_path, config) as front:
            async with over_http(front, era) as wire, over_http(front, era, tasks=False) as plain:
                free = await start(wire, era, "free__hang")
                short = await start(wire, era, "short__hang")
                inline = await plain.send("tools/call", name="free__hang", arguments={})
                ended = await until(wire, short["taskId"], "completed", "failed")
                result = ended["result"] if era == "modern" else (await wire.send("tasks/result", taskId=short["taskId"]))["result"]
                still = await wire.send("tasks/get", taskId=free["taskId"])
                await wire.send("tasks/cancel", taskId=free["taskId"])
    assert "`timeoutSeconds` of 'free'" in text(inline["result"])
    assert "`tasks.maxWaitSeconds` of 'short'" in text(result)
    assert still["result"]["status"] == "working"


@pytest.mark.requirement(96)
@pytest.mark.parametrize("era", ERAS)
async def test_cancellation_without_tasks_within_wait_ends_upstream_call(tmp_path: Path, era: Era) -> None:
    with upstream_http() as url:
        config: dict[str, Any] = {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": PROMOTED}
        path = write_config(tmp_path, {**config, "tasks": {"inlineSeconds": 60}})
        async with over_stdio(path, era, tasks=False) as wire:
            call: dict[str, Any] = {"name": "up__hang", "arguments": {}}
            params = modern_params(call, tasks=False, capabilities={}) if era == "modern" else call
            await wire.write({"id": "hangs", "method": "tools/call", "params": params})
            with anyio.fail_after(20):
                while await count(wire, "calls") < 1:
                    await anyio.sleep(0.02)
            assert await count(wire, "cancelled") == 0
            await wire.write({"method": "notifications/cancelled", "params": {"requestId": "hangs", "reason": "enough"}})
            with anyio.fail_after(20):
                while await count(wire, "cancelled") < 1:
                    await anyio.sleep(0.02)
            assert await count(wire, "calls") == 1


@pytest.mark.requirement(96)
async def test_http_2026_cancels_by_closing_and_2025_by_notification(tmp_path: Path) -> None:
    """All cancellations arrive before the calls would become tasks."""
    with upstream_http() as url:
        config: dict[str, Any] = {"mcpServers": {"up": {"type": "http", "url": url}}, "policies": PROMOTED, "tasks": {"inlineSeconds": 3}}
        with gateway_http(tmp_path, config) as front:
            async with over_http(front, "legacy", tasks=False) as legacy, over_http(front, "modern", tasks=False) as modern:
                async with hanging(modern):
                    await until_counted(legacy, "calls", 1)
                    assert await count(legacy, "cancelled") == 0
                await until_counted(legacy, "cancelled", 1)
                async with hanging(legacy):
                    await until_counted(legacy, "calls", 2)
                    cancelled = {"requestId": "hangs", "reason": "enough"}
                    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
                    accept = {"Accept": "application/json, text/event-stream", **legacy.headers}
                    await legacy.http.post(legacy.url, headers=accept, json=note)
                    await until_counted(legacy, "cancelled", 2)
                assert (await legacy.send("tasks/list"))["result"]["tasks"] == []
                async with hanging(legacy):
                    await until_counted(legacy, "calls", 3)
                with anyio.fail_after(20):  # the call continues and becomes a task
                    while not (tasks := (await legacy.send("tasks/list"))["result"]["tasks"]):
                        await anyio.sleep(0.05)
                assert ([task["status"] for task in tasks], await count(legacy, "cancelled")) == (["working"], 2)
                await legacy.send("tasks/cancel", taskId=tasks[0]["taskId"])
                await until_counted(legacy, "cancelled", 3)


@asynccontextmanager
async def hanging(wire: HttpWire) -> AsyncGenerator[None]:
    """A call that does not end, by a client that closes its connection at the end."""
    params: dict[str, Any] = {"name": "up__hang", "arguments": {}}
    headers = {"Accept": "application/json, text/event-stream", **wire.headers}
    if wire.era == "modern":
        params = modern_params(params, tasks=False, capabilities={})
        headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "up__hang"}
    body = {"jsonrpc": "2.0", "id": "hangs", "method": "tools/call", "params": params}
    async with httpx2.AsyncClient() as http, anyio.create_task_group() as group:

        async def ask() -> None:
            await http.post(wire.url, headers=headers, json=body, timeout=None)

        group.start_soon(ask)
        yield
        group.cancel_scope.cancel()


async def until_counted(wire: Wire, what: str, number: int) -> None:
    with anyio.fail_after(20):
        while await count(wire, what) < number:
            await anyio.sleep(0.02)
