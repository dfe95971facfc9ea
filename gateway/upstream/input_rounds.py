"""The rounds of requests for input in results of a 2026 server: models of the gateway answer some, the others go to the caller.

If one result has requests of both kinds, the models' answers are put into the request state, which `server` protects from the client, and
are sent to the server together with the caller's answers on the retry. So no round is kept in memory, and no model is called twice. Called
by `source` for every request.
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
"""Sends the request once, with the answers and the request state of the context, and returns the result."""


async def converse(guard: InputGuard, send: Leg, ctx: CallContext) -> JsonObject:
    """Send a request, again after each round that a configured model answered, and return the result.

    Requests for input that remain in the result are judged, and are for the caller.

    Raises:
        PolicyDenied: A request for input was refused, and with it the whole request.
        ToolFailed: The server sent more than `MAX_ROUNDS` rounds.
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
    """Return the context with the server's own request state, and with the answers that models gave in earlier rounds."""
    if ctx.facts.request_state is None:
        return ctx
    try:
        packed: JsonValue = json.loads(ctx.facts.request_state)
        state, answers = cast("tuple[str | None, JsonObject]", tuple(cast("list[JsonValue]", packed)))
    except (ValueError, TypeError):
        return ctx
    return ctx.with_answers({**(ctx.facts.input_responses or {}), **answers}, state)
