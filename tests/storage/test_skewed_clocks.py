"""Two processes with one database whose clocks differ by five minutes: leases, budgets, reservations and expiry are unaffected."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.fakes.machines import Machines, machines
from tests.fakes.running import ROOT, free_port, wait_until_ready
from tests.interaction.wire import Wire, over_http
from tests.tasks.test_gateways import FLOW, FUNCTIONS

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

CLOCK = Path(__file__).parent / "skewed_clock"
OFFSETS = [300.0, -300.0]

WORK = """
import json, sys, time
import anyio
from pathlib import Path
from gateway.storage.record_types import ApprovalRule, PendingQuestion
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.storage.state_folder import StateFolder

async def main(url, folder, key, first):
    records = Records(StateFolder(Path(folder), bytes.fromhex(key)), audit_days=1, url=url)
    try:
        questions, rules = await records.questions(), await records.rules()
        budget, sessions = await records.budget(), await records.sessions()
        now, said = shared_now(), {}
        if first:
            await questions.add(PendingQuestion("q", "call", "s", "n", "p", "shown", "open", now, now + 60))
            await rules.add(ApprovalRule("r", "p", "s", "n", "", "shown", now, now + 60, "operator"))
            new = await sessions.begin("p", "agent", most=5)
            await sessions.keep(new, [], {}, ttl_seconds=60)
            held = await sessions.claim(new.id, "p")
            said = {"session": new.id, "held": held is not None}
        else:
            claimed = await sessions.claim(sys.argv[5], "p")
            said = {"claimed": claimed is not None, "sessions": len(await sessions.list("p"))}
            said |= {"state": await questions.state("q"), "rule": await rules.find("p", "s", "n", "x") is not None}
        said |= {"used": await budget.count("s", "p", limit=1, window_seconds=60), "spent": await questions.spend("m", 60)}
        print(json.dumps({**said, "local": time.time(), "shared": shared_now()}))
    finally:
        await records.aclose()

anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "first")
"""


def moved(seconds: float, **env: str) -> dict[str, str]:
    """Return the environment of a process whose clock is ahead by `seconds`."""
    return {**os.environ, **env, "PYTHONPATH": f"{CLOCK}{os.pathsep}{ROOT}", "TEST_CLOCK_OFFSET": str(seconds)}


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Machines]:
    with machines(tmp_path, request.param) as made:
        yield made


def work(site: Machines, seconds: float, *arguments: str) -> dict[str, Any]:
    folder = site.folder / f"state{seconds:g}"
    argv = [sys.executable, "-c", WORK, site.database, str(folder), site.env["SITE_KEY"], *arguments]
    done = subprocess.run(argv, env=moved(seconds), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("offset", OFFSETS)
def test_budgets_reservations_and_questions_ignore_the_clock_of_a_machine(site: Machines, offset: float) -> None:
    first = work(site, 0.0, "first")
    other = work(site, offset, "second", first["session"])
    assert abs(other["local"] - first["local"] - offset) < 30, "the test moved the clock"
    assert abs(other["shared"] - first["shared"]) < 30
    assert (first["held"], other["claimed"], other["sessions"]) == (True, False, 1)
    assert (other["state"], other["rule"]) == ("open", True)
    assert (first["used"], other["used"]) == (0, 1)
    assert (first["spent"], other["spent"]) == (True, False)


@contextmanager
def skewed_gateway(site: Machines, seconds: float) -> Generator[str]:
    """Run the gateway of machine `b` with another clock, and yield its URL. It cannot be forked from a process with the right clock."""
    port, log = free_port(), site.folder / "skewed.log"
    argv = [sys.executable, "-m", "gateway", "run", "--http", f"127.0.0.1:{port}", "--config", str(site.folder / "gateway.json")]
    with log.open("wb") as out, subprocess.Popen(argv, cwd=ROOT, stdout=out, stderr=out, env=moved(seconds, **site.env_of("b"))) as process:
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}/ready", log)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


@pytest.mark.parametrize("offset", OFFSETS)
async def test_task_stays_with_its_owner_and_no_replica_is_gone(site: Machines, offset: float) -> None:
    (site.folder / "durable_functions.py").write_text(FUNCTIONS)
    (site.folder / "flow.workflow.yaml").write_text(FLOW)
    journal = site.folder / "journal"
    site.write(expose={"agents": ["."]})
    first = await anyio.to_thread.run_sync(site.start, "a")
    with skewed_gateway(site, offset) as second:
        async with over_http(first, "modern") as a, over_http(second, "modern") as b:
            started = [await wire.send("tools/call", name="workflow__flow", arguments={"x": secrets.token_hex(2)}) for wire in (a, b)]
            with anyio.fail_after(30):
                while not journal.exists() or journal.read_text().count("second") < 2:
                    await anyio.sleep(0.1)
            await anyio.sleep(6)  # more than two leases: each process looks for tasks of dead processes meanwhile
            found = (await site.command("c", "doctor", "--json")).data["replicas"]
            assert [entry["state"] for entry in found] == ["running", "running"]
            assert all(entry["seenSecondsAgo"] < 4 for entry in found)
            await anyio.to_thread.run_sync((site.folder / "go").touch)
            # Each gateway asks about the task that the other one runs.
            for wire, task in ((b, started[0]), (a, started[1])):
                await until_completed(wire, task["result"]["taskId"])
    assert sorted(journal.read_text().split()) == ["first"] * 2 + ["second"] * 2, "no step ran twice"
    assert "replica gone" not in (site.folder / "skewed.log").read_text()


@pytest.mark.parametrize("offset", OFFSETS)
async def test_times_of_a_task_are_those_of_the_shared_clock(site: Machines, offset: float) -> None:
    (site.folder / "durable_functions.py").write_text(FUNCTIONS)
    (site.folder / "flow.workflow.yaml").write_text(FLOW)
    site.write(expose={"agents": ["."]})
    with skewed_gateway(site, offset) as url:
        async with over_http(url, "modern") as wire:
            started = (await wire.send("tools/call", name="workflow__flow", arguments={"x": "a"}))["result"]
            await anyio.to_thread.run_sync((site.folder / "go").touch)
            await until_completed(wire, started["taskId"])
            ended = (await wire.send("tasks/get", taskId=started["taskId"]))["result"]
    for state in (started, ended):
        for key in ("createdAt", "lastUpdatedAt"):
            assert abs(datetime.fromisoformat(state[key]).timestamp() - time.time()) < 60, (key, state[key])
    assert started["createdAt"] == ended["createdAt"] <= ended["lastUpdatedAt"]


async def until_completed(wire: Wire, task: str) -> None:
    with anyio.fail_after(30):
        while (state := (await wire.send("tasks/get", taskId=task))["result"])["status"] != "completed":
            assert state["status"] == "working", state
            await anyio.sleep(0.1)
