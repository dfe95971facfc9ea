"""Answers to the questions of tasks: judged before they are stored, and how a person or a program gives one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.errors import AnswerRefused
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.answers import fields_of, judge_answer, question_text
from gateway.storage.entries import PendingAsk, TaskRow
from gateway.storage.records import Records
from gateway.tasks.task import Task

if TYPE_CHECKING:
    from gateway.storage.tasks import TaskRows

SHORT_ID = 12
"""Characters of a task's id that commands show; they take any unambiguous beginning."""


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """What a task waits for."""

    text: str
    takes: str
    """The fields of the answer; empty where the question has no form."""
    command: str
    """The command that answers it."""

    def line(self) -> str:
        """All of it on one line."""
        takes = f" It takes {self.takes}." if self.takes else ""
        return f"{self.text!r}.{takes} Answer: `{self.command}`"


def usable_answers(task: Task, answers: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The answers to open questions of `task`; answers to anything else are left out.

    Raises:
        AnswerRefused: An answer does not fit its question. None of the answers may be stored then.
    """
    requests = task.asks
    usable = {key: value for key, value in answers.items() if key in requests}
    for key, value in usable.items():
        # A server judges the answers to its own questions, because it may take more than its form says.
        is_own = bool(task.row.asked[key].get("own"))
        if (problem := judge_answer(requests[key], value, judges_fields=is_own)) is not None:
            raise AnswerRefused(f"{problem} The question {key!r} is still open.")
    return usable


VERDICT_SECONDS = 3.0
"""Longest wait for the work of a task to judge an answer. After it, a refusal shows in the task's status message only."""

_LOOK_SECONDS = 0.02


async def await_verdicts(tasks: TaskRows, row: TaskRow | None, keys: Collection[str]) -> None:
    """Wait until the work of a task used or refused the answers that `row` has under `keys`, if the work judges them.

    Raises:
        AnswerRefused: It refused one. Its question is open again under the same key.
        StorageError: The task cannot be read.
    """
    if row is None or not row.owner:  # the next process that runs the task judges them
        return
    waits = {key: row.asked[key].get("refusals", 0) for key in keys if row.asked[key].get("judged")}
    with anyio.move_on_after(VERDICT_SECONDS):
        while waits and row is not None and not row.gone_at:
            for key, refusals in list(waits.items()):
                item = row.asked[key]
                if item.get("refusals", 0) > refusals:
                    raise AnswerRefused(f"{item['problem']} The question {key!r} is still open.")
                if item.get("used") or item.get("withdrawn"):
                    del waits[key]
            if waits:
                await anyio.sleep(_LOOK_SECONDS)
                row = await tasks.get(row.id)


def asked_by(task: Task) -> list[OpenQuestion]:
    """The open questions that the client of the task can answer."""
    found: list[OpenQuestion] = []
    for key, request in task.asks.items():
        which = f" --question {key}" if len(task.asks) > 1 else ""
        command = f"moongate tasks answer {task.id[:SHORT_ID]}{which}{_words(request)}"
        found.append(OpenQuestion(question_text(request), fields_of(request), command))
    return found


def status_message(task: Task) -> str:
    """The status message of a task: while it waits for answers, the questions and how to answer them."""
    lines = [question.line() for question in asked_by(task)]
    return f"input_required: {'; '.join(lines)}" if lines and not task.is_over else task.message


async def open_questions(records: Records, task: Task) -> list[OpenQuestion]:
    """All that the task waits for, also on the list of approvals. Raises `StorageError`."""
    if task.is_over:
        return []
    found = asked_by(task)
    ids = (await (await records.tasks()).listed(task.id)).get(task.id, ())
    asks = await records.asks() if ids else None
    for ask in [await asks.get(name) for name in ids] if asks is not None else ():
        if ask is not None and ask.state == "open":
            found.append(_on_list(ask))
    return found


def _words(request: JsonMapping) -> str:
    params: JsonMapping = request.get("params") or {}
    schema: JsonMapping = params.get("requestedSchema") or {}
    return "".join(f" {name}=…" for name in list(schema.get("properties") or {})[:5])


def _on_list(ask: PendingAsk) -> OpenQuestion:
    request: JsonObject = {"params": {"message": ask.shown, "requestedSchema": ask.form}}
    command = f"answer {ask.id}{_words(request)}" if ask.form is not None else f"approve {ask.id}"
    return OpenQuestion(question_text(request), fields_of(request), f"moongate approvals {command}")
