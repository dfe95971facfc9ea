"""Plain data types that the database's repositories accept and return. Importing them does not import the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from gateway.json_types import JsonObject, JsonValue

Steps = dict[str, tuple[bool, JsonValue]]
"""Recorded steps of a task: key of the step → whether the step is done, and its result."""

KEPT = "kept:"
"""Key prefix, in `Steps`, of values that a task stores besides the results of its steps (`DurablePort.keep`)."""

QuestionState = Literal[
    "open", "approved", "approved_always", "approved_always_with_arguments", "answered", "denied", "expired", "withdrawn",
    "delivered",
]
"""State of a pending question. `delivered`: the waiting call received the approval or the answer. `withdrawn`: the call ended before an
answer came."""


QuestionApprover = Literal["caller", "operator", "other-principal"]
"""Who may answer a pending question: the caller of the waiting call, an operator, or any principal except the caller."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log: names, counts and outcomes, never the content of questions, answers or arguments."""

    at: float
    kind: str
    """Kind of event: `ask.judged`, `approval.decided`, `call.refused`, …"""
    source: str = ""
    name: str = ""
    principal: str = ""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))

    def to_json(self) -> JsonObject:
        """Return the entry as `moongate audit --json` prints it."""
        return {
            **self.fields, "at": self.at, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Result of verifying the audit log."""

    entries: int
    problem: str = ""
    """The first problem and its place; empty if the log is intact."""


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """A question for a person whose client cannot show it."""

    id: str
    kind: Literal["call", "sampling", "question"]
    """Approval of a tool call, approval of a server's sampling request, or a workflow's question, which has a form."""
    source: str
    name: str
    """Name of the tool that is to be called, or the MCP method `sampling/createMessage`."""
    principal: str
    shown: str
    """Text for the person, of bounded length and without control characters."""
    state: QuestionState
    created_at: float
    expires_at: float
    form: JsonObject | None = None
    """JSON Schema of the answer's fields; `None` for a yes-or-no question."""
    answer: JsonObject | None = None
    """Values of the fields, once the question is answered."""
    by: QuestionApprover = "operator"
    """Who may answer the question."""
    decided_by: str = ""
    """Id of the principal that decided; empty before the decision."""

    def to_json(self) -> JsonObject:
        """Return the question as `moongate approvals --json` prints it."""
        return {
            "id": self.id, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
            "by": self.by, "decidedBy": self.decided_by or None,
            "shown": self.shown, "state": self.state, "createdAt": self.created_at, "expiresAt": self.expires_at, "form": self.form,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """A standing approval: calls of one caller that match the rule run without asking a person."""

    id: str
    principal: str
    source: str
    name: str
    """The tool's name at its source."""
    arguments: str
    """Digest of the arguments that a call must have; empty for any arguments."""
    shown: str
    """Text that the operator saw when creating the rule."""
    created_at: float
    expires_at: float
    made_by: str = ""
    """Id of the operator who created the rule."""

    def to_json(self) -> JsonObject:
        """Return the rule as `moongate approvals rules --json` prints it."""
        return {
            "id": self.id, "principal": self.principal, "source": self.source, "name": self.name,
            "arguments": "these" if self.arguments else "any", "shown": self.shown,
            "createdAt": self.created_at, "expiresAt": self.expires_at, "madeBy": self.made_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A caller's conversation with an agent, without its messages."""

    id: str
    principal: str
    agent: str
    turns: int
    created_at: float
    used_at: float
    expires_at: float
    is_busy: bool
    """Whether a call of the agent is running in this conversation."""

    def to_json(self) -> JsonObject:
        """Return the session as `session_list` and `moongate sessions --json` show it; times in seconds since the epoch."""
        return {
            "id": self.id, "agent": self.agent, "turns": self.turns, "createdAt": self.created_at, "usedAt": self.used_at,
            "expiresAt": self.expires_at, "busy": self.is_busy,
        }  # fmt: skip


def is_open(item: JsonObject) -> bool:
    """Return whether a question (a value of `TaskRow.asked`) still waits for an answer."""
    return "answer" not in item and not item.get("withdrawn")


def is_answer_to(stored: JsonObject, item: JsonObject) -> bool:
    """Return whether the stored question has an answer that the task has not refused. `item` is the running task's copy of the question."""
    return "answer" in stored and stored.get("refusals", 0) == item.get("refusals", 0)


def forget(item: JsonObject) -> None:
    """Withdraw a question in `TaskRow.asked`. Its name stays reserved, so that a late answer cannot reach another question."""
    item.clear()
    item["withdrawn"] = True


@dataclass(slots=True)
class TaskRow:
    """A task as it is stored."""

    id: str
    principal: str
    tool: str
    call: JsonObject
    """Data needed to run the task: arguments, caller, client."""
    ttl_seconds: float
    status: str = "working"
    message: str = ""
    outcome: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """`result` or `error` of a finished task."""
    asked: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Questions by the name that clients use. Each has `request`, `at` (time), `step` (durable key; empty if the question ends with the
    attempt), `answer` once given, and `withdrawn` if the task no longer waits. A question whose answers the task's code judges
    (`judged`) also has `refusals` (number of refused answers), `problem` (reason of the last refusal) and `used`."""
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    gone_at: float = 0.0
    """Time at which the task expires and may be deleted; 0 while the task is unfinished."""
    is_cancelled: bool = False
    attempts: int = 1
    """Number of processes that have run the task."""
    deaths: int = 0
    """Number of those processes that died during the work. Processes that stopped, or died while a person was asked, do not count."""
    owner: str = ""
    limits: list[JsonObject] = field(default_factory=lambda: cast("list[JsonObject]", []))
    """Limits that the task waits for in the queue. Each has a `scope`, and the maximum of `running` tasks, of starts `perMinute`, or
    both."""
    admitted_at: float = 0.0
    """Time at which the task was started; 0 while it is queued."""
    request_key: str = ""
    """Digest of the idempotency key that the caller sent with the call; empty without a key."""
    gateway: str = ""
    """Id of the gateway that may run the task; empty if every gateway that shares the database may."""

    def to_json(self) -> JsonObject:
        """Return the task as `moongate tasks --json` prints it; times in seconds since the epoch."""
        return {
            "id": self.id, "tool": self.tool, "caller": self.principal, "status": self.status, "message": self.message,
            "queued": not self.admitted_at and not self.gone_at, "attempts": self.attempts, "createdAt": self.created_at,
            "updatedAt": self.updated_at, "keptUntil": self.gone_at or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A queued or running task with its limits (see `TaskRow.limits`), for the decision which queued tasks may start."""

    id: str
    principal: str
    limits: list[JsonObject]


Choose = Callable[[Sequence[WaitingTask], Sequence[WaitingTask], Mapping[str, int]], list[str]]
"""Function (queued tasks, running tasks, recent starts by scope) → ids of the queued tasks to start now."""
