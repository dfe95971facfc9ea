"""Parked calls: a tool that asks in the middle, served leg by leg."""

from __future__ import annotations

from typing import cast

import anyio
import anyio.lowlevel
import pytest

from gateway.auth.principal import Principal
from gateway.errors import InputUnavailable, NotFound
from gateway.json_types import JsonObject
from gateway.server.parked import MAX_PARKED_PER_PRINCIPAL, ParkedCalls
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.tools.base import Complete, InputRequired, ToolOutcome
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.drive import ASK_KEY
from gateway.tools.ports import ClientProfile

FORM: JsonObject = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {"type": "object"}}}


class SilentCaller:
    """Stands in for the connection of a request's client; records progress."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append(progress)

    async def log(self, level: str, data: object, logger: str | None) -> None:
        """Not needed here."""


def context(principal: str = "local", **capabilities: JsonObject) -> CallContext:
    return CallContext(CallFacts(principal=Principal(principal), client=ClientProfile(capabilities=capabilities or {"elicitation": {}})))


def leg(ctx: CallContext, outcome: ToolOutcome, **answers: JsonObject) -> CallContext:
    assert isinstance(outcome, InputRequired)
    return ctx.with_answers(answers, outcome.state)


def wire() -> WireCaller:
    return cast("WireCaller", SilentCaller())


async def test_elicitation_becomes_input_request_and_retry_resumes_call() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        answer = await ctx.ask(FORM)
        return Complete.text(f"hello {answer['content']['name']}")

    ctx = context()
    second: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, ctx, wire())
            assert isinstance(first, InputRequired)
            assert list(first.requests.values()) == [FORM]
            key = next(iter(first.requests))
            second = await parked.run(work, leg(ctx, first, **{key: {"action": "accept", "content": {"name": "Ada"}}}), wire())
    assert isinstance(second, Complete)
    assert second.as_text() == "hello Ada"


async def test_retry_without_the_answer_is_elicited_again() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str((await ctx.ask(FORM))["action"]))

    ctx = context()
    done: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, ctx, wire())
            again = await parked.run(work, leg(ctx, first, unknown={"action": "accept"}), wire())
            assert isinstance(again, InputRequired)
            assert again.requests == cast("InputRequired", first).requests
            key = next(iter(again.requests))
            done = await parked.run(work, leg(ctx, again, **{key: {"action": "decline"}}), wire())
    assert cast("Complete", done).as_text() == "decline"


@pytest.mark.parametrize(("gap", "longest", "shown"), [(0, 5, 3), (0.3, 5, 3), (0.3, 0.45, 2), (1.5, 5, 1)])
async def test_input_requests_are_batched(
    gap: float, longest: float, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.parked.GATHER_SECONDS", 0.6)
    monkeypatch.setattr("gateway.server.parked.MAX_GATHER_SECONDS", longest)

    async def work(ctx: CallContext) -> ToolOutcome:
        got: list[str] = []

        async def one(after: float) -> None:
            await anyio.sleep(after)
            got.append(str((await ctx.ask(FORM))["action"]))

        async with anyio.create_task_group() as inner:
            for number in range(3):
                inner.start_soon(one, number * gap)
        return Complete.text(",".join(got))

    ctx = context()
    outcome: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            outcome = await parked.run(work, ctx, wire())
            assert isinstance(outcome, InputRequired)
            assert len(outcome.requests) == shown
            while isinstance(outcome, InputRequired):
                outcome = await parked.run(work, leg(ctx, outcome, **{key: {"action": "accept"} for key in outcome.requests}), wire())
    assert cast("Complete", outcome).as_text() == "accept,accept,accept"


@pytest.mark.attack(5)
async def test_another_principal_cannot_resume_a_call() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str(await ctx.ask(FORM)))

    mine: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, context("alice"), wire())
            with pytest.raises(NotFound, match="no longer waits"):
                await parked.run(work, leg(context("mallory"), first, **{"ask-1": {"action": "accept"}}), wire())
            mine = await parked.run(work, leg(context("alice"), first, **{"ask-1": {"action": "accept"}}), wire())
    assert cast("Complete", mine).as_text() == "{'action': 'accept'}"


async def test_parked_call_without_retry_is_freed_after_the_ttl() -> None:
    cancelled = anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        try:
            await ctx.ask(FORM)
        finally:
            cancelled.set()
        return Complete.text("never")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=0.05)
            first = await parked.run(work, context(), wire())
            await cancelled.wait()
            with pytest.raises(NotFound, match="no longer waits"):
                await parked.run(work, leg(context(), first, **{"ask-1": {"action": "cancel"}}), wire())
            assert len(parked) == 0


async def test_parked_work_that_ends_keeps_its_result_for_the_retry() -> None:
    ended = anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        with anyio.move_on_after(0.3):  # like a server that stops waiting before the gateway's deadline
            await ctx.ask(FORM)
        ended.set()
        return Complete.text("did without")

    outcome: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, context(), wire())
            await ended.wait()
            outcome = await parked.run(work, leg(context(), first, **{"ask-1": {"action": "accept"}}), wire())
            assert len(parked) == 0
    assert cast("Complete", outcome).as_text() == "did without"


async def test_input_request_uses_its_own_key_without_2025_only_fields() -> None:
    ask: JsonObject = {
        "method": "elicitation/create",
        "params": {"mode": "url", "url": "https://x.example", "elicitationId": "e1", "_meta": {ASK_KEY: "sign-in", "com.example/kept": 1}},
    }

    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(",".join([str((await ctx.ask(ask))["action"]), str((await ctx.ask(ask))["action"])]))

    ctx = context(elicitation={"url": {}})
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, ctx, wire())
            assert isinstance(first, InputRequired)
            assert first.requests == {
                "sign-in": {
                    "method": "elicitation/create",
                    "params": {"mode": "url", "url": "https://x.example", "_meta": {"com.example/kept": 1}},
                }
            }
            second = await parked.run(work, leg(ctx, first, **{"sign-in": {"action": "accept"}}), wire())
            assert isinstance(second, InputRequired)
            assert list(second.requests) != list(first.requests)
            tasks.cancel_scope.cancel()


async def test_client_disconnect_during_a_leg_cancels_the_work() -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return Complete.text("never")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            async with anyio.create_task_group() as request:
                request.start_soon(parked.run, work, context(), wire())
                await started.wait()
                request.cancel_scope.cancel()
            await cancelled.wait()


async def test_longest_parked_call_is_evicted_at_the_principals_limit() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str((await ctx.ask(FORM))["action"]))

    async def busy(ctx: CallContext) -> ToolOutcome:
        started.set()
        await release.wait()
        return Complete.text("still here")

    started, release = anyio.Event(), anyio.Event()
    ctx, kept = context(), list[ToolOutcome]()
    newest: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)

            async def attended() -> None:
                kept.append(await parked.run(busy, ctx, wire()))

            tasks.start_soon(attended)
            await started.wait()
            other = await parked.run(work, context("bob"), wire())
            legs = [await parked.run(work, ctx, wire()) for _ in range(MAX_PARKED_PER_PRINCIPAL + 1)]
            with pytest.raises(NotFound):
                await parked.run(work, leg(ctx, legs[0], **{"ask-1": {"action": "accept"}}), wire())
            newest = await parked.run(work, leg(ctx, legs[-1], **{"ask-1": {"action": "accept"}}), wire())
            kept.append(await parked.run(work, leg(context("bob"), other, **{"ask-1": {"action": "accept"}}), wire()))
            release.set()
            while len(kept) < 2:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert cast("Complete", newest).as_text() == "accept"
    assert sorted(cast("Complete", outcome).as_text() for outcome in kept) == ["accept", "still here"]


async def test_client_without_the_capability_is_never_elicited() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        with pytest.raises(InputUnavailable):
            await ctx.ask(FORM)
        return Complete.text("did without")

    outcome: ToolOutcome | None = None
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            outcome = await ParkedCalls(tasks, ttl_seconds=60).run(work, context(sampling={}), wire())
    assert cast("Complete", outcome).as_text() == "did without"


async def test_progress_goes_to_the_connected_leg_and_never_decreases() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        await ctx.progress(1)
        await ctx.ask(FORM)
        await ctx.progress(1)
        await ctx.progress(2)
        return Complete.text("done")

    ctx, one, two = context(), SilentCaller(), SilentCaller()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            first = await parked.run(work, ctx, cast("WireCaller", one))
            await parked.run(work, leg(ctx, first, **{"ask-1": {"action": "accept"}}), cast("WireCaller", two))
    assert (one.heard, two.heard) == ([1], [2])
