"""Tables of the gateway's database in the current schema; `migrations` creates them. Times are seconds since the epoch."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

METADATA = sa.MetaData()


def _required(kind: type[sa.types.TypeEngine[Any]], *names: str) -> list[sa.Column[Any]]:
    """Return columns of one type that are never null."""
    return [sa.Column(name, kind, nullable=False) for name in names]


locks = sa.Table("locks", METADATA, sa.Column("name", sa.Text, primary_key=True))
"""One row per counted or chained set of rows. A transaction that changes the set locks this row first (`SELECT … FOR UPDATE`)."""

audit = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    *_required(sa.Text, "kind", "source", "name", "principal", "fields", "digest"),
    sa.Index("audit_at", "at"),
)
"""The audit log. `fields` is JSON; `digest` covers the row and the previous digest."""

audit_chain = sa.Table(
    "audit_chain",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("first", sa.Integer, nullable=False),
    sa.Column("base", sa.Text, nullable=False),
    sa.Column("last", sa.Integer, nullable=False),
    *_required(sa.Text, "head", "seal"),
)
"""One row: the first stored entry and the digest before it, the last entry and its digest, and a seal over all four."""

sampling_use = sa.Table(
    "sampling_use",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    *_required(sa.Text, "server", "principal"),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("sampling_use_key", "server", "principal", "at"),
)
"""One row per sampling request that counts towards a budget. A budget counts only requests of its own gateway (`of_gateway`)."""

asks = sa.Table(
    "asks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *_required(sa.Text, "kind", "source", "name", "principal", "shown", "state"),
    *_required(sa.Float, "created_at", "expires_at"),
    sa.Column("form", sa.Text, nullable=False, server_default=""),
    sa.Column("answer", sa.Text, nullable=False, server_default=""),
    sa.Column("approver", sa.Text, nullable=False, server_default="operator"),
    sa.Column("decided_by", sa.Text, nullable=False, server_default=""),
    sa.Index("asks_principal", "principal", "state"),
)
"""Questions for a person whose client cannot show them. `form` and `answer` are JSON: the schema and the values of the fields."""

approval_rules = sa.Table(
    "approval_rules",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *_required(sa.Text, "principal", "source", "name", "arguments", "shown"),
    *_required(sa.Float, "created_at", "expires_at"),
    sa.Column("made_by", sa.Text, nullable=False, server_default=""),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("approval_rules_tool", "principal", "source", "name"),
)
"""Standing approvals by operators. `arguments` is a digest, or empty for all calls of the tool. A rule applies only within its
`gateway`: two configurations may use one name for two servers."""

spent_approvals = sa.Table(
    "spent_approvals",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("until", sa.Float, nullable=False),
)
"""Request states of approved calls that were used. Each approves one more round of the call, once."""

sessions = sa.Table(
    "sessions",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *_required(sa.Text, "principal", "agent", "state"),
    *_required(sa.Integer, "turns", "bytes"),
    *_required(sa.Float, "created_at", "used_at", "expires_at"),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("held_until", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("sessions_principal", "principal", "used_at"),
    sa.Index("sessions_expiry", "expires_at"),
)
"""Conversations of callers with agents. `state` is JSON. The call that runs in a session holds it until `held_until` and renews
that time. Only processes of the same `gateway` see a session (`of_gateway`)."""

history = sa.Table(
    "history",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    *_required(sa.Text, "owner", "session", "messages"),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("history_session", "owner", "session", "id"),
)
"""Messages of conversations: one row per run with a JSON list, so that messages of two runs never interleave."""

tasks = sa.Table(
    "tasks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    *_required(sa.Text, "principal", "tool", "call", "status", "message", "outcome", "asked"),
    *_required(sa.Float, "ttl_seconds", "created_at", "updated_at", "gone_at"),
    *_required(sa.Integer, "is_cancelled", "attempts"),
    sa.Column("deaths", sa.Integer, nullable=False, server_default="0"),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("limits", sa.Text, nullable=False, server_default="[]"),
    sa.Column("admitted_at", sa.Float, nullable=False, server_default="0"),
    sa.Column("request_key", sa.Text, nullable=False, server_default=""),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("tasks_principal", "principal", "created_at"),
    sa.Index("tasks_open", "gone_at", "owner"),
    sa.Index("tasks_key", "principal", "request_key"),
)
"""Long-running calls. `call`, `outcome` and `asked` are JSON. `gone_at` is 0 while the task is unfinished. `owner` is the process that
runs it. While `admitted_at` is 0 the task is queued under `limits` (JSON). Requests of one caller with the same `request_key` are one
task. Only processes of the same `gateway` run a task; if it is empty, all do."""

task_owners = sa.Table(
    "task_owners",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("until", sa.Float, nullable=False),
)
"""One row per process that runs tasks. Other processes may take over its tasks when its lease has expired."""

task_starts = sa.Table(
    "task_starts",
    METADATA,
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("task_starts_at", "at"),
)
"""One row per task started within the last minute in a scope with a rate limit. `scope` begins with the gateway's id."""

task_steps = sa.Table(
    "task_steps",
    METADATA,
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("is_done", sa.Integer, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
)
"""Steps of tasks: a row is inserted when a step begins and receives the JSON result when it is done."""

checkpoints = sa.Table(
    "checkpoints",
    METADATA,
    sa.Column("seq", sa.Integer, primary_key=True),
    *_required(sa.Text, "owner", "id", "workflow", "graph"),
    sa.Column("iteration", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("form", sa.Text, nullable=False),
    sa.Index("checkpoints_id", "owner", "id", unique=True),
    sa.Index("checkpoints_workflow", "owner", "workflow", "at"),
)
"""Workflow runs between two rounds. `form` is versioned JSON; `graph` is the signature of the workflow's graph."""

memories = sa.Table(
    "memories",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    *_required(sa.Text, "owner", "collection", "text"),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("memories_owner", "owner", "collection", "id"),
)
"""Texts with their embeddings: 32-bit little-endian floats of length 1."""


def of_gateway(table: sa.Table, gateway: str) -> sa.ColumnElement[bool]:
    """Return the condition that a row belongs to `gateway` or to a version that did not record gateways; true for all if it is empty.

    A gateway is identified by its configuration: all its processes and ports share their rows.
    """
    return table.c.gateway.in_((gateway, "")) if gateway else sa.true()
