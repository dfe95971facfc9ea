"""The commands that README and the reference print run as they are printed, in a folder with the servers and files that they name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.architecture.documents import DOCUMENTS, blocks
from tests.architecture.sources import ROOT, name_of
from tests.docs.walkthrough import COMMAND_SECONDS, Walkthrough
from tests.fakes.openai_server import openai_server
from tests.fakes.running import child, free_port, upstream_http, upstream_stdio, wait_until_ready

PAGES = ("README.md", "docs/cli.md", "docs/deploy.md", "docs/skills.md")

NOT_RUN = {
    "make run": ".ci/run and the tests of the command line start it",
    "moongate run": "serves until it is stopped; the walkthroughs and tests/cli/test_run.py start it",
    "npx ": "a published program; tests/accept runs it",
    "docker ": "needs Docker",
    "sudo ": "changes the system",
    ". .venv": "the test's own environment stands for it",
    "moongate auth log": "opens a browser; tests/upstream/oauth signs in and out",
}
"""Commands that are printed and not run here, by their beginning, with the reason."""

FRESH = ("moongate add", "moongate remove", "moongate keys")
"""Commands that change the configuration, or close the gateway to the others: they run in a folder and home of their own."""

EXPECTED = {"moongate policy explain files__read_text_file": 6}
"""Exit codes, by the beginning of a command; all others exit with 0."""

PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"name": name, "inputSchema": PATH} for name in ("read_text_file", "save")]
SEARCH = {"name": "search", "description": "Find pages.", "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}}}
SKILL = "---\nname: tidy\ndescription: How to tidy a desk, from left to right. Use it whenever a desk is untidy.\n---\nStart on the left.\n"


class World(Walkthrough):
    """A reader whose folder has what the pages name, beside a running gateway."""

    waiting = revoked = ""

    def run(self, command: str) -> None:
        """Run a command; ids that pages print stand for those that exist here."""
        for printed, there in (("3f9a", self.waiting), ("1a2b3c4d", self.revoked)):
            command = command.replace(printed, there) if there else command
        code = next((code for start, code in EXPECTED.items() if command.startswith(start)), 0)
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-c", command],
            cwd=self.work,
            env={**os.environ, **self.env, "OPENAI_API_KEY": "x" * 8, "DOCS_TOKEN": "x" * 8},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == code, f"$ {command}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    with ExitStack() as stack:
        world = stack.enter_context(World(tmp_path_factory.mktemp("world")))
        for name in ("agents", "skills"):
            shutil.copytree(ROOT / name, world.work / name)
        for folder in (world.work / ".agents/skills/tidy", world.folder / "home/.claude/skills/order"):
            folder.mkdir(parents=True)
            (folder / "SKILL.md").write_text(SKILL.replace("tidy", folder.name, 1))
        case = {"id": "one", "input": "What is left to do?", "expect": {"contains": "passed"}}
        (world.work / "cases.jsonl").write_text(json.dumps(case) + "\n")
        model = stack.enter_context(openai_server({"text": '{"passed": true, "reason": "it says so"}', "repeat": True}))
        docs = stack.enter_context(
            upstream_http("--http", "--modern", json.dumps({"tools": [SEARCH]}), module="tests.fakes.raw_upstream")
        )
        files = upstream_stdio("--modern", json.dumps({"tools": TOOLS}), module="tests.fakes.raw_upstream")
        notes = {"command": sys.executable, "args": [str(ROOT / "config/servers/notes.py")]}
        port = str(free_port())
        stack.enter_context(child(str(ROOT / "config/servers/units.py"), "--port", port))
        units = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        config = {
            "mcpServers": {"notes": notes, "units": units, "files": files, "docs": {"type": "http", "url": docs}},
            "policies": {"files": {"arguments": {"*": {"path": {"within": "docs/"}}}, "approval": {"always": ["save"]}}},
            "expose": {"agents": ["agents"], "skills": ["skills"]},
            "server": {"http": {"port": int(world.port)}},
            "defaults": {"model": "openai:gpt-5-mini"},
        }
        (world.work / "gateway.json").write_text(json.dumps(config))
        os.environ["OPENAI_BASE_URL"] = model.base_url
        stack.callback(os.environ.pop, "OPENAI_BASE_URL")
        env = {**world.env, "OPENAI_API_KEY": "x" * 8}
        log = world.folder / "run.log"
        argv = ("-m", "gateway", "run", "--http", f"127.0.0.1:{world.port}", "--config", str(world.work / "gateway.json"))
        wait_until_ready(stack.enter_context(child(*argv, env=env, log=log)), f"http://127.0.0.1:{world.port}/ready", log)
        yield world


@pytest.fixture
def fresh(tmp_path: Path) -> Generator[World]:
    with World(tmp_path) as world:
        (world.work / "gateway.json").write_text('{"mcpServers": {"old": {"url": "https://old.example.com/mcp"}}}')
        yield world


def printed() -> list[tuple[str, str]]:
    """Page and command of every line of a block of commands."""
    paths = [path for path in DOCUMENTS if name_of(path) in PAGES]
    return [(name_of(path), line) for path in paths for block in blocks(path, "sh") for line in block.splitlines() if line.strip()]


def is_run(command: str) -> bool:
    return not command.startswith(tuple(NOT_RUN))


def test_every_page_with_commands_is_followed_or_run() -> None:
    walkthroughs = {"docs/first-gateway.md", "docs/team-servers.md", "docs/own-tools.md"}
    assert {name_of(path) for path in DOCUMENTS if list(blocks(path, "sh"))} == {*PAGES, *walkthroughs}


@pytest.mark.timeout(180)
def test_printed_commands_run(world: World) -> None:
    waiting_call = "moongate call files__save path=docs/a > /dev/null 2>&1 &"
    subprocess.run(["bash", "-c", waiting_call], cwd=world.work, env={**os.environ, **world.env}, check=True)
    world.waiting = waiting_id(world)
    ran = [command for _, command in printed() if is_run(command) and not command.startswith(FRESH)]
    failures: list[str] = []
    for command in ran:
        try:
            world.run(command)
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)
    assert len(ran) >= 40


def waiting_id(world: World) -> str:
    """The id of the approval that the call waits for."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        listed = subprocess.run(
            [sys.executable, "-m", "gateway", "approvals", "list", "--json"],
            cwd=world.work, env={**os.environ, **world.env}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        if found := json.loads(listed.stdout)["approvals"]:
            return str(found[0]["id"])
    raise AssertionError("no approval waits")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_that_change_the_configuration_run(fresh: World, page: str) -> None:
    for command in [command for at, command in printed() if at == page and command.startswith(FRESH)]:
        if "keys revoke" in command:
            listed = json.loads((fresh.folder / "home/moongate/keys.json").read_text())
            fresh.revoked = next(iter(listed["keys"]))["id"] if isinstance(listed["keys"], list) else next(iter(listed["keys"]))
        fresh.run(command)
