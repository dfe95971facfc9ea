"""Functional workflows: a function with steps, run again from the start and never twice through a finished step."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import WorkflowInvalid
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.workflows.checkpoints import FileCheckpointStorage
from gateway.workflows.events import WorkflowRunResult, WorkflowRunState
from gateway.workflows.functional import FunctionalWorkflow, workflow
from gateway.workflows.functional_steps import RunContext, get_run_context, step
from tests.workflows.scripted import Listener, publish, run

pytestmark = pytest.mark.requirement("WF15")


@dataclass
class Verdict:
    approved: bool


calls: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()


@step
async def double(value: int) -> int:
    calls.append(f"double {value}")
    return value * 2


@step(name="asks")
async def ask(question: str, ctx: RunContext) -> Verdict:
    calls.append("ask")
    return await ctx.request_info(question, Verdict)


@workflow
async def pipeline(message: int, ctx: RunContext) -> str:
    """Doubles, asks, doubles."""
    first = await double(message)
    verdict = await ask(f"is {first} fine?")
    ctx.set_state("seen", ctx.get_state("seen", 0) + 1)
    return f"{await double(first)} {verdict.approved} {ctx.get_state('seen')}"


async def pipeline_function(message: int, ctx: RunContext) -> str:
    first = await double(message)
    verdict = await ask(f"is {first} fine?")
    return f"{await double(first)} {verdict.approved}"


async def test_workflow_asks_and_resumes_without_repeating_finished_steps() -> None:
    result = await pipeline.run(2)
    (event,) = result.get_request_info_events()
    assert (event.data, event.response_type) == ("is 4 fine?", Verdict)
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    with pytest.raises(ValueError, match="unknown request ID: other"):
        await pipeline.run(responses={"other": 1})
    with pytest.raises(ValueError, match="expected Verdict"):
        await pipeline.run(responses={event.request_id: "yes"})
    result = await pipeline.run(responses={event.request_id: {"approved": True}})
    assert result.get_outputs() == ["8 True 1"]
    assert calls == ["double 2", "ask", "ask", "double 4"]
    assert [(event.type, event.executor_id) for event in result if event.type.startswith("executor")][:2] == [
        ("executor_bypassed", "double"),
        ("executor_invoked", "asks"),
    ]


async def test_another_process_continues_from_a_step_checkpoint(tmp_path: Path) -> None:
    storage = FileCheckpointStorage(tmp_path)
    first = FunctionalWorkflow(pipeline_function, name="pipeline")
    (event,) = (await first.run(2, checkpoint_storage=storage)).get_request_info_events()
    latest = await storage.get_latest(workflow_name="pipeline")
    assert latest is not None
    second = FunctionalWorkflow(pipeline_function, name="pipeline")
    result = await second.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage, responses={event.request_id: Verdict(False)})
    assert result.get_outputs() == ["8 False"]
    assert calls == ["double 2", "ask", "ask", "double 4"]
    other = FunctionalWorkflow(pipeline_function, name="renamed")
    with pytest.raises(ValueError, match="another version"):
        await other.run(checkpoint_id=latest.checkpoint_id, checkpoint_storage=storage)


async def test_failure_is_an_event_and_is_raised() -> None:
    @workflow(name="fails", description="d")
    async def fails(message: str) -> None:
        raise KeyError(message)

    seen: list[Any] = []
    with pytest.raises(KeyError):
        async for event in fails.run("x", stream=True):
            seen.append(event.type)  # noqa: PERF401  # kept when the stream raises
    assert seen[-2:] == ["failed", "status"]
    assert fails.status is WorkflowRunState.FAILED


async def test_step_outside_a_run_is_the_function_and_bad_functions_fail() -> None:
    assert await double(4) == 8
    assert get_run_context() is None
    with pytest.raises(TypeError, match="async functions"):
        step(len)  # pyright: ignore[reportArgumentType]  # the point of the test
    with pytest.raises(ValueError, match="multiple non-RunContext parameters"):

        @workflow
        async def two(one: int, other: int) -> None: ...

    with pytest.raises(ValueError, match="reserved"):
        await _set_reserved.run("x")


@workflow
async def _set_reserved(message: str, ctx: RunContext) -> None:
    ctx.set_state("_secret", message)


async def test_as_agent_request_is_an_approval_answered_by_content_or_id() -> None:
    agent = FunctionalWorkflow(pipeline_function, name="pipeline").as_agent("flow")
    response = await agent.run(3)
    (request,) = response.messages[0].contents
    assert (request.type, list(agent.pending_requests)) == ("function_approval_request", [request.id])
    assert request.function_call is not None
    assert request.function_call.name == agent.REQUEST_INFO_FUNCTION_NAME == "request_info"
    assert request.function_call.parse_arguments() == {"request_id": request.id, "data": "is 6 fine?"}
    answer = Content.from_function_result(request.id or "", {"approved": True})
    assert (await agent.run([Message("tool", [answer])])).text == "12 True"
    await agent.run(5)
    (event,) = agent.pending_requests.values()
    assert (await agent.run(responses={event.request_id: Verdict(False)})).text == "20 False"


async def test_as_an_agent_an_approval_answers_a_question_of_yes_or_no() -> None:
    @workflow
    async def publish(text: str, ctx: RunContext) -> str:
        return f"{text} {await ctx.request_info('Publish?', bool)}"

    agent = publish.as_agent(context_providers=[])
    (request,) = (await agent.run("it")).messages[0].contents
    said = Message("user", [request.to_function_approval_response(True)])
    assert (await agent.run(said)).text == "it True"
    assert agent.context_providers == []


async def test_requests_of_finished_steps_keep_their_numbers_and_answers(tmp_path: Path) -> None:
    @step
    async def first(ctx: RunContext, value: int) -> str:
        calls.append("first")
        return await ctx.request_info(value, str)

    @step
    async def second(value: int, ctx: RunContext) -> str:
        return await ctx.request_info(value, str)

    async def both(value: int) -> str:
        return f"{await first(value)} {await second(value)}"

    storage = FileCheckpointStorage(tmp_path)
    flow = FunctionalWorkflow(both, checkpoint_storage=storage)
    answers: dict[str, str] = {}
    for number, answer in enumerate(("A", "B")):
        result = await (flow.run(1) if not answers else flow.run(responses=answers))
        (event,) = result.get_request_info_events()
        assert event.request_id == f"auto::{number}"
        answers[event.request_id] = answer
    latest = await storage.get_latest(workflow_name="both")
    assert latest is not None
    restored = await FunctionalWorkflow(both, checkpoint_storage=storage).run(
        checkpoint_id=latest.checkpoint_id, responses={"auto::1": "C"}
    )
    assert (await flow.run(responses=answers)).get_outputs() == ["A B"]
    assert restored.get_outputs() == ["A C"]
    assert calls == ["first", "first"]
    with pytest.raises(ValueError, match="no pending request_info events"):
        await flow.run(responses=answers)


async def test_checkpoint_of_an_earlier_version_keeps_its_request_numbers(tmp_path: Path) -> None:
    """A checkpoint of an earlier version stores how many requests each finished step sent, but not at which place."""

    @step
    async def first(ctx: RunContext) -> str:
        return await ctx.request_info("which?", str)

    @step
    async def second(ctx: RunContext) -> str:
        return f"{await ctx.request_info('which?', str)} {await ctx.request_info('which?', str)}"

    async def both(value: int, ctx: RunContext) -> str:
        return f"{await first()} {await second()} {await ctx.request_info('which?', str)}"

    storage = FileCheckpointStorage(tmp_path)
    flow = FunctionalWorkflow(both, checkpoint_storage=storage)
    await flow.run(1)
    await flow.run(responses={"auto::0": "A"})
    latest = await storage.get_latest(workflow_name="both")
    assert latest is not None
    assert list(latest.state.pop("_request_places").values()) == ["auto::0", "auto::1"]
    latest.state["_step_requests"] = {"first::0": 1}
    await storage.save(latest)
    old = FunctionalWorkflow(both, checkpoint_storage=storage)
    await old.run(checkpoint_id=latest.checkpoint_id, responses={"auto::1": "B"})
    assert list(old.pending) == ["auto::2"]
    await old.run(responses={"auto::2": "C"})
    assert list(old.pending) == ["auto::3"]
    assert (await old.run(responses={"auto::3": "D"})).get_outputs() == ["A B C D"]


@pytest.mark.parametrize("own_id", [None, "buy"])
async def test_answer_applies_only_to_its_own_question(own_id: str | None) -> None:
    prices = [10, 1_000_000, 10]

    async def buy(value: str, ctx: RunContext) -> str:
        price = prices.pop(0)
        return f"{price}: {await ctx.request_info({'question': f'Buy at {price}?'}, str, request_id=own_id)}"

    flow = FunctionalWorkflow(buy)
    ((name, first),) = pending_of(await flow.run("x"))
    assert first == {"question": "Buy at 10?"} and name == (own_id or "auto::0")
    ((other, second),) = pending_of(await flow.run(responses={name: "yes"}))
    assert second == {"question": "Buy at 1000000?"} and other != name
    assert (await flow.run(responses={other: "no"})).get_outputs() == ["10: yes"]


def pending_of(result: WorkflowRunResult) -> list[tuple[str, Any]]:
    """Return id and data of a run's requests for input."""
    return [(event.request_id, event.data) for event in result.get_request_info_events()]


async def test_branches_that_change_their_order_keep_their_answers() -> None:
    orders = [["test", "production"], ["production", "test"], ["test", "production"]]

    async def delete(value: str, ctx: RunContext) -> str:
        done = [f"{what} {await ctx.request_info(f'Delete {what}?', str)}" for what in orders.pop(0)]
        return ", ".join(done)

    flow = FunctionalWorkflow(delete)
    ((test, data),) = pending_of(await flow.run("x"))
    assert data == "Delete test?"
    ((production, data),) = pending_of(await flow.run(responses={test: "yes"}))
    assert data == "Delete production?" and production != test
    assert (await flow.run(responses={production: "no"})).get_outputs() == ["test yes, production no"]


async def test_equal_questions_get_their_own_answers() -> None:
    async def ask(value: str, ctx: RunContext) -> list[Any]:
        return [await ctx.request_info("More?", kind) for kind in (str, str, bool)]

    flow = FunctionalWorkflow(ask)
    result, given = await flow.run("x"), ["one", "two", True]
    for answer in given:
        ((name, _),) = pending_of(result)
        result = await flow.run(responses={name: answer})
    assert result.get_outputs() == [given]


async def test_request_with_its_own_id_is_put_once() -> None:
    async def twice(value: str, ctx: RunContext) -> str:
        return f"{await ctx.request_info('Sure?', str, request_id='sure')} {await ctx.request_info('Sure?', str, request_id='sure')}"

    flow = FunctionalWorkflow(twice)
    assert pending_of(await flow.run("x")) == [("sure", "Sure?")]
    assert (await flow.run(responses={"sure": "yes"})).get_outputs() == ["yes yes"]


async def test_request_with_a_taken_id_gets_another() -> None:
    async def both(value: str, ctx: RunContext) -> str:
        return f"{await ctx.request_info('A?', str)} {await ctx.request_info('B?', str, request_id='auto::0')}"

    flow = FunctionalWorkflow(both)
    ((first, _),) = pending_of(await flow.run("x"))
    ((second, _),) = pending_of(await flow.run(responses={first: "a"}))
    assert first == "auto::0" != second
    assert (await flow.run(responses={second: "b"})).get_outputs() == ["a b"]


async def test_answer_may_be_none() -> None:
    @workflow
    async def maybe(value: int, ctx: RunContext) -> str:
        return f"{value} {await ctx.request_info('more?', str, request_id='more')}"

    await maybe.run(1)
    assert (await maybe.run(responses={"more": None})).get_outputs() == ["1 None"]


async def test_step_called_with_a_context_by_hand_keeps_state_there() -> None:
    @step
    async def remember(value: str, ctx: RunContext) -> str:
        return f"{value} {ctx.get_state('seen', 'never')}"

    ctx = RunContext("by hand")
    ctx.set_state("seen", "once")
    assert await remember("tea", ctx) == "tea once"


CODE = """\
from dataclasses import dataclass
from gateway import RunContext, step, workflow

@dataclass
class Trip:
    to: str
    days: int = 1

@dataclass
class Offer:
    price: int

@step
async def price(trip: Trip) -> int:
    return 100 * trip.days

@workflow
async def offer(trip: Trip, ctx: RunContext) -> Offer:
    cost = await price(trip)
    agreed = await ctx.request_info(f"{cost} for {trip.to}?", bool)
    return Offer(cost if agreed else 0)

@workflow
async def broken(number: int) -> int:
    return await fails(number)

@step
async def fails(number: int) -> int:
    raise KeyError("secret")

@workflow
async def nothing(ctx: RunContext) -> str:
    return "never"

def make():
    return offer
"""


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Callable[[str], Awaitable[GuardedTool]]]:
    """Return a function that publishes the workflow `python: wf_functional:NAME` as a tool."""
    (tmp_path / "wf_functional.py").write_text(CODE)

    async def made(name: str) -> GuardedTool:
        return await publish(f"name: coded\ndescription: d\npython: wf_functional:{name}\n", base_dir=tmp_path)

    yield made
    sys.modules.pop("wf_functional", None)


@pytest.mark.parametrize("name", ["offer", "make"])
async def test_published_message_is_the_arguments_and_its_question_a_form(
    code: Callable[[str], Awaitable[GuardedTool]], name: str
) -> None:
    tool = await code(name)
    assert list(tool.definition.input_schema["properties"]) == ["to", "days"]
    assert tool.definition.output_schema is not None
    person = Listener(*({"action": "accept", "content": {"answer": agreed}} for agreed in (True, False)))
    for days, price in ((2, 200), (3, 0)):
        assert (await run(tool, person.context(), to="Kiel", days=days)).structured == {"price": price}
    assert [asked["params"]["message"] for asked in person.asked] == ["200 for Kiel?", "300 for Kiel?"]
    assert [text for _, text in person.heard][:2] == ["price started", "price finished"]


async def test_concurrent_calls_are_published_and_a_failing_step_named(code: Callable[[str], Awaitable[GuardedTool]]) -> None:
    tool, waiting = await code("offer"), anyio.Event()

    class Slow(Listener):
        async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
            waiting.set()
            await anyio.sleep_forever()
            raise AssertionError

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(run, tool, Slow().context(), to="Rome", days=1))
        await waiting.wait()
        quick = Listener({"action": "accept", "content": {"answer": True}})
        assert (await run(tool, quick.context(), to="Kiel", days=2)).structured == {"price": 200}
        tasks.cancel_scope.cancel()
    failed = await run(await code("broken"), input=1)
    assert (failed.is_error, failed.as_text()) == (True, "Executor 'fails' failed: KeyError: 'secret'")
    with pytest.raises(WorkflowInvalid, match="wf_functional:nothing takes no message"):
        await code("nothing")
