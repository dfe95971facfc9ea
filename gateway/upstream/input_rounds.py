"""Handles `input_required` results of an MCP 2026 server: the gateway's models answer some requests for input, the caller the others.

One result can have requests for a model and requests for the caller. Then the models' answers are stored in the request state, which the
client returns with its retry, and are sent to the server together with the caller's answers. Therefore the gateway keeps nothing in memory
between a result and the retry, and sends no request to a model twice. The package `server` protects the request state from the client.
Used by `source`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.errors import ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.tools.context import CallContext
from gateway.tools.drive import MAX_ROUNDS
from gateway.upstream.input_guard import Answered, InputGuard, to_input_required

Leg = Callable[[CallContext], Awaitable[JsonObject]]
"""Function that sends a request to the server once, with the answers and the request state of the given context, and returns its result."""


async def converse(guard: InputGuard, send: Leg, ctx: CallContext) -> JsonObject:
    """Send a request with `send`, and resend it as long as configured models answer all requests for input in its result.

    Return the last result. If it is `input_required`, its requests for input are those for the caller, and policy allowed them.

    Raises the errors of `InputGuard.judge`: one refused request for input fails the whole request.

    Raises:
        ToolFailed: `MAX_ROUNDS` results had requests for input, all of which models answered.
    """
    leg = _open(ctx) if guard.answers_itself else ctx
    for _ in range(MAX_ROUNDS):
        result = await send(leg)
        if result.get("resultType") != "input_required":
            return result
        asked = to_input_required(result)
        relayed: JsonObject = {}
        answers: JsonObject = {}
        for key, request in asked.requests.items():
            judged = await guard.judge(dict(request), ctx)
            if isinstance(judged, Answered):
                answers[key] = judged.result
            else:
                relayed[key] = judged.request
        if relayed or not answers:
            result["inputRequests"] = relayed
            if guard.answers_itself:
                result["requestState"] = _pack(asked.state, answers)
            return result
        leg = leg.with_answers(answers, asked.state)
    raise ToolFailed(f"The server asked for a model more than {MAX_ROUNDS} times in one call; giving up.")


def _pack(state: str | None, answers: JsonObject) -> str:
    return json.dumps([state, answers], ensure_ascii=False, separators=(",", ":"))


def _open(ctx: CallContext) -> CallContext:
    """Return the context of a retry with the server's own request state, and with the answers of the models and of the caller.

    The client returned a request state in which `_pack` had combined the server's own request state and the models' earlier answers.
    """
    if ctx.facts.request_state is None:
        return ctx
    try:
        packed: JsonValue = json.loads(ctx.facts.request_state)
        state, answers = cast("tuple[str | None, JsonObject]", tuple(cast("list[JsonValue]", packed)))
    except (ValueError, TypeError):
        return ctx
    return ctx.with_answers({**(ctx.facts.input_responses or {}), **answers}, state)
