"""`RunProgress`: the steps of a run, what it says, and the progress of its tools as one sequence of progress messages."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.context import CallContext, LogLevel
from gateway.types.responses import AgentResponseUpdate

SAY_SECONDS = 0.5
"""Text of a streamed answer is told at most this often: every token would drown a client."""

MAX_SAID = 2_000
"""Characters of one such message; more waits for the next."""


class RunProgress:
    """It stands in for the caller inside the run: numbers of inner calls would start over, and the ones that the client
    sees must grow. Also the run's observer.
    """

    def __init__(self, ctx: CallContext) -> None:
        self._ctx = ctx
        self._step = 0
        self._unsaid = ""
        self._said_at = 0.0

    async def model_called(self, number: int) -> None:
        """The model is thinking."""
        await self._say_rest()
        await self.tell("thinking" if number == 1 else f"thinking (round {number})")

    async def tools_called(self, names: Sequence[str]) -> None:
        """Tools are running."""
        await self._say_rest()
        await self.tell(f"using {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")

    async def said(self, update: AgentResponseUpdate) -> None:
        """A part of the answer. Told in pieces of some length, so that the pieces in their order are the text."""
        if update.role == "assistant":
            self._unsaid += update.text
        if self._unsaid and anyio.current_time() - self._said_at >= SAY_SECONDS:
            await self._say()

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """A tool of the run reports; only what it says is passed on."""
        if message:
            await self.tell(message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._ctx.caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Passed on; the context that asks has stopped its clocks already."""
        return await self._ctx.caller.ask(request, key)

    async def _say(self) -> None:
        text, self._unsaid = self._unsaid[:MAX_SAID], self._unsaid[MAX_SAID:]
        self._said_at = anyio.current_time()
        await self.tell(text)

    async def _say_rest(self) -> None:
        """What was said before the next step; the end of the answer is the result, so that is not said twice."""
        while self._unsaid:
            await self._say()

    async def tell(self, message: str) -> None:
        """The next message."""
        self._step += 1
        await self._ctx.progress(self._step, None, message)
