"""The commands that README and the reference print run as they are printed, in a folder with the servers and files that they name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time

import pytest

from tests.docs.code_blocks import WALKTHROUGHS, code_blocks, is_excused
from tests.docs.world import World
from tests.fakes.postgres import postgres
from tests.fakes.running import auth_server

PAGES = sorted({block.page for block in code_blocks("commands")})
SERVE = "moongate run"
SIGN_IN = "moongate auth"

FRESH = ("moongate add", "moongate remove", "moongate keys")
"""Commands that change the configuration, or close the gateway to the others: they run in a folder and home of their own."""

DATABASE = "moongate db"

OF_THEIR_OWN = (*FRESH, SERVE, SIGN_IN, DATABASE)
"""Commands that do not run beside the others."""


def printed() -> list[tuple[str, str]]:
    """Page and command of every line of a block of commands."""
    return [(block.page, line) for block in code_blocks("commands") for line in block.body.splitlines() if line.strip()]


def started_gateways() -> list[tuple[str, str]]:
    """Page and command of every gateway that a block in `sh` starts, also of one that another program starts."""
    blocks = [block for block in code_blocks() if block.language == "sh" and block.page not in WALKTHROUGHS]
    lines = [(block.page, line) for block in blocks for line in block.body.splitlines()]
    return [(page, line[line.index(SERVE) :]) for page, line in lines if SERVE in line]


@pytest.mark.timeout(600)
def test_printed_commands_run(world: World) -> None:
    waiting_call = "moongate call files__save path=docs/a > /dev/null 2>&1 &"
    subprocess.run(["bash", "-c", waiting_call], cwd=world.work, env={**os.environ, **world.env}, check=True)
    world.waiting = waiting_id(world)
    ran = [command for _, command in printed() if not is_excused(command) and not command.startswith(OF_THEIR_OWN)]
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
    until = time.monotonic() + 90
    while time.monotonic() < until:
        listed = subprocess.run(
            [sys.executable, "-m", "gateway", "approvals", "list", "--json"],
            cwd=world.work, env={**os.environ, **world.env}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        if found := json.loads(listed.stdout)["approvals"]:
            return str(found[0]["id"])
    raise AssertionError("no approval waits")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PAGES)
def test_printed_commands_that_change_the_configuration_run(fresh: World, page: str) -> None:
    for command in [command for at, command in printed() if at == page and command.startswith(FRESH)]:
        if "keys revoke" in command:
            listed = json.loads((fresh.folder / "home/moongate/keys.json").read_text())
            fresh.revoked = next(iter(listed["keys"]))["id"] if isinstance(listed["keys"], list) else next(iter(listed["keys"]))
        fresh.run(command)


@pytest.mark.postgres
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ["docs/cli.md", "docs/upgrade.md"])
def test_printed_database_commands_run_from_top_to_bottom(fresh: World, page: str) -> None:
    fresh.run("moongate keys add ada && moongate db migrate")
    commands = [command for at, command in printed() if at == page and command.startswith(DATABASE)]
    with postgres() as server:
        for name, storage in (("restored", {"dir": "elsewhere"}), ("postgres", {"url": server.database("moved")})):
            (fresh.work / f"{name}.json").write_text(json.dumps({"mcpServers": {}, "storage": storage}))
        for command in commands:
            fresh.run(command)
        assert "ada" in fresh.run("moongate keys list")
    assert len(commands) >= 4


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("page", "command"), started_gateways())
def test_printed_gateway_starts_and_stops(fresh: World, page: str, command: str) -> None:
    named = re.search(r"(?:-c|--config) (\S+)", command)
    configuration = named[1] if named else "gateway.json"
    (fresh.work / configuration).write_text('{"mcpServers": {}}')
    if "0.0.0.0" in command:
        fresh.run(next(line for at, line in printed() if at == page and line.startswith("moongate keys add")))
    with fresh.serving(command) as shown:
        assert configuration in shown


@pytest.mark.timeout(120)
def test_printed_sign_in_and_sign_out_run(fresh: World) -> None:
    commands = [command for _, command in printed() if command.startswith(SIGN_IN)]
    fresh.add_command("browser", f"exec {sys.executable} -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1])' \"$1\"")
    with auth_server() as origin:
        servers = {"docs": {"type": "http", "url": f"{origin}/mcp"}}
        policies = {"docs": {"auth": {"type": "authorization-code"}}}
        (fresh.work / "gateway.json").write_text(json.dumps({"mcpServers": servers, "policies": policies}))
        shown = {command: fresh.run(command) for command in commands}
    assert "Signed in to 'docs'" in shown["moongate auth login docs"]
    assert "signed in" in shown["moongate auth status"]
    assert "signed out of docs, tokens revoked" in shown["moongate auth logout docs"]
