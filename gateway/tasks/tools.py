"""`task_status`, `task_result` and `task_cancel`: tasks for clients that have none, over plain calls.

A call that takes longer than its client waits goes on as a task, and the client gets a handle (`still_running`); these tools take
it. They show a caller its own tasks only: the id of another's is as unknown as one that never was. `app` offers them, and the
catalog lists them where some tool can become a task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio

from gateway.errors import AskUnavailable, NotFound, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.metadata import TASK_META_KEY
from gateway.tasks.answers import asked_by, status_message
from gateway.tasks.attending import HEARTBEAT_SECONDS
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tools.base import Complete, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.questions import ask_until_usable
from gateway.tools.told_lines import NewLines

WAIT_SECONDS = 50.0
"""How long `task_result` waits where `tasks.inlineSeconds` sets no end."""

_TASK_ID: JsonObject = {"type": "string", "minLength": 1, "maxLength": 200, "description": "The task's id, as its handle gave it."}
_PARAMETERS: JsonObject = {"type": "object", "properties": {"task_id": _TASK_ID}, "required": ["task_id"], "additionalProperties": False}


def still_running(task: Task, *, has_output_schema: bool = False) -> Complete:
    """The result in place of one that is not there yet: the handle in words, as data, and in `_meta`.

    Clients insist on structured content that matches a tool's output schema, unless the result is an error: where there is a
    schema it is marked as one, so that the words at least reach the model (the same is done for shortened results).
    """
    shown = describe(task)
    text = (
        f"Still running: {task.tool!r} goes on in the background as task {task.id}. Do not call it again. Call `task_result` with this "
        "task_id to wait for its result, `task_status` to see how it is doing, `task_cancel` to stop it."
    )
    text += f" Last heard: {task.message}" if task.message else ""
    if task.asks:
        text += " It waits for an answer: `task_result` puts the question to the person."
    outcome = Complete.text(text, is_error=has_output_schema, structured=None if has_output_schema else shown)
    return Complete({**outcome.result, "_meta": {TASK_META_KEY: shown}})


def describe(task: Task) -> JsonObject:
    """A task as these tools show it."""
    shown: JsonObject = {"taskId": task.id, "tool": task.tool, "status": task.status}
    if message := status_message(task):
        shown["statusMessage"] = message
    if task.asks:
        shown["questions"] = [question.text for question in asked_by(task)]
    shown |= {"createdAt": task.created.isoformat(), "lastUpdatedAt": task.updated.isoformat()}
    return {**shown, "ttlMs": int(task.ttl_seconds * 1000)}


class TaskTools:
    """The three tools. `run_with` follows before they are called."""

    def __init__(self) -> None:
        self._given: TaskRunner | None = None
        self.tools: Sequence[Tool] = (_TaskStatus(self), _TaskResult(self), _TaskCancel(self))

    def run_with(self, runner: TaskRunner) -> None:
        """Hand over what runs tasks here."""
        self._given = runner

    @property
    def runner(self) -> TaskRunner:
        """What runs tasks here."""
        if self._given is None:
            raise ToolFailed("No tasks are kept here.")
        return self._given

    async def find(self, arguments: JsonObject, ctx: CallContext) -> Task:
        """The caller's task that a call names.

        Raises:
            ToolFailed: Unknown, expired, or somebody else's: the three are never told apart.
        """
        try:
            return await self.runner.find(str(arguments["task_id"]), ctx.principal.id)
        except NotFound:
            raise ToolFailed("There is no such task: its id is wrong, or its time is over.") from None


class _TaskStatus:
    """`task_status(task_id)`."""

    def __init__(self, desk: TaskTools) -> None:
        self._desk = desk
        self.definition = ToolDefinition(
            name="task_status",
            title="Status of a task",
            description="Tell how a call that goes on in the background is doing. `task_result` waits for it.",
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Its state now, with what it waits for and how that is answered."""
        task = await self._desk.find(arguments, ctx)
        shown = describe(task)
        if questions := await self._desk.runner.questions(task):
            shown |= {"status": "input_required", "questions": [question.text for question in questions]}
            calls = ["Call `task_result` with this task_id: it puts the question to the person."] if task.asks else []
            shown["answerWith"] = [*calls, *(question.command for question in questions)]
        return Complete.text(json.dumps(shown, ensure_ascii=False), structured=shown)


class _TaskResult:
    """`task_result(task_id)`."""

    def __init__(self, desk: TaskTools) -> None:
        self._desk = desk
        self.definition = ToolDefinition(
            name="task_result",
            title="Result of a task",
            description=(
                "Wait for a call that goes on in the background, and give its result. If it takes longer, it says so: call this again. "
                "What the task asks is put to the person meanwhile."
            ),
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
            may_ask=True,
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """The result as the tool gave it, or the handle again."""
        task = await self._desk.find(arguments, ctx)
        runner = self._desk.runner
        seconds = runner.settings.inline_seconds
        left, beats, mute, lines = (WAIT_SECONDS if seconds is None else seconds), 0, False, NewLines()
        async with ctx.waiting():
            while not task.is_over:
                if task.asks and not mute:
                    mute = not await self._put(task, ctx)
                    task = await runner.find(task.id, task.principal)
                    continue
                if left <= 0:
                    return still_running(task)
                since = anyio.current_time()
                with anyio.move_on_after(min(HEARTBEAT_SECONDS, left)) as waited:
                    task = await runner.moved(task)
                left -= anyio.current_time() - since
                if waited.cancelled_caught:
                    beats += 1
                    await ctx.progress(float(beats), None, lines.take(task.message or "Still running"))
        if task.result is not None:
            return Complete(dict(task.result))
        said = (task.error or {}).get("message") or f"The task was {task.status}."
        return Complete.text(str(said), is_error=True)

    async def _put(self, task: Task, ctx: CallContext) -> bool:
        """Ask the client what the task asks; whether it could be asked."""
        key, request = next(iter(task.asks.items()))

        async def answer(given: JsonObject) -> None:
            await self._desk.runner.answer(task, {key: given})

        try:
            await ask_until_usable(ctx, request, answer)
        except AskUnavailable:
            return False
        return True


class _TaskCancel:
    """`task_cancel(task_id)`."""

    def __init__(self, desk: TaskTools) -> None:
        self._desk = desk
        self.definition = ToolDefinition(
            name="task_cancel",
            title="Cancel a task",
            description="Stop a call that goes on in the background. One that is over stays as it is.",
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Stop it and tell how it ended."""
        shown = describe(await self._desk.runner.cancel(await self._desk.find(arguments, ctx)))
        return Complete.text(json.dumps(shown, ensure_ascii=False), structured=shown)
