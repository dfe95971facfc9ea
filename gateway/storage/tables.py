"""The tables of the gateway's database and their columns, for statements. `migrations` creates them and defines types and indexes.

Times are seconds since the epoch.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


locks = _table("locks", "name")
"""One row per table whose rows are counted or chained by digests. A transaction that adds such rows locks this row first
(`SELECT … FOR UPDATE`)."""

audit = _table("audit", "id", "at", "kind", "source", "name", "principal", "fields", "digest")
"""The audit log. `fields` is JSON; `digest` covers the row and the previous digest."""

audit_chain = _table("audit_chain", "id", "first", "base", "last", "head", "seal")
"""One row: the first stored entry and the digest before it, the last entry and its digest, and a keyed digest of these four values (the
seal)."""

sampling_use = _table("sampling_use", "id", "server", "principal", "at", "gateway")
"""One row per sampling request that counts towards a budget. A budget counts only requests of its own gateway (`of_gateway`)."""

asks = _table(
    "asks", "id", "kind", "source", "name", "principal", "shown", "state", "created_at", "expires_at",
    "form", "answer", "approver", "decided_by",
)  # fmt: skip
"""Questions for a person whose client cannot show them. `form` and `answer` are JSON: the schema and the values of the fields."""

approval_rules = _table(
    "approval_rules", "id", "principal", "source", "name", "arguments", "shown", "created_at", "expires_at", "made_by", "gateway",
)  # fmt: skip
"""Standing approvals by operators. `arguments` is a digest, or empty for all calls of the tool. A rule applies only within its
`gateway`: two configurations may use one name for two servers."""

spent_approvals = _table("spent_approvals", "id", "until")
"""Approval marks that were used. A mark in the `requestState` of an approved call approves one retry of the call, once."""

sessions = _table(
    "sessions", "id", "principal", "agent", "state", "turns", "bytes", "created_at", "used_at", "expires_at",
    "holder", "held_until", "gateway",
)  # fmt: skip
"""Conversations of callers with agents. `state` is JSON. The call that runs in a session holds it until `held_until` and renews
that time. Only processes of the same `gateway` see a session (`of_gateway`)."""

history = _table("history", "id", "owner", "session", "messages", "at")
"""Messages of conversations: one row per run with a JSON list, so that messages of two runs never interleave."""

tasks = _table(
    "tasks", "id", "principal", "tool", "call", "status", "message", "outcome", "asked", "ttl_seconds", "created_at", "updated_at",
    "gone_at", "is_cancelled", "attempts", "deaths", "owner", "limits", "admitted_at", "request_key", "gateway",
)  # fmt: skip
"""Long-running calls. `call`, `outcome` and `asked` are JSON. `gone_at` is 0 while the task is unfinished. `owner` is the process that
runs it. While `admitted_at` is 0 the task is queued under `limits` (JSON). Requests of one caller with the same `request_key` are one
task. Only processes of the same `gateway` run a task; if `gateway` is empty, every process may."""

task_owners = _table("task_owners", "id", "until")
"""One row per process that runs tasks. Other processes may take over its tasks when its lease has expired."""

task_starts = _table("task_starts", "scope", "at")
"""One row per task started within the last minute in a scope with a rate limit. `scope` begins with the gateway's id."""

task_steps = _table("task_steps", "task", "key", "is_done", "value")
"""Steps of tasks: a row is inserted when a step begins and receives the JSON result when it is done."""

checkpoints = _table("checkpoints", "seq", "owner", "id", "workflow", "graph", "iteration", "at", "form")
"""Workflow runs between two rounds. `form` is versioned JSON; `graph` is the signature of the workflow's graph."""

memories = _table("memories", "id", "owner", "collection", "text", "vector", "fields", "at")
"""Texts with their embeddings: 32-bit little-endian floats of length 1."""


def of_gateway(table: sa.TableClause, gateway: str) -> sa.ColumnElement[bool]:
    """Return the condition that a row belongs to `gateway`, or comes from a version that did not record gateways.

    If `gateway` is empty, the condition holds for every row.

    A gateway is identified by its configuration: all its processes and ports share their rows.
    """
    return table.c.gateway.in_((gateway, "")) if gateway else sa.true()


async def delete_oldest(
    connection: AsyncConnection, table: sa.TableClause, number: sa.ColumnClause[int], rows: sa.ColumnElement[bool], *, keep: int
) -> None:
    """Delete the oldest of the matching `rows`, so that at most `keep` remain. The column `number` grows with each inserted row."""
    newest = sa.select(number).where(rows).order_by(number.desc()).offset(keep).limit(1)
    last = (await connection.execute(newest)).scalar_one_or_none()
    if last is not None:
        await connection.execute(sa.delete(table).where(rows & (number <= last)))
