"""`RunProgress`: the steps of a run, what it says, and the progress of its tools as one sequence of progress messages."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.context import CallContext, LogLevel
from gateway.tools.told_lines import NewLines, Sentences
from gateway.types.responses import AgentResponseUpdate


class RunProgress:
    """It stands in for the caller inside the run: numbers of inner calls would start over, and the ones that the client
    sees must grow. Also the run's observer.
    """

    def __init__(self, ctx: CallContext) -> None:
        self._ctx = ctx
        self._step = 0
        self._sentences = Sentences()
        self._lines = NewLines()

    async def model_called(self, number: int) -> None:
        """The model is thinking."""
        await self._say_rest()
        await self.tell("thinking" if number == 1 else f"thinking (round {number})")

    async def tools_called(self, names: Sequence[str]) -> None:
        """Tools are running."""
        await self._say_rest()
        await self.tell(f"using {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")

    async def said(self, update: AgentResponseUpdate) -> None:
        """Collect a part of the answer, and report the sentences that are complete."""
        if update.role == "assistant" and (text := self._sentences.add(update.text)):
            await self.tell(text)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on what a tool of the run reports."""
        if message:
            await self.tell(message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Passed on."""
        await self._ctx.caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Passed on; the context that asks has stopped its clocks already."""
        return await self._ctx.caller.ask(request, key)

    async def _say_rest(self) -> None:
        """Report what was said before the next step. The end of the answer is the result and not reported."""
        for text in self._sentences.rest():
            await self.tell(text)

    async def tell(self, message: str) -> None:
        """Report the next message; of one that repeats the last, only that the run goes on."""
        self._step += 1
        await self._ctx.progress(self._step, None, self._lines.take(message))
