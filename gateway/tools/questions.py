"""`ask_until_usable`: asks the caller, again and again until the answer can be used. Used for questions of the gateway, of workflows
and of tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import AnswerRefused
from gateway.json_types import JsonObject
from gateway.policy.input_answers import again
from gateway.tools.context import CallContext

T = TypeVar("T")

MAX_WRONG_ANSWERS = 5
"""Maximum wrong answers to one question. The last one raises the error, because a program rather than a person sends so many."""

MAX_WRONG_TASK_ANSWERS = 100
"""Maximum wrong answers to one question of a durable task, where people may answer over days, and an error would lose the run."""


async def ask_until_usable(
    ctx: CallContext, request: JsonObject, use: Callable[[JsonObject], Awaitable[T]], key: str = "", *, judges: bool = False
) -> T:
    """Ask the caller, pass the answer to `use`, and return the result. If `use` refuses the answer to a form or link, ask again.

    The repeated question contains the reason.

    `key` identifies the question in a durable task. Each repetition has a key of its own, so that a resumed task finds the same answers.
    With `judges`, for a `use` that may refuse answers which match the request's schema, a task may keep the question under the same key.

    Raises:
        AnswerRefused: Too many answers were refused, or the refused answer is not a person's (sampling, roots).
        AskUnavailable: The caller cannot be asked this. Other errors of `CallContext.ask` are raised too.
    """
    durable = ctx.ports.durable if key and judges else None
    asked, place, most = request, key, MAX_WRONG_ANSWERS if ctx.ports.durable is None else MAX_WRONG_TASK_ANSWERS
    for number in range(1, most + 1):
        if durable is not None:
            durable.judges(place)
        try:
            used = await use(await ctx.ask(asked, place))
        except AnswerRefused as refused:
            if number == most or request.get("method") != "elicitation/create":
                raise
            if durable is not None and await durable.judged(place, str(refused)):
                continue
            asked, place = again(request, str(refused)), key and f"{key}~{number + 1}"
        else:
            if durable is not None:
                await durable.judged(place)
            return used
    raise AssertionError("the loop returns or raises")
