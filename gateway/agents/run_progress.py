"""`RunProgress`: reports the steps of an agent's run, its text, and its tools' progress to the client as MCP progress notifications."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.tools.context import CallContext
from gateway.tools.ports import PassingCaller
from gateway.tools.progress_text import NewLines, Sentences
from gateway.types.responses import AgentResponseUpdate


class RunProgress(PassingCaller):
    """Reports the progress of an agent's run to the client of the call that started the run.

    The run's tools report progress to this object instead of the client. The object renumbers the reports, because MCP requires that the
    numbers of a call's progress notifications strictly increase.
    """

    def __init__(self, ctx: CallContext) -> None:
        super().__init__(ctx.ports.caller)
        self._step = 0
        self._sentences = Sentences()
        self._lines = NewLines()

    async def model_called(self, number: int) -> None:
        """Report the start of model call `number` of the run."""
        await self._report_rest()
        await self.report("thinking" if number == 1 else f"thinking (round {number})")

    async def tools_called(self, names: Sequence[str]) -> None:
        """Report the names of the tools that the model called."""
        await self._report_rest()
        await self.report(f"using {', '.join(names[:5])}{' …' if len(names) > 5 else ''}")

    async def text_added(self, update: AgentResponseUpdate) -> None:
        """Add an update's text to the agent's answer, and report the sentences that are now complete."""
        if update.role == "assistant" and (text := self._sentences.add(update.text)):
            await self.report(text)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report the message of a tool's progress notification under a new number; without a message, report nothing."""
        if message:
            await self.report(message)

    async def _report_rest(self) -> None:
        """Report the incomplete last sentence before the run's next step. The end of the last answer is the result and is not reported."""
        for text in self._sentences.rest():
            await self.report(text)

    async def report(self, message: str) -> None:
        """Send a progress notification with this message, or without text if the message is equal to the previous one."""
        self._step += 1
        await self._caller.progress(self._step, None, self._lines.take(message))
