"""Bad input and bad peers: each has a clear outcome, hurts nobody else and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.fakes.running import (
    ROOT,
    child,
    free_port,
    gateway_http,
    upstream_http,
    upstream_stdio,
    wait_until_ready,
    write_config,
)
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(90)
MODERN = Way("http", "modern", "good")


def bad(mode: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", "tests.fakes.bad_upstream", mode], "cwd": str(ROOT)}


def sources(url: str) -> dict[str, dict[str, Any]]:
    answer = httpx2.get(url.replace("/mcp", "/status.json"))
    return {row["name"]: row for row in answer.json()["sources"]}


def text_of(result: Any) -> str:
    return result.content[0].text


def stats(result: Any) -> dict[str, Any]:
    return result.structured_content


async def test_failing_server_is_reported_and_others_keep_serving(tmp_path: Path) -> None:
    servers = {
        "good": upstream_stdio(),
        "gone": bad("exit"),
        "missing": {"command": "no-such-program-anywhere"},
        "closed": {"type": "http", "url": f"http://127.0.0.1:{free_port()}/mcp"},
        "garbage": bad("garbage"),
    }
    with gateway_http(tmp_path, {"mcpServers": servers}) as url:
        state = sources(url)
        async with connected(MODERN, url) as (client, _):
            assert text_of(await client.call_tool("good__echo", {"text": "fine"})) == "fine"
            assert text_of(await client.call_tool("garbage__echo", {"text": "fine too"})) == "fine too"
    assert {name: row["state"] for name, row in state.items()} == {
        "good": "ready",
        "gone": "down",
        "missing": "down",
        "closed": "down",
        "garbage": "ready",
    }
    assert "cannot find my database" in state["gone"]["error"]
    assert "no-such-program-anywhere" in state["missing"]["error"]
    assert "cannot connect" in state["closed"]["error"]


@pytest.mark.parametrize("mode", ["hang", "no-newline"])
@pytest.mark.faults
async def test_unresponsive_server_is_given_up_while_others_serve(tmp_path: Path, mode: str) -> None:
    policies = {"bad": {"connectTimeoutSeconds": 2}}
    config = {"mcpServers": {"good": upstream_stdio(), "bad": bad(mode)}, "policies": policies, "server": {"startupTimeoutSeconds": 1}}
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _):
            assert text_of(await client.call_tool("good__echo", {"text": "fine"})) == "fine"
            with anyio.fail_after(20):
                while sources(url)["bad"]["state"] != "down":
                    await anyio.sleep(0.05)
        assert "no answer" in sources(url)["bad"]["error"]


@pytest.mark.faults
async def test_ten_thousand_tools_are_listed_in_pages_and_all_callable(tmp_path: Path) -> None:
    config = {"mcpServers": {"good": upstream_stdio("--tools", "10000")}}
    with gateway_http(tmp_path, config) as url:
        async with connected(MODERN, url) as (client, _):
            names: list[str] = []
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert text_of(await client.call_tool("good__extra_9999", {"text": "last"})) == "last"
    assert len(names) == len(set(names)) > 10_000


@pytest.mark.parametrize("kind", ["http", pytest.param("stdio", marks=pytest.mark.faults)])
async def test_fifty_megabyte_result_becomes_a_head_and_a_link(tmp_path: Path, kind: str) -> None:
    with upstream_http() as upstream:
        entry = {"type": "http", "url": upstream} if kind == "http" else upstream_stdio()
        with gateway_http(tmp_path, {"mcpServers": {"good": entry}}) as url:
            async with connected(MODERN, url) as (client, _):
                result = await client.call_tool("good__big", {"bytes": 50_000_000})
                after = await client.call_tool("good__echo", {"text": "still here"})
    assert not result.is_error
    assert [block.type for block in result.content] == ["text", "text", "resource_link"]
    assert text_of(after) == "still here"


@pytest.mark.parametrize("path", ["auto", "off"])
@pytest.mark.parametrize("kind", ["http", "legacy http", "stdio"])
async def test_response_over_the_limit_fails_at_once(tmp_path: Path, kind: str, path: str) -> None:
    with upstream_http(*(["--legacy"] if "legacy" in kind else [])) as upstream:
        entry = upstream_stdio() if kind == "stdio" else {"type": "http", "url": upstream}
        with gateway_http(tmp_path, {"mcpServers": {"good": entry}, "policies": {"good": {"directPath": path}}}) as url:
            async with connected(MODERN, url) as (client, _):
                result = await client.call_tool("good__big", {"bytes": 70_000_000})
                after = await client.call_tool("good__echo", {"text": "still here"})
    assert result.is_error
    assert "larger than the limit of 67108864 bytes" in text_of(result)
    assert text_of(after) == "still here"


async def test_server_death_fails_only_its_call_and_server_restarts(tmp_path: Path) -> None:
    with gateway_http(tmp_path, {"mcpServers": {"good": upstream_stdio(), "other": upstream_stdio()}}) as url:
        async with connected(MODERN, url) as (client, _):
            died = await client.call_tool("good__die", {})
            other = await client.call_tool("other__echo", {"text": "unharmed"})
            with anyio.fail_after(20):
                while (again := await client.call_tool("good__echo", {"text": "back"})).is_error:
                    await anyio.sleep(0.1)
    assert died.is_error
    assert "may have run" in text_of(died)
    assert text_of(other) == "unharmed"
    assert text_of(again) == "back"


@pytest.mark.faults
async def test_restarted_http_server_serves_the_next_call(tmp_path: Path) -> None:
    port = free_port()
    for options in ([], ["--legacy"]):
        argv = ["-m", "tests.fakes.upstream", "--port", str(port), *options]
        config = {"mcpServers": {"good": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}}
        with child(*argv, stdout=subprocess.PIPE) as first:
            assert first.stdout is not None
            first.stdout.readline()
            with gateway_http(tmp_path, config, f"gateway{len(options)}") as url:
                async with connected(MODERN, url) as (client, _):
                    assert text_of(await client.call_tool("good__echo", {"text": "one"})) == "one"
                    first.kill()
                    first.wait()
                    down = await client.call_tool("good__echo", {"text": "two"})
                    with child(*argv, stdout=subprocess.PIPE) as second:
                        assert second.stdout is not None
                        second.stdout.readline()
                        with anyio.fail_after(20):
                            while (again := await client.call_tool("good__echo", {"text": "three"})).is_error:
                                await anyio.sleep(0.1)
        assert down.is_error
        assert text_of(again) == "three"


async def test_client_disconnect_cancels_the_upstream_call(tmp_path: Path) -> None:
    with gateway_http(tmp_path, {"mcpServers": {"good": upstream_stdio()}}) as url:
        async with connected(MODERN, url) as (client, _):
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            }
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "good__hang", "arguments": {}, "_meta": meta}}
            headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"}
            headers |= {"mcp-method": "tools/call", "mcp-name": "good__hang"}
            async with httpx2.AsyncClient(timeout=60) as raw, anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: raw.post(url, json=body, headers=headers))
                with anyio.fail_after(20):
                    while not stats(await client.call_tool("good__stats", {}))["calls"].get("hang"):
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(20):
                while not stats(await client.call_tool("good__stats", {}))["cancelled"]:
                    await anyio.sleep(0.05)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.faults
async def test_stopped_gateway_ends_its_child_processes(tmp_path: Path, stop: signal.Signals) -> None:
    marker = f"{tmp_path}-child"
    entry = upstream_stdio()
    entry["args"] = [*entry["args"], "--tools", "1"]
    deaf = {**bad("deaf"), "env": {"MARK": marker}}
    parent = {**bad("parent"), "env": {"MARK": marker}}
    servers = {"good": {**entry, "env": {"MARK": marker}}, "deaf": deaf, "parent": parent}
    config = write_config(tmp_path, {"mcpServers": servers, "server": {"startupTimeoutSeconds": 0.1}})
    port = free_port()
    log = tmp_path / "gateway.log"
    with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(config), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/health", log)
        with anyio.fail_after(20):
            while len(marked(marker)) < 4:  # three servers, and the child of `parent` that ignores SIGTERM
                await anyio.sleep(0.05)
        process.send_signal(stop)
        with anyio.fail_after(20):
            while process.poll() is None:
                await anyio.sleep(0.05)
        assert process.returncode == 0
        with anyio.fail_after(20):
            while marked(marker):
                await anyio.sleep(0.05)


def marked(value: str) -> list[int]:
    """Return the ids of the processes with `MARK=value` in their environment."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if f"MARK={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_gateway_whose_client_keeps_the_pipe_open(tmp_path: Path, stop: signal.Signals) -> None:
    config = write_config(tmp_path, {"mcpServers": {"good": upstream_stdio()}})
    argv = [sys.executable, "-m", "gateway", "run", "--stdio", "--config", str(config)]
    process = subprocess.Popen(  # noqa: ASYNC220  # the pipe is the test's, so no async owner may close it
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode() + b"\n")
        process.stdin.flush()
        assert b'"result"' in await anyio.to_thread.run_sync(process.stdout.readline)
        process.send_signal(stop)
        with anyio.fail_after(20):
            while process.poll() is None:
                await anyio.sleep(0.05)
    assert process.returncode == 0
