"""`RepeatedCallMiddleware`: a circuit breaker for a model that makes the same call again and again."""

from __future__ import annotations

import json
from collections import Counter

from gateway.agents.middleware.per_run import PerRun
from gateway.errors import MiddlewareTermination, ToolFailed
from gateway.middleware import CallNext
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware


class RepeatedCallMiddleware(FunctionMiddleware):
    """Refuses a call once it was made `max_repeats` times in one run with the same arguments; ends the run at `end_after`.

    The refusal is a text the model can act on. What counts is the call, not its result: polling tools have their place in
    `except_tools`.
    """

    def __init__(self, max_repeats: int = 3, *, end_after: int | None = 6, except_tools: tuple[str, ...] = ()) -> None:
        """`end_after` is the call that ends the run, `None` for never. Raises `ValueError` where it is not above `max_repeats`."""
        if max_repeats < 1 or (end_after is not None and end_after <= max_repeats):
            raise ValueError("max_repeats must be at least 1, and end_after more than max_repeats")
        self._max_repeats = max_repeats
        self._end_after = end_after
        self._except = frozenset(except_tools)
        self._counts: PerRun[Counter[str]] = PerRun(Counter)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Count the call, and make it or not.

        Raises:
            ToolFailed: It was made too often; the model reads that.
            MiddlewareTermination: It was made too often even so.
        """
        name = context.function.definition.name
        if name in self._except or context.tools is None:
            await call_next()
            return
        counts = self._counts.of(context.tools)
        call = f"{name} {json.dumps(context.arguments, sort_keys=True, default=repr)}"
        counts[call] += 1
        if self._end_after is not None and counts[call] >= self._end_after:
            text = f"The run was ended: {name!r} was called {counts[call]} times with the same arguments."
            raise MiddlewareTermination(text, result=text)
        if counts[call] > self._max_repeats:
            raise ToolFailed(
                f"{name!r} was already called {self._max_repeats} times with the same arguments in this run. Use what it gave, "
                "change the arguments, or say what keeps you from going on."
            )
        await call_next()
