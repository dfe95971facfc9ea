"""`RepeatedCallMiddleware`: a circuit breaker for models that repeat the same tool call."""

from __future__ import annotations

import json
from collections import Counter

from gateway.agents.middleware.per_run import PerRun
from gateway.errors import MiddlewareTermination, ToolFailed
from gateway.middleware import CallNext
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware


class RepeatedCallMiddleware(FunctionMiddleware):
    """Function middleware that refuses a tool call after `max_repeats` calls with the same arguments in one run of an agent.

    The model receives the refusal as text. Call number `end_after` ends the run. Failed calls are counted, too. Tools in `except_tools` are
    not counted, such as tools that are called repeatedly to poll a state.
    """

    def __init__(self, max_repeats: int = 3, *, end_after: int | None = 6, except_tools: tuple[str, ...] = ()) -> None:
        """Set the limits. With `end_after=None` the run is never ended.

        Raises:
            ValueError: `max_repeats` is below 1, or `end_after` is not above `max_repeats`.
        """
        if max_repeats < 1 or (end_after is not None and end_after <= max_repeats):
            raise ValueError("max_repeats must be at least 1, and end_after more than max_repeats")
        self._max_repeats = max_repeats
        self._end_after = end_after
        self._except = frozenset(except_tools)
        self._counts: PerRun[Counter[str]] = PerRun(Counter)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Count a tool call, then execute or refuse it.

        Raises:
            ToolFailed: The call was repeated too often; the model receives the reason.
            MiddlewareTermination: This is call number `end_after` with the same arguments; the run ends.
        """
        name = context.function.definition.name
        if name in self._except or context.tools is None:
            await call_next()
            return
        counts = self._counts.of(context.tools)
        call = f"{name} {json.dumps(context.arguments, sort_keys=True, default=repr)}"
        counts[call] += 1
        if self._end_after is not None and counts[call] >= self._end_after:
            text = f"The run was ended, because {name!r} was called {counts[call]} times with the same arguments."
            raise MiddlewareTermination(text, result=text)
        if counts[call] > self._max_repeats:
            raise ToolFailed(
                f"{name!r} was already called {self._max_repeats} times with the same arguments in this run. Use its result, "
                "change the arguments, or explain what prevents you from continuing."
            )
        await call_next()
