"""`ask_until_usable`: sends a request for input to the caller, and repeats it until the answer can be used.

Used for the requests for input of the gateway itself, of workflows and of tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.errors import AnswerRefused
from gateway.json_types import JsonObject
from gateway.policy.input_answers import again
from gateway.tools.context import CallContext

T = TypeVar("T")

MAX_WRONG_ANSWERS = 5
"""Number of unusable answers to one question, outside a durable task, after which an error is raised: only a program sends so many."""

MAX_WRONG_TASK_ANSWERS = 100
"""Number of unusable answers to one question of a durable task (a background call that continues after a restart) that ends the task.

The number is high, because the task may have run for days.
"""


async def ask_until_usable(
    ctx: CallContext, request: JsonObject, use: Callable[[JsonObject], Awaitable[T]], key: str = "", *, judges: bool = False
) -> T:
    """Send a request for input to the caller, pass the answer to `use`, and return the result of `use`.

    If the answer to a form or link is invalid, or `use` refuses it (by `AnswerRefused`), the request is resent with the reason. `key`
    identifies the request in a durable task, so that a resumed task finds the stored answers; each repetition has a new key.

    Set `judges` if `use` may refuse answers that match the schema of the request. This changes how a durable task (a background call that
    continues after a restart) treats a refused answer: the client that sent it receives the reason as an error, and the request stays open
    with the same key.

    Raises:
        AnswerRefused: Too many answers were refused, or the refused answer was not given by a person (sampling, roots).
        InputUnavailable: The caller cannot receive this request. Other errors of `CallContext.ask` are raised too.
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
