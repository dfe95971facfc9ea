"""Parked calls: a tool that asks in the middle, served leg by leg."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import cast

import anyio
import pytest

from gateway.auth.principal import Principal
from gateway.errors import AskUnavailable
from gateway.json_types import JsonObject
from gateway.server.caller import WireCaller
from gateway.server.parked import MAX_PARKED_PER_PRINCIPAL, ParkedCalls
from gateway.tools.base import Complete, InputRequired, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext, ClientProfile

FORM: JsonObject = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {"type": "object"}}}


class AskingTool:
    """A tool made of one function."""

    def __init__(self, work: Callable[[CallContext], Awaitable[ToolOutcome]]) -> None:
        self._work = work
        self.definition = ToolDefinition("asker", may_ask=True)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        return await self._work(ctx)


class SilentCaller:
    """Stands in for a request's way back; hears progress."""

    def __init__(self) -> None:
        self.heard: list[float] = []

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append(progress)

    async def log(self, level: str, data: object, logger: str | None) -> None:
        """Not needed here."""


def context(principal: str = "local", **capabilities: JsonObject) -> CallContext:
    return CallContext(principal=Principal(principal), client=ClientProfile(capabilities=capabilities or {"elicitation": {}}))


def leg(ctx: CallContext, outcome: ToolOutcome, **answers: JsonObject) -> CallContext:
    assert isinstance(outcome, InputRequired)
    return dataclasses.replace(ctx, request_state=outcome.state, input_responses=answers)


def wire() -> WireCaller:
    return cast("WireCaller", SilentCaller())


async def test_an_ask_becomes_an_input_request_and_the_retry_continues_the_same_call() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        answer = await ctx.ask(FORM)
        return Complete.text(f"hello {answer['content']['name']}")

    ctx = context()
    second: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            first = await parked.call(tool, {}, ctx, wire())
            assert isinstance(first, InputRequired)
            assert list(first.requests.values()) == [FORM]
            key = next(iter(first.requests))
            second = await parked.call(tool, {}, leg(ctx, first, **{key: {"action": "accept", "content": {"name": "Ada"}}}), wire())
    assert isinstance(second, Complete)
    assert second.as_text() == "hello Ada"


async def test_a_retry_without_the_answer_is_asked_again_and_unknown_keys_are_ignored() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str((await ctx.ask(FORM))["action"]))

    ctx = context()
    done: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            first = await parked.call(tool, {}, ctx, wire())
            again = await parked.call(tool, {}, leg(ctx, first, unknown={"action": "accept"}), wire())
            assert isinstance(again, InputRequired)
            assert again.requests == cast("InputRequired", first).requests
            key = next(iter(again.requests))
            done = await parked.call(tool, {}, leg(ctx, again, **{key: {"action": "decline"}}), wire())
    assert cast("Complete", done).as_text() == "decline"


async def test_two_asks_at_once_are_shown_together() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        got: list[str] = []

        async def one() -> None:
            got.append(str((await ctx.ask(FORM))["action"]))

        async with anyio.create_task_group() as inner:
            inner.start_soon(one)
            inner.start_soon(one)
        return Complete.text(",".join(got))

    ctx = context()
    outcome: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            outcome = await parked.call(tool, {}, ctx, wire())
            assert isinstance(outcome, InputRequired)
            while isinstance(outcome, InputRequired):
                outcome = await parked.call(tool, {}, leg(ctx, outcome, **{key: {"action": "accept"} for key in outcome.requests}), wire())
    assert cast("Complete", outcome).as_text() == "accept,accept"


async def test_another_principal_cannot_resume_a_call() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str(await ctx.ask(FORM)))

    stolen: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            first = await parked.call(tool, {}, context("alice"), wire())
            stolen = await parked.call(tool, {}, leg(context("mallory"), first, **{"ask-1": {"action": "accept"}}), wire())
            tasks.cancel_scope.cancel()
    assert isinstance(stolen, Complete)
    assert stolen.is_error


async def test_a_client_that_never_comes_back_ends_the_call_after_the_ttl() -> None:
    ended = anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        try:
            await ctx.ask(FORM)
        except AskUnavailable:
            ended.set()
        return Complete.text("gave up")

    late: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=0.05)
            first = await parked.call(AskingTool(work), {}, context(), wire())
            await ended.wait()
            late = await parked.call(AskingTool(work), {}, leg(context(), first, **{"ask-1": {"action": "cancel"}}), wire())
    assert isinstance(late, Complete)
    assert late.is_error


async def test_a_client_that_leaves_during_a_leg_cancels_the_work() -> None:
    started, cancelled = anyio.Event(), anyio.Event()

    async def work(ctx: CallContext) -> ToolOutcome:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return Complete.text("never")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            async with anyio.create_task_group() as request:
                arguments: JsonObject = {}
                request.start_soon(parked.call, AskingTool(work), arguments, context(), wire())
                await started.wait()
                request.cancel_scope.cancel()
            await cancelled.wait()


async def test_the_longest_waiting_call_gives_way_when_one_principal_parks_too_many() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        return Complete.text(str((await ctx.ask(FORM))["action"]))

    ctx = context()
    oldest: ToolOutcome | None = None
    newest: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            legs = [await parked.call(tool, {}, ctx, wire()) for _ in range(MAX_PARKED_PER_PRINCIPAL + 1)]
            oldest = await parked.call(tool, {}, leg(ctx, legs[0], **{"ask-1": {"action": "accept"}}), wire())
            newest = await parked.call(tool, {}, leg(ctx, legs[-1], **{"ask-1": {"action": "accept"}}), wire())
            tasks.cancel_scope.cancel()
    assert cast("Complete", oldest).is_error
    assert cast("Complete", newest).as_text() == "accept"


async def test_a_client_without_the_capability_is_never_asked() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        with pytest.raises(AskUnavailable):
            await ctx.ask(FORM)
        return Complete.text("did without")

    outcome: ToolOutcome | None = None
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            outcome = await ParkedCalls(tasks, ttl_seconds=60).call(AskingTool(work), {}, context(sampling={}), wire())
    assert cast("Complete", outcome).as_text() == "did without"


async def test_progress_goes_to_the_leg_that_is_there_and_never_backwards() -> None:
    async def work(ctx: CallContext) -> ToolOutcome:
        await ctx.progress(1)
        await ctx.ask(FORM)
        await ctx.progress(1)
        await ctx.progress(2)
        return Complete.text("done")

    ctx, one, two = context(), SilentCaller(), SilentCaller()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            parked = ParkedCalls(tasks, ttl_seconds=60)
            tool = AskingTool(work)
            first = await parked.call(tool, {}, ctx, cast("WireCaller", one))
            await parked.call(tool, {}, leg(ctx, first, **{"ask-1": {"action": "accept"}}), cast("WireCaller", two))
    assert (one.heard, two.heard) == ([1], [2])
