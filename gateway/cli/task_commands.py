"""`moongate tasks`: shows, answers, cancels and retries tasks, which are calls that run in the background.

The commands read and change the gateway's database. A running gateway reacts to a cancellation or a retry within a second.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gateway.cli.arguments import build_answer
from gateway.cli.common import Choice, ListingGroup, data_options, load
from gateway.cli.configured_names import tool_names
from gateway.cli.failures import CommandFailed
from gateway.cli.output import clean, moment, print_content, print_json, print_note, print_text, show, show_table
from gateway.cli.stored_rows import empty_text, pick, with_configured_records, with_records
from gateway.errors import AnswerRefused
from gateway.storage.record_types import KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.config.models import GatewayConfig, TaskSettings
    from gateway.json_types import JsonObject
    from gateway.storage.record_types import Steps, TaskRow
    from gateway.storage.records import Records
    from gateway.tasks.task_questions import OpenQuestion

HANDLED_SECONDS = 3.0
"""Seconds for which `cancel` and `retry` wait until a gateway has stopped or restarted the task."""

MAX_ERROR = 400
"""Maximum characters of a task's error message that are printed."""

STATUSES = ("working", "input_required", "completed", "failed", "cancelled")


@click.group(cls=ListingGroup)
def tasks() -> None:
    """Calls that run in the background."""


@tasks.command("list")
@click.option("--status", type=Choice(STATUSES), help="Only tasks with this status.")
@click.option("--tool", metavar="NAME", help="Only calls of this tool, by its exposed name.")
@click.option("--caller", metavar="ID", help="Only tasks of this caller, as the list names it.")
@data_options
def list_tasks(status: str | None, tool: str | None, caller: str | None, config_path: str | None, as_json: bool) -> None:
    """List every stored task, the oldest first."""
    tools: set[str] = set()
    callers: set[str] = set()

    async def read(records: Records, config: GatewayConfig) -> tuple[list[_Seen], TaskSettings]:
        every = await (await records.tasks()).all_of()
        tools.update(row.tool for row in every)
        callers.update(row.principal for row in every)
        matching = [row for row in every if tool in (None, row.tool) and caller in (None, row.principal)]
        return [await _seen(records, row, config.tasks) for row in matching], config.tasks

    every, settings = with_configured_records(config_path, read)
    found = [seen for seen in every if status in (None, seen.status)]
    rows = [
        [row.id[:12], row.tool, row.principal, seen.standing(), moment(row.created_at), moment(row.updated_at), seen.message()]
        for row, seen in ((seen.row, seen) for seen in found)
    ]
    headers = ("id", "tool", "caller", "status", "begun", "changed", "says")
    if not rows and tool is not None:
        tools.update(tool_names(load(config_path, fetches=False), tool))
    empty = empty_text("tasks", (tool, tools), (caller, callers), (status, STATUSES))
    listed: JsonObject = {"engine": settings.engine, "tasks": [seen.to_json() for seen in found]}
    show_table(listed, headers, rows, empty=empty, as_json=as_json, whole_last=True)
    if settings.engine == "temporal" and not as_json:
        print_note(f"engine: Temporal at {settings.temporal.address}; `moongate tasks show ID` names the workflow of a task.")


@tasks.command("show")
@click.argument("task_id", metavar="ID")
@data_options
def show_task(task_id: str, config_path: str | None, as_json: bool) -> None:
    """Show one task: the call, its question, its steps and its result."""
    from gateway.policy.framing import quote, shown

    async def read(records: Records, config: GatewayConfig) -> tuple[_Seen, Steps]:
        found = await _matching(records, task_id)
        return await _seen(records, found, config.tasks), await (await records.tasks()).steps(found.id)

    seen, steps = with_configured_records(config_path, read)
    row = seen.row
    made = {key: done for key, (done, _) in sorted(steps.items(), key=lambda item: _order(item[0])) if not key.startswith(KEPT)}
    asked = {key: item["request"] for key, item in row.asked.items() if "answer" not in item}
    if as_json:
        shown_task = {**seen.to_json(), "arguments": row.call["arguments"], "outcome": row.outcome, "asks": asked}
        print_json({**shown_task, "steps": [{"step": key, "done": done} for key, done in made.items()]})
        return
    print_text(f"{row.id}  {row.tool}  {row.principal}  {seen.standing()}  attempt {row.attempts}")
    click.echo(clean(f"arguments: {json.dumps(row.call['arguments'], ensure_ascii=False)}"))
    if seen.workflow:
        click.echo(clean(f"temporal: {seen.page or seen.workflow}"))
    for key, request in asked.items():
        print_text(f"asks {key}:\n{_question(request)}")
    for question in seen.questions:
        if question.takes:
            print_text(f"takes: {question.takes}")
        click.echo(clean(f"answer: {question.command}"))
    for key, done in made.items():
        print_text(f"step {key}: {'done' if done else 'in flight'}")
    if row.message and not row.gone_at:
        print_text("\n".join(["says:", *quote(row.message)]))
    if "error" in row.outcome:
        error: JsonObject = row.outcome["error"]
        print_text(f"error {error['code']}: {shown(str(error['message']), MAX_ERROR)}")
    elif "result" in row.outcome:
        print_content(row.outcome["result"])


@tasks.command("answer")
@click.argument("task_id", metavar="ID")
@click.argument("pairs", metavar="FIELD=VALUE…", nargs=-1)
@click.option("--question", metavar="KEY", help="The question to answer, if there are several; `moongate tasks show` names them.")
@click.option("--args-json", metavar="JSON", help="The fields as one JSON object.")
@click.option("--decline", is_flag=True, help="Decline to answer.")
@data_options
def answer_task(
    task_id: str, pairs: tuple[str, ...], question: str | None, args_json: str | None, decline: bool, config_path: str | None, as_json: bool
) -> None:
    """Answer the question of a task. `moongate tasks show` shows the question and its fields."""
    def answer_to(form: JsonObject) -> JsonObject:
        return {"action": "decline"} if decline else {"action": "accept", "content": build_answer(form, pairs, args_json)}

    row = with_records(config_path, lambda records: _answer(records, task_id, question, answer_to))
    _show_change(row, "has its answer", as_json=as_json)


async def _answer(records: Records, task_id: str, question: str | None, answer_to: Callable[[JsonObject], JsonObject]) -> TaskRow:
    """Store an answer to a task's question and return the task. The gateway that runs the task then reads the answer.

    `answer_to` receives the JSON Schema of the question's form and returns the answer. `question` is the question's key, or `None` if the
    task has only one question.
    """
    from gateway.tasks.task import Task
    from gateway.tasks.task_questions import await_verdicts, usable_answers

    seen = await _seen(records, await _matching(records, task_id))
    task = Task(seen.row)
    keys = [question] if question else list(task.open_requests)
    if not task.open_requests:
        elsewhere = "".join(f" `{found.command}` answers the question that it waits for." for found in seen.questions)
        raise CommandFailed(f"Task {task.id[:12]} is {seen.standing()} and has no open question.{elsewhere}", code="usage")
    if len(keys) != 1 or keys[0] not in task.open_requests:
        which = f"has no open question {question!r}" if question else "asks several questions: name one with --question"
        raise CommandFailed(f"Task {task.id[:12]} {which}. Open: {', '.join(task.open_requests)}.", code="usage")
    request = task.open_requests[keys[0]]
    params: JsonObject = request.get("params") or {}
    if request.get("method") != "elicitation/create":
        raise CommandFailed(f"Only the client of the task can answer {request.get('method')}.", code="usage")
    answer = answer_to(params.get("requestedSchema") or {})
    rows = await records.tasks()
    try:
        usable = usable_answers(task, {keys[0]: answer})
        row = await rows.answer(task.id, usable)
        await await_verdicts(rows, row, usable)
    except AnswerRefused as error:
        raise click.UsageError(str(error)) from None
    return row or seen.row


@tasks.command("cancel")
@click.argument("task_id", metavar="ID")
@data_options
def cancel_task(task_id: str, config_path: str | None, as_json: bool) -> None:
    """Cancel a task. A finished task stays as it is."""
    async def work(records: Records) -> TaskRow:
        found = await _matching(records, task_id)
        if found.gone_at:
            raise CommandFailed(f"Task {found.id[:12]} is {found.status} already.", code="tool-error")
        await (await records.tasks()).cancel(found.id)
        return await _when_handled(records, found)

    row = with_records(config_path, work)
    _show_change(row, "cancelled" if row.status == "cancelled" else "is being cancelled by the gateway that runs it", as_json=as_json)


@tasks.command("retry")
@click.argument("task_id", metavar="ID")
@click.option("--from-start", is_flag=True, help="Run all steps again; by default it continues after the steps that succeeded.")
@data_options
def retry_task(task_id: str, from_start: bool, config_path: str | None, as_json: bool) -> None:
    """Run a failed or cancelled task again under the same id."""
    from gateway.tools.base import Complete

    async def work(records: Records) -> TaskRow:
        found = await _matching(records, task_id)
        if found.status == "completed" and not Complete(found.outcome["result"]).is_error:
            raise CommandFailed(f"Task {found.id[:12]} is completed and has a result; call the tool again.", code="tool-error")
        if not found.gone_at or not await (await records.tasks()).retry(found.id, from_start=from_start):
            raise CommandFailed(f"Task {found.id[:12]} is {found.status}; only a finished task can be tried again.", code="tool-error")
        return await _when_handled(records, found)

    row = with_records(config_path, work)
    _show_change(row, "runs again" if row.owner else "runs again as soon as a gateway runs", as_json=as_json)


def _show_change(row: TaskRow, what: str, *, as_json: bool) -> None:
    show(row.to_json(), f"{row.id[:12]} of {row.tool} {what}", as_json=as_json)


async def _when_handled(records: Records, row: TaskRow) -> TaskRow:
    """Wait until a gateway has acted on a cancellation or retry, at most `HANDLED_SECONDS`. Return the task in its latest state."""
    import anyio

    rows = await records.tasks()
    with anyio.move_on_after(HANDLED_SECONDS):
        while (now := await rows.get(row.id)) is not None:
            row = now
            if row.gone_at or (row.owner and not row.is_cancelled):
                break
            await anyio.sleep(0.1)
    return row


async def _matching(records: Records, task_id: str) -> TaskRow:
    """Return the task with the id `task_id`, or the only task whose id begins with it."""
    return pick(await (await records.tasks()).all_of(), task_id, "task", "tasks list")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A stored task, and its open questions."""

    row: TaskRow
    questions: Sequence[OpenQuestion]
    workflow: str = ""
    """Id of the task's workflow at Temporal; empty with another engine."""
    page: str = ""
    """URL of the workflow in Temporal's web interface; empty if it is unknown."""

    @property
    def status(self) -> str:
        return "input_required" if self.questions else self.row.status

    def standing(self) -> str:
        row = self.row
        if row.gone_at:
            result: JsonObject = row.outcome.get("result") or {}
            failed = row.status == "completed" and bool(result.get("isError"))
            return "completed, error" if failed else row.status
        return "waiting" if not row.admitted_at else self.status

    def message(self) -> str:
        return "; ".join(question.line() for question in self.questions) or self.row.message

    def to_json(self) -> JsonObject:
        asked: JsonObject = {"questions": [question.text for question in self.questions]}
        asked["answerWith"] = [question.command for question in self.questions]
        where: JsonObject = {"workflow": self.workflow, "page": self.page or None} if self.workflow else {}
        return {**self.row.to_json(), "status": self.status, **(asked if self.questions else {}), **where}


async def _seen(records: Records, row: TaskRow, settings: TaskSettings | None = None) -> _Seen:
    """Return a task with its open questions and, if `settings` name Temporal as the engine, with its workflow there."""
    from gateway.tasks.task import Task
    from gateway.tasks.task_questions import open_questions
    from gateway.tasks.temporal_names import page, workflow_id

    questions = await open_questions(records, Task(row))
    if settings is None or settings.engine == "local":
        return _Seen(row, questions)
    return _Seen(row, questions, workflow_id(row.id), page(settings.temporal, row.id))


def _question(request: JsonObject) -> str:
    params: JsonObject = request.get("params") or {}
    return str(params.get("message") or request.get("method"))


def _order(step: str) -> list[tuple[int | str, ...]]:
    """Return a sort key for the name of a task's step. It orders a workflow's steps by superstep, and numbered steps by number."""
    parts = [re.fullmatch(r"(.*?)(?:@(\d+)\.(\d+))?(?:#(\d+))?", part, re.DOTALL) for part in step.split("/")]
    return [(int(part[2] or 0), int(part[3] or 0), part[1], int(part[4] or 0)) for part in parts if part]
