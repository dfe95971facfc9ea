"""Clients that are not ours reach a proxied tool, a skill, an agent and a workflow: stdio and HTTP, both protocol eras.

The MCP Inspector's CLI and the TypeScript SDK's two clients, against the bundled configuration's parts and a scripted
OpenAI-compatible server. `make accept` installs them (`setup.sh`); without them the tests are skipped by name.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, child, free_port, gateway_command, gateway_http, write_config

HOME = Path(os.environ.get("ACCEPT_HOME") or Path.home() / ".cache" / "moongate-accept")
NODE = HOME / "bin" / "node"
INSPECTOR = HOME / "js" / "node_modules" / ".bin" / "mcp-inspector"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not NODE.exists() or not INSPECTOR.exists(), reason="Node clients are not installed (tests/accept/setup.sh)"),
]
ANSWER = "Plain words, short sentences."
LOAD = {"name": "load_skill", "arguments": {"skill_name": "plain-writing"}}
TURNS: list[dict[str, Any]] = [
    {"when": {"last_role": "user"}, "tool_calls": [LOAD], "repeat": True},
    {"when": {"last_role": "tool"}, "text": ANSWER, "repeat": True},
]


@dataclass(frozen=True)
class Ends:
    """What clients connect to."""

    url: str
    command: tuple[str, list[str]]
    env: dict[str, str]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Generator[Ends]:
    folder = tmp_path_factory.mktemp("accept")
    with ExitStack() as stack:
        model = stack.enter_context(openai_server(*TURNS))
        port = free_port()
        stack.enter_context(child("config/servers/units.py", "--port", str(port)))
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "test"}
        servers: dict[str, Any] = {
            "notes": {"command": "${MOONGATE_PYTHON}", "args": [str(ROOT / "config/servers/notes.py")]},
            "units": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"},
        }
        servers["notes"]["env"] = {"NOTES_FILE": str(folder / "notes.json")}
        config = {"mcpServers": servers, "expose": {"agents": [str(ROOT / "agents")], "skills": [str(ROOT / "skills")]}}
        url = stack.enter_context(gateway_http(folder, config, env=env))
        yield Ends(url, gateway_command(write_config(folder, config, "stdio")), env)


def run(argv: list[str], env: dict[str, str]) -> str:
    """The standard output of a client that must succeed."""
    full = {**os.environ, **env, "ACCEPT_HOME": str(HOME), "PATH": f"{NODE.parent}:{os.environ['PATH']}"}
    done = subprocess.run(argv, cwd=ROOT, env=full, capture_output=True, timeout=120, check=False, text=True)
    assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def inspect(ends: Ends, over: str, era: str, *options: str) -> dict[str, Any]:
    """One call of the MCP Inspector's CLI."""
    command, (*args, _, config) = ends.command
    target = [ends.url, "--transport", "http"] if over == "http" else [command, *args]
    # The Inspector takes `--config` for its own, so the gateway is told by the environment.
    given = {} if over == "http" else {**ends.env, "MOONGATE_CONFIG": config}
    environment = [part for key, value in given.items() for part in ("-e", f"{key}={value}")]
    argv = [str(NODE), str(INSPECTOR), "--cli", "--protocol-era", era, *environment, *options, *target]
    return json.loads(run(argv, ends.env))


CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("notes__add_note", {"text": "The launch is on Friday."}, "Friday"),
    ("units__convert", {"value": 26.2, "from": "mi", "to": "km"}, "42.16"),
    ("load_skill", {"skill_name": "plain-writing"}, "plain-writing"),
    ("agent__editor", {"task": "Make this plain: in the event that it rains"}, ANSWER),
    ("workflow__skill-for-task", {"task": "write a changelog from git history"}, "changelog-writer"),
]


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("over", ["http", "stdio"])
def test_the_mcp_inspector_lists_and_calls_everything(ends: Ends, over: str, era: str) -> None:
    listed = {tool["name"] for tool in inspect(ends, over, era, "--method", "tools/list")["tools"]}
    assert {name for name, _, _ in CALLS} <= listed
    for name, arguments, expected in CALLS:
        options = ["--method", "tools/call", "--tool-name", name, "--tool-args-json", json.dumps(arguments)]
        result = inspect(ends, over, era, *options)
        assert not result.get("isError"), result
        assert expected in json.dumps(result, ensure_ascii=False), (name, result)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("over", ["http", "stdio"])
def test_the_typescript_clients_list_call_and_read(ends: Ends, over: str, era: str) -> None:
    command, args = ends.command
    target = {"url": ends.url} if over == "http" else {"command": command, "args": args, "env": ends.env, "cwd": str(ROOT)}
    steps = [["list"], *(["call", name, arguments] for name, arguments, _ in CALLS), ["read", "skill://plain-writing/SKILL.md"]]
    argv = [str(NODE), str(ROOT / "tests/accept/client.mjs"), era, json.dumps(target), json.dumps(steps)]
    listed, *results, read = json.loads(run(argv, ends.env))
    assert {name for name, _, _ in CALLS} <= set(listed)
    for (name, _, expected), result in zip(CALLS, results, strict=True):
        assert not result.get("isError"), (name, result)
        assert expected in json.dumps(result, ensure_ascii=False), (name, result)
    assert read["contents"][0]["text"].startswith("---\nname: plain-writing")
