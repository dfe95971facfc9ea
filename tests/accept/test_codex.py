"""Codex, with the gateway in its configuration over stdio, calls a tool of a server in its first turn.

`codex exec` sends its first request to the model about 1.2 s after it starts its MCP servers, with the tools that it has by then. The
gateway answers in that time if it has answers from before: `moongate doctor` keeps them, as does a session that lasts until all servers
have started. So the person here runs `moongate doctor` once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.accept.clients import HOME, run_node
from tests.accept.conftest import CONFIG
from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CODEX = HOME / "js/node_modules/@openai/codex/bin/codex.js"

SETTINGS = """
model = "scripted"
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = {url}
wire_api = "responses"
[mcp_servers.moongate]
command = {command}
args = {args}
env = {{ {env} }}
"""

CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "status": "completed",
    "namespace": "mcp__moongate",
    "name": "notes__add_note",
    "arguments": json.dumps({"text": "Buy milk"}),
}


def test_codex_calls_a_tool_in_its_first_turn(tmp_path: Path) -> None:
    if not CODEX.exists():
        pytest.skip(f"Codex is not installed in {HOME}; run `make accept`")
    notes = tmp_path / "notes.json"
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "NOTES_FILE": str(notes)}
    inherited = {name: value for name, value in os.environ.items() if name not in ("MOONGATE_CONFIG", "UNITS_PORT")}
    doctor = [sys.executable, "-m", "gateway", "doctor", "--config", str(CONFIG)]
    of_user = {**inherited, **env, "HOME": str(tmp_path)}
    done = subprocess.run(doctor, cwd=ROOT, env=of_user, capture_output=True, text=True, timeout=90, check=False)
    assert "ok    server notes" in done.stdout, done.stdout
    turns: list[dict[str, Any]] = [{"when": {"last_role": "user"}, "output": [CALL]}, {"text": "Done: {last_tool}"}]
    with openai_server(*turns) as model:
        values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in {**env, "PYTHONPATH": str(ROOT)}.items())
        args = ["-m", "gateway", "run", "--stdio", "--config", str(CONFIG)]
        settings = SETTINGS.format(url=json.dumps(model.base_url), command=json.dumps(sys.executable), args=json.dumps(args), env=values)
        folder = tmp_path / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(settings)
        sure = "--dangerously-bypass-approvals-and-sandbox"
        ended = run_node(str(CODEX), "exec", "--skip-git-repo-check", sure, "Remember to buy milk.", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "Done:" in ended.out, ended.err
    assert notes.exists(), "Codex had no tools of the gateway"
    assert [note["text"] for note in json.loads(notes.read_text())["notes"]] == ["Buy milk"]
