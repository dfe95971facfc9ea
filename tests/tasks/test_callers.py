"""Questions and progress of one background call: which questions are open, whose answers count, and what a waiting client receives."""

from __future__ import annotations

import copy
import time
from typing import Any

import anyio
import pytest

from gateway.errors import InputExpired, InputUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.framing import frame
from gateway.policy.metadata import ASK_KEY
from gateway.storage.record_types import TaskRow
from gateway.tasks.caller import TaskCaller
from gateway.tasks.task import Task
from gateway.tools.ports import ClientProfile, LogLevel

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]
ASKABLE = ClientProfile(capabilities={"elicitation": {"form": {}}})
YES: JsonObject = {"action": "accept", "content": {}}
NO: JsonObject = {"action": "decline"}


def question(message: str = "Go?", name: str = "") -> JsonObject:
    params: JsonObject = {"mode": "form", "message": message, "requestedSchema": {}}
    return {"method": "elicitation/create", "params": {**params, "_meta": {ASK_KEY: name}} if name else params}


class Person:
    """A client that waits for its call: answers each question with yes."""

    def __init__(self) -> None:
        self.asked: list[JsonObject] = []
        self.told: list[tuple[float, float | None, str | None]] = []
        self.logs: list[JsonValue] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, total, message))

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        self.logs.append(data)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        self.asked.append(request)
        return YES


class Work:
    """A task with its caller, and the questions that its work asks."""

    def __init__(self, asked: JsonObject | None = None, *, client: ClientProfile = ASKABLE, seconds: float = 60, **live: Any) -> None:
        self.task = Task(TaskRow("t", "local", "tool", {}, 60, asked=copy.deepcopy(asked or {})), is_here=True)
        self.caller = TaskCaller(self.task, client, self._save, ask_timeout_seconds=seconds, **live)
        self.saved = 0
        self.answers: dict[str, JsonObject] = {}

    async def _save(self, task: Task) -> None:
        self.saved += 1
        task.unsaved.clear()

    async def ask(self, request: JsonObject, key: str = "", *, scope: anyio.CancelScope | None = None) -> None:
        with scope or anyio.CancelScope():
            self.answers[key or request["params"]["message"]] = await self.caller.ask(request, key)

    def answer(self, name: str, answer: JsonObject = YES) -> None:
        """Store the answer in the task's row, as the runner does."""
        self.task.row.asked[name]["answer"] = answer
        self.task.notify()

    @property
    def open(self) -> dict[str, str]:
        return {name: request["params"]["message"] for name, request in self.task.open_requests.items()}


async def test_questions_of_one_task_get_their_own_names_and_answers() -> None:
    work = Work()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number, request in enumerate((question("A?", "mine"), question("A?"), question("A?", "mine"), question("A?", "not legal"))):
                group.start_soon(work.ask, request, f"/{number}")
                await anyio.wait_all_tasks_blocked()
            assert (work.open, work.task.status) == (dict.fromkeys(["mine", "ask-2", "mine-3", "ask-4"], "A?"), "input_required")
            work.answer("mine-3", NO)
            for name in ("mine", "ask-2", "ask-4"):
                work.answer(name)
    assert work.answers == {"/0": YES, "/1": YES, "/2": NO, "/3": YES}


async def test_questions_without_a_key_stay_apart() -> None:
    work = Work()
    async with anyio.create_task_group() as group:
        for message in ("A?", "B?", "A?"):
            group.start_soon(work.ask, question(message))
            await anyio.wait_all_tasks_blocked()
        assert work.open == {"ask-1": "A?", "ask-2": "B?", "ask-3": "A?"}
        group.cancel_scope.cancel()


@pytest.mark.parametrize("is_answered", [False, True])
async def test_other_question_of_a_step_gets_no_old_answer(is_answered: bool) -> None:
    before = Work()
    async with anyio.create_task_group() as group:
        group.start_soon(before.ask, question("Buy at 10?"), "/buy")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    asked = before.task.row.asked
    (old,) = asked
    asked[old].pop("withdrawn")
    if is_answered:
        asked[old]["answer"] = YES
    work = Work(asked)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(work.ask, question("Buy at 1000000?"), "/buy")
            await anyio.wait_all_tasks_blocked()
            assert list(work.open.values()) == ["Buy at 1000000?"]
            (new,) = work.open
            assert new != old
            work.answer(old)
            await anyio.wait_all_tasks_blocked()
            assert work.answers == {}
            work.answer(new, NO)
    assert work.answers == {"/buy": NO}


async def test_task_waits_for_input_until_its_last_question_is_withdrawn() -> None:
    work, first, second = Work(), anyio.CancelScope(), anyio.CancelScope()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for message, scope in (("A?", first), ("B?", second)):
                group.start_soon(lambda message=message, scope=scope: work.ask(question(message), scope=scope))
                await anyio.wait_all_tasks_blocked()
            first.cancel()
            await anyio.wait_all_tasks_blocked()
            assert (work.open, work.task.status) == ({"ask-2": "B?"}, "input_required")
            second.cancel()
            await anyio.wait_all_tasks_blocked()
            assert (work.open, work.task.status) == ({}, "working")
    assert work.answers == {}


async def test_question_expires_from_the_time_it_was_first_asked() -> None:
    item: JsonObject = {"request": question(), "at": time.time() - 50, "step": "/k"}
    with anyio.fail_after(20):
        for seconds, is_open in ((51, True), (49, False)):
            work = Work({"ask-1": item}, seconds=seconds)
            work.caller.resume(2)
            if is_open:
                with anyio.move_on_after(0.05):
                    await work.ask(question(), "/k")
            else:
                with pytest.raises(InputExpired, match="Nobody answered within 49 s"):
                    await work.ask(question(), "/k")
            assert (work.open, work.task.status, work.saved) == ({}, "working", 1)


async def test_client_without_elicitation_is_not_elicited() -> None:
    work = Work(client=ClientProfile())
    with pytest.raises(InputUnavailable):
        await work.caller.ask(question())
    assert (work.task.row.asked, work.task.status) == ({}, "working")


# -- a task that is taken up again -------------------------------------------------------------------------------------

KEYED: JsonObject = {"request": question("Keyed?"), "at": 1e12, "step": "/k"}
KEYLESS: JsonObject = {"request": question("Keyless?"), "at": 1e12, "step": ""}
OLD: JsonObject = {"request": question("Old?"), "at": 1e12}


@pytest.mark.parametrize(
    ("version", "asked", "left", "status", "ended"),
    [
        (2, {"a": KEYED, "b": KEYLESS}, {"a": "Keyed?"}, "input_required", True),
        (2, {"a": KEYED}, {"a": "Keyed?"}, "input_required", False),
        (2, {"b": KEYLESS}, {}, "working", True),
        (2, {"b": {**KEYLESS, "answer": YES}}, {}, "working", False),
        (1, {"a": OLD}, {"a": "Old?"}, "input_required", False),
        (2, {"a": OLD}, {}, "working", True),
    ],
)
async def test_questions_without_a_durable_key_end_with_their_attempt(
    version: int, asked: JsonObject, left: dict[str, str], status: str, ended: bool
) -> None:
    """Version 1 of a task stored no keys, so its questions stay."""
    work = Work(asked)
    work.task.row.status = "input_required"
    assert work.caller.resume(version) is ended
    assert (work.open, work.task.status) == (left, status)


async def test_question_with_same_key_and_text_keeps_its_name_and_answer() -> None:
    work = Work({"a": {**KEYED, "answer": NO}, "b": {**KEYED, "step": "/l"}})
    work.caller.resume(2)
    with anyio.fail_after(20):
        assert await work.caller.ask(question("Keyed?"), "/k") == NO
        async with anyio.create_task_group() as group:
            group.start_soon(work.ask, question("Keyed?"), "/l")
            await anyio.wait_all_tasks_blocked()
            assert work.open == {"b": "Keyed?"}
            work.answer("b")
    assert work.answers == {"/l": YES}


@pytest.mark.parametrize("answered", [False, True])
async def test_question_with_new_text_replaces_only_the_one_with_its_key(answered: bool) -> None:
    """The code that asks has changed since, so an answer to the old words does not count."""
    item = {**KEYED, "answer": YES} if answered else KEYED
    work = Work({"a": item, "b": {**KEYED, "step": "/other"}})
    work.caller.resume(2)
    async with anyio.create_task_group() as group:
        group.start_soon(work.ask, question("New?"), "/k")
        await anyio.wait_all_tasks_blocked()
        assert (work.open, work.answers) == ({"b": "Keyed?", "ask-3": "New?"}, {})
        assert ("answer" in work.task.row.asked["a"]) is answered
        group.cancel_scope.cancel()


def marked(message: str, **params: Any) -> JsonObject:
    request = question(frame("Workflow 'x' asks:", message))
    request["params"] |= params
    return request


@pytest.mark.parametrize(
    ("asked", "request_now", "names"),
    [
        ({"old": OLD}, question("Old?"), ["old"]),
        ({"old": OLD}, marked("Old?"), ["old"]),
        ({"old": OLD}, marked("Other?"), ["ask-2", "old"]),
        ({"old": OLD}, marked("Old?", requestedSchema={"type": "object"}), ["ask-2", "old"]),
        ({"old": OLD}, question("Old?\nReally?"), ["ask-2", "old"]),
        ({"old": {"request": {"method": "elicitation/create"}, "at": 1e12}}, question("None"), ["ask-2", "old"]),
        ({"old": OLD}, {"method": "elicitation/create"}, ["ask-2", "old"]),
        ({"old": {"request": question("A\nB"), "at": 1e12}}, marked("A\nB"), ["old"]),
        ({"old": OLD, "twin": OLD}, question("Old?"), ["ask-3", "old", "twin"]),
        ({"old": {**OLD, "answer": NO}}, question("Old?"), ["ask-2"]),
        ({"old": {"withdrawn": True}}, question("Old?"), ["ask-2"]),
    ],
)
async def test_question_of_version_1_counts_only_if_certainly_the_same(
    asked: JsonObject, request_now: JsonObject, names: list[str]
) -> None:
    work = Work(asked)
    work.caller.resume(1)
    async with anyio.create_task_group() as group:
        group.start_soon(work.ask, request_now, "/k")
        await anyio.wait_all_tasks_blocked()
        assert (sorted(work.task.open_requests), work.answers) == (names, {})
        group.cancel_scope.cancel()


# -- a client that waits -----------------------------------------------------------------------------------------------


async def test_waiting_client_is_elicited_instead_of_an_open_question() -> None:
    person = Person()
    work = Work(client=ClientProfile(), live=person)
    assert await work.caller.ask(question()) == YES
    assert (person.asked, work.open, work.task.status, work.saved) == ([question()], {}, "working", 0)
    assert work.caller.answered_at > 0 and work.caller.asking == 0
    await work.caller.log("info", "a line", None)
    work.caller.detach()
    await work.caller.log("info", "nobody receives this", None)
    assert person.logs == ["a line"]


@pytest.mark.parametrize("is_answered", [False, True])
async def test_question_still_open_is_shown_to_a_client_that_reconnects(is_answered: bool) -> None:
    person = Person()
    work = Work(live=person)
    live = work.caller.detach()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(work.ask, question())
            await anyio.wait_all_tasks_blocked()
            assert (work.open, person.asked) == ({"ask-1": "Go?"}, [])
            if is_answered:
                work.task.row.asked["ask-1"]["answer"] = NO
            work.caller.attach(live)
    assert (len(person.asked), work.answers) == ((0, {"Go?": NO}) if is_answered else (1, {"Go?": YES}))


async def test_progress_without_text_keeps_the_last_message() -> None:
    work = Work()
    work.task.row.message = "half way"
    await work.caller.progress(1, None, None)
    assert (work.task.message, work.saved) == ("half way", 0)
    await work.caller.progress(2, None, "half way")
    assert work.saved == 0
    await work.caller.progress(3, None, "nearly")
    await work.caller.progress(4, None, "too soon after it")
    assert (work.task.message, work.saved) == ("nearly", 1)
    person = Person()
    work = Work(live=person)
    work.task.row.message = "half way"
    await work.caller.progress(1, 5, None)
    assert (work.task.message, person.told) == ("half way", [(1, 5, None)])
