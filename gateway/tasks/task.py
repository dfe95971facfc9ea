"""`Task`: one call in the background, as it stands. Made and changed by `runner`; read by `server.tasks` and the CLI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, cast

import anyio

from gateway.json_types import JsonObject
from gateway.storage.entries import TaskRow, is_open

Status = Literal["working", "input_required", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class TaskKind:
    """What a tool's rules say of its tasks."""

    limits: Sequence[JsonObject] = ()
    """What they wait for their turn by, beside their caller's limits (`policy.turns`)."""
    resumes: bool = True
    """Whether another process goes on with one whose process died."""


@dataclass(slots=True, eq=False)
class Task:
    """A view of a stored task; with `is_here`, the one that this process runs."""

    row: TaskRow
    is_here: bool = False
    moved: anyio.Event = field(default_factory=anyio.Event)
    """Set, and replaced, at every change here."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_lost: bool = False
    """Whether another process took it over."""
    refusal: str = ""
    """Why the task was ended, if its caller lost the right to it."""
    unsaved: set[str] = field(default_factory=lambda: set[str]())
    """Names of questions that are not on disk yet. Nobody is shown them: after a crash the same name may be given to another question."""

    @property
    def id(self) -> str:
        """Unguessable."""
        return self.row.id

    @property
    def tool(self) -> str:
        """The tool that was called, by its exposed name."""
        return self.row.tool

    @property
    def principal(self) -> str:
        """Whose it is."""
        return self.row.principal

    @property
    def status(self) -> Status:
        """The task's state. It is `input_required` only once the question can be read."""
        if self.row.status == "input_required" and not self.asks:
            return "working"
        return cast("Status", self.row.status)

    @property
    def message(self) -> str:
        """What it says about that."""
        return self.row.message

    @property
    def result(self) -> JsonObject | None:
        """What it gave, when it is over."""
        return self.row.outcome.get("result")

    @property
    def error(self) -> JsonObject | None:
        """A JSON-RPC error (`code`, `message`), where there is no result."""
        return self.row.outcome.get("error")

    @property
    def asks(self) -> dict[str, JsonObject]:
        """Open questions by key, as far as they are on disk."""
        return {key: item["request"] for key, item in self.row.asked.items() if is_open(item) and key not in self.unsaved}

    @property
    def is_asking(self) -> bool:
        """Whether a question is open, on disk or not."""
        return any(map(is_open, self.row.asked.values()))

    @property
    def ttl_seconds(self) -> float:
        """How long it is readable when it is over."""
        return self.row.ttl_seconds

    @property
    def created(self) -> datetime:
        """When it began."""
        return datetime.fromtimestamp(self.row.created_at, UTC)

    @property
    def updated(self) -> datetime:
        """When it changed last."""
        return datetime.fromtimestamp(self.row.updated_at, UTC)

    @property
    def is_over(self) -> bool:
        """Whether it will not change any more."""
        return self.row.gone_at > 0

    def refuse(self, reason: str) -> None:
        """End the work of a task whose caller lost the right to it; the task fails with this reason."""
        self.refusal = reason
        self.scope.cancel()

    def settle(self) -> None:
        """Set the status back to `working` if the task waited for answers, and no question is open any more."""
        if self.row.status == "input_required" and not self.is_asking:
            self.row.status = "working"

    def touch(self) -> None:
        """Wake whoever waits for a change."""
        moved, self.moved = self.moved, anyio.Event()
        moved.set()
