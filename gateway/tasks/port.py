"""`StepLog` and its ports: what a task did, so that no finished step runs twice."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import anyio
import anyio.lowlevel

from gateway.errors import AskUnavailable, GatewayError, StorageError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.entries import KEPT, Steps
from gateway.storage.records import Records
from gateway.storage.retry import until_stored
from gateway.tools.context import BegunStep, CallContext

logger = logging.getLogger(__name__)

STEPS_VERSION = 2
"""Version of the rules by which the steps of a new task are named (`DurablePort.version`); kept with the task.

In version 1 the steps of a functional workflow shared one scope, and the first round of a graph shared its labels with the start.
"""

_IDLE = "idle"
"""Key in the value of a step that failed after a retry: the number of retries. The next doubt about the step is another question."""


class Standing(Protocol):
    """Keeps what the work says of the questions of its task."""

    def judges(self, key: str) -> None:
        """See `DurablePort.judges`."""
        ...

    async def judged(self, key: str, problem: str) -> bool:
        """See `DurablePort.judged`."""
        ...

    def shows(self, message: str) -> AbstractContextManager[None]:
        """See `DurablePort.shows`."""
        ...


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
        self.version = STEPS_VERSION
        self.ask: CallContext | None = None
        """The task's own context. It asks about a step in doubt where the step names no call.

        It has no port of this log. Otherwise each would refer to the other, and both would stay in memory with every result on record.
        """
        self.standing: Standing | None = None
        """Keeps the questions and the status message of the task."""
        self.begins_none = False
        """Whether no step begins any more, because the process stops."""
        self.before_step: Callable[[], Awaitable[None]] | None = None
        """Awaited before each step that is not on record: it does not return if the step may not begin."""

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

    async def step(
        self,
        key: str,
        work: Callable[[str], Awaitable[JsonValue]],
        *,
        repeatable: bool | Callable[[str], bool],
        ctx: CallContext | None = None,
    ) -> JsonValue:
        """See `DurablePort.step`."""
        is_done, value = self._steps.get(key, (False, None))
        if is_done:
            return value
        retries = await self._admit(key, repeatable, ctx)
        self._under_way[key] = repeatable
        try:
            value = await self._worked(key, work, retries or 0)
            await self.finish(key, value)
        finally:
            del self._under_way[key]
        return value

    async def _admit(self, key: str, repeatable: bool | Callable[[str], bool], ctx: CallContext | None) -> int | None:
        """Put down that a step begins, once it may. Returns what `_retries` returned."""
        if self.begins_none:
            await anyio.sleep_forever()
        retries = await self._retries(key, repeatable, ctx)
        if self.before_step is not None:
            await self.before_step()
        await self._put(key, is_done=False, value=retries)
        return retries

    async def _worked(self, key: str, work: Callable[[str], Awaitable[JsonValue]], retries: int) -> JsonValue:
        try:
            return await work(f"{self.task_id}:{key}")
        except GatewayError:  # nothing was done that must not be done again
            if retries:
                await self._put(key, is_done=False, value={_IDLE: retries})
            else:
                self._steps.pop(key, None)
                if not self._is_noting:
                    await until_stored(lambda: self._drop(key))
            raise

    def holds_up(self) -> bool:
        """Whether a step is under way that a person would have to be asked about, were it cut off."""
        return any(not (found if isinstance(found, bool) else found(key)) for key, found in self._under_way.items())

    async def begin(self, key: str, *, repeatable: bool, ctx: CallContext | None = None) -> tuple[bool, JsonValue]:
        """See `DurablePort.begin`."""
        is_done, value = self._steps.get(key, (False, None))
        if is_done:
            return True, value
        await self._admit(key, repeatable, ctx)
        return False, None

    async def finish(self, key: str, value: JsonValue) -> None:
        """Record the result of a step."""
        await self._put(key, is_done=True, value=value)

    async def keep(self, key: str, value: JsonValue) -> None:
        """See `DurablePort.keep`."""
        await self._put(KEPT + key, is_done=True, value=value)

    def kept(self, key: str) -> JsonValue:
        """See `DurablePort.kept`."""
        return self._steps.get(KEPT + key, (False, None))[1]

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

    async def _retries(self, key: str, repeatable: bool | Callable[[str], bool], ctx: CallContext | None) -> int | None:
        """Return how often a person had the step retried after its process died; `None` if it begins for the first time.

        Asks a person first if the step is in doubt: it was in flight, and is not `repeatable`.
        """
        if key not in self._steps:
            return None
        recorded = self._steps[key][1]
        if isinstance(recorded, dict):
            return int(cast("JsonObject", recorded)[_IDLE])
        retries = int(cast("int | None", recorded) or 0)
        if repeatable if isinstance(repeatable, bool) else repeatable(key):
            return retries
        await self._judge(key, retries, ctx or self.ask)
        return retries + 1

    async def _judge(self, key: str, retries: int, ctx: CallContext | None) -> None:
        """Ask whether to run a step again that was in flight when its process died. Raises `ToolFailed` unless the answer is yes.

        The question's key is the step's key and the number of retries, so that no answer counts for another step or a later doubt.
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
            if ctx is None:
                raise failed
            if self.ask is not None:  # past the callers that speak in the name of a workflow or agent
                ctx = dataclasses.replace(ctx, caller=self.ask.caller)
            params: JsonObject = {"mode": "form", "message": question, "requestedSchema": schema}
            answer = await ctx.ask({"method": "elicitation/create", "params": params}, f"{key}!{retries}")
        except AskUnavailable:
            raise failed from None
        content: JsonObject = answer.get("content") or {}
        if answer.get("action") != "accept" or content.get("outcome") != "retry":
            raise failed


class StepPort:
    """Implements `DurablePort` for one part of a task."""

    def __init__(self, log: StepLog, scope: str, asking: str = "") -> None:
        """`asking` is a prefix for the names of questions."""
        self._log = log
        self._scope = scope
        self._asking = asking

    @property
    def version(self) -> int:
        """Version of the naming rules."""
        return self._log.version

    def scoped(self, label: str) -> StepPort:
        """The port of a part; its steps are counted from the beginning."""
        scope = f"{self._scope}/{label}"
        self._log.restart(scope)
        return StepPort(self._log, scope)

    def asking(self, label: str) -> StepPort:
        """Return a port for the same steps that puts `label` before the names of questions."""
        return StepPort(self._log, self._scope, f"{self._asking}{label}/")

    def question(self, name: str) -> str:
        """The key of the next question of this name."""
        return self._log.number(f"{self._scope}/?{self._asking}{name}")

    def judges(self, key: str) -> None:
        """Note it with the question."""
        if self._log.standing is not None:
            self._log.standing.judges(key)

    async def judged(self, key: str, problem: str = "") -> bool:
        """Note it with the question."""
        return self._log.standing is not None and await self._log.standing.judged(key, problem)

    def shows(self, message: str) -> AbstractContextManager[None]:
        """Show it with the task."""
        return self._log.standing.shows(message) if self._log.standing is not None else nullcontext()

    async def step(
        self,
        name: str,
        work: Callable[[str], Awaitable[JsonValue]],
        *,
        repeatable: bool | Callable[[str], bool],
        ctx: CallContext | None = None,
    ) -> JsonValue:
        """Run it once."""
        return await self._log.step(self._log.number(f"{self._scope}/{name}"), work, repeatable=repeatable, ctx=ctx)

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> BegunStep:
        """Begin it."""
        key = self._log.number(f"{self._scope}/{name}")
        is_done, value = await self._log.begin(key, repeatable=repeatable, ctx=ctx)

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
