"""`drive`: answer the input requests of a call on the way, until it completes.

Used wherever the one calling cannot hand an `InputRequired` on: for legacy clients, inside agents and
workflows, and by the CLI. The server hands it on unchanged to modern clients instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.metadata import ASK_KEY
from gateway.tools.base import Complete, InputRequired, TaskStarted, Tool
from gateway.tools.context import CallContext

MAX_ROUNDS = 10
"""Input rounds per call; a server that asks more often than this is taken for stuck."""

OutcomeT = TypeVar("OutcomeT")


async def drive(tool: Tool, arguments: JsonObject, ctx: CallContext) -> Complete | TaskStarted:
    """Call `tool`, putting each input request to `ctx.ask` and retrying with the answers.

    Raises:
        AskUnavailable: The caller cannot be asked what the tool needs.
        ToolFailed: More than `MAX_ROUNDS` rounds.
    """
    return await drive_rounds(lambda leg: tool.call(arguments, leg), ctx, tool.definition.name)


async def drive_rounds(
    work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]], ctx: CallContext, name: str
) -> OutcomeT:
    """`drive` for any call that may answer `InputRequired`; `name` goes into the error."""
    outcome = await work(ctx)
    return await drive_on(outcome, work, ctx, name) if isinstance(outcome, InputRequired) else outcome


async def drive_on(
    asked: InputRequired, work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]], ctx: CallContext, name: str
) -> OutcomeT:
    """`drive_rounds` from where the first round, with `ctx`, `asked`."""
    for _ in range(MAX_ROUNDS - 1):
        ctx = dataclasses.replace(ctx, input_responses=await _answers(asked, ctx), request_state=asked.state)
        outcome = await work(ctx)
        if not isinstance(outcome, InputRequired):
            return outcome
        asked = outcome
    await _answers(asked, ctx)
    raise ToolFailed(f"{name!r} asked for input more than {MAX_ROUNDS} times; giving up.")


async def _answers(asked: InputRequired, ctx: CallContext) -> JsonObject:
    return {key: await ctx.ask(keyed(request, key)) for key, request in asked.requests.items()}


def keyed(request: JsonObject, key: str) -> JsonObject:
    """An ask that says under which key its server asked."""
    params: JsonObject = request.get("params") or {}
    return {**request, "params": {**params, "_meta": {**(params.get("_meta") or {}), ASK_KEY: key}}}
