"""`StepLog`: records the steps of a task, so that no finished step runs again after a restart. Code in the task uses a `StepPort`.

A step is one action of the task with a JSON result: a tool call, a model call, a function, or a round of a workflow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import anyio
import anyio.lowlevel

from gateway.errors import GatewayError, InputUnavailable, StorageError, ToolFailed
from gateway.json_types import JsonObject, JsonValue
from gateway.storage.database_retry import until_stored
from gateway.storage.record_types import KEPT, Steps
from gateway.storage.records import Records
from gateway.tasks.caller import TaskCaller
from gateway.tools.context import CallContext, StartedStep

STEPS_VERSION = 2
"""Version of the rules by which steps get their keys (`DurablePort.version`). A task keeps the version with which it was created.

In version 1, all steps of a functional workflow were numbered together, and the first round of a graph workflow used the same step
names as its start.
"""

_RETRIED = "idle"
"""Only key of the JSON object that is stored for a step that failed after a retry. Its value is how often a person had it retried.

The key is `idle` because the failed step is not in flight. The next question about the step has this number in its key, so that the answer
to an earlier question does not count.
"""

Repeatable = bool | Callable[[str], bool]
"""Whether a step that was in flight when its process died may run again: a boolean, or a function that decides by the step's key."""


class StepLog:
    """Records the steps of one task in the database, and returns the results that earlier attempts recorded."""

    def __init__(
        self, task_id: str, steps: Steps, records: Records, owner: str, on_lost: Callable[[], None], continues: Callable[[], bool]
    ) -> None:
        """Create the log of a task. `steps` are the steps that earlier attempts recorded, and `owner` names this process in the database.

        `on_lost` is called when another process has taken the task over. `continues` is called after the task was cancelled in this
        process, and returns whether another process, or a later start, will continue the task.
        """
        self.task_id = task_id
        self._steps = steps
        self._records = records
        self._owner = owner
        self._on_lost = on_lost
        self._continues = continues
        self._counts: dict[str, int] = {}
        self._is_in_memory = False
        self._written: anyio.Event | None = None
        self._in_flight: dict[str, Repeatable] = {}
        self.version = STEPS_VERSION
        self.context: CallContext | None = None
        """Context of the task. With this context, the log asks a person whether to retry a step that was started without a context.

        The context must not contain this log: the two would refer to each other, and all recorded results would stay in memory.
        """
        self.caller: TaskCaller | None = None
        """The receiver of the task's progress and requests for input, which stores its questions and its status message."""
        self.is_draining = False
        """Whether no further step may begin, because the process stops."""
        self.before_step: Callable[[], Awaitable[None]] | None = None
        """Function that is awaited before each step without a recorded result. It never returns if the step may not begin."""

    @classmethod
    def in_memory(cls, task_id: str, records: Records, owner: str, on_lost: Callable[[], None], continues: Callable[[], bool]) -> StepLog:
        """Create the log of a call that is not a task yet. The log keeps the steps in memory until `write` stores them."""
        log = cls(task_id, {}, records, owner, on_lost, continues)
        log._is_in_memory = True
        return log

    async def write(self, store: Callable[[Steps], Awaitable[None]]) -> None:
        """Store the steps that are in memory, because the call becomes a task. `store` writes them; later steps are written at once.

        If `store` fails, the log stays in memory.

        Raises:
            StorageError: The steps cannot be stored.
            TaskError: `store` refused the task, for example because the principal has too many tasks.
        """
        self._is_in_memory, self._written = False, anyio.Event()
        try:
            await store(self._steps)
        except BaseException as error:
            self._is_in_memory = True
            if isinstance(error, TypeError | ValueError):
                raise _not_json(error) from error
            raise
        finally:
            written, self._written = self._written, None
            written.set()

    def port(self) -> StepPort:
        """Return the object (`DurablePort`) through which the outermost code of the task records its steps.

        The object creates further objects for parts of the task, such as executors (nodes) of a workflow (`StepPort.scoped`).
        """
        return StepPort(self, "")

    def number(self, name: str) -> str:
        """Return the key of the next step with this name: the name and a running number, such as `search#2`. The first number is 1."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return f"{name}#{count}"

    def restart(self, scope: str) -> None:
        """Let the numbers of all steps whose names start with `<scope>/` begin at 1 again, because the part `scope` of the task begins."""
        for name in [name for name in self._counts if name.startswith(f"{scope}/")]:
            del self._counts[name]

    async def step(
        self, key: str, work: Callable[[str], Awaitable[JsonValue]], *, repeatable: Repeatable, ctx: CallContext | None = None
    ) -> JsonValue:
        """Return the recorded result of the step `key`, or run `work`, record its result and return it.

        `work` receives an idempotency key of the step. A step that was in flight when its process died runs again if it is `repeatable`.
        Otherwise the log first asks a person through `ctx` whether to retry it. If `work` raises `GatewayError`, the step had no effect
        and may run again.
        """
        is_done, value = self._steps.get(key, (False, None))
        if is_done:
            return value
        retries = await self._admit(key, repeatable, ctx)
        self._in_flight[key] = repeatable
        try:
            value = await self._perform(key, work, retries or 0)
            await self.finish(key, value)
        finally:
            del self._in_flight[key]
        return value

    async def _admit(self, key: str, repeatable: Repeatable, ctx: CallContext | None) -> int | None:
        """Wait until a step may begin, and record that it begins. Return how often a person had the step retried, or `None` for a new step.

        Never returns if the process stops or the task's caller may no longer call the tool.
        """
        if self.is_draining:
            await anyio.sleep_forever()
        retries = await self._retries(key, repeatable, ctx)
        if self.before_step is not None:
            await self.before_step()
        await self._put(key, is_done=False, value=retries)
        return retries

    async def _perform(self, key: str, work: Callable[[str], Awaitable[JsonValue]], retries: int) -> JsonValue:
        try:
            return await work(f"{self.task_id}:{key}")
        except GatewayError:  # a step that raises `GatewayError` had no effect, so it may run again
            if retries:
                await self._put(key, is_done=False, value={_RETRIED: retries})
            else:
                self._steps.pop(key, None)
                if not self._is_in_memory:
                    await until_stored(lambda: self._drop(key))
            raise

    def has_unrepeatable_step(self) -> bool:
        """Return whether a step that must not run twice is in flight.

        If the process stopped now, a person would have to decide whether to retry the step.
        """
        return any(not _may_retry(repeatable, key) for key, repeatable in self._in_flight.items())

    def only_waits(self, waits: Sequence[str]) -> bool:
        """Return whether the task can be stopped without loss while it waits for answers to the questions with the keys `waits`.

        Each question must have a durable key, and each step in flight must be repeatable and contain one of the questions.
        """
        begun = {key for key, (is_done, value) in self._steps.items() if not is_done and not isinstance(value, dict)}
        holds_all = all(any(wait.startswith((f"{key}/", f"{key}!")) for wait in waits) for key in begun | set(self._in_flight))
        return bool(waits) and all(waits) and holds_all and not self.has_unrepeatable_step()

    async def begin(self, key: str, *, repeatable: bool, ctx: CallContext | None = None) -> tuple[bool, JsonValue]:
        """Return true and the recorded result of the step `key`; if it has no result, record that the step begins.

        If the step begins, the return value is false and `None`, and the caller later records the result with `finish`.
        """
        is_done, value = self._steps.get(key, (False, None))
        if not is_done:
            await self._admit(key, repeatable, ctx)
            value = None
        return is_done, value

    async def finish(self, key: str, value: JsonValue) -> None:
        """Record the JSON result of the step `key`, which `begin` has recorded as begun."""
        await self._put(key, is_done=True, value=value)

    async def keep(self, key: str, value: JsonValue) -> None:
        """Store a JSON value with the task under `key`, and replace the earlier value. Used for data other than results of steps."""
        await self._put(KEPT + key, is_done=True, value=value)

    def kept(self, key: str) -> JsonValue:
        """Return the value that `keep` stored last with the task under `key`, or `None`."""
        return self._steps.get(KEPT + key, (False, None))[1]

    async def will_resume(self) -> bool:
        """Return whether another process, or a later start of the gateway, will continue the task, which was cancelled in this process."""
        with anyio.CancelScope(shield=True):
            for _ in range(2):  # the task runner, which sets the state, may be cancelled after this code
                await anyio.lowlevel.checkpoint()
        return not self._is_in_memory and self._continues()

    async def _put(self, key: str, *, is_done: bool, value: JsonValue) -> None:
        """Record the state of a step. Retries while the database is unavailable. Never returns if another process has the task now."""
        if not await until_stored(lambda: self._write(key, is_done=is_done, value=value)):
            self._on_lost()
            await anyio.sleep_forever()

    async def _drop(self, key: str) -> None:
        await (await self._records.tasks()).drop_step(self.task_id, key)

    async def _write(self, key: str, *, is_done: bool, value: JsonValue) -> bool:
        """Record the state of a step in memory and, for a stored task, in the database. Return whether this process still owns the task."""
        if self._written is not None:
            await self._written.wait()
        if not self._is_in_memory:
            try:
                rows = await self._records.tasks()
                if not await rows.put_step(self.task_id, key, is_done=is_done, value=value, owner=self._owner):
                    return False
            except (TypeError, ValueError) as error:
                raise _not_json(error) from error
        self._steps[key] = (is_done, value)
        return True

    async def _retries(self, key: str, repeatable: Repeatable, ctx: CallContext | None) -> int | None:
        """Return how often a person had the step retried after its process died; `None` if the step begins for the first time.

        If the step was in flight when its process died and is not `repeatable`, this method first asks a person whether to retry it.
        """
        if key not in self._steps:
            return None
        recorded = self._steps[key][1]
        if isinstance(recorded, dict):
            return int(cast("JsonObject", recorded)[_RETRIED])
        retries = int(cast("int | None", recorded) or 0)
        if _may_retry(repeatable, key):
            return retries
        await self._confirm_retry(key, retries, ctx or self.context)
        return retries + 1

    async def _confirm_retry(self, key: str, retries: int, ctx: CallContext | None) -> None:
        """Ask a person whether to retry a step that was in flight when its process died. Raises `ToolFailed` unless the answer is yes.

        The key of the question contains the key of the step and the number of retries, so that the answer counts only for this
        interruption.
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
            if self.context is not None:  # the gateway asks this, so the question must not pass the agent or workflow that made the call
                ctx = ctx.with_caller(self.context.ports.caller)
            params: JsonObject = {"mode": "form", "message": question, "requestedSchema": schema}
            answer = await ctx.ask({"method": "elicitation/create", "params": params}, f"{key}!{retries}")
        except InputUnavailable:
            raise failed from None
        content: JsonObject = answer.get("content") or {}
        if answer.get("action") != "accept" or content.get("outcome") != "retry":
            raise failed


def _may_retry(repeatable: Repeatable, key: str) -> bool:
    return repeatable if isinstance(repeatable, bool) else repeatable(key)


def _not_json(error: Exception) -> StorageError:
    return StorageError(f"A step's result cannot be recorded: {error}.")


class StepPort:
    """Implements `DurablePort`: lets one part of a task, such as an executor (node) of a workflow, record its steps in the task's log."""

    def __init__(self, log: StepLog, scope: str, prefix: str = "") -> None:
        """Create the port of one part of the task. `scope` is the name of the part; the keys of the part's steps begin with it.

        `prefix` is put before the names of the questions that the part asks.
        """
        self._log = log
        self._scope = scope
        self._prefix = prefix

    @property
    def version(self) -> int:
        """Version of the rules by which the steps of this task get their keys (`STEPS_VERSION` when the task was created)."""
        return self._log.version

    def scoped(self, label: str) -> StepPort:
        """Return a port through which a part of the task records its steps. The steps of the part are numbered separately, from 1."""
        scope = f"{self._scope}/{label}"
        self._log.restart(scope)
        return StepPort(self._log, scope)

    def asking(self, label: str) -> StepPort:
        """Return a port for the same part of the task that puts `label` before the names of questions.

        Code that asks questions concurrently uses different labels, so that each question has the same name at every attempt of the task.
        """
        return StepPort(self._log, self._scope, f"{self._prefix}{label}/")

    def question(self, name: str) -> str:
        """Return the durable key of the next question (request for input) with this name.

        A durable key is the same at every attempt of the task.
        """
        return self._log.number(f"{self._scope}/?{self._prefix}{name}")

    def judges(self, key: str) -> None:
        """Record that the code that asks the question `key` checks the answers and may refuse them.

        `key` is the durable key that `question` returned; it is the same at every attempt of the task.
        """
        if self._log.caller is not None:
            self._log.caller.judges(key)

    async def judged(self, key: str, problem: str = "") -> bool:
        """Record that the code used the answer to the question `key`, or, with `problem`, why it refused the answer.

        Returns whether the question had an answer. If so, the code can ask a refused question again with the same key, otherwise with a
        new key.
        """
        return self._log.caller is not None and await self._log.caller.judged(key, problem)

    def shows(self, message: str) -> AbstractContextManager[None]:
        """Context manager: show `message` as the status message of the task."""
        return self._log.caller.shows(message) if self._log.caller is not None else nullcontext()

    async def step(
        self, name: str, work: Callable[[str], Awaitable[JsonValue]], *, repeatable: Repeatable, ctx: CallContext | None = None
    ) -> JsonValue:
        """Run `work` as a step of the task, record its JSON result and return it, or return the result that an earlier attempt recorded."""
        return await self._log.step(self._log.number(f"{self._scope}/{name}"), work, repeatable=repeatable, ctx=ctx)

    async def begin(self, name: str, *, repeatable: bool = True, ctx: CallContext | None = None) -> StartedStep:
        """Begin the next step with this name.

        The returned object contains the result that an earlier attempt recorded, or can record the result later.
        """
        key = self._log.number(f"{self._scope}/{name}")
        is_done, value = await self._log.begin(key, repeatable=repeatable, ctx=ctx)
        return StartedStep(is_done, value, partial(self._log.finish, key))

    async def keep(self, name: str, value: JsonValue) -> None:
        """Store a JSON value with the task under `name`, and replace the earlier value. Used for data other than results of steps."""
        await self._log.keep(f"{self._scope}/{name}", value)

    def kept(self, name: str) -> JsonValue:
        """Return the value that `keep` stored last with the task under `name`, or `None`."""
        return self._log.kept(f"{self._scope}/{name}")

    async def will_resume(self) -> bool:
        """Return whether another process, or a later start, will continue the task, which was cancelled in this process."""
        return await self._log.will_resume()
