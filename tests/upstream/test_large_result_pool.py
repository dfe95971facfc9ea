"""Large results that a helper process reads and judges: as the gate does, for one call each, and not in the gateway's own process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from gateway.errors import ToolFailed
from gateway.gate.results import HelperResult, Judged, ResultOrigin, ResultRules, judge_whole
from gateway.storage.result_folder import FolderResults
from gateway.upstream import large_result_pool
from gateway.upstream.gateway_chain import received
from gateway.upstream.large_result_pool import HelperPool
from tests.fakes.raw_upstream import Raw, http_server
from tests.fakes.running import child, free_port, wait_until_ready, write_config
from tests.interaction.ways import Era, Way, connected

LINES = 'näher 日本語 😀 "quoted" \\ line\n' * 4_000
TYPED = {"type": "object", "properties": {"rows": {"type": "array"}}, "required": ["rows"]}
ROWS = {"rows": [{"id": n, "name": f"row {n}"} for n in range(3_000)]}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": [text(LINES)]},
    "blocks": {"content": [text(LINES), text("short"), text(LINES)], "isError": True},
    "twice": {"content": [text(LINES)], "structuredContent": {"result": LINES}},
    "rows": {"content": [text(json.dumps(ROWS))], "structuredContent": ROWS},
    "only rows": {"structuredContent": ROWS},
    "hidden": {"content": [text(LINES + "\u202e" + LINES)]},
    "own keys": {"content": [text(LINES)], "_meta": {"dev.moongate/rule": "forged", "com.example/kept": 1}},
    "large meta": {"content": [text(LINES)], "_meta": {"com.example/kept": LINES}},
    "picture": {"content": [text("here"), {"type": "image", "data": "iVBORw0K" * 20_000, "mimeType": "image/png"}]},
    "picture and text": {"content": [text(LINES), {"type": "image", "data": "iVBORw0K" * 20_000, "mimeType": "image/png"}]},
}
RULES = {
    "strip": ResultRules("strip", 20_000, 10_000_000),
    "refuse": ResultRules("refuse", 20_000, 10_000_000),
    "small": ResultRules("strip", 20_000, 50_000),
    "wide": ResultRules("strip", 10_000_000, 10_000_000),
}


def message(result: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"resultType": "complete", **result}}, ensure_ascii=False).encode()


@asynccontextmanager
async def helpers() -> AsyncGenerator[HelperPool]:
    made = HelperPool()
    try:
        yield made
    finally:
        await made.aclose()


async def hold(made: HelperPool, result: dict[str, Any]) -> HelperResult:
    """The result, held."""
    _, holder = await made.hold([message(result)], None, lambda said: said == 7)
    assert isinstance(holder, HelperResult)
    return holder


def comparable(judged: Judged | None) -> Any:
    """A verdict without the random ids of what was kept."""
    if judged is None:
        return None
    plain = [judged.result, judged.rule, judged.reason, judged.is_shortened]
    return json.loads(re.sub(r'(moongate://results/|result-|\\"id\\": \\"|"id": ")[\w-]{22}', r"\1ID", json.dumps(plain)))


def bodies(folder: Path) -> list[bytes]:
    """What a store keeps."""
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_held_result_is_judged_as_in_the_gateway(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with helpers() as made:
            for name, result in RESULTS.items():
                for kind, rules in RULES.items():
                    folders = tmp_path / name / kind / "here", tmp_path / name / kind / "there"
                    for folder in folders:
                        folder.mkdir(parents=True)
                    here, there = (FolderResults(f, ttl_seconds=60, max_bytes_per_owner=10**9) for f in folders)
                    source = ResultOrigin("owner", "up__tool", output_schema=TYPED)
                    whole = received(json.loads(message(result))["result"])
                    del whole["resultType"]
                    wanted = judge_whole(whole, rules, here, source)
                    holder = await hold(made, result)
                    assert comparable(await holder.judge(rules, there, source)) == comparable(wanted), (name, kind)
                    assert bodies(folders[1]) == bodies(folders[0])
                    if wanted is None:
                        assert await holder.whole() == whole


UNUSUAL: dict[str, dict[str, Any]] = {
    "error": {"error": {"code": -32000, "message": LINES}},
    "question": {"result": {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}, "content": [text(LINES)]}},
    "task": {"result": {"resultType": "task", "taskId": "t", "content": [text(LINES)]}},
    "link": {"result": {"content": [text(LINES), {"type": "resource_link", "uri": "file:///a", "name": "a"}]}},
    "unreadable": {"result": {"content": [LINES]}},
    "listing": {"result": {"tools": [{"name": LINES}]}},
    "request": {"method": "ping", "result": {"content": [text(LINES)]}},
}


@pytest.mark.parametrize("kind", UNUSUAL)
async def test_unusual_message_is_read_whole(kind: str) -> None:
    sent = {"jsonrpc": "2.0", "id": 7, **UNUSUAL[kind]}
    async with helpers() as made:
        decoded, holder = await made.hold([json.dumps(sent).encode()], None, lambda said: True)
    assert decoded[0] == sent
    assert holder is None


async def test_result_of_another_method_is_read_whole() -> None:
    async with helpers() as made:
        decoded, holder = await made.hold([message(RESULTS["text"])], None, lambda said: said == 8)
    assert holder is None
    assert json.dumps(decoded[0]) == json.dumps(json.loads(message(RESULTS["text"])))


async def test_malformed_message_is_an_error() -> None:
    async with helpers() as made:
        with pytest.raises(ValueError, match="EOF while parsing"):
            await made.hold([b'{"jsonrpc":"2.0","id":7,"result":{"content":[' + b"1," * 40_000], None, lambda said: True)


async def test_result_is_read_whole_if_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    async with helpers() as made:
        for _ in range(large_result_pool.MOST_HELPERS + 1):
            decoded, holder = await made.hold([message(RESULTS["text"])], None, lambda said: True)
            assert holder is None
            assert decoded[0] == json.loads(message(RESULTS["text"]))


def processes(parent: int | str = "self") -> list[int]:
    """Return the ids of the helper processes of this process or of `parent`."""
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        pids = map(int, (task / "children").read_text().split())
        found += [pid for pid in pids if b"large_result_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]  # ended: empty
    return found


linux = pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="processes are read from /proc")


@linux
@pytest.mark.fault(20)
async def test_helper_that_dies_fails_its_call_only(tmp_path: Path) -> None:
    rules, source = RULES["strip"], ResultOrigin("owner", "up__tool")
    store = FolderResults(tmp_path, ttl_seconds=60, max_bytes_per_owner=10**9)
    with anyio.fail_after(30):
        async with helpers() as made:
            first = await hold(made, RESULTS["text"])
            [pid] = processes()
            second = await hold(made, RESULTS["rows"])
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ToolFailed, match="Ask for less"):
                await first.judge(rules, store, source)
            assert (await second.judge(rules, store, source)) is not None
            [idle] = processes()
            os.kill(idle, signal.SIGKILL)
            await anyio.to_thread.run_sync(os.waitid, os.P_PID, idle, os.WEXITED | os.WNOWAIT)  # ended, and not yet collected
            assert (await (await hold(made, RESULTS["text"])).judge(rules, store, source)) is not None


@linux
@pytest.mark.fault(20)
async def test_cancelled_call_ends_its_helper_and_frees_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_result_pool, "MOST_HELPERS", 1)
    with anyio.fail_after(30):
        async with helpers() as made:
            await hold(made, RESULTS["text"])  # the gate never judges this result
            [pid] = await until_count(1)
            os.kill(pid, signal.SIGSTOP)  # the helper stops responding
            with anyio.move_on_after(0.3):
                await hold(made, RESULTS["text"])
            os.kill(pid, signal.SIGCONT) if pid in processes() else None
            assert (await hold(made, RESULTS["rows"])) is not None
            await until_count(1)


async def until_count(count: int) -> list[int]:
    """Wait until there are `count` helper processes, and return their ids."""
    while len(found := processes()) != count:
        await anyio.sleep(0.02)
    return found


@linux
async def test_idle_helper_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_result_pool, "IDLE_SECONDS", 0.1)
    with anyio.fail_after(30):
        async with helpers() as made:
            await (await hold(made, RESULTS["text"])).judge(RULES["wide"], None, ResultOrigin("owner", "up__tool"))
            await until_count(0)


class Large(Raw):
    """Answers `big` with 24 MB of text."""

    def call(self, params: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        return {"content": [text("Näher am Wasser, 日本語, \"quoted\".\n" * 600_000 if params["name"] == "big" else "done")]}


def seconds_of(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@linux
@pytest.mark.fault(20)
@pytest.mark.parametrize("era", ["modern", pytest.param("legacy", marks=pytest.mark.faults)])
async def test_large_result_is_processed_outside_the_gateway_process(tmp_path: Path, era: Era) -> None:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("big", "echo")]
    server = http_server(Large({"tools": tools}, modern=era == "modern"), 0)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, log = free_port(), tmp_path / "gateway.log"
    servers = {"up": {"type": "http", "url": f"http://127.0.0.1:{server.server_address[1]}/mcp"}}
    path = write_config(tmp_path, {"mcpServers": servers})
    try:
        with child("-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(path), log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            async with connected(Way("http", era, "up"), f"http://127.0.0.1:{port}/mcp") as (client, _):
                await client.call_tool("up__echo", {})
                before = seconds_of(process.pid)
                result: Any = await client.call_tool("up__big", {})
                own = seconds_of(process.pid) - before
                assert "dev.moongate/shortened" in result.meta
                [helper] = processes(process.pid)
                assert own < seconds_of(helper) / 2
    finally:
        server.shutdown()
        server.server_close()
