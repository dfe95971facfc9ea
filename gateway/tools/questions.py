"""Puts a question to the caller until its answer can be used. For the gateway's own questions and those of its tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import AnswerRefused
from gateway.json_types import JsonObject
from gateway.policy.answers import again
from gateway.tools.context import CallContext

T = TypeVar("T")

MAX_WRONG_ANSWERS = 5
"""Wrong answers to one question, after which a program is taken to answer and the error is raised."""

MAX_WRONG_TASK_ANSWERS = 100
"""The same inside a durable task, whose question a person may answer over days, and whose run would be lost."""


async def ask_until_usable(
    ctx: CallContext, request: JsonObject, use: Callable[[JsonObject], Awaitable[T]], key: str = "", *, judges: bool = False
) -> T:
    """Ask, and give the answer to `use`. If `use` refuses the answer to a form or link, ask again and say what is wrong.

    `judges` says that `use` may refuse an answer that fits the request's schema: a task then asks again under the same durable key.
    Otherwise, and on the list of approvals, each repetition has its own key, so that a task that is taken up again finds the same answers.

    Raises:
        AnswerRefused: Too many answers were refused, or the answer to a request that no person reads.
        AskUnavailable: As `CallContext.ask`, like its other errors.
    """
    durable = ctx.durable if key and judges else None
    asked, place, most = request, key, MAX_WRONG_ANSWERS if ctx.durable is None else MAX_WRONG_TASK_ANSWERS
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
