"""`Attended`: a call that runs behind its request while the client, which has no tasks, still waits for it.

Nothing is stored meanwhile: what the call does is noted, and written down only when the wait ends and the call goes on as a
task. `runner` runs it; this holds what both sides of the wait share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from gateway.errors import TaskError
from gateway.tasks.caller import TaskCaller
from gateway.tasks.port import StepLog
from gateway.tasks.task import Task
from gateway.tools.base import InputRequired, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import drive_rounds

HEARTBEAT_SECONDS = 5.0
"""Between two signs of life to a client that waits, or a quarter of its wait where that is less."""

Work = Callable[[CallContext], Awaitable[ToolOutcome]]
"""One leg of the call."""


@dataclass(slots=True, eq=False)
class Attended:
    """One call."""

    task: Task
    log: StepLog
    caller: TaskCaller
    done: anyio.Event = field(default_factory=anyio.Event)
    is_task: bool = False
    """Whether it goes on as a task; its outcome is stored then."""
    outcome: ToolOutcome | None = None
    error: Exception | None = None

    async def run(self, work: Work, ctx: CallContext) -> None:
        """Make the call, and note how it ended."""
        try:
            with self.task.scope:
                try:
                    outcome = await work(ctx)
                    if isinstance(outcome, InputRequired) and self.is_task:
                        outcome = await self._driven(outcome, work, ctx)
                    self.outcome = outcome
                except Exception as error:  # the call-handler boundary, moved into the task that runs the call
                    self.error = error
        finally:
            self.done.set()

    async def _driven(self, first: InputRequired, work: Work, ctx: CallContext) -> ToolOutcome:
        """Nobody is there any more to take a question as the result: it waits with the task."""
        given: list[ToolOutcome] = [first]

        async def leg(inner: CallContext) -> ToolOutcome:
            return given.pop() if given else await work(inner)

        return await drive_rounds(leg, ctx, self.task.tool)

    async def wait(self, seconds: float, hand_over: Callable[[], Awaitable[bool]]) -> bool:
        """Wait for the end; True when the call goes on as a task instead, because `hand_over` made it one after `seconds`.

        While the client is asked the time stands still, and begins again with its answer.
        """
        spent, began = 0.0, anyio.current_time()
        beat = min(HEARTBEAT_SECONDS, seconds / 4)
        while not self.done.is_set():
            since = anyio.current_time()
            with anyio.move_on_after(min(beat, max(seconds - spent, 0.0))):
                await self.done.wait()
            if self.done.is_set():
                break
            now = anyio.current_time()
            spent = 0.0 if self.caller.asking or self.caller.answered_at >= since else spent + now - since
            if spent < seconds:
                await self.caller.beat(self.task.message or f"Still running after {now - began:.0f} s")
            elif await hand_over():
                return True
            else:
                seconds = float("inf")
        return False

    def result(self) -> ToolOutcome:
        """The outcome of a call that ended while its client waited; raises what it raised."""
        if self.error is not None:
            raise self.error
        if self.outcome is None:
            raise TaskError(self.task.refusal or "The call was ended: the gateway stops.")
        return self.outcome
