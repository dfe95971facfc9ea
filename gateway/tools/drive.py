"""`drive`: runs a call to its end: asks the caller for the input that it requests, and repeats it with the answers.

Used where an `InputRequired` cannot be returned to the client: for 2025 clients, inside agents and workflows, and by the CLI. 2026 clients
receive it unchanged. One request of such a call, with its result, is a round.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from gateway.errors import GatewayError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import ASK_KEY, HELD_KEY, WITHDRAWN_KEY
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool
from gateway.tools.context import CallContext, CallPorts

logger = logging.getLogger(__name__)

MAX_ROUNDS = 10
"""Maximum rounds of one call. A server that requests input more often is assumed to be stuck."""

WITHDRAW_SECONDS = 5.0
"""Seconds within which a remote gateway must end a call that nobody will answer. After them, only its own deadline ends the call."""

OutcomeT = TypeVar("OutcomeT")


async def drive(tool: Tool, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
    """Call `tool`, send its requests for input to `ctx.ask`, and repeat the call with the answers until it is finished.

    Raises:
        AskUnavailable: The caller cannot be asked what the tool needs.
        ToolFailed: More than `MAX_ROUNDS` rounds.
    """
    return await drive_rounds(lambda leg: tool.call(arguments, leg), ctx, tool.definition.name, arguments)


async def drive_rounds(
    work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]],
    ctx: CallContext,
    name: str,
    arguments: JsonObject | None = None,
) -> OutcomeT:
    """Run `work`, which may return `InputRequired`, to its end, as `drive` does for a tool. `name` identifies it in an error."""
    outcome = await work(ctx)
    return await drive_on(outcome, work, ctx, name, arguments) if isinstance(outcome, InputRequired) else outcome


async def drive_on(
    asked: InputRequired,
    work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]],
    ctx: CallContext,
    name: str,
    arguments: JsonObject | None = None,
) -> OutcomeT:
    """Continue `drive_rounds` after the first round of `work`, with the context `ctx`, returned the requests for input `asked`."""
    asking = asking_of(ctx, name, arguments)
    for number in range(1, MAX_ROUNDS + 1):
        try:
            answers = await _answers(asked, asking, number)
        except BaseException:
            await withdraw(asked, work, ctx)
            raise
        if number == MAX_ROUNDS:
            await withdraw(asked, work, ctx)
            break
        ctx = ctx.with_answers(answers, asked.state)
        outcome = await work(ctx)
        if not isinstance(outcome, InputRequired):
            return outcome
        asked = outcome
    raise ToolFailed(f"{name!r} asked for input more than {MAX_ROUNDS} times; giving up.")


async def withdraw(asked: InputRequired, work: Callable[[CallContext], Awaitable[object]], ctx: CallContext) -> None:
    """End the call that a remote gateway keeps running for the answers to `asked`, if it does.

    `work` sends a round of the call, and `ctx` is the context of the last round.

    Returns when the call has ended there, or after `WITHDRAW_SECONDS`. Cancellation does not interrupt it: the round runs in a task of
    its own, because a shielded scope does not keep `asyncio.Task.cancel` from the task that it is in.
    """
    if HELD_KEY not in asked.meta or asked.state is None:  # without a state, the next round would be a new call
        return
    meta = {**ctx.facts.meta, WITHDRAWN_KEY: True}
    facts = dataclasses.replace(ctx.facts, meta=meta, input_responses={}, request_state=asked.state, wants_progress=False)
    leg = CallContext(facts, CallPorts(presence=ctx.ports.presence), dataclasses.replace(ctx.limits, waits=()), ctx.run)

    async def tell() -> None:
        with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):
            try:
                if ctx.ports.durable is None or not await ctx.ports.durable.goes_on():
                    await work(leg)
            except GatewayError as error:
                logger.debug("withdrawn call ended: %s", error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)


async def _answers(asked: InputRequired, ctx: CallContext, number: int) -> JsonObject:
    """Ask for the input that round `number` requests; return the answers by key.

    A durable task records the result of the round, so a resumed task asks the same questions with the same keys.
    """
    return {key: await ctx.ask(keyed(request, key), ctx.question(f"{number}.{key}")) for key, request in asked.requests.items()}


def asking_of(ctx: CallContext, name: str, arguments: JsonObject | None) -> CallContext:
    """Return `ctx` for a call of the tool `name`: its questions to people are named after the tool and a digest of `arguments`.

    A resumed task finds the answers by these names. Outside a durable task, `ctx` is returned unchanged.
    """
    if ctx.ports.durable is None:
        return ctx
    return ctx.with_durable(ctx.ports.durable.asking(f"{name}:{digest_of(arguments)}"))


def digest_of(value: JsonValue) -> str:
    """Return a short digest of a JSON value, for names of steps and questions."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def keyed(request: JsonObject, key: str) -> JsonObject:
    """Return a request for input with `key`, under which its server sent it, in `_meta`."""
    params: JsonObject = request.get("params") or {}
    return {**request, "params": {**params, "_meta": {**(params.get("_meta") or {}), ASK_KEY: key}}}
