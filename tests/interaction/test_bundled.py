"""The bundled configuration, started as `make run` starts it: everything serves, stores notes, and ends without leftovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.fakes.running import ROOT, child, free_port, wait_until_ready
from tests.interaction.ways import Way, connected

pytestmark = pytest.mark.timeout(60)
CONFIG = ROOT / "config" / "gateway.json"
MODERN, LEGACY = Way("http", "modern", "notes"), Way("http", "legacy", "notes")


def environment(folder: Path, units_port: int) -> dict[str, str]:
    own = {"XDG_STATE_HOME": str(folder / "state"), "NOTES_FILE": str(folder / "notes.json"), "UNITS_PORT": str(units_port)}
    return own | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def bundled(folder: Path, name: str = "gateway") -> Generator[str]:
    """A gateway over the bundled configuration, without the HTTP server beside it; yields its URL."""
    port, log = free_port(), folder / f"{name}.log"
    argv = ("-m", "gateway", "run", "--config", str(CONFIG), "--http", f"127.0.0.1:{port}")
    with child(*argv, env=environment(folder, free_port()), log=log) as process:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        yield f"http://127.0.0.1:{port}/mcp"


def states(url: str) -> dict[str, str]:
    return {row["name"]: row["state"] for row in httpx2.get(url.replace("/mcp", "/status.json")).json()["sources"]}


def content(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    return result.structured_content


async def test_make_run_serves_every_source_and_stops_the_http_server_too(tmp_path: Path) -> None:
    port, units_port, log = free_port(), free_port(), tmp_path / "run.log"
    argv = ["bash", str(ROOT / "config/servers/run.sh"), "--config", str(CONFIG), "--http", f"127.0.0.1:{port}", "--json"]
    process = start(argv, environment(tmp_path, units_port), log)
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
        url = f"http://127.0.0.1:{port}/mcp"
        assert states(url) == dict.fromkeys(("skill", "agent", "workflow", "notes", "units"), "ready")
        async with connected(MODERN, url) as (client, _):
            assert content(await client.call_tool("units__convert", {"value": 212, "from": "F", "to": "C"}))["value"] == 100
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            while process.poll() is None:
                await anyio.sleep(0.05)
            while await answers(f"http://127.0.0.1:{units_port}/mcp"):
                await anyio.sleep(0.05)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as errors:
        return subprocess.Popen(argv, env={**os.environ, **env}, stderr=errors, start_new_session=True)


async def answers(url: str) -> bool:
    async with httpx2.AsyncClient() as http:
        try:
            await http.get(url)
        except httpx2.TransportError:
            return False
    return True


async def test_missing_http_server_is_shown_down_and_the_rest_serves(tmp_path: Path) -> None:
    with bundled(tmp_path) as url:
        assert states(url) == {"skill": "ready", "agent": "ready", "workflow": "ready", "notes": "ready", "units": "down"}


@pytest.mark.parametrize("way", [MODERN, LEGACY], ids=str)
async def test_notes_are_tools_resources_and_a_prompt(tmp_path: Path, way: Way) -> None:
    with bundled(tmp_path) as url:
        async with connected(way, url) as (client, _):
            first = content(await client.call_tool("notes__add_note", {"text": "Ship on Friday\nUnless it rains.", "tags": [" Release "]}))
            await client.call_tool("notes__add_note", {"text": "Buy milk"})
            found = content(await client.call_tool("notes__search_notes", {"query": "friday rains"}))
            tagged = content(await client.call_tool("notes__list_notes", {"tag": "release"}))
            prompt: Any = await client.get_prompt("notes__sum_up", {"topic": "friday"})
            resource: Any = (await client.read_resource(f"notes+note://{first['id']}")).contents[0]
    assert [note["id"] for note in found["notes"]] == [note["id"] for note in tagged["notes"]] == [first["id"]]
    assert first["tags"] == ["release"]
    assert resource.text == "Ship on Friday\nUnless it rains."
    assert "[1]" in prompt.messages[0].content.text


@pytest.mark.faults
async def test_notes_outlive_the_gateway_and_are_shared_between_two(tmp_path: Path) -> None:
    with bundled(tmp_path, "one") as one, bundled(tmp_path, "two") as two:
        async with connected(MODERN, one) as (first, _), connected(MODERN, two) as (second, _):
            async with anyio.create_task_group() as tasks:
                for client in (first, second):
                    for number in range(5):
                        tasks.start_soon(client.call_tool, "notes__add_note", {"text": f"note {number}"})
    with bundled(tmp_path, "three") as url:
        async with connected(MODERN, url) as (client, _):
            kept = content(await client.call_tool("notes__list_notes", {}))
    assert kept["total"] == 10
    assert sorted(note["id"] for note in kept["notes"]) == list(range(1, 11))


async def test_missing_note_is_reported_to_model_and_reader(tmp_path: Path) -> None:
    with bundled(tmp_path) as url:
        async with connected(MODERN, url) as (client, _):
            deleted: Any = await client.call_tool("notes__delete_note", {"id": 7})
            with pytest.raises(MCPError) as caught:
                await client.read_resource("notes+note://7")
    assert deleted.is_error
    assert "list_notes" in deleted.content[0].text
    assert caught.value.error.data == {"uri": "notes+note://7"}


async def test_broken_notes_file_is_named_and_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{not json")
    with bundled(tmp_path) as url:
        async with connected(MODERN, url) as (client, _):
            added: Any = await client.call_tool("notes__add_note", {"text": "x"})
    assert added.is_error
    assert "NOTES_FILE" in added.content[0].text
    assert (tmp_path / "notes.json").read_text() == "{not json"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"value": 1, "from": "mi", "to": "kg"}, "measures length"),
        ({"value": 1, "from": "parsek", "to": "m"}, "list_units"),
        ({"value": -300, "from": "C", "to": "F"}, "absolute zero"),
        ({"value": 1, "from": "mb", "to": "kB"}, "MB"),
    ],
)
async def test_units_report_why_they_cannot_convert(tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    with child(str(ROOT / "config/servers/units.py"), "--port", "0", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        async with connected(MODERN, url) as (client, _):
            refused: Any = await client.call_tool("convert", arguments)
    assert refused.is_error
    assert told in refused.content[0].text


async def test_units_convert_both_ways_and_server_ends_without_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with child(str(ROOT / "config/servers/units.py"), "--port", "0", stdout=subprocess.PIPE, log=log) as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        async with connected(LEGACY, url) as (client, _):
            listed = content(await client.call_tool("list_units", {}))["units"]
            wrong: list[str] = []
            for symbols in listed.values():
                for symbol in symbols:
                    there = content(await client.call_tool("convert", {"value": 12.5, "from": symbol, "to": symbols[0]}))
                    back = content(await client.call_tool("convert", {"value": there["value"], "from": symbols[0], "to": symbol}))
                    if abs(back["value"] - 12.5) > 1e-6:
                        wrong.append(json.dumps([symbol, there, back]))
        process.send_signal(signal.SIGINT)
        await anyio.to_thread.run_sync(process.wait)
    assert wrong == []
    assert len(listed) == 12
    assert (process.returncode, log.read_text()) == (0, "")
