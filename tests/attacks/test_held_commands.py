"""A changed configuration of a running gateway: no command in it runs before a person at the terminal accepts the command."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.config.executes import RunEntry
from gateway.config.load import read_runs
from gateway.gate.acceptance import Acceptance
from gateway.workflows.loader import load_workflow
from tests.agents.test_tool import agent_file
from tests.cli.processes import Ended, moongate, moongate_process
from tests.cli.test_reload import WAYS, File, Running, gateway, server, until
from tests.fakes.running import upstream_http

pytestmark = [pytest.mark.attack(41), pytest.mark.timeout(120)]

LONG = pytest.mark.faults


async def read_again(running: Running) -> None:
    """Reload the gateway's configuration with SIGHUP and wait until it is applied."""
    before = running.log.read_text().count("configuration reloaded")
    os.kill(running.pid(), signal.SIGHUP)

    async def is_applied() -> bool:
        return running.log.read_text().count("configuration reloaded") > before

    await until(is_applied)


def ran(folder: Path, name: str) -> bool:
    """Whether the server of this name was ever started."""
    return (folder / f"{name}.requests").exists()


async def command(*arguments: str, cwd: Path) -> Ended:
    return await anyio.to_thread.run_sync(lambda: moongate_process(*arguments, cwd=cwd))


def state_is(running: Running, name: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return any(s["name"] == name and s["state"] == state for s in (await running.status())["sources"])

    return is_so


async def entry_of(running: Running, name: str) -> dict[str, Any]:
    return next(source for source in (await running.status())["sources"] if source["name"] == name)


def says(running: Running, text: str) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return any(text in problem for problem in (await running.status()).get("problems", []))

    return is_so


@pytest.mark.parametrize(
    ("front", "era"),
    [
        pytest.param("http", "legacy", id="http-legacy"),
        *[pytest.param(front, era, id=f"{front}-{era}", marks=LONG) for front, era in WAYS if (front, era) != ("http", "legacy")],
    ],
)
async def test_new_command_is_held_until_it_is_accepted(tmp_path: Path, front: str, era: str) -> None:
    file = File(tmp_path)
    one, evil = server(tmp_path, "one"), server(tmp_path, "evil")
    file.write_unaccepted({"one": one})
    async with gateway(file, front, era) as running:
        pid = await running.text("one__pid")
        file.write_unaccepted({"evil": {**evil, "env": {"API_TOKEN": "sesame-4711"}}, "one": one})
        await until(state_is(running, "evil", "held"))
        told = await entry_of(running, "evil")
        assert "moongate lock --accept evil" in told["error"] and "moongate lock --accept evil" in told["advice"]
        assert await running.text("one__pid") == pid
        assert "waits for acceptance key=evil" in running.log.read_text()
        await read_again(running)
        assert not ran(tmp_path, "evil")
        if running.port is not None:
            url = f"http://127.0.0.1:{running.port}/mcp"
            listed = await command("list", "servers", "--url", url, cwd=tmp_path)
            assert "held" in listed.out and "moongate lock --accept evil" in listed.out
        checked = await command("doctor", cwd=tmp_path)
        assert "warn  server evil" in checked.out and "moongate lock --accept evil" in checked.out
        assert not ran(tmp_path, "evil")
        refused = await command("lock", "--accept", "evil", cwd=tmp_path)
        assert refused.code == 1 and "--yes" in refused.err
        assert not ran(tmp_path, "evil")
        accepted = await command("lock", "--accept", "evil", "--yes", cwd=tmp_path)
        assert accepted.code == 0
        assert "counting_upstream" in accepted.err and "API_TOKEN=[hidden]" in accepted.err
        await until(state_is(running, "evil", "ready"))
        assert ran(tmp_path, "evil")
        assert await running.text("one__pid") == pid
    records = list((tmp_path / "state" / "accepted").glob("*.json"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in records] == [0o600]
    assert stat.S_IMODE(records[0].parent.stat().st_mode) == 0o700
    assert "sesame" not in records[0].read_text()


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "command": lambda entry: {**entry, "command": "/usr/bin/env", "args": [sys.executable, *entry["args"]]},
    "args": lambda entry: {**entry, "args": [*entry["args"][:-1], "1"]},
    "env": lambda entry: {**entry, "env": {"PYTHONSTARTUP": "/tmp/evil.py"}},
    "env from a file": lambda entry: entry,
    "cwd": lambda entry: {**entry, "cwd": "/", "env": {**entry.get("env", {})}},
    "enabled": lambda entry: {**entry, "disabled": False},
}


@pytest.mark.parametrize("change", [pytest.param(c, marks=() if c in ("env", "env from a file") else LONG) for c in CHANGES])
async def test_changed_entry_is_held_and_the_old_process_goes_on(tmp_path: Path, change: str) -> None:
    file = File(tmp_path)
    (tmp_path / "level").write_text("low")
    one = server(tmp_path, "one")
    before: dict[str, Any] = {**one, "args": [*one["args"][:-1], "2"]}
    if change == "env from a file":
        before["env"] = {"LEVEL": "${file:level}"}
    file.write_unaccepted({"one": {**before, "disabled": change == "enabled"}, "two": server(tmp_path, "two")})
    async with gateway(file, "http", "legacy") as running:
        pid = await running.text("two__pid") if change == "enabled" else await running.text("one__pid")
        (tmp_path / "level").write_text("high")
        file.write_unaccepted({"one": CHANGES[change](before), "two": server(tmp_path, "two")}, server={"instructions": "changed"})
        if change == "enabled":
            await until(state_is(running, "one", "held"))
            assert not ran(tmp_path, "one")
            assert await running.text("two__pid") == pid
        else:

            async def is_told() -> bool:
                return "earlier one is in use" in (await entry_of(running, "one")).get("error", "")

            await until(is_told)
            assert await running.text("one__pid") == pid
            assert (tmp_path / "one.requests").read_text().count("initialize") == 1
        accepted = await command("lock", "--accept", "one", "--yes", cwd=tmp_path)
        assert accepted.code == 0, accepted.err

        async def is_new() -> bool:
            if "one__pid" not in await running.names():
                return False
            return await running.text("one__pid") != pid

        await until(is_new)
        assert "error" not in await entry_of(running, "one")


async def test_entry_that_is_changed_back_or_removed_is_held_no_longer(tmp_path: Path) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write_unaccepted({"one": one})
    async with gateway(file, "http", "legacy") as running:
        pid = await running.text("one__pid")
        file.write_unaccepted({"one": {**one, "args": [*one["args"], "x"]}, "evil": server(tmp_path, "evil")})
        await until(state_is(running, "evil", "held"))
        file.write_unaccepted({"one": one})

        async def is_plain() -> bool:
            status = await running.status()
            return [s["name"] for s in status["sources"]] == ["one"] and "error" not in status["sources"][0]

        await until(is_plain)
        assert await running.text("one__pid") == pid
    [record] = (tmp_path / "state" / "accepted").glob("*.json")
    assert json.loads(record.read_text())["held"] == {}


@pytest.mark.parametrize(
    "state",
    [
        pytest.param("state", id="same-state", marks=LONG),
        pytest.param("other-state", id="other-state"),
        pytest.param(None, id="no-state", marks=LONG),
    ],
)
async def test_held_entry_stays_held_over_restarts(tmp_path: Path, state: str | None) -> None:
    # Over stdio the gateway has the same folder for its state by default as the commands below.
    front = "stdio" if state is None else "http"
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write_unaccepted({"one": one})
    async with gateway(file, front, "legacy") as running:
        file.write_unaccepted({"one": one, "evil": server(tmp_path, "evil")})
        await until(state_is(running, "evil", "held"))
        # A file that names another state folder does not begin with an empty record.
        storage = {} if state is None else {"dir": str(tmp_path / state)}
        file.put(json.dumps({"mcpServers": {"one": one, "evil": server(tmp_path, "evil")}, "storage": storage}))
        await read_again(running)
    for _ in range(2):
        async with gateway(file, front, "legacy") as running:
            assert await running.text("one__pid")
            assert (await entry_of(running, "evil"))["state"] == "held"
    assert not ran(tmp_path, "evil")
    listed = await command("list", "tools", "--standalone", cwd=tmp_path)
    assert "one__pid" in listed.out
    assert not ran(tmp_path, "evil")
    assert (await command("lock", "--accept", "evil", "--yes", cwd=tmp_path)).code == 0
    async with gateway(file, front, "legacy") as running:
        assert await running.text("evil__pid")


async def test_start_by_the_user_accepts_what_was_written_meanwhile(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write_unaccepted({"one": server(tmp_path, "one")})
    async with gateway(file, "http", "legacy") as running:
        assert await running.text("one__pid")
    file.write_unaccepted({"one": server(tmp_path, "one", tools=1), "two": server(tmp_path, "two")})
    async with gateway(file, "http", "legacy") as running:
        assert await running.text("two__pid")
        assert await running.text("one__tool-0") == "tool-0"


@LONG
async def test_sighup_holds_commands_where_the_file_is_not_followed(tmp_path: Path) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write_unaccepted({"one": one}, server={"reload": False})
    async with gateway(file, "http", "legacy") as running:
        file.write_unaccepted({"one": one, "evil": server(tmp_path, "evil")}, server={"reload": False})
        os.kill(running.pid(), signal.SIGHUP)
        await until(state_is(running, "evil", "held"))
        assert not ran(tmp_path, "evil")
        assert (await command("lock", "--accept", "evil", "--yes", cwd=tmp_path)).code == 0
        await until(state_is(running, "evil", "ready"))


async def test_program_of_a_secret_is_held_and_its_server_goes_on(tmp_path: Path) -> None:
    file = File(tmp_path)
    marker = tmp_path / "printed"
    program = ["sh", "-c", f"touch {marker}; echo token-4711"]
    with upstream_http() as url:
        plain: dict[str, Any] = {"type": "http", "url": url}
        file.write_unaccepted({"far": plain})
        async with gateway(file, "http", "legacy") as running:
            assert await running.text("far__stats")
            using = {**plain, "headers": {"X-Token": "${cmd:evil}"}}
            file.write_unaccepted({"far": using, "new": using}, secrets={"evil": {"command": program}})
            await until(state_is(running, "new", "held"))
            assert await says(running, "moongate lock --accept secrets.evil")()
            assert await running.text("far__stats")
            await read_again(running)
            assert not marker.exists()
        # Neither a restart nor a command that reads the configuration runs it.
        async with gateway(file, "http", "legacy") as running:
            assert (await entry_of(running, "new"))["state"] == "held"
            await command("list", "servers", "--standalone", cwd=tmp_path)
            await command("doctor", cwd=tmp_path)
            assert not marker.exists()
            assert (await command("lock", "--accept", "secrets.evil", "--yes", cwd=tmp_path)).code == 0
            await until(state_is(running, "new", "ready"))
            assert marker.exists()


MODULE = """
from pathlib import Path
from gateway import tool

Path({marker!r}).touch()

@tool
def act() -> str:
    \"\"\"Act.\"\"\"
    return "acted"

class Layer:
    async def process(self, context, next):
        await next(context)

def step(text: str) -> str:
    return text
"""

WORKFLOW = """
name: steps
description: Steps.
input: {text: {type: string}}
executors:
  act: {python: "evil_steps:step"}
start: act
"""


@pytest.mark.parametrize(
    ("key", "change"),
    [
        pytest.param("expose.functions.evil_steps", {"expose": {"functions": ["evil_steps"], "agents": ["agents"]}}, marks=LONG),
        pytest.param("skills.objects.evil_steps:act", {"skills": {"objects": ["evil_steps:act"]}}, marks=LONG),
        pytest.param("agents.middleware", {"agents": {"middleware": ["evil_steps:Layer"]}}, marks=LONG),
        ("workflow/steps", {"expose": {"agents": ["agents", "more/steps.workflow.yaml"]}}),
        pytest.param("agent/other", {"expose": {"agents": ["agents", "more/other.agent.md"]}}, marks=LONG),
    ],
)
async def test_module_is_not_imported_before_it_is_accepted(tmp_path: Path, key: str, change: dict[str, Any]) -> None:
    marker = tmp_path / "imported"
    (tmp_path / "evil_steps.py").write_text(MODULE.format(marker=str(marker)))
    for name in ("agents", "more"):
        (tmp_path / name).mkdir()
    agent_file(tmp_path / "agents", "plain", model="openai:m")
    agent_file(tmp_path / "more", "other", model="openai:m", context_providers="[evil_steps:act]")
    (tmp_path / "more" / "steps.workflow.yaml").write_text(WORKFLOW)
    file = File(tmp_path)
    file.write_unaccepted({}, expose={"agents": ["agents"]})
    async with gateway(file, "http", "legacy") as running:
        assert "agent__plain" in {tool.name for tool in (await running.client.list_tools()).tools}
        file.write_unaccepted({}, **{"expose": {"agents": ["agents"]}, **change})
        await until(says(running, f"moongate lock --accept {key}"))
        await read_again(running)
        assert not marker.exists()
        assert "agent__plain" in {tool.name for tool in (await running.client.list_tools()).tools}
        shown = await command("lock", "--accept", key, cwd=tmp_path)
        assert shown.code == 1 and "evil_steps" in shown.err
        accepted = await command("lock", "--accept", key, "--yes", cwd=tmp_path)
        assert accepted.code == 0, accepted.err

        async def is_imported() -> bool:
            return marker.exists()

        await until(is_imported)
        await until(lambda: nothing_waits(running))


HELD_ENTRIES = ("agents.middleware", "expose.functions.held_steps", "skills.objects.held_steps", "skills.scripts", "workflow/held")


def held_by_an_earlier_gateway(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunEntry]:
    """A configuration and a workflow that import `held_steps`, all of it recorded as held back."""
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "xdg-state"))
    (folder / "held_steps.py").write_text(MODULE.format(marker=str(folder / "imported")))
    workflow = folder / "held.workflow.yaml"
    workflow.write_text(WORKFLOW.replace("steps", "held", 1).replace("evil_steps", "held_steps"))
    file = File(folder)
    scripts = {"enabled": True, "interpreters": {"python": str(folder / "evil")}}
    more = {"expose": {"functions": ["held_steps"], "agents": ["."]}, "agents": {"middleware": ["held_steps:Layer"]}}
    file.write_unaccepted({}, **more, skills={"objects": ["held_steps"], "scripts": scripts})
    runs, state_folder = read_runs(file.path.read_text(), file.path)
    from_file = load_workflow(workflow).run_entry(workflow)
    assert from_file is not None
    entries = sorted([*runs, from_file], key=lambda entry: entry.key)
    assert [entry.key for entry in entries] == list(HELD_ENTRIES)
    acceptance = Acceptance(is_start=False)
    acceptance.open(file.path, state_folder)
    assert all(acceptance.refusal(entry) for entry in entries)
    return entries


def test_commands_import_nothing_that_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_by_an_earlier_gateway(tmp_path, monkeypatch)
    marker = tmp_path / "imported"
    checked = moongate("doctor", cwd=tmp_path)
    assert not marker.exists()
    assert all(f"moongate lock --accept {key}`" in checked.out for key in HELD_ENTRIES)
    assert "code-unusable" not in checked.out and "scripts of skills" not in checked.out
    for words in (("workflows", "graph", "held.workflow.yaml"), ("list", "--standalone"), ("skills", "list")):
        ended = moongate(*words, cwd=tmp_path)
        assert not marker.exists(), words
        assert words[1] != "graph" or (ended.code != 0 and "moongate lock --accept workflow/held" in ended.err)
    assert moongate("lock", *(word for key in HELD_ENTRIES for word in ("--accept", key)), "--yes", cwd=tmp_path).code == 0
    drawn = moongate("workflows", "graph", "held", cwd=tmp_path)
    assert drawn.code == 0 and "act" in drawn.out
    assert marker.exists()


async def nothing_waits(running: Running) -> bool:
    return "problems" not in await running.status()


@LONG
async def test_scripts_of_skills_are_not_enabled_by_a_changed_file(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write_unaccepted({}, skills={"scripts": {"enabled": False}})
    async with gateway(file, "http", "legacy") as running:
        interpreters = {"python": "/tmp/evil"}
        file.write_unaccepted({}, skills={"scripts": {"enabled": True, "approval": "never", "interpreters": interpreters}})
        await until(says(running, "moongate lock --accept skills.scripts"))
        assert (await command("lock", "--accept", "skills.scripts", "--yes", cwd=tmp_path)).code == 0
        await until(lambda: nothing_waits(running))


async def test_added_entry_and_entries_with_a_url_start_at_once(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write_unaccepted({"one": server(tmp_path, "one")})
    with upstream_http() as url:
        async with gateway(file, "http", "legacy") as running:
            two = server(tmp_path, "two")
            added = await command("add", "two", "--env", f"PYTHONPATH={two['cwd']}", "--", two["command"], *two["args"], cwd=tmp_path)
            assert added.code == 0, added.err
            await until(state_is(running, "two", "ready"))
            added = await command("add", "far", url, cwd=tmp_path)
            assert added.code == 0
            await until(state_is(running, "far", "ready"))
            # An entry that another program writes beside them is still held.
            document = json.loads(file.path.read_text())
            document["mcpServers"]["evil"] = server(tmp_path, "evil")
            file.put(json.dumps(document))
            await until(state_is(running, "evil", "held"))
    assert not ran(tmp_path, "evil")


@LONG
async def test_acceptance_is_of_one_form_of_an_entry_only(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write_unaccepted({})
    async with gateway(file, "http", "legacy") as running:
        file.write_unaccepted({"new": server(tmp_path, "new")})
        await until(state_is(running, "new", "held"))
        assert (await command("lock", "--accept", "new", "--yes", cwd=tmp_path)).code == 0
        await until(state_is(running, "new", "ready"))
        file.write_unaccepted({"new": server(tmp_path, "evil")})

        async def is_told() -> bool:
            return "earlier one is in use" in (await entry_of(running, "new")).get("error", "")

        await until(is_told)
        nothing = await command("lock", "--accept", "secrets.none", "--yes", cwd=tmp_path)
        assert nothing.code == 1 and "Nothing waits" in nothing.err
    assert not ran(tmp_path, "evil")


@LONG
async def test_second_gateway_on_the_same_state_holds_the_same_server(tmp_path: Path) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write_unaccepted({"one": one})
    async with gateway(file, "http", "legacy") as first:
        file.write_unaccepted({"one": one, "evil": server(tmp_path, "evil")})
        await until(state_is(first, "evil", "held"))
        async with gateway(file, "stdio", "2026-07-28") as second:
            assert (await entry_of(second, "evil"))["state"] == "held"
            assert not ran(tmp_path, "evil")
            assert (await command("lock", "--accept", "evil", "--yes", cwd=tmp_path)).code == 0
            await until(state_is(first, "evil", "ready"))
            await until(state_is(second, "evil", "ready"))


@LONG
async def test_damaged_record_never_counts_as_an_empty_one(tmp_path: Path) -> None:
    file = File(tmp_path)
    one = server(tmp_path, "one")
    file.write_unaccepted({"one": one})
    async with gateway(file, "stdio", "legacy") as running:
        file.write_unaccepted({"one": one, "evil": server(tmp_path, "evil")})
        await until(state_is(running, "evil", "held"))
        [record] = (tmp_path / "state" / "accepted").glob("*.json")
        record.write_text("{}")
        file.write_unaccepted({"one": one, "evil": server(tmp_path, "evil")}, server={"instructions": "again"})
        await until(says(running, "damaged"))
    started = await command("list", "servers", "--standalone", cwd=tmp_path)
    assert started.code != 0 and "damaged" in started.err
    assert not ran(tmp_path, "evil")
    record.unlink()
    for left in (tmp_path / "xdg-state").rglob("accepted/*.json"):
        left.unlink()
    async with gateway(file, "stdio", "legacy") as running:
        assert await running.text("evil__pid")
