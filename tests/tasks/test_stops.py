"""A process that stops while its tasks work: steps that must not run twice finish first, and nothing else begins."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx2
import pytest

from gateway.json_types import JsonObject, JsonValue
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tools.base import Complete
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile
from tests.interaction.wire import over_http
from tests.tasks.calls import ended
from tests.tasks.dying import Journal, running
from tests.tasks.test_gateways import FLOW, FUNCTIONS, start_gateway, stop, until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.requirement(97)]
CTX = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))


class Two:
    """A tool of two steps, of which the first waits for its gate."""

    def __init__(self, folder: Path, *, repeatable: bool | Callable[[str], bool] = False) -> None:
        self.journal = Journal(folder / "journal")
        self.begun = anyio.Event()
        self.gate = anyio.Event()
        self.repeatable = repeatable

    async def __call__(self, tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def first(key: str) -> JsonValue:
            self.begun.set()
            await self.gate.wait()
            self.journal.write("first")
            return 1

        async def second(key: str) -> JsonValue:
            self.journal.write("second")
            return 2

        assert ctx.ports.durable is not None
        await ctx.ports.durable.step("first", first, repeatable=self.repeatable)
        await ctx.ports.durable.step("second", second, repeatable=False)
        return Complete.text("done")


async def test_stopping_process_finishes_an_unrepeatable_step_only(tmp_path: Path) -> None:
    work = Two(tmp_path)
    drained = anyio.Event()
    async with running(tmp_path, work) as runner:
        await runner.start("tool", {}, CTX)
        await work.begun.wait()

        async def drain() -> None:
            await runner.drain(60)
            drained.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            assert not drained.is_set()
            await runner.start("tool", {}, CTX)
            work.gate.set()
        assert work.journal.lines() == ["first"]
        assert [task.status for task in await runner.all_of("local")] == ["working", "working"]
    async with running(tmp_path, work) as runner:
        for task in await runner.all_of("local"):
            assert (await ended(runner, task)).status == "completed", task.open_requests
    assert sorted(work.journal.lines()) == ["first", "first", "second", "second"]


def goes_on(key: str) -> bool:
    return True


@pytest.mark.parametrize("why", ["may be repeated", "goes on elsewhere", "takes for ever"])
async def test_stopping_process_waits_for_nothing_else_and_with_a_limit(why: str, tmp_path: Path) -> None:
    work = Two(tmp_path, repeatable=why == "may be repeated" if why != "goes on elsewhere" else goes_on)
    async with running(tmp_path, work) as runner:
        await runner.start("tool", {}, CTX)
        await work.begun.wait()
        with anyio.fail_after(20):
            await runner.drain(0.05 if why == "takes for ever" else 1000)


async def test_stopping_process_does_not_wait_for_a_person(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        async def asks(key: str) -> JsonValue:
            request: JsonObject = {"method": "elicitation/create", "params": {"mode": "form", "message": "?", "requestedSchema": {}}}
            return await ctx.ask(request)

        assert ctx.ports.durable is not None
        return Complete.text(str(await ctx.ports.durable.step("asks", asks, repeatable=False)))

    async with running(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        while not task.open_requests:
            await task.changed.wait()
        with anyio.fail_after(20):
            await runner.drain(1000)


async def test_stopping_gateway_finishes_a_task_call_without_a_question(tmp_path: Path) -> None:
    (tmp_path / "durable_functions.py").write_text(FUNCTIONS)
    (tmp_path / "flow.workflow.yaml").write_text(FLOW)
    first, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern") as wire:
            made = (await wire.send("tools/call", name="workflow__flow", arguments={"x": "a"}))["result"]
        journal = tmp_path / "journal"
        with anyio.fail_after(20):
            while not journal.exists() or "second" not in journal.read_text():
                await anyio.sleep(0.02)
        first.send_signal(signal.SIGTERM)
        with anyio.fail_after(20):
            await refused(url)
        (tmp_path / "go").touch()
        assert await anyio.to_thread.run_sync(first.wait, 20) == 0
    finally:
        stop(first)
    second, url = start_gateway(tmp_path, "gateway")
    try:
        async with over_http(url, "modern") as wire:
            state = await until(wire, made["taskId"], "completed", "failed", "input_required")
    finally:
        stop(second)
    assert (state["status"], journal.read_text().split()) == ("completed", ["first", "second"]), state


async def refused(url: str) -> None:
    """Wait until connections to the URL fail, because the gateway has closed its socket."""
    while True:
        try:
            async with httpx2.AsyncClient() as http:
                await http.get(url)
        except httpx2.TransportError:
            return
        await anyio.sleep(0.02)


# -- questions -------------------------------------------------------------------------------------------------------


async def test_answer_stored_with_its_question_leaves_no_waiting_task(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await anyio.sleep_forever()
        raise AssertionError

    async with running(tmp_path, call) as runner:
        task = await runner.start("tool", {}, CTX)
        request: JsonObject = {"method": "elicitation/create", "params": {}}
        task.row.asked["q"] = {"request": request, "at": 0.0, "answer": {"action": "accept"}}
        task.row.status = "input_required"
        records = Records(StateFolder(tmp_path), audit_days=1)
        stored = await records.tasks()
        assert await stored.save(task.row, owner=task.row.owner)
        [row] = await stored.all_of()
        await records.aclose()
        assert (row.status, task.status, task.open_requests) == ("working", "working", {})
