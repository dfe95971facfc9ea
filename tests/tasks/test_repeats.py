"""What happens a second time: a tool that was in flight at a kill, and a request whose answer was lost."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.policies import SourcePolicy
from gateway.errors import TaskError
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.task import Task
from gateway.tasks.task_executor import CallTool
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.base import Complete, ToolDefinition
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import IDEMPOTENCY_KEY, CallContext
from gateway.tools.ports import ClientProfile
from tests.tasks.calls import ended, only_task
from tests.tasks.dying import Journal, die, in_a_process, once_asked, running
from tests.tasks.test_durable import Death, finish, start_and_die, ten_steps

ASKABLE = CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})))
HINTS: JsonObject = {"readOnlyHint": True, "idempotentHint": True}
ROWS: dict[str, tuple[JsonObject | None, dict[str, Any], bool, bool]] = {
    "plain": (None, {"trustAnnotations": True}, False, False),
    "hinted": (HINTS, {}, False, False),
    "trusted": (HINTS, {"trustAnnotations": True}, False, True),
    "marked": (None, {"idempotent": ["mar*"]}, False, True),
    "ours": (HINTS, {}, True, True),
}
"""For each tool: its annotations, its source's policy, whether it is the operator's own, and whether it runs again without a decision."""


class Noted:
    """A tool that writes a line, and then never returns if its process is to be killed."""

    def __init__(self, name: str, journal: Journal, began: anyio.Semaphore | None) -> None:
        self.definition = ToolDefinition(name, "Notes.", {"type": "object"}, annotations=ROWS[name][0])
        self._journal = journal
        self._began = began

    async def call(self, arguments: JsonObject, ctx: CallContext) -> Complete:
        self._journal.write(self.definition.name)
        if self._began is not None:
            self._began.release()
            await anyio.sleep_forever()
        return Complete.text("noted")


def calls(journal: Journal, began: anyio.Semaphore | None) -> CallTool:
    async def call(name: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        _, policy, is_local, _ = ROWS[name]
        tool = Noted(name, journal, began)
        rules = ToolRules.build(tool.definition, SourcePolicy.model_validate(policy), is_local=is_local)
        guarded = GuardedTool(tool, rules, SourceGate("up", GateServices(EventStream())), exposed_name=name)
        outcome = await guarded.call(arguments, ctx)
        assert isinstance(outcome, Complete)
        return outcome

    return call


@pytest.mark.requirement(97)
def test_tool_reruns_after_a_kill_only_if_its_source_is_trusted(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def start() -> None:
        began = anyio.Semaphore(0)
        async with running(tmp_path, calls(journal, began)) as runner:
            for name in ROWS:
                await runner.start(name, {}, ASKABLE)
            for _ in ROWS:
                await began.acquire()
            die()

    async def resume() -> dict[str, str]:
        async with running(tmp_path, calls(journal, None)) as runner:
            found: dict[str, str] = {}
            with anyio.fail_after(20):
                for task in await runner.all_of("local"):
                    while task.status == "working":
                        task = await runner.wait_for_change(task)
                    found[task.tool] = task.status
            return found

    assert in_a_process(start) == signal.SIGKILL
    assert anyio.run(resume) == {name: "completed" if again else "input_required" for name, (*_, again) in ROWS.items()}
    assert sorted(journal.lines()) == sorted([*ROWS, *(name for name, (*_, again) in ROWS.items() if again)])


def known_by(key: object, principal: str = "local") -> CallContext:
    return CallContext(CallFacts(principal=Principal(principal), meta={IDEMPOTENCY_KEY: key}))


@pytest.mark.requirement(97)
@pytest.mark.fault(1)
def test_request_resent_after_a_kill_is_the_stored_task(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")

    async def note(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        journal.write(str(arguments["x"]))
        return Complete.text("noted")

    async def start_and_die() -> None:
        async with running(tmp_path, note) as runner:
            await runner.start("tool", {"x": 1}, known_by("order 7"))
            die()

    async def again() -> None:
        async with running(tmp_path, note) as runner:
            (kept,) = await runner.all_of("local")
            tasks = [await runner.start("tool", {"x": 1}, known_by("order 7")) for _ in range(2)]
            assert [task.id for task in tasks] == [kept.id, kept.id]
            with anyio.fail_after(20):
                task = await runner.find(kept.id, "local")
                while not task.is_over:
                    task = await runner.wait_for_change(task)
            assert (await runner.start("tool", {"x": 1}, known_by("order 7"))).result == Complete.text("noted").result
            for tool, arguments in (("tool", {"x": 2}), ("other", {"x": 1})):
                with pytest.raises(TaskError, match="used for another call"):
                    await runner.start(tool, arguments, known_by("order 7"))
            others = [known_by("order 8"), known_by("order 7", "ann"), known_by(7), known_by("")]
            assert len({(await runner.start("tool", {"x": 3}, ctx)).id for ctx in others} | {kept.id}) == 5

    assert in_a_process(start_and_die) == signal.SIGKILL
    anyio.run(again)
    assert journal.lines().count("1") == 1


@pytest.mark.requirement(97)
@pytest.mark.faults  # `test_runner` has the same with processes that stop
def test_person_is_asked_again_if_the_retry_dies_too(tmp_path: Path) -> None:
    """The answer to the first question is not used for the second question."""
    journal, questions = Journal(tmp_path / "journal"), tmp_path / "questions"
    start_and_die(tmp_path, ten_steps(journal, (5, "after"), repeatable=False))

    async def let_retry(death: Death) -> Task:
        async with running(tmp_path, ten_steps(journal, death, repeatable=False)) as runner:
            task = await only_task(runner)
            task = await once_asked(runner, task)
            ((key, request),) = task.open_requests.items()
            with questions.open("a") as file:
                file.write(request["params"]["message"] + "\n")
            await runner.answer(task, {key: {"action": "accept", "content": {"outcome": "retry"}}})
            return await ended(runner, await runner.find(task.id, "local"))

    async def die_again() -> None:
        await let_retry((5, "after"))

    assert in_a_process(die_again) == signal.SIGKILL
    assert anyio.run(let_retry, None).status == "completed"
    assert journal.lines().count("5 /step#6") == 3
    first, second = questions.read_text().splitlines()
    assert first.startswith("The gateway stopped while 'step' ran")
    assert second.startswith("The gateway stopped again (after 1 retry) while 'step' ran")


def test_task_cancelled_before_its_process_died_does_not_start_again(tmp_path: Path) -> None:
    """The owner holds its lease when the cancellation is stored, and is killed before it reads the cancellation."""
    journal = Journal(tmp_path / "journal")

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        journal.write("started")
        if len(journal.lines()) == 1:
            records = Records(StateFolder(tmp_path), audit_days=1)
            rows = await records.tasks()
            (row,) = await rows.all_of()
            await rows.cancel(row.id)
            die()
        return Complete.text("ran again")

    start_and_die(tmp_path, call)
    task = anyio.run(finish, tmp_path, call)
    assert (task.status, task.result, journal.lines()) == ("cancelled", None, ["started"])
