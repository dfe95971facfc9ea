"""Schedules of `tasks.schedules`: calls that Temporal starts at set times, on a real Temporal server and in real gateways."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from pydantic import ValidationError

from gateway.auth.api_keys import KeyStore, NewKey
from gateway.config.models import GatewayConfig, TaskSettings
from gateway.config.problems import problems_of
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.scheduled_start import no_schedules
from gateway.tasks.temporal_names import is_schedule_of, schedule_id
from tests.fakes.nursery import Child
from tests.fakes.running import ROOT, TASK_ENGINE, temporal_tasks, upstream_stdio
from tests.fakes.temporal import TemporalServer, temporal
from tests.interaction.wire import over_http
from tests.tasks.dying import in_a_process
from tests.tasks.test_gateways import start_gateway, stop, until
from tests.tasks.test_temporal import decoded, make_current, noted, until_noted

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

HISTORIES = sorted((Path(__file__).parent / "temporal_histories" / "schedules").glob("*.json"))
"""Histories of runs of schedules, each with the name of the version that recorded it and of what happened."""

SECRET = "argument-of-a-schedule"

ALTERED = "tests.tasks.altered_gateway"

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
def server(temporal_server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[TemporalServer]:
    """The shared server, which the gateways of the test use. Schedules that the test leaves there are deleted."""
    monkeypatch.setenv(TASK_ENGINE, temporal_server.address)
    yield temporal_server
    for item in json.loads(temporal_server.run("schedule", "list", "--output", "json").stdout or "[]"):
        if str(tmp_path) in item["scheduleId"]:
            temporal_server.run("schedule", "delete", "--schedule-id", item["scheduleId"])


def laid_out(folder: Path, schedules: dict[str, Any], config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write the workflow, and return a configuration with it and these schedules."""
    (folder / "scheduled_functions.py").write_text(FUNCTIONS)
    (folder / "works.workflow.yaml").write_text(WORKS)
    return {"expose": {"agents": ["."]}, **(config or {}), "tasks": {"schedules": schedules}}


@contextmanager
def gateway(folder: Path, schedules: dict[str, Any], config: dict[str, Any] | None = None) -> Generator[str]:
    """A gateway with the workflow and these schedules; yields its URL."""
    process, url = start_gateway(folder, "gateway", laid_out(folder, schedules, config))
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


@pytest.mark.temporal
async def test_schedule_calls_a_tool_of_a_server_that_starts_lazily(server: TemporalServer, tmp_path: Path) -> None:
    entry = {"tool": "up__echo", "arguments": {"text": SECRET}, "cron": "@daily"}
    config = {"mcpServers": {"up": upstream_stdio()}, "policies": {"up": {"start": "lazy"}}}
    with gateway(tmp_path, {"nightly": entry}, config) as url:
        await trigger(server, tmp_path, "nightly")
        assert (await until_ended(server, tmp_path, "nightly"))["status"].endswith("COMPLETED")
        [task_id] = await tasks_of(tmp_path, "local")
        async with over_http(url, "modern") as wire:
            done = await until(wire, task_id, "completed", "failed")
    assert done["status"] == "completed", done
    assert SECRET in json.dumps(done["result"])


@pytest.mark.temporal
async def test_scheduled_call_that_needs_approval_waits_for_it(server: TemporalServer, tmp_path: Path) -> None:
    new_key(tmp_path)
    with gateway(tmp_path, {"nightly": {**DAILY, "key": "ci"}}, {"policies": {"workflow": {"approval": "always"}}}):
        await trigger(server, tmp_path, "nightly")
        assert (await until_ended(server, tmp_path, "nightly"))["status"].endswith("COMPLETED")
        argv = [sys.executable, "-m", "gateway", "approvals", "list", "--json", "--config", str(tmp_path / "gateway.json")]
        with anyio.fail_after(30):
            while not (waiting := json.loads((await anyio.run_process(argv, cwd=ROOT)).stdout)["approvals"]):
                await anyio.sleep(0.2)
        assert [(item["name"], item["by"]) for item in waiting] == [("works", "operator")]
        assert noted(tmp_path) == []
        approve = [*argv[:3], "approvals", "approve", waiting[0]["id"], "--config", argv[-1]]
        await anyio.run_process(approve, cwd=ROOT)
        await until_noted(tmp_path, SECRET)


@pytest.mark.temporal
async def test_gateway_killed_after_storing_the_task_starts_it_once(server: TemporalServer, tmp_path: Path) -> None:
    key = new_key(tmp_path)
    schedules = {"nightly": {**DAILY, "key": "ci"}}
    process, _ = start_gateway(tmp_path, "gateway", laid_out(tmp_path, schedules), module=ALTERED, ALTERED="dies")
    try:
        await trigger(server, tmp_path, "nightly")
        with anyio.fail_after(30):
            while process.poll() is None:
                await anyio.sleep(0.05)
        assert len(stored := await tasks_of(tmp_path, f"key:{key.id}")) == 1
        assert noted(tmp_path) == []
    finally:
        stop(process)
    with gateway(tmp_path, schedules) as url:
        ended = await until_ended(server, tmp_path, "nightly")
        assert ended["status"].endswith("COMPLETED")
        async with over_http(url, "modern", token=key.token) as wire:
            assert (await until(wire, stored[0], "completed", "failed"))["status"] == "completed"
        assert await tasks_of(tmp_path, f"key:{key.id}") == stored
    assert noted(tmp_path) == [SECRET]
    assert "EVENT_TYPE_ACTIVITY_TASK_STARTED" in history_of(server, ended["execution"]["workflowId"])


@pytest.mark.temporal
async def test_schedules_follow_the_configuration_and_leave_others_alone(server: TemporalServer, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with gateway(two, {"nightly": DAILY}):
        with gateway(one, {"nightly": DAILY, "weekly": {**DAILY, "cron": "@weekly"}, "hourly": {**DAILY, "cron": "@hourly"}}):
            await until_listed(server, {own_id(one, name) for name in ("nightly", "weekly", "hourly")}, one)
            told = await anyio.to_thread.run_sync(server.run, "schedule", "toggle", "--schedule-id", own_id(one, "nightly"), "--pause")
            assert told.returncode == 0, told.stderr
        with gateway(one, {"nightly": {**DAILY, "cron": "15 7 * * *"}, "hourly": {**DAILY, "cron": "@hourly", "enabled": False}}):
            await until_listed(server, {own_id(one, "nightly")}, one)
            await until_listed(server, {own_id(two, "nightly")}, two)
            told = await anyio.to_thread.run_sync(server.run, "schedule", "describe", "--schedule-id", own_id(one, "nightly"))
    assert re.search(r"Paused +true", told.stdout), told.stdout
    assert '"minute":"15","hour":"7"' in told.stdout, told.stdout


@pytest.mark.temporal
@pytest.mark.parametrize("problem", ["revoked", "unknown", "missing", "scope"])
async def test_schedule_without_a_valid_key_makes_no_call(server: TemporalServer, tmp_path: Path, problem: str) -> None:
    key = new_key(tmp_path, scopes=["tools:function/*"] if problem == "scope" else None)
    name = {"unknown": "nobody", "missing": None}.get(problem, "ci")
    with gateway(tmp_path, {"nightly": {**DAILY, **({"key": name} if name else {})}}):
        if problem == "revoked":
            new_key(tmp_path, "other")
            keys_of(tmp_path).revoke(key.id)
        await trigger(server, tmp_path, "nightly")
        ended = await until_ended(server, tmp_path, "nightly")
        assert ended["status"].endswith("FAILED")
        told = log_of(tmp_path)
    texts = {
        "revoked": "the API key 'ci' does not exist or was revoked. Create one with `moongate keys add`, or correct tasks.schedules",
        "unknown": "the API key 'nobody' does not exist or was revoked",
        "missing": "the gateway has API keys, and the schedule names none. Set tasks.schedules.nightly.key to the name of a key",
        "scope": "reason=scopes",
    }
    assert "scheduled call refused schedule=nightly" in told
    assert texts[problem] in told
    assert ("schedule cannot start its calls schedule=nightly" in told) == (problem in ("unknown", "missing"))
    assert noted(tmp_path) == []
    assert await tasks_of(tmp_path, f"key:{key.id}") == await tasks_of(tmp_path, "local") == []
    assert SECRET not in history_of(server, ended["execution"]["workflowId"]) + told


@pytest.mark.temporal
async def test_tool_that_policy_denies_is_not_called_and_audited(server: TemporalServer, tmp_path: Path) -> None:
    key = new_key(tmp_path)
    policies = {"policies": {"workflow": {"arguments": {"works": {"x": {"maxLength": 3}}}}}}
    with gateway(tmp_path, {"nightly": {**DAILY, "key": key.id}}, policies):
        await trigger(server, tmp_path, "nightly")
        assert (await until_ended(server, tmp_path, "nightly"))["status"].endswith("FAILED")
        argv = [sys.executable, "-m", "gateway", "audit", "--json", "--config", str(tmp_path / "gateway.json")]
        audited = (await anyio.run_process(argv, cwd=ROOT)).stdout.decode()
        doctor = [sys.executable, "-m", "gateway", "doctor", "--config", str(tmp_path / "gateway.json")]
        checked = await anyio.run_process(doctor, cwd=ROOT, check=False)
    refused = [line for line in audited.splitlines() if "call.refused" in line and f"key:{key.id}" in line]
    assert len(refused) == 1 and "workflow__works" in refused[0], audited
    told = log_of(tmp_path)
    assert "scheduled call refused schedule=nightly reason=arguments.works.x" in told and SECRET not in told
    assert noted(tmp_path) == []
    assert checked.returncode != 0
    assert "schedule nightly: arguments.works.x" in checked.stdout.decode()


@pytest.mark.temporal
async def test_unknown_tool_fails_the_run_with_its_fix_in_the_log(server: TemporalServer, tmp_path: Path) -> None:
    config = laid_out(tmp_path, {"nightly": {**DAILY, "tool": "workflow__gone"}})
    process, _ = start_gateway(tmp_path, "gateway", config, module=ALTERED, ALTERED="hasty")
    try:
        await trigger(server, tmp_path, "nightly")
        assert (await until_ended(server, tmp_path, "nightly"))["status"].endswith("FAILED")
    finally:
        stop(process)
    fix = "Correct tasks.schedules.nightly.tool, or check that the server of the tool runs"
    assert f"reason=Unknown tool: workflow__gone. {fix}" in log_of(tmp_path)


@pytest.mark.temporal
async def test_gateways_that_start_at_once_share_their_schedules(server: TemporalServer, tmp_path: Path) -> None:
    config = laid_out(tmp_path, {"often": {**DAILY, "cron": None, "everySeconds": 3}})
    started: list[Child] = []

    async def start() -> None:
        process, _ = await anyio.to_thread.run_sync(start_gateway, tmp_path, "gateway", config)
        started.append(process)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(start)
        await until_noted(tmp_path, SECRET)
        await until_listed(server, {own_id(tmp_path, "often")}, tmp_path)
        stop(started[0])
        seen = len(noted(tmp_path))
        with anyio.fail_after(30):
            while len(noted(tmp_path)) < seen + 2:
                await anyio.sleep(0.2)
        assert [process.poll() for process in started[1:]] == [None, None]
    finally:
        for process in started:
            stop(process)


@pytest.mark.temporal
def test_schedules_are_stored_after_an_outage_of_temporal(tmp_path: Path) -> None:
    async def outlast() -> None:
        from gateway.config.schedule_settings import ScheduledCall
        from gateway.tasks.temporal_connection import connect
        from gateway.tasks.temporal_schedules import TemporalSchedules

        connection = await connect(TaskSettings.model_validate(temporal_tasks(tmp_path, server.address)), "outage", set, no_schedules)
        await anyio.to_thread.run_sync(server.kill)
        calls = {"nightly": ScheduledCall.model_validate(DAILY)}
        async with anyio.create_task_group() as group:
            group.start_soon(TemporalSchedules(connection.client, server.address, "outage", calls, no_schedules).run)
            await anyio.sleep(7)
            await anyio.to_thread.run_sync(server.start)
        assert await listed(server) == {schedule_id("outage", "nightly")}
        await anyio.to_thread.run_sync(server.kill)

    with temporal(tmp_path) as server:
        assert in_a_process(outlast) == 0


# -- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.temporal
async def test_schedule_runs_in_the_build_that_is_current(server: TemporalServer, tmp_path: Path) -> None:
    """Only the new build has the entry. Its run waits in the old build, which is current, and starts once the new build is current."""
    deployment = f"moongate-{tmp_path.name}-{os.getpid()}"
    section = temporal_tasks(tmp_path, server.address)["temporal"]

    def build(name: str, schedules: dict[str, Any]) -> dict[str, Any]:
        config = laid_out(tmp_path, schedules)
        versioning = {"deployment": deployment, "buildId": name}
        return {**config, "server": {"reload": False}, "tasks": {**config["tasks"], "temporal": {**section, "versioning": versioning}}}

    old, _ = start_gateway(tmp_path, "gateway", build("old", {}))
    try:
        await anyio.to_thread.run_sync(make_current, server, deployment, "old")
        new, _ = start_gateway(tmp_path, "gateway", build("new", {"nightly": DAILY}))
        try:
            await trigger(server, tmp_path, "nightly")
            await until_logged(tmp_path, "scheduled call waits for a gateway whose configuration has it schedule=nightly")
            await anyio.to_thread.run_sync(make_current, server, deployment, "new")
            assert (await until_ended(server, tmp_path, "nightly"))["status"].endswith("COMPLETED")
            await until_noted(tmp_path, SECRET)
        finally:
            stop(new)
    finally:
        stop(old)
    assert noted(tmp_path) == [SECRET]


@pytest.mark.temporal
def test_histories_of_schedules_are_replayed_by_this_version() -> None:
    """Temporal continues a run only if this version's code takes the decisions of the recorded history again."""
    pytest.importorskip("temporalio", reason="Temporal's package is not installed: run `make temporal`")
    assert [path.name for path in HISTORIES] == ["0.1.0-started.json"]

    async def replay() -> None:
        from temporalio.client import WorkflowHistory
        from temporalio.worker import Replayer

        from gateway.tasks.temporal_schedule_workflow import ScheduleWorkflow

        for path in HISTORIES:
            await Replayer(workflows=[ScheduleWorkflow]).replay_workflow(WorkflowHistory.from_json("w1", path.read_text()))

    assert in_a_process(replay) == 0
