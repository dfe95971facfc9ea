"""The commands that README and the reference print run as they are printed, in a folder with the servers and files that they name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from tests.docs.code_blocks import code_blocks, is_excused
from tests.docs.world import World

PAGES = sorted({block.page for block in code_blocks("commands")})

FRESH = ("moongate add", "moongate remove", "moongate keys")
"""Commands that change the configuration, or close the gateway to the others: they run in a folder and home of their own."""


def printed() -> list[tuple[str, str]]:
    """Page and command of every line of a block of commands."""
    return [(block.page, line) for block in code_blocks("commands") for line in block.body.splitlines() if line.strip()]


@pytest.mark.timeout(600)
def test_printed_commands_run(world: World) -> None:
    waiting_call = "moongate call files__save path=docs/a > /dev/null 2>&1 &"
    subprocess.run(["bash", "-c", waiting_call], cwd=world.work, env={**os.environ, **world.env}, check=True)
    world.waiting = waiting_id(world)
    ran = [command for _, command in printed() if not is_excused(command) and not command.startswith(FRESH)]
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
