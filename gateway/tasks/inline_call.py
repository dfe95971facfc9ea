"""`InlineCall`: a call whose client has no task support and waits for the result. While it runs, the call can become a background task.

The call runs in a separate asyncio task, so that it can continue after the client's request has ended. While the client waits, the steps of
the call are in memory only; they are stored if the call becomes a task. `task_executor` runs the call; this module holds its shared state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from gateway.errors import TaskError
from gateway.tasks.caller import TaskCaller
from gateway.tasks.step_log import StepLog
from gateway.tasks.task import Task
from gateway.tools.base import InputRequired, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.drive import drive_rounds

HEARTBEAT_SECONDS = 5.0
"""Seconds between progress notifications to a client that waits for a result, or a quarter of the maximum wait if that is shorter."""

Work = Callable[[CallContext], Awaitable[ToolOutcome]]
"""Function that makes the tool call once.

If it returns `InputRequired` after the call became a task, it is called again with a context that has the answers. Before that, this
outcome is the result of the call.
"""


@dataclass(slots=True, eq=False)
class InlineCall:
    """A running call whose client waits for the result, with the `Task` that the call becomes if it takes too long."""

    task: Task
    log: StepLog
    caller: TaskCaller
    done: anyio.Event = field(default_factory=anyio.Event)
    is_task: bool = False
    """Whether the call has become a background task, so that its outcome is stored."""
    outcome: ToolOutcome | None = None
    error: Exception | None = None

    async def run(self, work: Work, ctx: CallContext) -> None:
        """Run the call, and store its outcome in `outcome` or its exception in `error`. `result` then returns or raises it."""
        try:
            with self.task.scope:
                try:
                    outcome = await work(ctx)
                    if isinstance(outcome, InputRequired) and self.is_task:
                        outcome = await self._drive(outcome, work, ctx)
                    self.outcome = outcome
                except Exception as error:  # `result` raises it to the client's request
                    self.error = error
        finally:
            self.done.set()

    async def _drive(self, first: InputRequired, work: Work, ctx: CallContext) -> ToolOutcome:
        """Complete a call that became a task and whose first outcome (`first`) contains requests for input.

        The requests become questions of the task. The call is repeated with the answers until it returns another outcome.
        """
        outcomes: list[ToolOutcome] = [first]

        async def call(inner: CallContext) -> ToolOutcome:
            return outcomes.pop() if outcomes else await work(inner)

        return await drive_rounds(call, ctx, self.task.tool)

    async def wait(self, seconds: float, hand_over: Callable[[], Awaitable[bool]]) -> bool:
        """Wait for the end of the call. After `seconds`, let `hand_over` make the call a task. Return whether the call became a task.

        The time stops while a question to the client is open, and starts again from zero after each answer. If `hand_over` returns false,
        the call did not become a task, and the wait continues without a limit.
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
        """Return the outcome of the finished call, or raise its exception. Raises `TaskError` if the gateway cancelled the call."""
        if self.error is not None:
            raise self.error
        if self.outcome is None:
            raise TaskError(self.task.refusal or "The call was cancelled because the gateway stops. Call again once it is back.")
        return self.outcome
