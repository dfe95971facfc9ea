"""The bundled agents from clients that are not ours: approval, structured output, progress, and a session over three turns.

The Inspector's command line runs all of it over both transports; what it has no way to do, answer a form and show progress,
the TypeScript SDKs do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.config.jsonc import parse
from tests.accept import clients
from tests.accept.clients import Era, Inspector, Target, TypeScript, text_of
from tests.accept.conftest import CONFIG
from tests.fakes.openai_server import openai_server
from tests.fakes.running import ROOT, child, free_port, wait_until_ready

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

SHEET = {"topic": "Poland", "facts": [{"statement": "Warsaw is its capital.", "origin": "text"}], "open_questions": []}
SESSION = "dev.moongate/sessionId"
RESEARCHER, EDITOR, SHEETS = "agent__researcher", "agent__editor", "agent__fact-sheet"
TURNS: list[dict[str, Any]] = [
    {"when": {"contains": "fact sheets", "last_role": "user"}, "text": json.dumps(SHEET), "repeat": True},
    {
        "when": {"contains": "look it up", "last_role": "user"},
        "text": "Let me look.",
        "tool_calls": [{"name": "notes__search_notes", "arguments": {"query": "capital"}}],
        "repeat": True,
    },
    {"when": {"last_role": "tool"}, "text": "The notes say: {last_tool}", "repeat": True},
    {"text": "You said: {last_user}", "repeat": True},
]


@dataclass(frozen=True)
class Place:
    """The bundled configuration, except that a person approves each search of the notes."""

    targets: dict[str, Target]
    path: Path

    def approve(self) -> list[dict[str, Any]]:
        """Wait for pending approvals and approve them, as a person in another terminal would."""
        while not (waiting := self._cli("list")["approvals"]):
            pass
        return [self._cli("approve", entry["id"]) for entry in waiting]

    def _cli(self, *words: str) -> Any:
        command = [sys.executable, "-m", "gateway", "approvals", *words, "--json", "--config", str(self.path)]
        return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    if not clients.are_installed():
        pytest.skip(f"the clients are not installed in {clients.HOME}; run `make accept`")
    folder = tmp_path_factory.mktemp("agents")
    bundled: dict[str, Any] = dict(parse(CONFIG.read_text()))
    bundled["mcpServers"].pop("units")
    bundled["mcpServers"]["notes"]["args"] = [str(CONFIG.parent / "servers/notes.py")]
    bundled["policies"].pop("units")
    bundled["policies"]["notes"]["approval"] = {"always": ["search_notes"]}
    bundled |= {"expose": {kind: [str(ROOT / kind)] for kind in ("agents", "skills")}, "storage": {"dir": str(folder / "state")}}
    path = folder / "gateway.json"
    path.write_text(json.dumps(bundled))
    with openai_server(*TURNS) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted", "OPENAI_API_KEY": "unused"}
        env |= {"NOTES_FILE": str(folder / "notes.json")}
        arguments = ["-m", "gateway", "run", "--config", str(path)]
        port, log = free_port(), folder / "gateway.log"
        with child(*arguments, "--http", f"127.0.0.1:{port}", env=env, log=log) as process:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            stdio: Target = {"command": sys.executable, "args": [*arguments, "--stdio"], "env": env, "cwd": str(ROOT)}
            yield Place({"http": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}, "stdio": stdio}, path)


@pytest.fixture
def target(place: Place, transport: str) -> Target:
    return place.targets[transport]


def test_inspector_gets_an_agents_response_as_structured_content(target: Target, tmp_path: Path, era: Era) -> None:
    inspector = Inspector(tmp_path, target, era)
    result = inspector.call(SHEETS, {"task": "Warsaw is the capital of Poland."})
    assert not result.get("isError"), text_of(result)
    assert result["structuredContent"] == SHEET
    assert json.loads(text_of(result)) == SHEET


def test_inspector_continues_an_agent_session_over_three_processes(
    target: Target, tmp_path: Path, era: Era
) -> None:
    inspector = Inspector(tmp_path, target, era)
    session = "new"
    for turn in ("I am Ada.", "I like figs.", "Who am I?"):
        result = inspector.call(EDITOR, {"task": turn, "session_id": session})
        assert text_of(result) == f"You said: {turn}"
        assert session in ("new", result["_meta"][SESSION])
        session = result["_meta"][SESSION]
    stored = json.loads(inspector.read(f"session://{session}")["contents"][0]["text"])
    said = ["".join(content["text"] for content in message["contents"]) for message in stored["messages"]]
    assert said[::2] == ["I am Ada.", "I like figs.", "Who am I?"]


def test_call_of_inspector_is_approved_in_another_terminal(
    place: Place, target: Target, tmp_path: Path, era: Era
) -> None:
    with ThreadPoolExecutor() as threads:
        approved = threads.submit(place.approve)
        result = Inspector(tmp_path, target, era).call(RESEARCHER, {"task": "look it up"})
        assert [answer["taken"] for answer in approved.result()] == [True]
    assert text_of(result).startswith("The notes say:")


@pytest.mark.parametrize(("decision", "said"), [("approve", "The notes say:"), ("decline", "did not approve")])
def test_client_with_forms_elicits_and_gets_the_agents_progress(
    target: Target, tmp_path: Path, era: Era, decision: str, said: str
) -> None:
    call = ["watch", RESEARCHER, {"task": "look it up"}, {"decision": decision}]
    [heard] = TypeScript(tmp_path, target, era).run([call])
    assert said in text_of(heard["result"]), heard
    [question] = heard["asked"]
    assert "'search_notes' of 'notes'" in question and "query: capital" in question
    told = heard["progress"]
    assert told[0] == "thinking" and "using notes__search_notes" in told
    assert "".join(told[1 : told.index("using notes__search_notes")]) == "Let me look."
