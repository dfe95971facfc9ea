"""Server processes: their limit, their idle stop, and their end with a killed gateway."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.fakes.running import child, free_port, gateway_http, upstream_stdio, wait_until_ready, write_config
from tests.interaction.test_faults import bad, marked, sources
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(90)
MODERN = Way("http", "modern", "good")


def text_of(result: Any) -> str:
    return result.content[0].text


def tagged(marker: str, *options: str) -> dict[str, Any]:
    """Return the entry of a working server whose processes have `MARK=marker` in their environment."""
    return {**upstream_stdio(*options), "env": {"MARK": marker}}


async def until_marked(marker: str, count: int) -> None:
    with anyio.fail_after(20):
        while len(marked(marker)) != count:
            await anyio.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.fault(23)
async def test_killed_gateway_leaves_no_server_process_or_descendant(tmp_path: Path) -> None:
    marker = f"{tmp_path}-child"
    deaf = {**bad("deaf"), "env": {"MARK": marker}}
    parent = {**bad("parent"), "env": {"MARK": marker}}
    config = write_config(
        tmp_path, {"mcpServers": {"good": tagged(marker), "deaf": deaf, "parent": parent}, "server": {"startupTimeoutSeconds": 0.1}}
    )
    port = free_port()
    log = tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/health", log)
        await until_marked(marker, 4)  # three servers, and the child of `parent` that ignores SIGTERM
        os.kill(process.pid, signal.SIGKILL)
        await until_marked(marker, 0)


@pytest.mark.faults
async def test_idle_server_stops_and_restarts_with_the_next_call(tmp_path: Path) -> None:
    marker = f"{tmp_path}-child"
    config = {"mcpServers": {"good": tagged(marker)}, "policies": {"good": {"idleSeconds": 1}}}
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _):
            assert text_of(await client.call_tool("good__echo", {"text": "one"})) == "one"
            await until_marked(marker, 0)
            assert sources(url)["good"]["state"] == "idle"
            assert any(tool.name == "good__echo" for tool in (await client.list_tools()).tools)
            assert text_of(await client.call_tool("good__echo", {"text": "two"})) == "two"
            assert len(marked(marker)) == 1
            assert sources(url)["good"]["state"] == "ready"


async def test_lazy_server_from_an_earlier_run_starts_with_the_first_call(tmp_path: Path) -> None:
    marker = f"{tmp_path}-child"
    config = {"mcpServers": {"good": tagged(marker)}, "policies": {"good": {"start": "lazy"}}}
    kept = tmp_path / "gateway-state" / "catalog"
    with gateway_http(tmp_path, config), anyio.fail_after(20):
        while not list(kept.glob("good-*.json")):
            await anyio.sleep(0.05)
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _):
            assert any(tool.name == "good__echo" for tool in (await client.list_tools()).tools)
            assert (sources(url)["good"]["state"], marked(marker)) == ("idle", [])
            assert text_of(await client.call_tool("good__echo", {"text": "first"})) == "first"
            assert len(marked(marker)) == 1


@pytest.mark.faults
async def test_server_idle_longest_is_stopped_for_a_new_one(tmp_path: Path) -> None:
    marker = f"{tmp_path}-child"
    names = ("a", "b", "c", "d")
    config = {"mcpServers": {name: tagged(marker) for name in names}, "server": {"maxChildProcesses": 2}}
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _):
            for name in (*names, *names):
                assert text_of(await client.call_tool(f"{name}__echo", {"text": name})) == name
                assert len(marked(marker)) <= 2
            async with anyio.create_task_group() as tasks:
                for name in ("a", "b"):
                    tasks.start_soon(client.call_tool, f"{name}__hang")
                with anyio.fail_after(20):
                    while {name for name, row in sources(url).items() if row["state"] == "ready"} != {"a", "b"}:
                        await anyio.sleep(0.05)
                refused = await client.call_tool("c__echo", {"text": "no room"})
                assert refused.is_error
                assert "server.maxChildProcesses" in text_of(refused)
                assert len(marked(marker)) == 2
                tasks.cancel_scope.cancel()


@pytest.mark.faults
async def test_processes_per_caller_are_separate_and_count_for_the_limit(tmp_path: Path) -> None:
    marker = f"{tmp_path}-child"
    config = {
        "mcpServers": {"good": tagged(marker, "--legacy")},
        "policies": {"good": {"callers": "separate"}},
        "server": {"maxChildProcesses": 3},
    }
    legacy = Way("http", "legacy", "good")
    with gateway_http(tmp_path, config) as url:
        async with connected(legacy, url) as (one, _), connected(legacy, url) as (two, _), connected(legacy, url) as (three, _):
            for client in (one, two, three, one, two, three):
                assert text_of(await client.call_tool("good__ask_name", {})) == "accept: Ada"
                assert len(marked(marker)) <= 3


@pytest.mark.parametrize("callers", ["serial", "auto"])
async def test_requests_on_a_shared_pipe_serve_one_caller_at_a_time(tmp_path: Path, callers: str) -> None:
    config = {"mcpServers": {"good": upstream_stdio("--legacy")}, "policies": {"good": {"callers": callers}}}
    legacy = Way("http", "legacy", "good")
    with gateway_http(tmp_path, config) as url:
        async with connected(legacy, url) as (one, heard_one), connected(legacy, url) as (two, heard_two):
            # `auto` switches to one call at a time after the server's first request for input.
            assert text_of(await one.call_tool("good__ask_name", {})) == "accept: Ada"
            answers: list[str] = []

            async def ask(client: Any) -> None:
                answers.append(text_of(await client.call_tool("good__ask_name", {})))

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(ask, one)
                    tasks.start_soon(ask, two)
    assert answers == ["accept: Ada"] * 8
    assert (len(heard_one.asked), len(heard_two.asked)) == (5, 4)


async def test_shared_server_rejects_a_request_that_fits_two_callers(tmp_path: Path) -> None:
    config = {"mcpServers": {"good": upstream_stdio("--legacy")}, "policies": {"good": {"callers": "shared"}}}
    legacy = Way("http", "legacy", "good")
    with gateway_http(tmp_path, config) as url:
        async with connected(legacy, url) as (one, _), connected(legacy, url) as (two, heard_two):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.call_tool, "good__hang")
                with anyio.fail_after(20):
                    while not (await two.call_tool("good__stats", {})).structured_content["calls"].get("hang"):
                        await anyio.sleep(0.05)
                answer = await two.call_tool("good__ask_name", {})
                assert answer.is_error or "which caller" in text_of(answer)
                assert not heard_two.asked
                with suppress(Exception):
                    tasks.cancel_scope.cancel()
