"""What the database's repositories take and give: plain data, so that naming it does not import the database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from gateway.json_types import JsonObject, JsonValue

Steps = dict[str, tuple[bool, JsonValue]]
"""What a task did, by key: whether the step is done, and its result."""

KEPT = "kept:"
"""Begins the key of a value that a task keeps beside its steps (`DurablePort.keep`)."""

AskState = Literal[
    "open", "approved", "approved_always", "approved_always_with_arguments", "answered", "denied", "expired", "withdrawn",
    "delivered",
]
"""`delivered`: an approval or answer that the waiting call took. `withdrawn`: the call ended before anybody answered."""


AskApprover = Literal["caller", "operator", "other-principal"]
"""Who may decide: the caller that waits, an operator, or any other principal."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log. Names, counts and outcomes only: never what was asked, answered or called with."""

    at: float
    kind: str
    """The event's kind: `ask.judged`, `approval.decided`, `call.refused`, …"""
    source: str = ""
    name: str = ""
    principal: str = ""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))

    def to_json(self) -> JsonObject:
        """As `moongate audit --json` prints it."""
        return {
            **self.fields, "at": self.at, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Whether the audit log is as it was written."""

    entries: int
    problem: str = ""
    """What is wrong and where; empty when nothing is."""


@dataclass(frozen=True, slots=True)
class PendingAsk:
    """A question that waits for a person outside the client."""

    id: str
    kind: Literal["call", "sampling", "question"]
    """A tool call, a server's request for a model's answer, or what a workflow asks, which is answered in a form."""
    source: str
    name: str
    """Tool or method."""
    principal: str
    shown: str
    """What the person is told; already bounded and without control characters."""
    state: AskState
    created_at: float
    expires_at: float
    form: JsonObject | None = None
    """Schema of the fields that the answer has; `None` where it is yes or no."""
    answer: JsonObject | None = None
    """Their values, once it is answered."""
    by: AskApprover = "operator"
    """Who may decide."""
    decided_by: str = ""
    """Id of the principal that decided; empty before."""

    def to_json(self) -> JsonObject:
        """As `moongate approvals --json` prints it."""
        return {
            "id": self.id, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
            "by": self.by, "decidedBy": self.decided_by or None,
            "shown": self.shown, "state": self.state, "createdAt": self.created_at, "expiresAt": self.expires_at, "form": self.form,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Calls of one caller that need no question any more."""

    id: str
    principal: str
    source: str
    name: str
    """Native name of the tool."""
    arguments: str
    """Digest of the arguments that a call must have; empty: any."""
    shown: str
    """What the person was shown who made it."""
    created_at: float
    expires_at: float
    made_by: str = ""
    """Id of the operator who made it."""

    def to_json(self) -> JsonObject:
        """As `moongate approvals rules --json` prints it."""
        return {
            "id": self.id, "principal": self.principal, "source": self.source, "name": self.name,
            "arguments": "these" if self.arguments else "any", "shown": self.shown,
            "createdAt": self.created_at, "expiresAt": self.expires_at, "madeBy": self.made_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A conversation of a caller with an agent, without what was said."""

    id: str
    principal: str
    agent: str
    turns: int
    created_at: float
    used_at: float
    expires_at: float
    is_busy: bool
    """A call is in the middle of it."""

    def to_json(self) -> JsonObject:
        """As `session_list` and `moongate sessions --json` show it; times are seconds since the epoch."""
        return {
            "id": self.id, "agent": self.agent, "turns": self.turns, "createdAt": self.created_at, "usedAt": self.used_at,
            "expiresAt": self.expires_at, "busy": self.is_busy,
        }  # fmt: skip


def is_open(item: JsonObject) -> bool:
    """Whether a question in `TaskRow.asked` waits for an answer."""
    return "answer" not in item and not item.get("withdrawn")


def is_answer_to(stored: JsonObject, item: JsonObject) -> bool:
    """Whether the stored question has an answer to `item`, the question as its task knows it: not one that the task's work refused."""
    return "answer" in stored and stored.get("refusals", 0) == item.get("refusals", 0)


def forget(item: JsonObject) -> None:
    """Withdraw a question in `TaskRow.asked` for good. Its name stays taken, so that a late answer cannot reach another question."""
    item.clear()
    item["withdrawn"] = True


@dataclass(slots=True)
class TaskRow:
    """One task as it is stored."""

    id: str
    principal: str
    tool: str
    call: JsonObject
    """What is needed to run it: arguments, caller, client."""
    ttl_seconds: float
    status: str = "working"
    message: str = ""
    outcome: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """`result` or `error`, when it is over."""
    asked: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Questions by the name that clients know them by: `request`, `at` (when it was asked), `step` (its durable key, empty for a question
    that ends with its attempt), `answer` once there is one, and `withdrawn` if nobody waits for an answer any more. Of a question whose
    answers the task's work judges (`judged`): `refusals` (how many answers it refused), `problem` (why the last), and `used`."""
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    gone_at: float = 0.0
    """When it may be forgotten; 0 while it is not over."""
    is_cancelled: bool = False
    attempts: int = 1
    """How many processes have run it."""
    deaths: int = 0
    """How many of them died while it worked: a process that stops, and one that dies while a person is asked, do not count."""
    owner: str = ""
    limits: list[JsonObject] = field(default_factory=lambda: cast("list[JsonObject]", []))
    """What it waits for its turn by: `scope`, and `running` and `perMinute` where they are limited."""
    admitted_at: float = 0.0
    """When its turn came; 0 while it waits."""
    request_key: str = ""
    """Digest of what the caller knows its request by; empty where it gave nothing."""
    gateway: str = ""
    """The gateway whose processes may run it; empty if all gateways that share the database may."""

    def to_json(self) -> JsonObject:
        """As `moongate tasks --json` prints it; times are seconds since the epoch."""
        return {
            "id": self.id, "tool": self.tool, "caller": self.principal, "status": self.status, "message": self.message,
            "queued": not self.admitted_at and not self.gone_at, "attempts": self.attempts, "createdAt": self.created_at,
            "updatedAt": self.updated_at, "keptUntil": self.gone_at or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task that waits for its turn, or (of one that runs) what it takes up."""

    id: str
    principal: str
    limits: list[JsonObject]


Choose = Callable[[Sequence[WaitingTask], Sequence[WaitingTask], Mapping[str, int]], list[str]]
"""Of those that wait, given those that run and how many began lately by scope: the ids of those whose turn it is."""
