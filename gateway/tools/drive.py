"""`drive`: completes a call that requests input. It asks the caller, and repeats the call with the answers until the call is finished.

Such a call has the outcome `InputRequired` (MCP 2026-07-28, SEP-2322). 2026 clients receive this outcome unchanged. `drive` serves callers
that cannot receive it: 2025 clients, agents, workflows and the CLI. Each repetition of a call is called a round.
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
"""Maximum number of times that one call may request input. A server that requests input more often is assumed to be stuck."""

WITHDRAW_SECONDS = 5.0
"""Maximum seconds to wait until a remote gateway ends a call whose requests for input stay unanswered.

If the remote gateway does not end the call in this time, the call ends at its deadline.
"""

OutcomeT = TypeVar("OutcomeT")


async def drive(tool: Tool, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
    """Call `tool`, send its requests for input to the caller (`ctx.ask`), and repeat the call with the answers until it is finished.

    Raises:
        InputUnavailable: The caller cannot receive a request for input of the tool.
        ToolFailed: The tool requested input more than `MAX_ROUNDS` times.
    """
    return await drive_rounds(lambda leg: tool.call(arguments, leg), ctx, tool.definition.name, arguments)


async def drive_rounds(
    work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]],
    ctx: CallContext,
    name: str,
    arguments: JsonObject | None = None,
) -> OutcomeT:
    """Make a call (`work`). While the outcome is `InputRequired`, ask the caller for the answers, and repeat the call with the answers.

    `work` receives a context with the answers. Errors contain `name`. In a durable task (a background call that continues after a restart),
    `name` and `arguments` identify the questions.
    """
    outcome = await work(ctx)
    return await drive_on(outcome, work, ctx, name, arguments) if isinstance(outcome, InputRequired) else outcome


async def drive_on(
    asked: InputRequired,
    work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]],
    ctx: CallContext,
    name: str,
    arguments: JsonObject | None = None,
) -> OutcomeT:
    """Continue a call whose first attempt returned the requests for input `asked`.

    Ask the caller, and repeat `work` with the answers, until the call is finished.

    `ctx` is the context of the first attempt; `name` and `arguments` are those of `drive_rounds`.
    """
    asking = input_requests_of(ctx, name, arguments)
    for number in range(1, MAX_ROUNDS + 1):
        try:
            answers = await _answers(asked, asking, number)
        except BaseException:
            await withdraw(asked, work, ctx)
            raise
        ctx = ctx.with_answers(answers, asked.state)
        outcome = await work(ctx)
        if not isinstance(outcome, InputRequired):
            return outcome
        asked = outcome
    await withdraw(asked, work, ctx)
    raise ToolFailed(f"{name!r} asked for input more than {MAX_ROUNDS} times; giving up.")


async def withdraw(asked: InputRequired, work: Callable[[CallContext], Awaitable[object]], ctx: CallContext) -> None:
    """End a call that waits on a remote gateway for the answers to `asked`, because nobody will answer these requests for input.

    Does nothing if no call waits there, or if `ctx` belongs to a durable task that another process or the next start resumes. To end the
    call, `work` resends it with a special key in `_meta`. `ctx` is the context of the last attempt.

    Returns when this request has ended or failed, or after `WITHDRAW_SECONDS`. Cancellation does not interrupt the request, which runs in
    a separate task, because a shielded scope does not protect the current task from `asyncio.Task.cancel`.
    """
    if HELD_KEY not in asked.meta or asked.state is None:  # without a state, the remote gateway would start a new call
        return
    meta = {**ctx.facts.meta, WITHDRAWN_KEY: True}
    facts = dataclasses.replace(ctx.facts, meta=meta, input_responses={}, request_state=asked.state, wants_progress=False)
    leg = CallContext(facts, CallPorts(presence=ctx.ports.presence), dataclasses.replace(ctx.limits, waits=()), ctx.run)

    async def end_call() -> None:
        with anyio.move_on_after(WITHDRAW_SECONDS, shield=True):
            try:
                if ctx.ports.durable is None or not await ctx.ports.durable.will_resume():
                    await work(leg)
            except GatewayError as error:
                logger.debug("withdrawn call ended error=%s", error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_call)


async def _answers(asked: InputRequired, ctx: CallContext, number: int) -> JsonObject:
    """Send the requests for input `asked` to the caller, and return the answers by key. Attempt `number` of the call returned `asked`.

    A durable task records each attempt, so a resumed task sends the same requests with the same keys.
    """
    return {key: await ctx.ask(keyed(request, key), ctx.question(f"{number}.{key}")) for key, request in asked.requests.items()}


def input_requests_of(ctx: CallContext, name: str, arguments: JsonObject | None) -> CallContext:
    """Return a context for a call of the tool `name`. The keys of its requests for input contain the tool and a digest of `arguments`.

    A resumed durable task finds the stored answers by these keys. Outside a durable task, `ctx` is returned unchanged.
    """
    if ctx.ports.durable is None:
        return ctx
    return ctx.with_durable(ctx.ports.durable.asking(f"{name}:{digest_of(arguments)}"))


def digest_of(value: JsonValue) -> str:
    """Return a short digest of a JSON value (12 hexadecimal digits), for names of steps and keys of questions in durable tasks."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def keyed(request: JsonObject, key: str) -> JsonObject:
    """Return a copy of a request for input with `key` in its `_meta`. `key` is the key of the request in the server's `InputRequired`.

    Calls that wait for the answer, and durable tasks, show the request to clients under this key, unless the key is invalid or in use.
    """
    params: JsonObject = request.get("params") or {}
    return {**request, "params": {**params, "_meta": {**(params.get("_meta") or {}), ASK_KEY: key}}}
