"""`RunProgress`: reports the steps of a run, its text, and the progress of its tools as one sequence of progress messages."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel
from gateway.tools.told_lines import NewLines, Sentences
from gateway.types.responses import AgentResponseUpdate


class RunProgress:
    """Reports a run's progress to the client of the call that started it.

    The run uses this object as its `Caller` and observer: progress of inner tools gets new, strictly growing numbers, as MCP requires.
    """

    def __init__(self, ctx: CallContext) -> None:
        self._ctx = ctx
        self._step = 0
        self._sentences = Sentences()
        self._lines = NewLines()

    async def model_called(self, number: int) -> None:
        """Report that the model was called."""
        await self._say_rest()
        await self.tell("thinking" if number == 1 else f"thinking (round {number})")

    async def tools_called(self, names: Sequence[str]) -> None:
        """Report that tools were called."""
        await self._say_rest()
        await self.tell(f"using {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")

    async def said(self, update: AgentResponseUpdate) -> None:
        """Collect a part of the answer and report its complete sentences."""
        if update.role == "assistant" and (text := self._sentences.add(update.text)):
            await self.tell(text)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report a progress message of a tool."""
        if message:
            await self.tell(message)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message to the client."""
        await self._ctx.ports.caller.log(level, data, logger)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input to the client; the call's timeouts are paused already."""
        return await self._ctx.ports.caller.ask(request, key)

    async def _say_rest(self) -> None:
        """Report the incomplete sentence before the next step. The end of the answer is the result and is not reported."""
        for text in self._sentences.rest():
            await self.tell(text)

    async def tell(self, message: str) -> None:
        """Report a message; a message that repeats the last one is reported without text."""
        self._step += 1
        await self._ctx.progress(self._step, None, self._lines.take(message))
