"""Steps of one task in one process: what is recorded, what runs again, and what a person is asked about a step in doubt."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from gateway.errors import InputUnavailable, StorageError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.task_scheduling import choose_next
from gateway.storage.record_types import Steps, TaskRow
from gateway.storage.records import Records
from gateway.storage.state_folder import StateFolder
from gateway.tasks.step_log import StepLog
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile
from tests.tasks.test_callers import Person

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60), pytest.mark.requirement(97)]


class Decides(Person):
    """A person who decides `outcome` for each step in doubt: retry or skip."""

    def __init__(self, outcome: str = "retry") -> None:
        super().__init__()
        self._outcome = outcome
        self.keys: list[str] = []

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.keys.append(key)
        await super().ask(request, key)
        return {"action": "accept", "content": {"outcome": self._outcome}}


class Silent(Person):
    """A client that cannot be asked."""

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        raise InputUnavailable("no elicitation", capability="elicitation")


def ctx_of(person: Person) -> CallContext:
    return CallContext(CallFacts(client=ClientProfile(capabilities={"elicitation": {"form": {}}})), CallPorts(caller=person))


class Steady:
    """A stored task and its steps in the database."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.lost = 0
        self.ran: list[str] = []

    def log(self, steps: Steps | None = None, *, person: Person | None = None, owner: str = "me") -> StepLog:
        log = StepLog("t", steps or {}, self.records, owner, self._lose, lambda: True)
        log.context = ctx_of(person) if person is not None else None
        return log

    def _lose(self) -> None:
        self.lost += 1

    async def stored(self) -> Steps:
        return await (await self.records.tasks()).steps("t")

    async def work(self, key: str) -> JsonValue:
        self.ran.append(key)
        return len(self.ran)

    async def fail(self, key: str) -> JsonValue:
        self.ran.append(key)
        raise ToolFailed("no")


@pytest.fixture
async def steady(tmp_path: Path) -> AsyncGenerator[Steady]:
    records = Records(StateFolder(tmp_path), audit_days=1)
    row = TaskRow("t", "local", "tool", {}, 60, owner="me")
    assert not await (await records.tasks()).add(row, max_open=9, max_kept=9, choose=choose_next)
    yield Steady(records)
    await records.aclose()


DOUBTS: list[tuple[JsonValue, str]] = [(None, ""), (1, " again (after 1 retry)"), (2, " again (after 2 retries)")]


@pytest.mark.parametrize(("recorded", "again"), DOUBTS)
async def test_question_about_a_step_in_doubt_names_step_and_retries(recorded: JsonValue, again: str, steady: Steady) -> None:
    person = Decides()
    port = steady.log({"/a/call:files#1": (False, recorded)}, person=person).port().scoped("a")
    assert await port.step("call:files", steady.work, repeatable=False) == 1
    (asked,) = person.asked
    text = f"The gateway stopped{again} while 'call' ran, so its outcome is unknown: it may have taken effect. Retry it or skip it?"
    assert asked["params"]["message"] == text
    assert asked["params"]["requestedSchema"]["properties"]["outcome"]["enum"] == ["retry", "skip"]
    assert person.keys == [f"/a/call:files#1!{recorded or 0}"]
    assert await steady.stored() == {"/a/call:files#1": (True, 1)}


UNDECIDED = [Decides("skip"), Decides("other"), Person(), Silent(), None]


@pytest.mark.parametrize("person", UNDECIDED, ids=["skip", "odd", "empty", "silent", "nobody"])
async def test_step_in_doubt_that_is_not_retried_is_an_error(person: Person | None, steady: Steady) -> None:
    port = steady.log({"/call#1": (False, None)}, person=person).port()
    with pytest.raises(ToolFailed, match=r"The gateway stopped while 'call' ran\. Its outcome is unknown, and it was not repeated"):
        await port.step("call", steady.work, repeatable=False)
    assert (steady.ran, await steady.stored()) == ([], {})


def is_first(key: str) -> bool:
    return key.endswith("#1")


@pytest.mark.parametrize("repeatable", [True, is_first])
async def test_step_that_may_run_twice_runs_again_without_a_question(
    repeatable: bool | Callable[[str], bool], steady: Steady
) -> None:
    person = Decides()
    port = steady.log({"/call#1": (False, None), "/call#2": (False, None)}, person=person).port()
    assert [await port.step("call", steady.work, repeatable=repeatable) for _ in range(2)] == [1, 2]
    assert (steady.ran, person.keys) == (["t:/call#1", "t:/call#2"], [] if repeatable is True else ["/call#2!0"])


async def test_question_about_a_step_goes_to_the_client_of_the_task(steady: Steady) -> None:
    """Callers inside the call, such as the caller of a workflow's step, are not asked."""
    person, inner = Decides(), Decides("skip")
    port = steady.log({"/call#1": (False, None), "/call#2": (False, None)}, person=person).port()
    await port.step("call", steady.work, repeatable=False, ctx=ctx_of(inner))
    await port.begin("call", repeatable=False, ctx=ctx_of(inner))
    assert (len(person.asked), inner.asked) == (2, [])
    alone = Decides()
    port = steady.log({"/call#1": (False, None)}).port()
    await port.step("call", steady.work, repeatable=False, ctx=ctx_of(alone))
    assert len(alone.asked) == 1


async def test_finished_steps_return_what_they_returned(steady: Steady) -> None:
    log = steady.log()
    port = log.port()
    assert [await port.step("call", steady.work, repeatable=False) for _ in range(2)] == [1, 2]
    begun = await port.begin("stream", repeatable=False)
    assert (begun.is_done, begun.value) == (False, None)
    assert (await steady.stored())["/stream#1"] == (False, None)
    await begun.finish({"parts": 3})
    await port.scoped("part").keep("place", [1])
    again = steady.log(await steady.stored()).port()
    assert [await again.step("call", steady.fail, repeatable=False) for _ in range(2)] == [1, 2]
    begun = await again.begin("stream", repeatable=False)
    assert (begun.is_done, begun.value, len(steady.ran)) == (True, {"parts": 3}, 2)
    assert (again.scoped("part").kept("place"), again.kept("place")) == ([1], None)


async def test_steps_of_a_part_are_counted_from_one_at_each_start(steady: Steady) -> None:
    port = steady.log().port()
    for label in ("a", "b", "a"):
        part = port.scoped(label)
        assert [part.question("q"), part.asking("x").asking("y").question("q"), part.question("q")] == [
            f"/{label}/?q#1",
            f"/{label}/?x/y/q#1",
            f"/{label}/?q#2",
        ]
    port.scoped("a/b").question("q")
    assert port.scoped("ab").question("q") == "/ab/?q#1"
    inner = port.scoped("ab").scoped("c")
    assert inner.question("q") == "/ab/c/?q#1"
    port.scoped("a")
    assert inner.question("q") == "/ab/c/?q#2"


async def test_failed_step_is_not_recorded_unless_a_person_retried_it(steady: Steady) -> None:
    person = Decides()
    port = steady.log({"/old#1": (False, None)}, person=person).port()
    for name in ("new", "old"):
        with pytest.raises(ToolFailed):
            await port.step(name, steady.fail, repeatable=False)
    assert await steady.stored() == {"/old#1": (False, {"idle": 1})}
    port = steady.log(await steady.stored(), person=person).port()
    assert await port.step("old", steady.work, repeatable=False) == 3
    assert len(person.asked) == 1


@pytest.mark.parametrize("at", ["begin", "end"])
async def test_work_on_a_task_of_another_process_stops_at_its_next_step(at: str, steady: Steady) -> None:
    async def work(key: str) -> JsonValue:
        await (await steady.records.tasks()).cancel("t")  # without a lease the task ends at once
        return 1

    port = steady.log(owner="another" if at == "begin" else "me").port()
    with anyio.move_on_after(0.1) as stopped:
        await port.step("call", steady.work if at == "begin" else work, repeatable=True)
    assert (stopped.cancelled_caught, steady.lost, steady.ran) == (True, 1, [])


async def test_stopping_process_starts_no_step_and_awaits_unrepeatable(steady: Steady) -> None:
    log, go = steady.log(), anyio.Event()
    port = log.port()

    async def hang(key: str) -> JsonValue:
        await go.wait()
        return None

    held = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(port.step, "free", hang, repeatable=True))
        group.start_soon(partial(port.step, "keyed", hang, repeatable=is_first))
        while len(await steady.stored()) < 2:
            await anyio.sleep(0.01)
        assert not log.has_unrepeatable_step()
        group.start_soon(partial(port.step, "once", hang, repeatable=False))
        while len(await steady.stored()) < 3:
            await anyio.sleep(0.01)
        assert log.has_unrepeatable_step()
        log.is_draining = True
        held.deadline = anyio.current_time() + 0.05
        with held:
            await port.step("late", steady.work, repeatable=True)
        go.set()
    assert (held.cancelled_caught, steady.ran, log.has_unrepeatable_step()) == (True, [], False)
    assert {key: is_done for key, (is_done, _) in (await steady.stored()).items()} == {"/free#1": True, "/keyed#1": True, "/once#1": True}


async def test_noted_steps_are_stored_with_the_task_and_then_one_by_one(steady: Steady) -> None:
    log = StepLog.in_memory("t", steady.records, "me", lambda: None, lambda: True)
    port, seen = log.port(), list[Steps]()
    await port.step("first", steady.work, repeatable=False)
    assert (await steady.stored(), await port.will_resume()) == ({}, False)

    async def refuse(steps: Steps) -> None:
        raise StorageError("full")

    async def unfit(steps: Steps) -> None:
        raise TypeError("no JSON")

    for store, text in ((refuse, "full"), (unfit, r"A step's result cannot be recorded: no JSON\.")):
        with pytest.raises(StorageError, match=text):
            await log.write(store)
        await port.step("more", steady.work, repeatable=False)
    assert (await steady.stored(), await port.will_resume()) == ({}, False)

    async def store(steps: Steps) -> None:
        await anyio.wait_all_tasks_blocked()  # a step that begins meanwhile waits for this
        seen.append(dict(steps))

    async with anyio.create_task_group() as group:
        group.start_soon(log.write, store)
        await anyio.lowlevel.checkpoint()
        group.start_soon(partial(port.step, "last", steady.work, repeatable=False))
    assert list(seen[0]) == ["/first#1", "/more#1", "/more#2"]
    assert await steady.stored() == {"/last#1": (True, 4)}
    assert await port.will_resume()


async def test_result_that_is_not_json_is_an_error_of_its_step(steady: Steady) -> None:
    async def odd(key: str) -> JsonValue:
        return cast("JsonValue", object())

    with pytest.raises(StorageError, match="A step's result cannot be recorded"):
        await steady.log().port().step("odd", odd, repeatable=True)
