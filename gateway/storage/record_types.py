"""Data types that the stores of the database accept and return, such as `TaskRow`. Importing them does not import the database driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from gateway.json_types import JsonObject, JsonValue
from gateway.storage.shared_clock import shared_now

Steps = dict[str, tuple[bool, JsonValue]]
"""The recorded steps of a task: key of each step → whether the step is done, and its JSON result.

A step is an action of the task, such as a tool call, that must not run twice if the task continues in another process."""

KEPT = "kept:"
"""Prefix of keys in `Steps` under which a task stores values other than the results of its steps (`DurablePort.keep`)."""

PROCESS_CHARS = 24
"""Number of characters of the id of a process. `TaskRow.owner` begins with the id of the process that runs the task."""

PARKED = "parked"
"""Value of `TaskRow.owner` while no process runs a task because it waits for a person (`TaskRows.park`)."""

WOKEN = "woken"
"""Value of `TaskRow.owner` from the answer to a `PARKED` task until a process runs the task."""

QuestionState = Literal[
    "open",
    "approved",
    "approved_always",
    "approved_always_with_arguments",
    "answered",
    "denied",
    "expired",
    "withdrawn",
    "delivered",
]
"""State of a question on the pending list (questions for a person that the client of the call cannot show).

`delivered`: the waiting call has received the approval or the answer. `withdrawn`: the call ended before the answer.
"""


QuestionApprover = Literal["caller", "operator", "other-principal"]
"""The principals that may answer a pending question: the caller of the waiting call, an operator, or any principal except the caller."""


CALL_KINDS = ("call.finished", "call.input_required", "read.finished", "task.finished")
"""Kinds of audit entries that record allowed calls and reads. All other kinds record decisions."""


@dataclass(slots=True)  # not frozen, because creating a frozen object takes three times as long, and each allowed call creates one
class AuditEntry:
    """One entry of the audit log. It contains names, counts and outcomes, and of arguments only what the section `audit` requests.

    It never contains questions or answers of people, or results. An entry is never changed.
    """

    at: float
    kind: str
    """Kind of the event that the audit entry records: `ask.judged`, `approval.decided`, `call.refused`, …"""
    source: str = ""
    name: str = ""
    principal: str = ""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))

    def to_json(self) -> JsonObject:
        """Return the entry as a JSON object, as `moongate audit --json` prints it."""
        return {
            **self.fields, "at": self.at, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Result of verifying the digests of the audit log: the number of checked entries, and the first problem."""

    entries: int
    problem: str = ""
    """Description of the first problem and where it is; empty if the log is intact."""


@dataclass(frozen=True, slots=True)
class PendingQuestion:
    """A question on the pending list: a question for a person that the client of the call cannot show."""

    id: str
    kind: Literal["call", "sampling", "question"]
    """Kind of the question: approval of a tool call, approval of a server's sampling request, or a workflow's question (a form)."""
    source: str
    name: str
    """Name of the tool, action or workflow that the question is about, or the MCP method `sampling/createMessage`."""
    principal: str
    shown: str
    """Text of the question for the person, of limited length and without control characters."""
    state: QuestionState
    created_at: float
    expires_at: float
    form: JsonObject | None = None
    """JSON Schema of the fields of the answer; `None` for a yes-or-no question."""
    answer: JsonObject | None = None
    """Values of the fields of the answer; `None` for a yes-or-no question, or before the question is answered."""
    by: QuestionApprover = "operator"
    """The principals that may answer the question."""
    decided_by: str = ""
    """Id of the principal that decided; empty before the decision."""

    def to_json(self) -> JsonObject:
        """Return the question as a JSON object, as `moongate approvals --json` prints it."""
        return {
            "id": self.id, "kind": self.kind, "source": self.source, "name": self.name, "principal": self.principal,
            "by": self.by, "decidedBy": self.decided_by or None,
            "shown": self.shown, "state": self.state, "createdAt": self.created_at, "expiresAt": self.expires_at, "form": self.form,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """A standing approval: calls of one tool by one principal that match the rule run without asking a person."""

    id: str
    principal: str
    source: str
    name: str
    """Native name of the tool, which is its name at its source."""
    arguments: str
    """Digest of the arguments that a call must have; empty if the rule approves any arguments."""
    shown: str
    """Text that the operator saw when creating the rule."""
    created_at: float
    expires_at: float
    made_by: str = ""
    """Id of the principal that created the rule, an operator."""

    def to_json(self) -> JsonObject:
        """Return the rule as a JSON object, as `moongate approvals rules --json` prints it."""
        return {
            "id": self.id, "principal": self.principal, "source": self.source, "name": self.name,
            "arguments": "these" if self.arguments else "any", "shown": self.shown,
            "createdAt": self.created_at, "expiresAt": self.expires_at, "madeBy": self.made_by,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredSession:
    """An entry of a list of sessions: a principal's conversation with an agent, without the messages."""

    id: str
    principal: str
    agent: str
    turns: int
    created_at: float
    used_at: float
    expires_at: float
    is_busy: bool
    """Whether a call of the agent is running in this session."""

    def to_json(self) -> JsonObject:
        """Return the session as a JSON object, as `moongate sessions --json` prints it. Times are in seconds since the epoch."""
        return {
            "id": self.id, "agent": self.agent, "turns": self.turns, "createdAt": self.created_at, "usedAt": self.used_at,
            "expiresAt": self.expires_at, "busy": self.is_busy,
        }  # fmt: skip


def is_open(item: JsonObject) -> bool:
    """Return whether a question of a task (a value of `TaskRow.asked`) is open: it has no answer and has not been withdrawn."""
    return "answer" not in item and not item.get("withdrawn")


def is_answer_to(stored: JsonObject, item: JsonObject) -> bool:
    """Return whether a stored question of a task has an answer that the task has not refused yet.

    `stored` is the question in the database, where another process may have added the answer; `item` is the running task's copy of it.
    """
    return "answer" in stored and stored.get("refusals", 0) == item.get("refusals", 0)


def forget(item: JsonObject) -> None:
    """Withdraw a question of a task (a value of `TaskRow.asked`), because the task no longer waits for the answer.

    The name of the question is not used again, so that late answers are ignored.
    """
    item.clear()
    item["withdrawn"] = True


@dataclass(slots=True)
class TaskRow:
    """A task (a tool call that runs in the background), as the database stores it."""

    id: str
    principal: str
    tool: str
    call: JsonObject
    """Data from which any process can repeat the call of the tool: arguments, principal, client, `_meta`."""
    ttl_seconds: float
    status: str = "working"
    message: str = ""
    outcome: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """The outcome of a finished task: an object with `result` or `error`; empty if the task is unfinished or cancelled."""
    asked: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """The questions (requests for input) of the task, by the name under which clients see them.

    Each question has `request`, `at` (the time of the request), `step` (a key that is the same when the task is resumed; empty if a resumed
    task does not repeat the question), `answer` once it is given, and `withdrawn` if the task no longer waits for the answer. If the code
    inside the task checks the answers (`judged`), the question also has `refusals` (number of refused answers), `problem` (reason of the
    last refusal) and `used` (whether an answer was used).
    """
    created_at: float = field(default_factory=shared_now)
    updated_at: float = field(default_factory=shared_now)
    gone_at: float = 0.0
    """Time at which a finished task expires and may be deleted; 0 while the task is unfinished."""
    is_cancelled: bool = False
    attempts: int = 1
    """Number of attempts to run the task: 1 at first, and 1 more for each process that took it over; 2 after `TaskRows.retry`."""
    deaths: int = 0
    """Number of processes that died while they ran the task. Deaths while the task only waited for a person do not count."""
    owner: str = ""
    """The process that runs the task, and, after a dot, the attempt if the engine names attempts; `PARKED`, `WOKEN`, or empty without one.

    Only the owner can change the task and its steps, so that a process that has lost the task has no effect on it."""
    limits: list[JsonObject] = field(default_factory=lambda: cast("list[JsonObject]", []))
    """Limits that keep the task in the queue.

    Each limit counts the tasks of one group, which `scope` names. It sets a maximum of tasks that run at once (`running`), of starts in a
    minute (`perMinute`), or both."""
    admitted_at: float = 0.0
    """Time at which the task was allowed to start; 0 while it is queued."""
    request_key: str = ""
    """Digest of the idempotency key that the caller sent with the call; empty without a key."""
    gateway: str = ""
    """Id of the gateway that may run the task; empty if every gateway that shares the database may run it."""

    def to_json(self) -> JsonObject:
        """Return the task as a JSON object, as `moongate tasks --json` prints it. Times are in seconds since the epoch."""
        return {
            "id": self.id, "tool": self.tool, "caller": self.principal, "status": self.status, "message": self.message,
            "queued": not self.admitted_at and not self.gone_at, "attempts": self.attempts, "createdAt": self.created_at,
            "updatedAt": self.updated_at, "keptUntil": self.gone_at or None,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """The result of `TaskRows.claim`: the task with its owner now, and its owner before."""

    row: TaskRow
    before: str
    """Owner of the task before; empty if no process has run the task."""


@dataclass(frozen=True, slots=True)
class StrandedTask:
    """An unfinished task that belongs to no living process and does not wait for a person."""

    id: str
    principal: str
    tool: str
    is_queued: bool
    """Whether the limits of the task have not allowed it to start yet."""
    queue: str = ""
    """Task queue at Temporal; empty for that of the gateway."""


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A queued or running task with its limits (`TaskRow.limits`). A `Choose` function selects the tasks that may start."""

    id: str
    principal: str
    limits: list[JsonObject]


Choose = Callable[[Sequence[WaitingTask], Sequence[WaitingTask], Mapping[str, int]], list[str]]
"""Function that receives the queued tasks, the running tasks and the numbers of recent starts, and returns the ids of the tasks to start.

The last argument maps the `scope` of a limit (name of the group of tasks that it counts) to the number of recent starts in the group."""
