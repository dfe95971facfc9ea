"""A 2025 client over stdio gets `initialize` and its first lists before the SDK is imported, whatever capabilities it declares."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import environment, write_gateway
from tests.fakes.running import ROOT, free_port

LATE = ("mcp", "mcp_types", "starlette", "uvicorn", "httpx2")
"""Packages that must not be imported before the first lists are answered."""

ENGINES = {"gateway.agents.agent", "gateway.chat.chat_client", "gateway.skills.sandbox.sandbox", "gateway.workflows.builder"}
"""Modules that run agents, models, scripts and workflows."""

WISHES: dict[str, Any] = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}
WAITING = """
import pathlib, runpy, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
runpy.run_path({program!r}, run_name="__main__")
"""

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


def message(number: int | None, method: str, **params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "method": method, **({"id": number} if number is not None else {}), **({"params": params} if params else {})}
    return json.dumps(body).encode() + b"\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that this repository ships. The server over stdio waits for the file `go`; nothing is at the address of the one over HTTP."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "go").touch()
    program = WAITING.format(go=str(folder / "go"), program=str(ROOT / "config/servers/notes.py"))
    notes = {"command": sys.executable, "args": ["-c", program], "env": {"NOTES_FILE": str(folder / "notes.json")}}
    units = {"type": "http", "url": f"http://127.0.0.1:{free_port()}/mcp"}
    exposed = {"agents": [str(ROOT / "agents")], "skills": [str(ROOT / "skills")]}
    patient = {"startupTimeoutSeconds": 120}  # longer than a test may take
    return write_gateway(folder, mcpServers={"notes": notes, "units": units}, expose=exposed, server=patient)


def started(config: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-X", "importtime", "-m", "gateway", "run", "--stdio", "--config", str(config)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=config.parent, env=environment(config.parent), stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module", params=["first start", "a known server that does not start and a new one that refuses"])
def start(request: pytest.FixtureRequest, config: Path) -> Generator[tuple[list[Any], set[str]]]:
    """The messages that a client received up to the last of its first lists, and the modules that were imported by then."""
    imported: set[str] = set()
    if request.param != "first start":
        (config.parent / "go").unlink()
        shutil.rmtree(config.parent / "xdg-state" / "moongate" / "first-answers", ignore_errors=True)
    with started(config) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None

        def follow(lines: Any) -> None:
            imported.update(match[1].decode() for line in lines if (match := re.match(rb"import time: .*\| +(\S+)$", line)))

        threading.Thread(target=follow, args=(process.stderr,), daemon=True).start()
        hello = {"protocolVersion": "2025-06-18", "capabilities": WISHES, "clientInfo": {"name": "t", "version": "1"}}
        process.stdin.write(message(0, "initialize", **hello))
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline())]
        process.stdin.write(message(None, "notifications/initialized"))
        process.stdin.write(b"".join(message(n + 1, method, _meta={"progressToken": n}) for n, method in enumerate(LISTS)))
        process.stdin.flush()
        while len([said for said in answers if "id" in said]) < 1 + len(LISTS):
            answers.append(json.loads(process.stdout.readline()))
        seen = set(imported)
        process.stdin.close()
        process.wait(30)
        yield answers, seen


def test_first_lists_are_answered_before_the_sdk_is_imported(start: tuple[list[Any], set[str]]) -> None:
    answers, imported = start
    results = {said["id"]: said["result"] for said in answers if "id" in said}
    assert results[0]["protocolVersion"] == "2025-06-18"
    assert {tool["name"] for tool in results[1]["tools"]} >= {"notes__add_note", "agent__researcher", "workflow__brief", "search_skills"}
    assert "gateway.server.dispatch" in imported
    assert not {name for name in imported if name.partition(".")[0] in LATE or name in ENGINES}
