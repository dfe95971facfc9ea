"""A gateway over the bundled configuration, with a scripted model behind its agents, for clients that are not ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.accept import clients
from tests.accept.clients import Era, Inspector, Target, TypeScript
from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, child, free_port, wait_until_ready

CONFIG = ROOT / "config" / "gateway.json"
ANSWER = "Warsaw is the capital of Poland. [general knowledge]"

BRIEF = "FINAL BRIEF: Warsaw, on the Vistula."
REVIEWS = [json.dumps({"approved": approved, "notes": notes}) for approved, notes in ((False, "Name the river."), (True, ""))]
WORKFLOW: list[dict[str, Any]] = [
    {"when": {"contains": "FINAL BRIEF", "last_role": "user"}, "text": REVIEWS[1], "repeat": True},
    {"when": {"contains": "Name the river.", "last_role": "user"}, "text": BRIEF, "repeat": True},
    {"when": {"contains": "FIRST DRAFT", "last_role": "user"}, "text": REVIEWS[0], "repeat": True},
    {"when": {"contains": "Write a brief of", "last_role": "user"}, "text": "FIRST DRAFT: Warsaw.", "repeat": True},
]
"""Scripted answers of the models of the workflow `brief` after its research: a draft, a rejection, a new draft, an approval."""

ForeignClient = Inspector | TypeScript


@dataclass(frozen=True)
class Served:
    """The addresses of the gateway, one for each transport."""

    http: Target
    stdio: Target

    def tasks(self, workflow: str) -> set[str]:
        """Return the ids of the finished tasks of a workflow, as `moongate tasks list` prints them."""
        command = [sys.executable, "-m", "gateway", "tasks", "list", "--json", "--config", str(CONFIG)]
        env = {**os.environ, **self.stdio["env"]}
        listed = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
        found = json.loads(listed)["tasks"]
        return {task["id"] for task in found if (task["tool"], task["status"]) == (f"workflow__{workflow}", "completed")}


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """Start the gateway over HTTP and yield both addresses; clients start the gateway over stdio themselves."""
    if not clients.are_installed():
        pytest.skip(f"the clients are not installed in {clients.HOME}; run `make accept`")
    folder = tmp_path_factory.mktemp("accept")
    search = {"tool_calls": [{"name": "notes__search_notes", "arguments": {"query": "capital"}}], "repeat": True}
    turns = ({"when": {"last_role": "user"}, **search}, {"when": {"last_role": "tool"}, "text": ANSWER, "repeat": True})
    units = ("-u", str(ROOT / "config/servers/units.py"), "--port", "0")
    with openai_server(*WORKFLOW, *turns) as model, child(*units, stdout=subprocess.PIPE) as converter:
        assert converter.stdout is not None
        port = converter.stdout.readline().decode().strip().removesuffix("/mcp").rpartition(":")[2]
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "unused", "UNITS_PORT": port}
        env |= {"XDG_STATE_HOME": str(folder / "state"), "NOTES_FILE": str(folder / "notes.json")}
        arguments = ["-m", "gateway", "run", "--config", str(CONFIG)]
        own, log = free_port(), folder / "gateway.log"
        with child(*arguments, "--http", f"127.0.0.1:{own}", env=env, log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{own}/ready", log)
            yield Served(
                {"type": "http", "url": f"http://127.0.0.1:{own}/mcp"},
                {"command": sys.executable, "args": [*arguments, "--stdio"], "env": env, "cwd": str(ROOT)},
            )


@pytest.fixture(params=["inspector", "typescript"])
def program(request: pytest.FixtureRequest) -> type[Inspector] | type[TypeScript]:
    return Inspector if request.param == "inspector" else TypeScript


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


@pytest.fixture(params=["http", "stdio"])
def transport(request: pytest.FixtureRequest) -> Literal["http", "stdio"]:
    return request.param


@pytest.fixture
def target(served: Served, transport: Literal["http", "stdio"]) -> Target:
    return served.http if transport == "http" else served.stdio


@pytest.fixture
def foreign(program: type[Inspector] | type[TypeScript], era: Era, target: Target, tmp_path: Path) -> ForeignClient:
    return program(tmp_path, target, era)
