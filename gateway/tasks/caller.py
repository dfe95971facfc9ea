"""`TaskCaller`: the caller of a call in the background: progress becomes the status message, a question waits for its answer.

Questions and answers are stored with the task. After a restart the work asks again, and a question that was asked before
gets its key and, if there is one, its answer again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import anyio

from gateway.errors import AskUnavailable
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.asks import KEY, shown_ask
from gateway.tasks.task import Task
from gateway.tools.context import ClientProfile, LogLevel, capability_of

MESSAGE_SECONDS = 0.5
"""A task's status message changes at most this often (requirements 3.C2/95)."""


class TaskCaller:
    """Stands where the client was."""

    def __init__(self, task: Task, client: ClientProfile, save: Callable[[Task], Awaitable[None]]) -> None:
        self._task = task
        self._client = client
        self._save = save
        self._asked = len(task.row.asked)
        self._taken: set[str] = set()
        self._told_at = float("-inf")

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Text becomes the status message, at most twice a second."""
        now = anyio.current_time()
        if message and message != self._task.message and now - self._told_at >= MESSAGE_SECONDS:
            self._told_at = now
            self._task.row.message = message
            await self._save(self._task)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Dropped: a task has no channel for logs."""

    async def ask(self, request: JsonObject) -> JsonObject:
        """Show the request with the task until it is answered; a key is never used twice."""
        capability = capability_of(request)
        if not self._client.can(capability):
            raise AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)
        wanted, shown = shown_ask(request)
        task, asked = self._task, self._task.row.asked
        text = json.dumps(shown, sort_keys=True)
        key = next(
            (name for name, item in asked.items() if name not in self._taken and json.dumps(item["request"], sort_keys=True) == text), None
        )
        if key is None:
            self._asked += 1
            key = wanted if KEY.fullmatch(wanted) else f"ask-{self._asked}"
            while key in asked:
                key = f"{key}-{self._asked}"
            asked[key] = {"request": shown}
        self._taken.add(key)
        if "answer" not in asked[key]:
            task.row.status = "input_required"
            await self._save(task)
        try:
            while "answer" not in asked[key]:
                await task.moved.wait()
        except anyio.get_cancelled_exc_class():
            asked[key].setdefault("answer", {})  # nobody waits for it any more, so it is not shown
            raise
        return asked[key]["answer"]
