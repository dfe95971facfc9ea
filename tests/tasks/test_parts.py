"""The parts of background calls, in one process: open questions, stored calls, inline calls, the runner, and the callers of tasks."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.config.models import TaskSettings
from gateway.errors import AnswerRefused, InputExpired, InputUnavailable, NotFound, Rejected, StorageUnusable, TaskError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import ASK_KEY
from gateway.storage.database_retry import until_stored
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.record_types import TaskRow
from gateway.tasks.caller import TaskCaller
from gateway.tasks.open_input_requests import OpenInputRequests, shown_request
from gateway.tasks.stored_call import ended, from_stored, to_stored
from gateway.tasks.task import Task, TaskKind
from gateway.tasks.task_questions import usable_answers
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile
from tests.tasks.asking import ASKABLE, Answers, question
from tests.tasks.dying import steady

YES: JsonObject = {"action": "accept", "content": {}}


@pytest.mark.parametrize(("wanted", "key", "is_refused"), [(None, "step", True), ("color", "step", False), (None, "", False)])
async def test_fields_are_judged_for_questions_of_the_gateway_only(wanted: str | None, key: str, is_refused: bool) -> None:
    """A server judges the answers to its own questions: one that names its key, and one without a durable key."""
    task = Task(TaskRow("t", "ada", "tool", {}, 60.0))
    asking = TaskCaller(task, ASKABLE, lambda _: anyio.lowlevel.checkpoint(), ask_timeout_seconds=60)
    schema: JsonObject = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(asking.ask, question(wanted, requestedSchema=schema), key)
        await anyio.wait_all_tasks_blocked()
        task.unsaved.clear()
        [name] = task.open_requests
        with pytest.raises(AnswerRefused) if is_refused else nullcontext():
            assert usable_answers(task, {name: YES}) == {name: YES}
        with pytest.raises(AnswerRefused, match="`action` must be"):
            usable_answers(task, {name: {"action": "maybe"}})
        tasks.cancel_scope.cancel()


# -- open questions ------------------------------------------------------------------------------------------------


class Desk:
    """Questions of one call, each asked in a task of its own."""

    def __init__(self) -> None:
        self.new = 0
        self.asks = OpenInputRequests(ASKABLE, self.note)
        self.got: list[JsonObject] = []

    def note(self) -> None:
        self.new += 1

    async def ask(self, request: JsonObject) -> None:
        self.got.append(await self.asks.ask(request))


@pytest.mark.parametrize("key", ["name", "a.b_c-1", "x" * 64])
async def test_question_is_open_under_its_server_key_until_answered(key: str) -> None:
    desk = Desk()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.ask, question(key, elicitationId="e"))
            await anyio.wait_all_tasks_blocked()
            assert (desk.asks.open, desk.new) == ({key: question()}, 1)
            desk.asks.answer({"other": YES, key: "odd"})
            await anyio.wait_all_tasks_blocked()
            assert (list(desk.asks.open), desk.got) == ([key], [])
            desk.asks.answer({key: YES})
            assert desk.asks.open == {}
    assert desk.got == [YES]


async def test_duplicate_invalid_or_missing_keys_become_unique() -> None:
    desk = Desk()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for key in ("a", "a", None, "no key", "x" * 65, 5, "ask-3"):
                tasks.start_soon(desk.ask, question(key))
                await anyio.wait_all_tasks_blocked()
            assert list(desk.asks.open) == ["a", "a-2", "ask-3", "ask-4", "ask-5", "ask-6", "ask-3-7"]
            desk.asks.answer(dict.fromkeys(desk.asks.open, YES))
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(desk.ask, question("a"))
            await anyio.wait_all_tasks_blocked()
            assert list(desk.asks.open) == ["a-8"]
            tasks.cancel_scope.cancel()
    assert (desk.asks.open, len(desk.got)) == ({}, 7)


async def test_answers_that_came_with_the_request_are_given_once() -> None:
    desk = Desk()
    desk.asks.expect(CallContext(CallFacts(input_responses={"a": YES})))
    with anyio.fail_after(20):
        assert await desk.asks.ask(question("a")) == YES
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(desk.ask, question("a"))
            await anyio.wait_all_tasks_blocked()
            assert list(desk.asks.open) == ["a"]
            tasks.cancel_scope.cancel()
    desk.asks.expect(CallContext())
    with pytest.raises(InputUnavailable):
        await desk.asks.ask({"method": "sampling/createMessage", "params": {}})
    assert desk.asks.open == {}


def test_question_is_shown_without_its_key_and_keeps_other_metadata() -> None:
    given: dict[str, Any] = {"method": "x", "params": {"message": "?", "elicitationId": "e", "_meta": {ASK_KEY: "k", "a": 1}}}
    assert shown_request(given) == ("k", {"method": "x", "params": {"message": "?", "_meta": {"a": 1}}})
    assert given["params"]["elicitationId"] == "e"
    assert shown_request({"method": "roots/list"}) == ("", {"method": "roots/list"})
    assert shown_request({"method": "roots/list", "params": {"_meta": {ASK_KEY: 5}}}) == ("", {"method": "roots/list", "params": {}})


# -- stored calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scopes", [None, (), ("docs", "tools:x/*")])
@pytest.mark.parametrize(
    "leg", [{}, {"request_state": "s"}, {"input_responses": {"a": YES}}, {"request_state": "s", "input_responses": {"a": YES}}]
)
def test_stored_call_comes_back_with_its_caller_client_and_state(scopes: Any, leg: dict[str, Any]) -> None:
    client = ClientProfile("legacy", "2025-11-25", "c", "1", {"roots": {}}, "s1")
    ctx = CallContext(CallFacts(principal=Principal("key:ada", "ada", scopes), client=client, meta={"com.example/a": 1}, **leg))
    stored = to_stored({"x": 1}, ctx, resumes=True)
    assert stored["arguments"] == {"x": 1} and "resumes" not in stored and ("scopes" in stored) is (scopes is not None)
    assert to_stored({}, ctx, resumes=False)["resumes"] is False
    found = from_stored(TaskRow("t", "key:ada", "tool", stored, 60))
    assert (found.facts.principal, found.facts.client, dict(found.facts.meta)) == (ctx.facts.principal, client, {"com.example/a": 1})
    assert found.facts.request_state == ctx.facts.request_state
    assert dict(found.facts.input_responses or {}) == dict(ctx.facts.input_responses or {})
    assert (found.facts.input_responses is None) is (not leg)


# -- inline calls --------------------------------------------------------------------------------------------------


async def never(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
    raise AssertionError


def databases(folder: Path) -> list[Path]:
    return list(folder.glob(f"**/{DATABASE_FILE}"))


@pytest.mark.parametrize("seconds", [None, 60.0])
async def test_call_that_ends_while_its_client_waits_returns_its_outcome(tmp_path: Path, seconds: float | None) -> None:
    asking = InputRequired({"a": question()}, "state")
    for outcome in (Complete.text("done"), asking):

        async def work(ctx: CallContext, outcome: ToolOutcome = outcome) -> ToolOutcome:
            assert ctx.ports.durable is not None and not ctx.facts.takes_tasks
            return outcome

        async with steady(tmp_path, never, settings=TaskSettings(inline_seconds=seconds)) as runner:
            with anyio.fail_after(20):
                assert await runner.run_inline("tool", {}, CallContext(CallFacts(client=ASKABLE)), work) is outcome

    async def fail(ctx: CallContext) -> ToolOutcome:
        raise Rejected("no", server="up", code=-5)

    async with steady(tmp_path, never, settings=TaskSettings(inline_seconds=seconds)) as runner:
        with anyio.fail_after(20), pytest.raises(Rejected):
            await runner.run_inline("tool", {}, CallContext(CallFacts(client=ASKABLE)), fail)
    assert databases(tmp_path) == []


@pytest.mark.parametrize("asks", [False, True])
async def test_call_longer_than_its_clients_wait_becomes_a_task(tmp_path: Path, asks: bool) -> None:
    gate = anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        await gate.wait()
        if asks and ctx.facts.input_responses is None:
            return InputRequired({"a": question()}, "state")
        return Complete.text("late")

    async with steady(tmp_path, never, settings=TaskSettings(inline_seconds=0.02)) as runner:
        with anyio.fail_after(20):
            task = await runner.run_inline("tool", {}, CallContext(CallFacts(client=ASKABLE)), work)
            assert isinstance(task, Task) and task.status == "working"
            gate.set()
            if asks:
                while not task.open_requests:
                    await anyio.sleep(0.01)
                await runner.answer(task, dict.fromkeys(task.open_requests, YES))
            while not task.is_over:
                task = await runner.wait_for_change(task)
            found = await runner.find(task.id, "local")
    assert (found.status, found.result) == ("completed", Complete.text("late").result)


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (Rejected("no", server="up", code=-5), "failed", {"code": -5, "message": "Server 'up' refused the call: no"}),
        (ToolFailed("no"), "failed", {"code": -32603, "message": "no"}),
        (ZeroDivisionError("secret"), "failed", {"code": -32603, "message": "Internal error"}),
        (TaskStarted({"taskId": "1"}), "failed", {"code": -32603, "message": "The call became a task of another server."}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_end_of_a_task_hides_internal_details(
    tmp_path: Path, end: Any, status: str, error: JsonObject
) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Any:
        if isinstance(end, Exception):
            raise end
        return end

    async with steady(tmp_path, call) as runner:
        with anyio.fail_after(20):
            task = await runner.start("tool", {}, CallContext())
            while not task.is_over:
                task = await runner.wait_for_change(task)
            found = await runner.find(task.id, "local")
    assert (found.status, found.error, found.result) == (status, error, None)


# -- the runner ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "own", "kept"), [(None, 60.0, 60.0), (5.0, 60.0, 5.0), (1e9, 60.0, 86_400.0), (1e9, 1e6, 1e6)])
async def test_finished_task_is_kept_for_the_requested_ttl(
    tmp_path: Path, asked: Any, own: float, kept: float
) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        return Complete.text("")

    async with steady(tmp_path, call, settings=TaskSettings(ttl_seconds=own)) as runner:
        task = await runner.start("tool", {}, CallContext(), ttl_seconds=asked)
    assert task.ttl_seconds == kept


async def test_tasks_are_listed_found_and_ended_for_their_caller_alone(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await anyio.sleep(math.inf if tool == "slow" else 0)
        return Complete.text("")

    ada, bob = (CallContext(CallFacts(principal=Principal(name))) for name in ("ada", "bob"))
    async with steady(tmp_path, call) as runner:
        with anyio.fail_after(20):
            tasks = [await runner.start("slow", {}, ada), await runner.start("slow", {}, bob), await runner.start("fast", {}, ada)]
            while not (await runner.find(tasks[2].id, "ada")).is_over:
                await anyio.sleep(0.01)
            assert [task.tool for task in await runner.all_of("ada")] == ["slow", "fast"]
            assert runner.callers() == {"ada", "bob"}
            with pytest.raises(NotFound):
                await runner.find(tasks[0].id, "bob")
            runner.end(["ada", "cy"])
            while runner.callers() != {"bob"}:
                await anyio.sleep(0.01)
            assert [(await runner.find(task.id, task.principal)).status for task in tasks] == ["failed", "working", "completed"]


async def test_resent_request_with_its_key_is_the_same_task(tmp_path: Path) -> None:
    started: list[str] = []

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        started.append(tool)
        return Complete.text("")

    async def work(ctx: CallContext) -> ToolOutcome:
        started.append("inline")
        return Complete.text("")

    def keyed(key: Any) -> CallContext:
        return CallContext(CallFacts(meta={"dev.moongate/idempotencyKey": key}))

    async with steady(tmp_path, call) as runner:
        with anyio.fail_after(20):
            first = await runner.start("tool", {"a": 1}, keyed("k"))
            assert (await runner.start("tool", {"a": 1}, keyed("k"))).id == first.id
            again = await runner.run_inline("tool", {"a": 1}, keyed("k"), work)
            assert isinstance(again, Task) and again.id == first.id
            for tool, arguments in (("tool", {"a": 2}), ("other", {"a": 1})):
                with pytest.raises(TaskError, match="idempotency key"):
                    await runner.start(tool, arguments, keyed("k"))
            others = [(await runner.start("tool", {"a": 1}, keyed(key))).id for key in ("", 5, "l")]
            assert len({first.id, *others}) == 4
            assert isinstance(await runner.run_inline("tool", {"a": 1}, keyed("m"), work), Complete)
            while len(started) < 5:
                await anyio.sleep(0.01)
    assert sorted(started) == ["inline", "tool", "tool", "tool", "tool"]


async def test_limits_of_a_kind_of_task_hold_beside_the_callers(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await anyio.sleep_forever()
        raise AssertionError

    kind = TaskKind(limits=[{"scope": "source:docs", "running": 1}])
    async with steady(tmp_path, call, settings=TaskSettings(max_running_per_caller=2)) as runner:
        tasks = [await runner.start("tool", {}, CallContext(), kind=kind) for _ in range(2)]
        tasks += [await runner.start("tool", {}, CallContext()) for _ in range(2)]
        assert [bool(task.row.admitted_at) for task in tasks] == [True, False, True, False]
        assert [task.message for task in tasks] == ["", "Queued", "", "Queued"]


async def test_call_that_cannot_become_a_task_goes_on_for_its_client(tmp_path: Path) -> None:
    """Its caller has as many unfinished tasks as allowed. The steps of the call stay in memory."""
    gate, steps = anyio.Event(), list[str]()

    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        await anyio.sleep_forever()
        raise AssertionError

    async def work(ctx: CallContext) -> ToolOutcome:
        async def step(key: str) -> JsonValue:
            steps.append(key.partition(":")[2])
            return 1

        assert ctx.ports.durable is not None
        await ctx.ports.durable.step("before", step, repeatable=False)
        await gate.wait()
        await ctx.ports.durable.step("after", step, repeatable=False)
        return Complete.text("late")

    class Watching(Answers):
        async def progress(self, progress: float, total: float | None, message: str | None) -> None:
            self.asked.append({"progress": progress, "message": message})
            if len(self.asked) > 5:  # a quarter of the wait lies between two heartbeats
                gate.set()

    person = Watching()
    settings = TaskSettings(max_per_caller=1, inline_seconds=0.2)
    async with steady(tmp_path, call, settings=settings) as runner:
        with anyio.fail_after(20):
            await runner.start("tool", {}, CallContext())
            outcome = await runner.run_inline("tool", {}, CallContext(CallFacts(client=ASKABLE), CallPorts(caller=person)), work)
            assert isinstance(outcome, Complete) and outcome.as_text() == "late"
            assert [task.status for task in await runner.all_of("local")] == ["working"]
    assert steps == ["/before#1", "/after#1"]
    told = [note["progress"] for note in person.asked]
    assert told == sorted(set(told)) and person.asked[0]["message"] == "Still running after 0 s"


# -- callers and storage -------------------------------------------------------------------------------------------


async def nothing(task: Task) -> None:
    pass


class Live(Answers):
    """A client that waits for its call, notes its progress, and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[float, float | None, str | None]] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.told.append((progress, total, message))

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        await anyio.sleep_forever()
        raise AssertionError


def test_message_of_an_ended_task_states_its_outcome() -> None:
    row = replace(TaskRow("t", "local", "tool", {}, 60), message="one started")
    failed: JsonObject = {"content": [{"type": "image"}, {"type": "text", "text": "no rows"}], "isError": True}
    ends: list[tuple[JsonObject, str, str]] = [
        ({"result": failed}, "completed", "no rows"),
        ({"result": {"isError": True}}, "completed", "The tool failed without an error text"),
        ({"error": {"code": 1, "message": "gone"}}, "failed", "gone"),
        ({"result": {**failed, "isError": False}}, "completed", "Completed"),
        ({}, "cancelled", "Cancelled"),
    ]
    assert [ended(row, outcome, status)["message"] for outcome, status, _ in ends] == [message for _, _, message in ends]


async def test_wait_for_a_person_is_reported_at_once() -> None:
    task = Task(TaskRow("t", "local", "tool", {}, 60))
    caller = TaskCaller(task, ASKABLE, nothing, ask_timeout_seconds=60)
    told: list[str] = []
    for message in ("one started", "one goes on", "input_required: approve?", "one has its answer", "one finished"):
        await caller.progress(1, None, message)
        told.append(task.message)
    assert told == ["one started", "one started", "input_required: approve?", "one has its answer", "one has its answer"]


async def test_progress_of_other_parts_keeps_the_wait_message() -> None:
    task = Task(TaskRow("t", "local", "tool", {}, 60))
    caller = TaskCaller(task, ASKABLE, nothing, ask_timeout_seconds=60)
    with caller.shows("input_required: one?"):
        await caller.progress(0, None, "input_required: one?")
        with caller.shows("input_required: two?"):
            await caller.progress(0, None, "input_required: two?")
            await caller.progress(1, None, "three started")
            assert task.message == "input_required: one?; input_required: two?"
        await caller.progress(2, None, "two has its answer")
    await caller.progress(3, None, "done")
    assert task.message == "done"


async def test_progress_of_a_client_that_waits_always_grows() -> None:
    live, task = Live(), Task(TaskRow("t", "local", "tool", {}, 60))
    caller = TaskCaller(task, ASKABLE, nothing, ask_timeout_seconds=60, live=live)
    for progress, message in ((5, "five"), (5, None), (2, "x" * 3_000), (9, "nine")):
        await caller.progress(progress, 10, message)
    await caller.beat("still")
    numbers = [number for number, _, _ in live.told]
    assert numbers == sorted(set(numbers)) and (numbers[0], numbers[3]) == (5, 9)
    assert [(total, message) for _, total, message in live.told][-1] == (10, "still")
    assert task.message == "nine"
    assert caller.detach() is live
    await caller.beat("not sent")
    assert len(live.told) == 5


async def test_client_that_waits_has_its_time_to_answer() -> None:
    task = Task(TaskRow("t", "local", "tool", {}, 60))
    caller = TaskCaller(task, ASKABLE, nothing, ask_timeout_seconds=60, live=Live(), live_timeout_seconds=0.02)
    with anyio.fail_after(20), pytest.raises(InputExpired, match=r"Nobody answered within 0\.02 s"):
        await caller.ask(question())
    assert (task.open_requests, caller.asking) == ({}, 0)


async def test_unavailable_storage_is_retried_and_broken_storage_is_not() -> None:
    tries: list[bool] = []

    async def store() -> str:
        tries.append(True)
        if len(tries) < 2:
            raise StorageUnusable("away")
        return "stored"

    async def broken() -> str:
        raise StorageUnusable("no driver", passes=False)

    with anyio.fail_after(20):
        assert await until_stored(store) == "stored"
        with pytest.raises(StorageUnusable, match="no driver"):
            await until_stored(broken)


async def test_answers_that_are_not_objects_leave_a_question_open(tmp_path: Path) -> None:
    async def call(tool: str, arguments: JsonObject, ctx: CallContext) -> Complete:
        first = await ctx.ask(question())
        second = await ctx.ask(question(message="Again?"))
        return Complete.text(first["action"] + second["action"])

    async with steady(tmp_path, call) as runner:
        with anyio.fail_after(20):
            task = await runner.start("tool", {}, CallContext(CallFacts(client=ASKABLE)))
            for _ in range(2):
                while not task.open_requests:
                    await anyio.sleep(0.01)
                (key,) = task.open_requests
                with pytest.raises(AnswerRefused, match="it must be an object"):
                    await runner.answer(task, {key: "odd", "other": YES})
                assert (list(task.open_requests), task.status) == ([key], "input_required")
                await runner.answer(task, {key: YES})
            while not task.is_over:
                task = await runner.wait_for_change(task)
    assert task.result == Complete.text("acceptaccept").result
