"""`Task`: the current state of one background call. `task_executor` creates and changes it; the server and the CLI read it."""

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
    """What the configuration says about tasks of one tool: their limits, and whether they survive their process."""

    limits: Sequence[JsonObject] = ()
    """Limits that a task waits for before it starts, in addition to the limits of its caller (`policy.task_scheduling`)."""
    resumes: bool = True
    """Whether another process continues a task whose process died."""


@dataclass(slots=True, eq=False)
class Task:
    """A stored task, and its live state if this process runs it (`is_here`)."""

    row: TaskRow
    is_here: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)
    """Event that is set, and replaced by a new event, when the task changes in this process."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_lost: bool = False
    """Whether another process took the task over."""
    refusal: str = ""
    """Why the gateway ended the task, if the caller lost the right to it."""
    unsaved: set[str] = field(default_factory=lambda: set[str]())
    """Names of questions that are not on disk yet. They are not shown, because after a crash another question may get the same name."""

    @property
    def id(self) -> str:
        """A random id that cannot be guessed."""
        return self.row.id

    @property
    def tool(self) -> str:
        """The exposed name of the called tool."""
        return self.row.tool

    @property
    def principal(self) -> str:
        """The id of the principal that made the call."""
        return self.row.principal

    @property
    def status(self) -> Status:
        """The MCP status of the task. It is `input_required` only once the question is on disk, where clients can read it."""
        if self.row.status == "input_required" and not self.open_requests:
            return "working"
        return cast("Status", self.row.status)

    @property
    def message(self) -> str:
        """The status message."""
        return self.row.message

    @property
    def result(self) -> JsonObject | None:
        """The `CallToolResult` of a finished task; `None` if it is unfinished or ended with an error."""
        return self.row.outcome.get("result")

    @property
    def error(self) -> JsonObject | None:
        """The JSON-RPC error (`code`, `message`) that ended the task."""
        return self.row.outcome.get("error")

    @property
    def open_requests(self) -> dict[str, JsonObject]:
        """Requests for input without an answer, by key. Requests that are not on disk yet are left out."""
        return {key: item["request"] for key, item in self.row.asked.items() if is_open(item) and key not in self.unsaved}

    @property
    def is_asking(self) -> bool:
        """Whether some request for input has no answer yet, even if the request is not on disk yet."""
        return any(map(is_open, self.row.asked.values()))

    @property
    def ttl_seconds(self) -> float:
        """Seconds for which the task can be read after its end."""
        return self.row.ttl_seconds

    @property
    def created(self) -> datetime:
        """When the task was created (UTC)."""
        return datetime.fromtimestamp(self.row.created_at, UTC)

    @property
    def updated(self) -> datetime:
        """When the task last changed (UTC)."""
        return datetime.fromtimestamp(self.row.updated_at, UTC)

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return self.row.gone_at > 0

    def refuse(self, reason: str) -> None:
        """Cancel the work because the caller may no longer call the tool. The task fails with `reason`."""
        self.refusal = reason
        self.scope.cancel()

    def settle(self) -> None:
        """Set the status from `input_required` back to `working` if no question is open."""
        if self.row.status == "input_required" and not self.is_asking:
            self.row.status = "working"

    def notify(self) -> None:
        """Wake the coroutines that wait for a change of this task."""
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
