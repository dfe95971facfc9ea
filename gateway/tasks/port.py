"""`StepLog` and its ports: what a task did, so that no finished step runs twice."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

import anyio
import anyio.lowlevel

from gateway.errors import AskUnavailable, GatewayError, StorageError, StorageUnusable, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.entries import Steps
from gateway.storage.records import Records
from gateway.tools.context import BegunStep, CallContext

logger = logging.getLogger(__name__)

_KEPT = "kept:"

RETRY_SECONDS = 0.5
"""Pause before something is tried again that the database refused, or that is not there yet."""

Stored = TypeVar("Stored")


async def until_stored(store: Callable[[], Awaitable[Stored]]) -> Stored:
    """What `store` gives; while the database is away it is tried again, because a task waits rather than fails for that.

    An attempt is not cancelled, the pause between two is. Raises `StorageError` where trying again cannot help.
    """
    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await store()
        except StorageUnusable as error:
            if not error.passes:
                raise
        await anyio.sleep(RETRY_SECONDS)


class StepLog:
    """The steps of one task in one process."""

    def __init__(
        self, task_id: str, steps: Steps, records: Records, owner: str, on_lost: Callable[[], None], goes_on: Callable[[], bool]
    ) -> None:
        """`steps` is what was recorded before. `on_lost` stops the work, when another process has taken the task over; `goes_on`
        says of work that was cancelled whether the task goes on.
        """
        self.task_id = task_id
        self._steps = steps
        self._records = records
        self._owner = owner
        self._on_lost = on_lost
        self._goes_on = goes_on
        self._counts: dict[str, int] = {}
        self._is_noting = False
        self._written: anyio.Event | None = None
        self._under_way: dict[str, bool | Callable[[str], bool]] = {}
        self.ask: CallContext | None = None
        """Whom to ask about a step whose outcome nobody knows."""
        self.begins_none = False
        """Whether no step begins any more, because the process stops."""

    @classmethod
    def noting(cls, task_id: str, records: Records, owner: str, on_lost: Callable[[], None], goes_on: Callable[[], bool]) -> StepLog:
        """A log of a call that is no task yet: nothing is written before `write`."""
        log = cls(task_id, {}, records, owner, on_lost, goes_on)
        log._is_noting = True
        return log

    async def write(self, store: Callable[[Steps], Awaitable[None]]) -> None:
        """Have `store` put down what was noted; from now on every step is. When that fails, steps are noted as before.

        Raises:
            StorageError: They cannot be recorded.
            TaskError: `store` refuses.
        """
        self._is_noting, self._written = False, anyio.Event()
        try:
            await store(self._steps)
        except (TypeError, ValueError) as error:
            self._is_noting = True
            raise StorageError(f"A step's result cannot be recorded: {error}.") from error
        except BaseException:
            self._is_noting = True
            raise
        finally:
            written, self._written = self._written, None
            written.set()

    def port(self) -> StepPort:
        """The port of the whole task."""
        return StepPort(self, "")

    def number(self, name: str) -> str:
        """The key of the next step of this name."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return f"{name}#{count}"

    def restart(self, scope: str) -> None:
        """Count the steps of a scope from the beginning again."""
        for name in [name for name in self._counts if name.startswith(f"{scope}/")]:
            del self._counts[name]

    async def step(self, key: str, work: Callable[[str], Awaitable[JsonValue]], *, repeatable: bool | Callable[[str], bool]) -> JsonValue:
        """See `DurablePort.step`."""
        is_done, value = self._steps.get(key, (False, None))
        if is_done:
            return value
        if self.begins_none:
            await anyio.sleep_forever()
        await self._put(key, is_done=False, value=await self._retries(key, repeatable))
        self._under_way[key] = repeatable
        try:
            value = await self._worked(key, work)
            await self.finish(key, value)
        finally:
            del self._under_way[key]
        return value

    async def _worked(self, key: str, work: Callable[[str], Awaitable[JsonValue]]) -> JsonValue:
        try:
            return await work(f"{self.task_id}:{key}")
        except GatewayError:  # nothing was done that must not be done again
            self._steps.pop(key, None)
            if not self._is_noting:
                await until_stored(lambda: self._drop(key))
            raise

    def holds_up(self) -> bool:
        """Whether a step is under way that a person would have to be asked about, were it cut off."""
        return any(not (found if isinstance(found, bool) else found(key)) for key, found in self._under_way.items())

    async def begin(self, key: str, *, repeatable: bool) -> tuple[bool, JsonValue]:
        """See `DurablePort.begin`."""
        is_done, value = self._steps.get(key, (False, None))
        if is_done:
            return True, value
        await self._put(key, is_done=False, value=await self._retries(key, repeatable))
        return False, None

    async def finish(self, key: str, value: JsonValue) -> None:
        """Record the result of a step."""
        await self._put(key, is_done=True, value=value)

    async def keep(self, key: str, value: JsonValue) -> None:
        """See `DurablePort.keep`."""
        await self._put(_KEPT + key, is_done=True, value=value)

    def kept(self, key: str) -> JsonValue:
        """See `DurablePort.kept`."""
        return self._steps.get(_KEPT + key, (False, None))[1]

    async def goes_on(self) -> bool:
        """See `DurablePort.goes_on`."""
        with anyio.CancelScope(shield=True):
            for _ in range(2):  # who stops everything may hear of it after the work
                await anyio.lowlevel.checkpoint()
        return not self._is_noting and self._goes_on()

    async def _put(self, key: str, *, is_done: bool, value: JsonValue) -> None:
        """Put a step down, or be cancelled where another process has the task: what happened must be on record."""
        if not await until_stored(lambda: self._write(key, is_done=is_done, value=value)):
            self._on_lost()
            await anyio.sleep_forever()

    async def _drop(self, key: str) -> None:
        await (await self._records.tasks()).drop_step(self.task_id, key)

    async def _write(self, key: str, *, is_done: bool, value: JsonValue) -> bool:
        """Put a step down; False where another process has taken the task over."""
        if self._written is not None:
            await self._written.wait()
        if not self._is_noting:
            try:
                rows = await self._records.tasks()
                if not await rows.put_step(self.task_id, key, is_done=is_done, value=value, owner=self._owner):
                    return False
            except (TypeError, ValueError) as error:
                raise StorageError(f"A step's result cannot be recorded: {error}.") from error
        self._steps[key] = (is_done, value)
        return True

    async def _retries(self, key: str, repeatable: bool | Callable[[str], bool]) -> int | None:
        """How often a person had a step tried again in which its process died; None for a step that begins for the first time."""
        if key not in self._steps:
            return None
        retries = int(cast("int | None", self._steps[key][1]) or 0)
        if repeatable if isinstance(repeatable, bool) else repeatable(key):
            return retries
        await self._judge(key, retries)
        return retries + 1

    async def _judge(self, key: str, retries: int) -> None:
        """A step was in flight when its process died, and running it once more may do harm: ask.

        The words tell a later question from the first, whose answer is not meant for it.
        """
        name = key.rpartition("/")[2].rpartition("#")[0].partition(":")[0]
        again = f" again (after {retries} retr{'y' if retries == 1 else 'ies'})" if retries else ""
        stopped = f"The gateway stopped{again} while {name!r} ran"
        question = f"{stopped}, so its outcome is unknown: it may have taken effect. Retry it or skip it?"
        schema: JsonObject = {
            "type": "object",
            "properties": {"outcome": {"type": "string", "enum": ["retry", "skip"], "title": "Outcome unknown"}},
            "required": ["outcome"],
        }
        failed = ToolFailed(f"The gateway stopped while {name!r} ran. Its outcome is unknown, and it was not repeated.")
        try:
            if self.ask is None:
                raise failed
            params: JsonObject = {"mode": "form", "message": question, "requestedSchema": schema}
            answer = await self.ask.ask({"method": "elicitation/create", "params": params})
        except AskUnavailable:
            raise failed from None
        content: JsonObject = answer.get("content") or {}
        if answer.get("action") != "accept" or content.get("outcome") != "retry":
            raise failed


class StepPort:
    """Implements `DurablePort` for one part of a task."""

    def __init__(self, log: StepLog, scope: str) -> None:
        self._log = log
        self._scope = scope

    def scoped(self, label: str) -> StepPort:
        """The port of a part; its steps are counted from the beginning."""
        scope = f"{self._scope}/{label}"
        self._log.restart(scope)
        return StepPort(self._log, scope)

    async def step(
        self, name: str, work: Callable[[str], Awaitable[JsonValue]], *, repeatable: bool | Callable[[str], bool]
    ) -> JsonValue:
        """Run it once."""
        return await self._log.step(self._log.number(f"{self._scope}/{name}"), work, repeatable=repeatable)

    async def begin(self, name: str, *, repeatable: bool = True) -> BegunStep:
        """Begin it."""
        key = self._log.number(f"{self._scope}/{name}")
        is_done, value = await self._log.begin(key, repeatable=repeatable)

        async def finish(result: JsonValue) -> None:
            await self._log.finish(key, result)

        return BegunStep(is_done, value, finish)

    async def keep(self, name: str, value: JsonValue) -> None:
        """Keep a value."""
        await self._log.keep(f"{self._scope}/{name}", value)

    def kept(self, name: str) -> JsonValue:
        """The value kept."""
        return self._log.kept(f"{self._scope}/{name}")

    async def goes_on(self) -> bool:
        """Whether the task does."""
        return await self._log.goes_on()
