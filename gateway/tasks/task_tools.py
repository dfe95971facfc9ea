"""The tools `task_status`, `task_result` and `task_cancel`, through which clients without MCP task support use background tasks.

If a call takes longer than the configured wait, it continues as a task, and the client receives a result with the id of the task
(`still_running`). The tools show a principal only its own tasks. `app` creates the tools, and the catalog lists them if some tool can run
as a task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio

from gateway.errors import InputUnavailable, NotFound, PolicyDenied, ToolFailed
from gateway.json_types import JsonObject
from gateway.policy.metadata import TASK_META_KEY
from gateway.tasks.inline_call import HEARTBEAT_SECONDS
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task import Task
from gateway.tasks.task_questions import client_questions, status_message
from gateway.tools.base import Complete, Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.progress_text import NewLines
from gateway.tools.questions import ask_until_usable

WAIT_SECONDS = 50.0
"""Maximum seconds for which one call of `task_result` waits for the task, if `tasks.inlineSeconds` sets no limit."""

_TASK_ID: JsonObject = {"type": "string", "minLength": 1, "maxLength": 200, "description": "The task's id, as its handle gave it."}
_PARAMETERS: JsonObject = {"type": "object", "properties": {"task_id": _TASK_ID}, "required": ["task_id"], "additionalProperties": False}


def still_running(task: Task, *, has_output_schema: bool = False) -> Complete:
    """Return the tool result for a call that continues as a task: the task's id and state, as text and in `_meta`.

    Without an output schema, they are also the structured content. Clients check structured content against the tool's output schema, but
    do not check errors. If the tool has an output schema, the result is therefore marked as an error, so that the text reaches the model.
    """
    shown = describe(task)
    text = (
        f"Still running: {task.tool!r} goes on in the background as task {task.id}. Do not call it again. Call `task_result` with this "
        "task_id to wait for its result, `task_status` to see how it is doing, `task_cancel` to stop it."
    )
    text += f" Last progress: {task.message}" if task.message else ""
    if task.open_requests:
        text += " It waits for an answer: `task_result` puts the question to the person."
    outcome = Complete.text(text, is_error=has_output_schema, structured=None if has_output_schema else shown)
    return Complete({**outcome.result, "_meta": {TASK_META_KEY: shown}})


def describe(task: Task) -> JsonObject:
    """Return the JSON object that the task tools return for a task: id, tool, status, status message, open questions and times."""
    shown: JsonObject = {"taskId": task.id, "tool": task.tool, "status": task.status}
    if message := status_message(task):
        shown["statusMessage"] = message
    if task.open_requests:
        shown["questions"] = [question.text for question in client_questions(task)]
    shown |= {"createdAt": task.created.isoformat(), "lastUpdatedAt": task.updated.isoformat()}
    return {**shown, "ttlMs": int(task.ttl_seconds * 1000)}


class TaskTools:
    """Creates the tools `task_status`, `task_result` and `task_cancel`. Call `run_with` before a tool is called."""

    def __init__(self) -> None:
        self._runner: TaskRunner | None = None
        self.tools: Sequence[Tool] = (_TaskStatus(self), _TaskResult(self), _TaskCancel(self))

    def run_with(self, runner: TaskRunner) -> None:
        """Set the `TaskRunner` whose tasks the tools show and cancel."""
        self._runner = runner

    @property
    def runner(self) -> TaskRunner:
        """The `TaskRunner` whose tasks the tools show and cancel. Raises `ToolFailed` if this gateway does not run tasks."""
        if self._runner is None:
            raise ToolFailed("This gateway keeps no tasks.")
        return self._runner

    async def find(self, arguments: JsonObject, ctx: CallContext) -> Task:
        """Return the task with the id in the argument `task_id`, which must belong to the calling principal.

        Raises:
            ToolFailed: The task is unknown, expired, or belongs to another principal; the error does not say which.
        """
        try:
            task = await self.runner.find(str(arguments["task_id"]), ctx.facts.principal.id)
            if (rights := ctx.facts.principal.rights) is not None and rights.hides_items:
                await self.runner.admit(task, ctx.facts.principal)
            return task
        except (NotFound, PolicyDenied):
            raise ToolFailed("There is no such task: the id is wrong, or the task has expired.") from None


class _TaskStatus:
    """The MCP tool `task_status(task_id)`: returns the state of a background task and its open questions."""

    def __init__(self, tasks: TaskTools) -> None:
        self._tasks = tasks
        self.definition = ToolDefinition(
            name="task_status",
            title="Status of a task",
            description="Report the state of a call that runs in the background. `task_result` waits for its result.",
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Return the state of the task, its open questions, and under `answerWith` the ways to answer them.

        `answerWith` has a shell command for each question, with which a person answers it. If the task's client can answer a question,
        `answerWith` begins with the hint to call `task_result`.
        """
        task = await self._tasks.find(arguments, ctx)
        shown = describe(task)
        if questions := await self._tasks.runner.questions(task):
            shown |= {"status": "input_required", "questions": [question.text for question in questions]}
            calls = ["Call `task_result` with this task_id: it puts the question to the person."] if task.open_requests else []
            shown["answerWith"] = [*calls, *(question.command for question in questions)]
        return Complete.text(json.dumps(shown, ensure_ascii=False), structured=shown)


class _TaskResult:
    """The MCP tool `task_result(task_id)`: waits for the result of a background task, and sends the task's questions to the client."""

    def __init__(self, tasks: TaskTools) -> None:
        self._tasks = tasks
        self.definition = ToolDefinition(
            name="task_result",
            title="Result of a task",
            description=(
                "Wait for a call that runs in the background, and return its result. If it takes longer, the result says so: call this "
                "again. Questions of the task are put to the person meanwhile."
            ),
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
            may_request_input=True,
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Wait for the result of the task and return it. After the maximum wait, return a result which says that the task is running.

        A failed or cancelled task gives an error result.
        """
        task = await self._tasks.find(arguments, ctx)
        runner = self._tasks.runner
        seconds = runner.settings.inline_seconds
        left, beats, can_ask, lines = (WAIT_SECONDS if seconds is None else seconds), 0, True, NewLines()
        async with ctx.waiting():
            while not task.is_over:
                if task.open_requests and can_ask:
                    can_ask = await self._ask(task, ctx)
                    task = await runner.find(task.id, task.principal)
                    continue
                if left <= 0:
                    return still_running(task)
                since = anyio.current_time()
                with anyio.move_on_after(min(HEARTBEAT_SECONDS, left)) as waited:
                    task = await runner.wait_for_change(task)
                left -= anyio.current_time() - since
                if waited.cancelled_caught:
                    beats += 1
                    await ctx.progress(float(beats), None, lines.take(task.message or "Still running"))
        if task.result is not None:
            return Complete(dict(task.result))
        problem = (task.error or {}).get("message") or f"The task was {task.status}."
        return Complete.text(str(problem), is_error=True)

    async def _ask(self, task: Task, ctx: CallContext) -> bool:
        """Send the first open question of the task to the client, and store the answer. Return `False` if the client cannot be asked."""
        key, request = next(iter(task.open_requests.items()))

        async def answer(given: JsonObject) -> None:
            await self._tasks.runner.answer(task, {key: given})

        try:
            await ask_until_usable(ctx, request, answer)
        except InputUnavailable:
            return False
        return True


class _TaskCancel:
    """The MCP tool `task_cancel(task_id)`: cancels a background task."""

    def __init__(self, tasks: TaskTools) -> None:
        self._tasks = tasks
        self.definition = ToolDefinition(
            name="task_cancel",
            title="Cancel a task",
            description="Stop a call that runs in the background. A finished call does not change.",
            input_schema=_PARAMETERS,
            annotations={"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Cancel the task and return its final state."""
        shown = describe(await self._tasks.runner.cancel(await self._tasks.find(arguments, ctx)))
        return Complete.text(json.dumps(shown, ensure_ascii=False), structured=shown)
