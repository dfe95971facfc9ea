"""The queue of a serial server: the order of callers, and how long an open question may delay the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.errors import InputExpired, InputWithdrawn
from gateway.gate.approvals import Approvals, Question
from gateway.json_types import JsonObject
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile, NoCaller
from gateway.upstream.serial_queue import Leave, SerialQueue

pytestmark = pytest.mark.attack(42)


class Silent(NoCaller):
    """A client that answers only when told to."""

    def __init__(self) -> None:
        self.may_answer = anyio.Event()

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        await self.may_answer.wait()
        return {"action": "accept", "content": {}}


def at_once(turns: SerialQueue) -> Leave:
    """Return a callback that frees the queue's slot as soon as the call has ended."""
    return lambda ctx, _: turns.leave(ctx)


async def call(turns: SerialQueue, who: str, caller: NoCaller | None = None) -> None:
    """Run a client's call in the queue. If `caller` is given, the server sends it an elicitation during the call."""
    ctx = CallContext(CallFacts(principal=Principal(who), client=ClientProfile(session_id=who)), CallPorts(caller=caller or NoCaller()))
    async with turns.slot(ctx, at_once(turns)) as held:
        if caller is not None:
            await held.ask({"method": "elicitation/create", "params": {}})


async def test_unanswered_question_ends_only_when_others_wait() -> None:
    turns, weak, ended = SerialQueue(question_seconds=0.3), Silent(), list[str]()

    async def ask() -> None:
        with pytest.raises(InputExpired, match="callers: separate"):
            await call(turns, "weak", weak)
        ended.append("weak")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(0.5)
            assert not ended
            await call(turns, "honest")
    assert ended == ["weak"]


async def test_unanswered_sampling_approval_is_withdrawn_for_waiters() -> None:
    """The withdrawn approval must end the call, because the server's next request would have the full timeout again."""
    turns, question = SerialQueue(question_seconds=0.2), Question("sampling", "weather", "sampling/createMessage", "Server asks")
    client = ClientProfile(session_id="weak", capabilities={"elicitation": {"form": {}}})

    async def sample() -> None:
        ctx = CallContext(CallFacts(principal=Principal("weak"), client=client), CallPorts(caller=Silent()))
        async with turns.slot(ctx, at_once(turns)) as held:
            with pytest.raises(InputWithdrawn, match="callers: separate"):
                await Approvals(None, EventStream()).ask(question, held, "caller")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sample)
            await anyio.wait_all_tasks_blocked()
            await call(turns, "honest")


async def test_question_gets_its_full_time_again_when_the_queue_is_empty() -> None:
    turns, slow = SerialQueue(question_seconds=2), Silent()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, turns, "slow", slow)
            await anyio.wait_all_tasks_blocked()
            with anyio.move_on_after(0.05):
                await call(turns, "honest")
            await anyio.sleep(2.2)
            slow.may_answer.set()
        await call(turns, "honest")


async def test_question_asked_while_others_wait_is_limited_too() -> None:
    turns, begun = SerialQueue(question_seconds=0.2), anyio.Event()

    async def work_then_ask() -> None:
        ctx = CallContext(CallFacts(principal=Principal("weak")), CallPorts(caller=Silent()))
        async with turns.slot(ctx, at_once(turns)) as held:
            await begun.wait()
            with pytest.raises(InputExpired):
                await held.ask({"method": "elicitation/create", "params": {}})

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work_then_ask)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(call, turns, "honest")
            await anyio.wait_all_tasks_blocked()
            begun.set()


async def test_calls_that_ran_before_the_first_question_have_one_turn() -> None:
    turns, weak, served = SerialQueue(question_seconds=0.2), Silent(), list[str]()
    ctx = CallContext(CallFacts(principal=Principal("weak"), client=ClientProfile(session_id="weak")), CallPorts(caller=weak))

    async def others() -> None:
        await call(turns, "honest")
        served.append("honest")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            turns.adopt([ctx, ctx], ctx)
            tasks.start_soon(others)
            with pytest.raises(InputExpired):
                await turns.limited(ctx).ask({"method": "elicitation/create", "params": {}})
            turns.leave(ctx)
            await call(turns, "weak")
            assert not served
            turns.leave(ctx)
    assert served == ["honest"]


class Away:
    """A client that may be disconnected."""

    def __init__(self, *, is_here: bool) -> None:
        self.is_here, self.needs, self.back = is_here, 0, anyio.Event()

    async def here(self) -> None:
        await self.back.wait()
        self.is_here = True

    def need(self) -> None:
        self.needs += 1

    def release(self) -> None:
        self.needs -= 1

    @asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        self.need()
        yield
        self.release()


async def test_returning_client_is_served_after_the_others() -> None:
    turns, away, served = SerialQueue(60), Away(is_here=False), list[str]()

    async def work(who: str, presence: Away | None = None) -> None:
        async with turns.slot(CallContext(CallFacts(principal=Principal(who)), CallPorts(presence=presence)), at_once(turns)):
            served.append(who)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with turns.slot(CallContext(CallFacts(principal=Principal("first"))), at_once(turns)):
                tasks.start_soon(work, "away", away)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(work, "honest")
                await anyio.wait_all_tasks_blocked()
                assert (turns.waiting, away.needs) == (2, 1)
            await anyio.wait_all_tasks_blocked()
            assert served == ["honest"] and away.needs == 1
            away.back.set()
    assert served == ["honest", "away"] and away.needs == 0


async def test_running_call_needs_its_client_only_while_others_wait() -> None:
    turns, here = SerialQueue(60), Away(is_here=True)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            async with turns.slot(CallContext(CallFacts(principal=Principal("slow")), CallPorts(presence=here)), at_once(turns)):
                for _ in range(2):
                    assert here.needs == 0
                    with anyio.move_on_after(0.05):
                        await call(turns, "honest")
                tasks.start_soon(call, turns, "honest")
                await anyio.wait_all_tasks_blocked()
                assert here.needs == 1
    assert here.needs == 0
