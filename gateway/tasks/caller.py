"""`TaskCaller`: the caller of a call in the background: progress becomes the status message, a question waits for its answer.

Questions and answers are stored with the task. After a restart the work asks again, and a question that was asked before
gets its key and, if there is one, its answer again. While a client still waits for the call (`attending`), both go to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable

import anyio

from gateway.errors import AskExpired
from gateway.json_types import JsonObject, JsonValue
from gateway.tasks.asks import KEY, shown_ask
from gateway.tasks.task import Task
from gateway.tools.context import Caller, ClientProfile, LogLevel, capability_of, undeclared

MESSAGE_SECONDS = 0.5
"""A task's status message changes at most this often (requirements 3.C2/95)."""

BEAT_STEP = 0.001
"""How far a heartbeat moves the progress: it must grow, and what the work itself reports must stay ahead."""

LOOK_SECONDS = 60.0
"""How often a question that waits looks at the clock: a machine that slept must not grant it more time."""


MAX_MESSAGE = 2_000
"""Characters of a status message that are kept."""


def fit_message(message: str) -> str:
    """A status message as every database takes it: a server may say anything."""
    return message[:MAX_MESSAGE].encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class TaskCaller:
    """Stands where the client was."""

    def __init__(
        self,
        task: Task,
        client: ClientProfile,
        save: Callable[[Task], Awaitable[None]],
        *,
        ask_timeout_seconds: float,
        live: Caller | None = None,
        live_timeout_seconds: float = 3600.0,
    ) -> None:
        """`live` is the client while it waits for the call; it has `live_timeout_seconds` to answer."""
        self._task = task
        self._client = client
        self._save = save
        self._ask_timeout = ask_timeout_seconds
        self._live = live
        self._live_timeout = live_timeout_seconds
        self._asked = len(task.row.asked)
        self._taken: set[str] = set()
        self._told_at = float("-inf")
        self._progress = 0.0
        self._total: float | None = None
        self.asking = 0
        """Questions that the live client has before it."""
        self.answered_at = float("-inf")
        """When the live client answered last."""

    def leave(self) -> Caller | None:
        """The live client waits no longer; returns it."""
        live, self._live = self._live, None
        return live

    def come_back(self, live: Caller | None) -> None:
        """It does after all."""
        self._live = live
        self._task.touch()

    async def beat(self, message: str) -> None:
        """Tell the live client that the work goes on."""
        if self._live is not None:
            self._progress += BEAT_STEP
            await self._live.progress(self._progress, self._total, message)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Text becomes the status message, at most twice a second."""
        if self._live is not None:
            self._progress, self._total = max(progress, self._progress + BEAT_STEP), total
            self._task.row.message = fit_message(message or self._task.message)
            await self._live.progress(self._progress, total, message)
            return
        now = anyio.current_time()
        message = fit_message(message or "")
        if message and message != self._task.message and now - self._told_at >= MESSAGE_SECONDS:
            self._told_at = now
            self._task.row.message = message
            await self._save(self._task)

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """For the live client; a task has no channel for logs."""
        if self._live is not None:
            await self._live.log(level, data, logger)

    async def ask(self, request: JsonObject) -> JsonObject:
        """Show the request with the task until it is answered; a key is never used twice.

        Raises:
            AskExpired: Nobody answered in time, counted from when it was asked first.
        """
        if self._live is None and not self._client.can(capability_of(request)):
            raise undeclared(request)
        task, asked = self._task, self._task.row.asked
        key = self._key_of(request)
        self._taken.add(key)
        if "answer" in asked[key]:
            return asked[key]["answer"]
        if self._live is not None:
            return await self._ask_live(self._live, key, request)
        task.row.status = "input_required"
        await self._save(task)
        try:
            while "answer" not in asked[key]:
                left = asked[key].get("at", time.time()) + self._ask_timeout - time.time()
                if left <= 0:
                    raise AskExpired(f"Nobody answered within {self._ask_timeout:g} s, so this did not go on.")
                with anyio.move_on_after(min(left, LOOK_SECONDS)):
                    await task.moved.wait()
                if self._live is not None and "answer" not in asked[key]:
                    return await self._ask_live(self._live, key, request)
        except (anyio.get_cancelled_exc_class(), AskExpired):
            asked[key].setdefault("answer", {})  # nobody waits for it any more, so it is not shown
            if task.status == "input_required" and not task.asks:
                task.row.status = "working"
            raise
        return asked[key]["answer"]

    async def _ask_live(self, live: Caller, key: str, request: JsonObject) -> JsonObject:
        asked = self._task.row.asked
        answer: JsonObject | None = None
        self.asking += 1
        try:
            with anyio.move_on_after(self._live_timeout):
                answer = await live.ask(request)
        finally:
            self.asking -= 1
            self.answered_at = anyio.current_time()
            if answer is None:
                asked.pop(key, None)
        if answer is None:
            raise AskExpired(f"Nobody answered within {self._live_timeout:g} s, so this did not go on.")
        asked[key]["answer"] = answer
        return answer

    def _key_of(self, request: JsonObject) -> str:
        """The key of a question that was asked before, or a new one."""
        wanted, shown = shown_ask(request)
        asked, text = self._task.row.asked, json.dumps(shown, sort_keys=True)
        for name, item in asked.items():
            if name not in self._taken and json.dumps(item["request"], sort_keys=True) == text:
                return name
        self._asked += 1
        key = wanted if KEY.fullmatch(wanted) else f"ask-{self._asked}"
        while key in asked:
            key = f"{key}-{self._asked}"
        asked[key] = {"request": shown, "at": time.time()}
        return key
