"""A task goes on only as long as its caller's API key admits it, also when the key changed while no gateway ran."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.api_keys import KeyStore
from gateway.auth.principal import Principal
from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.rights import KEY_GONE
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.fakes.nursery import Child
from tests.interaction.wire import over_http
from tests.tasks.calls import GO
from tests.tasks.dying import Journal, once_asked, running
from tests.tasks.test_gateways import start_gateway, stop, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90), pytest.mark.requirement(97), pytest.mark.attack(5)]
CALLER = Principal("key:a")
CTX = CallContext(CallFacts(principal=CALLER))
ASKABLE = ClientProfile(capabilities={"elicitation": {"form": {}}})
STEPS = 6

FUNCTIONS = """\
import pathlib, time
HERE = pathlib.Path(__file__).parent

def tick(x: str) -> str:
    with (HERE / "journal").open("a") as file:
        file.write(x + "\\n")
    time.sleep(0.05)
    return x
"""
TICKS = """\
name: ticks
description: Ticks for a while.
task: required
executors: {tick: {python: "ticking:tick", arguments: {x: tick}}}
start: tick
edges: [{from: tick, to: tick, max: 200}]
max-rounds: 300
output-from: [tick]
"""
ASKS = """\
name: asks
description: Asks, and then ticks.
task: required
executors: {ask: {ask: "Go on?"}, tick: {python: "ticking:tick", arguments: {x: tick}}}
start: ask
edges: [{from: ask, to: tick}]
"""


def steps(journal: Journal, after: Callable[[int], Awaitable[None]]) -> CallTool:
    """Return a call of several steps with one effect each. After each step the call awaits `after` with the step's number."""

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        assert ctx.ports.durable is not None
        for number in range(STEPS):

            async def work(key: str, number: int = number) -> JsonValue:
                journal.write(str(number))
                return number

            with suppress(Exception):  # like code that ignores a failed call
                await ctx.ports.durable.step("step", work, repeatable=False)
            await after(number)
        return Complete.text(str(ctx.facts.principal.scopes))

    return call


async def ended(runner: TaskRunner, task: Task) -> Task:
    with anyio.fail_after(20):
        while not task.is_over:
            task = await runner.wait_for_change(task)
    return task


class Keys:
    """Checks the caller's key: returns the principal `now`, or raises `error` if the test has set it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.now = CALLER

    async def __call__(self, tool: str, principal: Principal) -> Principal:
        if self.error is not None:
            raise self.error
        return self.now


GONE = PolicyDenied(KEY_GONE, rule="scopes", subject="tool")


async def test_no_step_begins_after_the_key_is_revoked(tmp_path: Path) -> None:
    journal, keys = Journal(tmp_path / "journal"), Keys()

    async def after(number: int) -> None:
        if number == 2:
            keys.error = GONE

    async with running(tmp_path, steps(journal, after), caller_now=keys) as runner:
        task = await ended(runner, await runner.start("tool", {}, CTX))
        assert (task.status, (task.error or {})["message"]) == ("failed", KEY_GONE)
    assert journal.lines() == ["0", "1", "2"]


async def test_task_of_a_key_revoked_meanwhile_is_not_taken_up(tmp_path: Path) -> None:
    journal, keys, at_work = Journal(tmp_path / "journal"), Keys(), anyio.Event()

    async def after(number: int) -> None:
        at_work.set()
        await anyio.sleep_forever()

    async with running(tmp_path, steps(journal, after), caller_now=keys) as runner:
        await runner.start("tool", {}, CTX)
        await at_work.wait()
    keys.error = GONE
    called = list[str]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        called.append(tool)
        return Complete.text("done")

    async with running(tmp_path, call, caller_now=keys) as runner:
        (task,) = await runner.all_of(CALLER.id)
        task = await ended(runner, task)
        assert (task.status, (task.error or {})["message"]) == ("failed", KEY_GONE)
    assert called == []


async def test_task_waits_while_the_keys_cannot_be_read(tmp_path: Path) -> None:
    journal, keys = Journal(tmp_path / "journal"), Keys()

    async def after(number: int) -> None:
        if number == 0:
            keys.error = StorageError("unreadable")

    async with running(tmp_path, steps(journal, after), caller_now=keys) as runner:
        task = await runner.start("tool", {}, CTX)
        with anyio.fail_after(20):
            while keys.error is None:
                await anyio.sleep(0.01)
        with anyio.move_on_after(0.7):
            await ended(runner, task)
        assert journal.lines() == ["0"]
        keys.error, keys.now = None, Principal(CALLER.id, "", ("tool",))
        assert (await ended(runner, task)).status == "completed"
    assert journal.lines() == [str(number) for number in range(STEPS)]


async def test_task_resumes_with_the_current_scopes_of_its_key(tmp_path: Path) -> None:
    journal, keys, at_work = Journal(tmp_path / "journal"), Keys(), anyio.Event()

    async def hang(number: int) -> None:
        at_work.set()
        await anyio.sleep_forever()

    async def go_on(number: int) -> None:
        pass

    async with running(tmp_path, steps(journal, hang), caller_now=keys) as runner:
        await runner.start("tool", {}, CTX)
        await at_work.wait()
    keys.now = Principal(CALLER.id, "", ("only/this",))
    async with running(tmp_path, steps(journal, go_on), caller_now=keys) as runner:
        (task,) = await runner.all_of(CALLER.id)
        task = await ended(runner, task)
        assert task.result == Complete.text("('only/this',)").result


# -- with a gateway ----------------------------------------------------------------------------------------------------


def revoke(keys: Path, key_id: str) -> None:
    KeyStore(keys).revoke(key_id)


def narrow(keys: Path, key_id: str) -> None:
    """As an operator does who edits the file."""
    document = json.loads(keys.read_text())
    for key in document["keys"]:
        if key["id"] == key_id:
            key["scopes"] = ["workflow/other"]
    keys.write_text(json.dumps({**document, "version": 2}))


def written(folder: Path) -> None:
    (folder / "ticking.py").write_text(FUNCTIONS)
    (folder / "ticks.workflow.yaml").write_text(TICKS)
    (folder / "asks.workflow.yaml").write_text(ASKS)


def terminate(process: Child) -> None:
    """Stop the gateway with SIGTERM and wait for its end."""
    os.kill(process.pid, signal.SIGTERM)
    process.wait()


async def error_of(folder: Path, task_id: str) -> dict[str, Any]:
    """Wait until the gateway has ended the task, and return the stored error."""
    from gateway.storage.records import Records
    from gateway.storage.state_folder import StateFolder

    records = Records(StateFolder(folder / "gateway-state"), audit_days=1)
    try:
        with anyio.fail_after(30):
            while True:
                row = await (await records.tasks()).get(task_id)
                assert row is not None
                if row.gone_at:
                    assert row.status == "failed"
                    return row.outcome["error"]
                await anyio.sleep(0.05)
    finally:
        await records.aclose()


@pytest.mark.parametrize(
    ("flow", "change"),
    [
        ("ticks", revoke),
        ("asks", narrow),
        pytest.param("ticks", narrow, marks=pytest.mark.faults),
        pytest.param("asks", revoke, marks=pytest.mark.faults),
    ],
)
async def test_key_changed_while_down_ends_its_tasks_at_the_start(
    flow: str, change: Callable[[Path, str], None], tmp_path: Path
) -> None:
    written(tmp_path)
    journal, keys = tmp_path / "journal", tmp_path / "gateway-state" / "keys.json"
    ada = KeyStore(keys).add("ada")
    KeyStore(keys).add("bob")
    process, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern", token=ada.token) as wire:
            task_id: Any = (await wire.send("tools/call", name=f"workflow__{flow}", arguments={}))["result"]["taskId"]
            if flow == "asks":
                await until(wire, task_id, "input_required")
            else:
                with anyio.fail_after(30):
                    while not journal.exists() or len(journal.read_text().splitlines()) < 3:
                        await anyio.sleep(0.02)
        terminate(process)
    finally:
        stop(process)
    before = journal.read_text() if journal.exists() else ""
    change(keys, ada.id)
    process, _ = start_gateway(tmp_path, "gateway")
    try:
        error = await error_of(tmp_path, task_id)
        assert error["message"] == KEY_GONE if change is revoke else "no scope for tool" in error["message"]
    finally:
        stop(process)
    assert (journal.read_text() if journal.exists() else "") == before


async def test_key_narrowed_while_its_task_runs_ends_the_task(tmp_path: Path) -> None:
    written(tmp_path)
    journal, keys = tmp_path / "journal", tmp_path / "gateway-state" / "keys.json"
    ada = KeyStore(keys).add("ada")
    process, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern", token=ada.token) as wire:
            task_id: Any = (await wire.send("tools/call", name="workflow__ticks", arguments={}))["result"]["taskId"]
            with anyio.fail_after(30):
                while not journal.exists():
                    await anyio.sleep(0.02)
            narrow(keys, ada.id)
            told = len(journal.read_text().splitlines())
            assert "no scope for tool" in (await error_of(tmp_path, task_id))["message"]
            assert len(journal.read_text().splitlines()) <= told + 2  # a step in flight, and a step that had just started
    finally:
        stop(process)


@pytest.mark.parametrize("change", [narrow, revoke])
async def test_key_changed_while_its_task_waits_for_a_person_ends_the_task(change: Callable[[Path, str], None], tmp_path: Path) -> None:
    written(tmp_path)
    journal, keys = tmp_path / "journal", tmp_path / "gateway-state" / "keys.json"
    ada = KeyStore(keys).add("ada")
    KeyStore(keys).add("bob")
    process, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern", token=ada.token) as wire:
            task_id: Any = (await wire.send("tools/call", name="workflow__asks", arguments={}))["result"]["taskId"]
            await until(wire, task_id, "input_required")
            change(keys, ada.id)
            error = await error_of(tmp_path, task_id)
            assert error["message"] == KEY_GONE if change is revoke else "no scope for tool" in error["message"]
    finally:
        stop(process)
    assert not journal.exists()


async def test_only_an_unstoppable_step_keeps_a_task_without_rights(tmp_path: Path) -> None:
    """Every task continues while its rights cannot be checked because the tool is unavailable or the keys cannot be read."""
    keys, began, may_end = Keys(), list[str](), anyio.Event()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def work(key: str) -> JsonValue:
            began.append(tool)
            if tool == "asks":
                await ctx.ask(GO)
            await may_end.wait()
            return None

        assert ctx.ports.durable is not None
        await ctx.ports.durable.step("step", work, repeatable=tool == "may be repeated")
        return Complete.text("done")

    ctx = CTX.with_facts(dataclasses.replace(CTX.facts, client=ASKABLE))
    async with running(tmp_path, call, caller_now=keys) as runner:
        tasks = {name: await runner.start(name, {}, ctx) for name in ("asks", "may be repeated", "must end")}
        with anyio.fail_after(20):
            while len(began) < 3:
                await anyio.sleep(0.01)
        await once_asked(runner, tasks["asks"])
        keys.error = NotFound("tool", "asks")
        await runner.end_unadmitted()
        keys.error = StorageError("unreadable")
        with pytest.raises(StorageError):
            await runner.end_unadmitted()
        assert {task.refusal for task in tasks.values()} == {""}
        keys.error = GONE
        await runner.end_unadmitted()
        may_end.set()
        assert {name: (await ended(runner, task)).status for name, task in tasks.items()} == {
            "asks": "failed",
            "may be repeated": "failed",
            "must end": "completed",
        }
