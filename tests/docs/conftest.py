"""Folders with the servers and files that the documentation names, for the tests that execute its blocks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.docs.code_blocks import block_with, code_blocks
from tests.docs.world import World
from tests.fakes.openai_server import openai_server
from tests.fakes.running import child, free_port, listens, until, upstream_http, upstream_stdio, wait_until_ready

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"name": name, "inputSchema": PATH} for name in ("read_text_file", "save")]
SEARCH = {"name": "search", "description": "Find pages.", "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}}}
SKILL = "---\nname: tidy\ndescription: How to tidy a desk, from left to right. Use it whenever a desk is untidy.\n---\nStart on the left.\n"
ANSWER = {
    "passed": True, "reason": "it says so", "approved": True, "notes": "none", "terminate": True, "next_speaker": "optimist",
    "final_message": "Begin.",
}  # fmt: skip
"""What the model answers to everything: the fields that reviews, judges and the orchestrator of a group chat ask for."""

PARTICIPANTS = ("optimist", "sceptic", "lawyer", "chair")
BRANCHES = ("fix", "plan", "answer", "design", "estimate", "offer", "legal", "sales", "support")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    """A reader beside a running gateway."""
    with ExitStack() as stack:
        world = stack.enter_context(World(tmp_path_factory.mktemp("world")))
        rooms = stack.enter_context(upstream_http(module="tests.fakes.a2a_agent"))
        write_files(world, rooms)
        model = stack.enter_context(openai_server({"text": json.dumps(ANSWER), "repeat": True}))
        docs = stack.enter_context(upstream_http("--http", "--modern", json.dumps({"tools": [SEARCH]}), module="tests.fakes.raw_upstream"))
        files = upstream_stdio("--modern", json.dumps({"tools": TOOLS}), module="tests.fakes.raw_upstream")
        notes = {"command": "python", "args": [str(ROOT / "config/servers/notes.py")]}
        port = str(free_port())
        stack.enter_context(child(str(ROOT / "config/servers/units.py"), "--port", port))
        until(lambda: listens(port))  # the gateway would try again only after a pause
        units = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        config = {
            "mcpServers": {"notes": notes, "units": units, "files": files, "docs": {"type": "http", "url": docs}},
            "policies": {"files": {"arguments": {"*": {"path": {"within": "docs/"}}}, "approval": {"always": ["save"]}}},
            "expose": {"agents": ["agents"], "skills": ["skills"]},
            "server": {"http": {"port": int(world.port)}},
            "defaults": {"model": "openai:gpt-5-mini"},
        }
        (world.work / "gateway.json").write_text(json.dumps(config))
        world.model_url = model.base_url
        log = world.folder / "run.log"
        argv = ("-m", "gateway", "run", "--http", f"127.0.0.1:{world.port}", "--config", str(world.work / "gateway.json"))
        process = stack.enter_context(child(*argv, env=world.env, log=log))
        wait_until_ready(process, f"http://127.0.0.1:{world.port}/ready", log)
        yield world


def write_files(world: World, rooms: str) -> None:
    """Write the bundled files and, over them, those that the pages show; `rooms` is the URL of the remote agent."""
    for name in ("agents", "skills"):
        shutil.copytree(ROOT / name, world.work / name)
    for folder in (world.work / ".agents/skills/tidy", world.folder / "home/.claude/skills/order"):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL.replace("tidy", folder.name, 1))
    case = {"id": "one", "input": "What is left to do?", "expect": {"contains": "passed"}}
    (world.work / "cases.jsonl").write_text(json.dumps(case) + "\n")
    shown = {
        "agents/researcher.agent.md": block_with("docs/agents.md", "name: researcher"),
        "agents/rooms.agent.md": block_with("docs/agents.md", "a2a:").replace("https://rooms.example.com", rooms),
        "agents/brief.workflow.yaml": block_with("docs/workflows.md", "name: brief"),
        "agents/panel.workflow.yaml": block_with("docs/workflows.md", "name: panel"),
        "agents/offer.workflow.yaml": branches(block_with("docs/workflows.md", "switch:")),
        "skills/sql-review/SKILL.md": block_with("docs/skills.md", "name: sql-review"),
        "skills/page-rules/SKILL.md": block_with("README.md", "name: page-rules"),
        "agents/reviewer.agent.md": block_with("README.md", "name: reviewer"),
        "agents/page-review.workflow.yaml": block_with("README.md", "name: page-review"),
    }
    assert len(shown) == len(code_blocks("file"))
    for name in PARTICIPANTS:
        shown[f"agents/{name}.agent.md"] = f"---\nname: {name}\ndescription: Speaks as the {name}.\n---\nBe brief.\n"
    for name, body in shown.items():
        (world.work / name).parent.mkdir(exist_ok=True)
        (world.work / name).write_text(body)


def branches(edges: str) -> str:
    """Return a workflow with the edges that a page shows, and the executors that they name."""
    kind, teams = "{kind: {type: string}}", "{teams: {type: array, items: {type: string}}}"
    executors = [f"  {name}: {{agent: editor, prompt: Sort., output: {fields}}}" for name, fields in (("triage", kind), ("router", teams))]
    executors += [f"  {name}: {{agent: editor, prompt: Work.}}" for name in BRANCHES]
    head = "name: offer\ndescription: Makes an offer.\nstart: triage\noutput-from: all\nexecutors:\n"
    return head + "\n".join(executors) + "\n" + edges + "  - {from: answer, to: router}\n"


@pytest.fixture
def fresh(tmp_path: Path) -> Generator[World]:
    """A reader without a gateway, whose configuration has one server."""
    with World(tmp_path) as world:
        (world.work / "gateway.json").write_text('{"mcpServers": {"old": {"url": "https://old.example.com/mcp"}}}')
        yield world
