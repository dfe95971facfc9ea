"""`Task`: the current state of one task (a call that runs in the background).

`task_executor` creates and changes `Task` objects; the server and the CLI read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, cast

import anyio

from gateway.json_types import JsonObject
from gateway.storage.record_types import TaskRow, is_open

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class TaskKind:
    """The configuration of one tool's tasks: concurrency limits, and whether another process continues a task if its process dies."""

    limits: Sequence[JsonObject] = ()
    """Limits that delay the start of a task, in addition to the limits of the task's caller (`policy.task_scheduling`)."""
    resumes: bool = True
    """Whether another process continues a task if the process that runs it dies."""
    queue: str = ""
    """Task queue at Temporal; empty for that of the gateway."""


@dataclass(slots=True, eq=False)
class Task:
    """A task: its stored row and, if this process runs the task (`is_here`), its state in memory."""

    row: TaskRow
    is_here: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)
    """Event that is set, and replaced by a new event, when the task changes in this process."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_lost: bool = False
    """Whether another process has taken the task over from this process."""
    is_parked: bool = False
    """Whether this process has released the task because it waits for a person. Then `is_lost` is set too."""
    refusal: str = ""
    """Why the gateway ended the task, if its caller may no longer call the tool; else empty."""
    unsaved: set[str] = field(default_factory=lambda: set[str]())
    """Names of questions that are not stored yet. Clients do not see them, because after a crash another question may get the same name."""

    @property
    def id(self) -> str:
        """The id of the task, which is random and cannot be guessed."""
        return self.row.id

    @property
    def tool(self) -> str:
        """The exposed name of the tool (the name by which clients call it)."""
        return self.row.tool

    @property
    def principal(self) -> str:
        """The id of the principal that made the call."""
        return self.row.principal

    @property
    def status(self) -> Status:
        """The MCP status of the task. It becomes `input_required` only when a question is stored, so that clients can read the question."""
        if self.row.status == "input_required" and not self.open_requests:
            return "working"
        return cast("Status", self.row.status)

    @property
    def message(self) -> str:
        """The status message of the task: "Queued", its latest progress, or how it ended."""
        return self.row.message

    @property
    def result(self) -> JsonObject | None:
        """The `CallToolResult` of a finished task; `None` if the task is unfinished, was cancelled, or ended with a JSON-RPC error."""
        return self.row.outcome.get("result")

    @property
    def error(self) -> JsonObject | None:
        """The JSON-RPC error (`code`, `message`) with which the task ended; `None` if it did not end with an error."""
        return self.row.outcome.get("error")

    @property
    def open_requests(self) -> dict[str, JsonObject]:
        """The requests for input without an answer, by name. Requests that are not stored yet are left out."""
        return {key: item["request"] for key, item in self.row.asked.items() if is_open(item) and key not in self.unsaved}

    @property
    def waits_for_input(self) -> bool:
        """Whether the task waits for the answer to a request for input, including requests that are not stored yet."""
        return any(map(is_open, self.row.asked.values()))

    @property
    def ttl_seconds(self) -> float:
        """Seconds for which the task stays stored after its end, so that clients can read it."""
        return self.row.ttl_seconds

    @property
    def created(self) -> datetime:
        """The time when the task was created (UTC)."""
        return datetime.fromtimestamp(self.row.created_at, UTC)

    @property
    def updated(self) -> datetime:
        """The time when the task last changed (UTC)."""
        return datetime.fromtimestamp(self.row.updated_at, UTC)

    @property
    def is_over(self) -> bool:
        """Whether the task has ended (is completed, failed or cancelled)."""
        return self.row.gone_at > 0

    def refuse(self, reason: str) -> None:
        """Cancel the task because its caller may no longer call the tool. The task then fails with the error text `reason`."""
        self.refusal = reason
        self.scope.cancel()

    def settle(self) -> None:
        """Change the status from `input_required` to `working` if all questions are answered or withdrawn."""
        if self.row.status == "input_required" and not self.waits_for_input:
            self.row.status = "working"

    def notify(self) -> None:
        """Wake all coroutines that wait for a change of this task (`changed`)."""
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
