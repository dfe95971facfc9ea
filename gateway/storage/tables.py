"""The tables of the gateway's database as they are now; `migrations` makes them. Times are seconds since the epoch."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()

locks = sa.Table("locks", METADATA, sa.Column("name", sa.Text, primary_key=True))
"""A row per thing that is counted or chained: whoever changes that takes the row first (`SELECT … FOR UPDATE`)."""

audit = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Index("audit_at", "at"),
)
"""What was decided. `fields` is JSON; `digest` covers the row and the one before it."""

audit_chain = sa.Table(
    "audit_chain",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("first", sa.Integer, nullable=False),
    sa.Column("base", sa.Text, nullable=False),
    sa.Column("last", sa.Integer, nullable=False),
    sa.Column("head", sa.Text, nullable=False),
    sa.Column("seal", sa.Text, nullable=False),
)
"""One row: the oldest row kept with the digest before it, the newest with its own, and a seal over all four."""

sampling_use = sa.Table(
    "sampling_use",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("server", sa.Text, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("sampling_use_key", "server", "principal", "at"),
)
"""One row per sampling request that a budget counts. A budget counts the requests of its own `gateway` (`of_gateway`)."""

asks = sa.Table(
    "asks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("shown", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("form", sa.Text, nullable=False, server_default=""),
    sa.Column("answer", sa.Text, nullable=False, server_default=""),
    sa.Column("approver", sa.Text, nullable=False, server_default="operator"),
    sa.Column("decided_by", sa.Text, nullable=False, server_default=""),
    sa.Index("asks_principal", "principal", "state"),
)
"""Questions for a person whose client cannot ask them. `form` and `answer` are JSON: the schema of the fields wanted, and their values."""

approval_rules = sa.Table(
    "approval_rules",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("arguments", sa.Text, nullable=False),
    sa.Column("shown", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("made_by", sa.Text, nullable=False, server_default=""),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("approval_rules_tool", "principal", "source", "name"),
)
"""Calls that an operator approved for good. `arguments` is a digest, or empty for every call of the tool. A rule holds for processes of
the same `gateway`: two configurations may give one name to two servers."""

spent_approvals = sa.Table(
    "spent_approvals",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("until", sa.Float, nullable=False),
)
"""Request states of approved calls that were used: each lets one more round of the call through, once."""

sessions = sa.Table(
    "sessions",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("turns", sa.Integer, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("held_until", sa.Float, nullable=False),
    sa.Column("gateway", sa.Text, nullable=False, server_default=""),
    sa.Index("sessions_principal", "principal", "used_at"),
    sa.Index("sessions_expiry", "expires_at"),
)
"""Conversations that callers have with agents. `state` is JSON; whoever runs one holds it until `held_until`, and renews that.
Only processes of the same `gateway` know a session (`of_gateway`)."""

history = sa.Table(
    "history",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("messages", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("history_session", "owner", "session", "id"),
)
"""What was said, a row per run: a JSON list of messages, so that what belongs together is never mixed with another run's."""

tasks = sa.Table(
    "tasks",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("tool", sa.Text, nullable=False),
    sa.Column("call", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("asked", sa.Text, nullable=False),
    sa.Column("ttl_seconds", sa.Float, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
    sa.Column("gone_at", sa.Float, nullable=False),
    sa.Column("is_cancelled", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
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
"""Long-running work. `call`, `outcome` and `asked` are JSON. `gone_at` is 0 until it is over; the owner runs it. While `admitted_at`
is 0 it waits for its turn; `limits` (JSON) says what for. Requests of one caller with the same `request_key` are one task. Only
processes of the same `gateway` run a task; if it is empty, all do."""

task_owners = sa.Table(
    "task_owners",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("until", sa.Float, nullable=False),
)
"""A row per process that runs tasks: whoever finds its lease run out may take them over."""

task_starts = sa.Table(
    "task_starts",
    METADATA,
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("task_starts_at", "at"),
)
"""A row per task that began in a scope whose beginnings are limited; those of the last minute. `scope` begins with the gateway's id."""

task_steps = sa.Table(
    "task_steps",
    METADATA,
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("is_done", sa.Integer, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
)
"""What a task did: a row when a step begins, its JSON result when it is done."""

checkpoints = sa.Table(
    "checkpoints",
    METADATA,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("graph", sa.Text, nullable=False),
    sa.Column("iteration", sa.Integer, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("form", sa.Text, nullable=False),
    sa.Index("checkpoints_id", "owner", "id", unique=True),
    sa.Index("checkpoints_workflow", "owner", "workflow", "at"),
)
"""Runs of workflows between two rounds. `form` is JSON with a version; `graph` is the signature of the graph it belongs to."""

memories = sa.Table(
    "memories",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("collection", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("vector", sa.LargeBinary, nullable=False),
    sa.Column("fields", sa.Text, nullable=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Index("memories_owner", "owner", "collection", "id"),
)
"""Texts with their embeddings: 32-bit floats, little-endian, of length 1."""


def of_gateway(table: sa.Table, gateway: str) -> sa.ColumnElement[bool]:
    """Whether a row is of `gateway`, or of a version before rows named their gateway. All rows are, if `gateway` is empty.

    A gateway is a configuration here: its processes and ports share their rows, and gateways of other configurations have their own.
    """
    return table.c.gateway.in_((gateway, "")) if gateway else sa.true()
