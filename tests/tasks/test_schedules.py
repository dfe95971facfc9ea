"""Schedules of `tasks.schedules`: calls that Temporal starts at set times, on a real Temporal server and in real gateways."""

from __future__ import annotations

import json
import signal
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from gateway.auth.api_keys import KeyStore, NewKey
from gateway.config.models import GatewayConfig
from gateway.config.problems import problems_of
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.temporal_names import is_schedule_of, schedule_id
from tests.fakes.running import TASK_ENGINE, temporal_tasks
from tests.fakes.temporal import TemporalServer
from tests.interaction.wire import over_http
from tests.tasks.test_gateways import start_gateway, stop, until
from tests.tasks.test_temporal import decoded, noted, until_noted

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FUNCTIONS = """\
import pathlib
HERE = pathlib.Path(__file__).parent

def work(x: str) -> str:
    with (HERE / "journal").open("a") as file:
        file.write(x + "\\n")
    return x + "!"
"""

WORKS = """\
name: works
description: Notes its argument.
input: {x: {type: string}}
task: required
executors: {one: {python: "scheduled_functions:work", arguments: {x: "{{x}}"}}}
start: one
"""

SECRET = "argument-of-a-schedule"

DAILY = {"tool": "workflow__works", "arguments": {"x": SECRET}, "cron": "0 3 * * *"}


# -- configuration -------------------------------------------------------------------------------------------------


def mistakes(entry: dict[str, Any], name: str = "nightly", engine: str = "temporal") -> list[str]:
    """The messages for a configuration with this schedule."""
    try:
        GatewayConfig.model_validate({"tasks": {"engine": engine, "schedules": {name: {"tool": "t", **entry}}}})
    except ValidationError as error:
        return [problem.line() for problem in problems_of(error, GatewayConfig)]
    return []


@pytest.mark.parametrize("cron", ["0 3 * * *", "*/15 0-5,7 1 jan-mar MON", "@daily", ["0 3 * * 7", "30 4 1-7/2 * *"]])
def test_cron_expression_is_accepted(cron: str | list[str]) -> None:
    assert mistakes({"cron": cron, "timeZone": "Europe/Berlin"}) == []


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({}, "tasks.schedules.nightly: needs `cron` or `everySeconds`, and not both"),
        ({"cron": "@daily", "everySeconds": 5}, "tasks.schedules.nightly: needs `cron` or `everySeconds`, and not both"),
        ({"cron": "0 3 * *"}, "tasks.schedules.nightly.cron: '0 3 * *' is not a cron expression: it has 4 fields"),
        ({"cron": "60 3 * * *"}, "tasks.schedules.nightly.cron: '60 3 * * *' is not a cron expression: the minute is '60'"),
        ({"cron": "0 3 * foo *"}, "the month is 'foo'; write *, numbers from 1 to 12, or jan to dec"),
        ({"cron": "5-3 * * * *"}, "the minute is '5-3'"),
        ({"cron": "*/0 * * * *"}, "the minute is '*/0'"),
        ({"cron": ["@daily", "@every 5s"]}, "'@every 5s' is not a cron expression: the short forms are @hourly"),
        ({"cron": []}, "tasks.schedules.nightly.cron: must not be empty"),
        ({"cron": "@daily", "timeZone": "Europe/Berlni"}, "tasks.schedules.nightly.timeZone: 'Europe/Berlni' is not a time zone"),
        ({"everySeconds": 5, "timeZone": "UTC"}, "tasks.schedules.nightly: `timeZone` has an effect only with `cron`"),
        ({"everySeconds": 0.5}, "tasks.schedules.nightly.everySeconds: must be at least 1"),
    ],
)
def test_wrong_entry_is_named_with_its_fix(entry: dict[str, Any], told: str) -> None:
    assert told in "\n".join(mistakes(entry))


def test_schedule_needs_the_engine_temporal_and_a_plain_name() -> None:
    assert "tasks.schedules.nightly: Temporal starts scheduled calls" in mistakes({"cron": "@daily"}, engine="local")[0]
    assert "tasks.schedules: name 'a.b' may only have letters" in mistakes({"cron": "@daily"}, name="a.b")[0]


def test_schedule_belongs_to_the_installation_with_its_task_queue() -> None:
    assert is_schedule_of("prod", schedule_id("prod", "nightly"))
    assert not is_schedule_of("prod", schedule_id("prod.eu", "nightly"))
    assert not is_schedule_of("prod", schedule_id("prod-eu", "nightly"))
    assert is_schedule_of("prod.eu", schedule_id("prod.eu", "nightly"))


# -- gateways ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> TemporalServer:
    """The shared server, which the gateways of the test use."""
    monkeypatch.setenv(TASK_ENGINE, temporal_server.address)
    return temporal_server


@contextmanager
def gateway(folder: Path, schedules: dict[str, Any], config: dict[str, Any] | None = None, **env: str) -> Generator[str]:
    """A gateway with the workflow and these schedules; yields its URL."""
    (folder / "scheduled_functions.py").write_text(FUNCTIONS)
    (folder / "works.workflow.yaml").write_text(WORKS)
    process, url = start_gateway(
        folder, "gateway", {"expose": {"agents": ["."]}, **(config or {}), "tasks": {"schedules": schedules}}, **env
    )
    try:
        yield url
    finally:
        stop(process)


def new_key(folder: Path, name: str = "ci", scopes: list[str] | None = None) -> NewKey:
    return keys_of(folder).add(name, scopes=scopes)


def keys_of(folder: Path) -> KeyStore:
    return KeyStore(folder / "gateway-state" / "keys.json")


def log_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("gateway-*.log"))


async def until_logged(folder: Path, text: str) -> None:
    with anyio.fail_after(30):
        while text not in log_of(folder):
            await anyio.sleep(0.1)


def own_id(folder: Path, name: str) -> str:
    return schedule_id(f"test-{folder}", name)


async def listed(server: TemporalServer) -> set[str]:
    """Ids of all schedules in the namespace."""
    told = await anyio.to_thread.run_sync(server.run, "schedule", "list", "--output", "json")
    assert told.returncode == 0, told.stderr
    return {item["scheduleId"] for item in json.loads(told.stdout or "[]")}


async def until_listed(server: TemporalServer, ids: set[str], of: Path) -> None:
    """Wait until the installation in the folder `of` has exactly these schedules."""
    with anyio.fail_after(30):
        while {found for found in await listed(server) if is_schedule_of(f"test-{of}", found)} != ids:
            await anyio.sleep(0.2)


async def trigger(server: TemporalServer, folder: Path, name: str) -> None:
    """Let Temporal start a run of the schedule now."""
    await until_listed_one(server, own_id(folder, name))
    told = await anyio.to_thread.run_sync(server.run, "schedule", "trigger", "--schedule-id", own_id(folder, name))
    assert told.returncode == 0, told.stderr


async def until_listed_one(server: TemporalServer, wanted: str) -> None:
    with anyio.fail_after(30):
        while wanted not in await listed(server):
            await anyio.sleep(0.2)


async def runs_of(server: TemporalServer, folder: Path, name: str) -> list[dict[str, Any]]:
    """The workflows that the schedule started, newest first."""
    query = f"TemporalScheduledById='{own_id(folder, name)}'"
    told = await anyio.to_thread.run_sync(server.run, "workflow", "list", "--query", query, "--output", "json")
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout or "[]")


async def until_ended(server: TemporalServer, folder: Path, name: str) -> dict[str, Any]:
    """The first run of the schedule, once it has ended."""
    with anyio.fail_after(40):
        while not (runs := await runs_of(server, folder, name)) or runs[-1]["status"].endswith("RUNNING"):
            await anyio.sleep(0.3)
    return runs[-1]


def history_of(server: TemporalServer, workflow: str) -> str:
    """The history of a workflow as text, with its decoded payloads."""
    told = server.run("workflow", "show", "--workflow-id", workflow, "--output", "json")
    assert told.returncode == 0, told.stderr
    return told.stdout + "".join(decoded(json.loads(told.stdout)))


async def tasks_of(folder: Path, principal: str) -> list[str]:
    """Ids of the stored tasks of a principal."""
    records = Records(StateFolder(folder / "gateway-state"), audit_days=1)
    try:
        return [row.id for row in await (await records.tasks()).all_of(principal)]
    finally:
        await records.aclose()


@pytest.mark.temporal
async def test_scheduled_call_is_a_task_of_its_key_without_data_at_temporal(server: TemporalServer, tmp_path: Path) -> None:
    key, other = new_key(tmp_path), new_key(tmp_path, "other")
    with gateway(tmp_path, {"often": {**DAILY, "cron": None, "everySeconds": 2, "key": "ci"}}) as url:
        await until_noted(tmp_path, SECRET)
        with anyio.fail_after(30):
            while len(mine := await tasks_of(tmp_path, f"key:{key.id}")) < 2:
                await anyio.sleep(0.3)
        async with over_http(url, "modern", token=key.token) as wire:
            done = await until(wire, mine[0], "completed", "failed")
        assert done["status"] == "completed", done
        assert SECRET + "!" in json.dumps(done["result"])
        async with over_http(url, "modern", token=other.token) as wire:
            assert "error" in await wire.send("tasks/get", taskId=mine[0])
        ended = await until_ended(server, tmp_path, "often")
    history = await anyio.to_thread.run_sync(history_of, server, ended["execution"]["workflowId"])
    assert mine[0] in history and "often" in history
    assert [text for text in (SECRET, key.id, key.token, "workflow__works", str(tmp_path / "gateway.json")) if text in history] == []
