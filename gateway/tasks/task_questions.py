"""Lists the open questions (requests for input) of tasks and the commands that answer them, and checks answers before they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.errors import AnswerRefused
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.input_answers import fields_of, judge_answer, question_text
from gateway.storage.record_types import PendingQuestion, TaskRow
from gateway.storage.records import Records
from gateway.tasks.task import Task

if TYPE_CHECKING:
    from gateway.storage.task_rows import TaskRows

SHORT_ID = 12
"""Number of characters of a task's id in printed commands. Commands accept any unambiguous prefix of an id."""

VERDICT_SECONDS = 3.0
"""Maximum seconds for which the sender of an answer waits until the code inside the task accepts or refuses it.

A later refusal is visible only in the status message of the task.
"""

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """An unanswered question (request for input) of a task, with the shell command that answers it."""

    text: str
    takes: str
    """Description of the fields that the answer must have; empty if the question has no form."""
    command: str
    """The shell command with which a person answers the question."""

    def line(self) -> str:
        """Return the question, its fields and the command that answers it, on one line."""
        takes = f" It takes {self.takes}." if self.takes else ""
        return f"{self.text!r}.{takes} Answer: `{self.command}`"


def usable_answers(task: Task, answers: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Check answers, by name of the question, and return those that belong to open questions of `task`.

    Raises:
        AnswerRefused: An answer does not have the form that its question requires. The caller then must not store any of the answers.
    """
    requests = task.open_requests
    usable = {key: value for key, value in answers.items() if key in requests}
    for key, value in usable.items():
        # Fields of an answer to a remote server's question are not checked, because the server may accept more than its schema allows.
        is_own = bool(task.row.asked[key].get("own"))
        if (problem := judge_answer(requests[key], value, judges_fields=is_own)) is not None:
            raise AnswerRefused(f"{problem} The question {key!r} is still open.")
    return usable


async def await_verdicts(tasks: TaskRows, row: TaskRow | None, keys: Collection[str]) -> None:
    """Wait until the code inside a task has used or refused the new answers to the questions `keys`.

    Wait at most `VERDICT_SECONDS`, and only for questions whose answers the code checks. `row` is the stored row of the task, or `None` if
    no answer was stored, for example because the task has ended. Do not wait if the task belongs to no process (after a retry).

    Raises:
        AnswerRefused: The code refused an answer. The question is open again under the same name.
        StorageError: The task cannot be read.
    """
    if row is None or not row.owner:  # no process runs the task now; the next process that runs it checks the answers
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
                await anyio.sleep(_POLL_SECONDS)
                row = await tasks.get(row.id)


def client_questions(task: Task) -> list[OpenQuestion]:
    """Return the open questions of a task that its client can answer.

    Each `OpenQuestion` contains the command `moongate tasks answer …`, with which a person can answer in a shell instead.
    """
    found: list[OpenQuestion] = []
    for key, request in task.open_requests.items():
        which = f" --question {key}" if len(task.open_requests) > 1 else ""
        found.append(_open_question(request, f"moongate tasks answer {task.id[:SHORT_ID]}{which}"))
    return found


def status_message(task: Task) -> str:
    """Return the status message of a task. If the task waits for answers, it lists the questions and the commands that answer them."""
    lines = [question.line() for question in client_questions(task)]
    return f"input_required: {'; '.join(lines)}" if lines and not task.is_over else task.message


async def open_questions(records: Records, task: Task) -> list[OpenQuestion]:
    """Return all open questions of a task: those that its client can answer, and those in `moongate approvals list`.

    Raises:
        StorageError: The questions cannot be read.
    """
    if task.is_over:
        return []
    found = client_questions(task)
    ids = (await (await records.tasks()).listed(task.id)).get(task.id, ())
    asks = await records.questions() if ids else None
    for ask in [await asks.get(name) for name in ids] if asks is not None else ():
        if ask is not None and ask.state == "open":
            found.append(_listed_question(ask))
    return found


def _listed_question(ask: PendingQuestion) -> OpenQuestion:
    request: JsonObject = {"params": {"message": ask.shown, "requestedSchema": ask.form}}
    return _open_question(request, f"moongate approvals {'approve' if ask.form is None else 'answer'} {ask.id}")


def _open_question(request: JsonMapping, command: str) -> OpenQuestion:
    """Convert a request for input to an `OpenQuestion`. The first five fields of the form are added to `command` as arguments."""
    params: JsonMapping = request.get("params") or {}
    schema: JsonMapping = params.get("requestedSchema") or {}
    fields = "".join(f" {name}=…" for name in list(schema.get("properties") or {})[:5])
    return OpenQuestion(question_text(request), fields_of(request), command + fields)
