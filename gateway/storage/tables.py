"""Declares the tables of the gateway's database with their columns, for SQL statements. `migrations` creates them, with types and indexes.

All times are in seconds since the epoch.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection


def _table(name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns))


locks = _table("locks", "name")
"""Rows that transactions lock (`SELECT … FOR UPDATE`), so that only one transaction at a time counts the rows of a table and adds to it.

There is one row per table, or group of tables. Some locks enforce a limit on the number of rows. The lock of the audit log orders its
entries, because each entry contains the digest of the previous entry.
"""

audit = _table("audit", "id", "at", "kind", "source", "name", "principal", "fields", "digest")
"""The audit log, with one row per entry. `fields` is JSON; `digest` covers the row and the digest of the previous row."""

audit_chain = _table("audit_chain", "id", "first", "base", "last", "head", "seal")
"""The ends of the audit log, in one row, so that removed entries are detected.

`first` is the id of the first stored entry, and `base` is the digest of the entry before it. `last` and `head` are the id and digest of the
last entry. `seal` is a keyed digest of these four values.
"""

sampling_use = _table("sampling_use", "id", "server", "principal", "at", "gateway")
"""The sampling requests of servers, with one row per request, to enforce the budgets that limit their number.

Each gateway counts only its own rows (`of_gateway`)."""

asks = _table(
    "asks", "id", "kind", "source", "name", "principal", "shown", "state", "created_at", "expires_at",
    "form", "answer", "approver", "decided_by",
)  # fmt: skip
"""The pending list: questions for a person that the client of the call cannot show.

`form` and `answer` are JSON: the schema and the values of the fields of an answer.
"""

approval_rules = _table(
    "approval_rules", "id", "principal", "source", "name", "arguments", "shown", "created_at", "expires_at", "made_by", "gateway",
)  # fmt: skip
"""Standing approvals: decisions of operators that a principal may call a tool without asking.

`arguments` is a digest, or empty for all calls of the tool. A rule applies only to its `gateway`, because two configurations may use the
same name for different servers. Gateways that share a database server share their rules, whose `gateway` is empty.
"""

spent_approvals = _table("spent_approvals", "id", "until")
"""Ids of used approval marks. An approval mark is part of the `requestState` of an approved call, and approves one retry of the call."""

sessions = _table(
    "sessions", "id", "principal", "agent", "state", "turns", "bytes", "created_at", "used_at", "expires_at",
    "holder", "held_until", "gateway",
)  # fmt: skip
"""Sessions: conversations of principals with agents. `state` is JSON.

A call that runs in a session reserves the session until `held_until`, under a random id (`holder`), and renews the reservation. Only
processes of the same `gateway` see a session (`of_gateway`).
"""

client_sessions = _table("client_sessions", "name", "number", "log_level", "watched", "is_ended", "until")
"""The state that replicas share about 2025 sessions of clients, one row per session that differs from its initial state.

`name` identifies the session, `watched` is a JSON list of URIs, and `number` increases with each change of a row. The row with an empty
name has the number of the latest change.
"""

replicas = _table("replicas", "id", "address", "path", "version", "until", "name", "configuration", "lease")
"""The replicas of a gateway, and the addresses at which they reach each other. After the time `until`, a replica is dead.

`name` is the name of its machine, and `configuration` a digest. `lease` is the number of seconds by which it last extended `until`.
"""

refused_replicas = _table("refused_replicas", "id", "name", "version", "reason", "at")
"""Gateways that did not start, because they could not use this database, with the time of the last attempt."""

server_leases = _table("server_leases", "server", "owner", "epoch", "until")
"""Leases: which replica runs the process of a stdio server with `single: true`. `epoch` numbers the leases of a server.

After the time `until`, the lease has expired, and another replica may take it.
"""

history = _table("history", "id", "owner", "session", "messages", "at")
"""The messages of conversations: one row per run of an agent, with a JSON list, so that messages of concurrent runs never interleave."""

tasks = _table(
    "tasks", "id", "principal", "tool", "call", "status", "message", "outcome", "asked", "ttl_seconds", "created_at", "updated_at",
    "gone_at", "is_cancelled", "attempts", "deaths", "owner", "limits", "admitted_at", "request_key", "gateway",
)  # fmt: skip
"""Tasks: tool calls that run in the background. `call`, `outcome`, `asked` and `limits` are JSON.

`gone_at` is 0 while the task is unfinished. `owner` begins with the id of the process that runs the task. While `admitted_at` is 0, the
task is queued because of its `limits`. Two calls of one principal with the same `request_key` (digest of the idempotency key) create only
one task. Only processes of the same `gateway` run a task; if `gateway` is empty, every process may run it.
"""

task_owners = _table("task_owners", "id", "until")
"""Leases: one row per process. A lease is the right of a process to run its tasks.

After the time `until`, the lease has expired, and other processes may take over the tasks of the process."""

task_starts = _table("task_starts", "scope", "at")
"""Recent starts of tasks, to enforce limits on starts per minute; one row per start and per such limit that applies to the task.

A limit counts the starts of one group of tasks. `scope` is the name of the group, and begins with the id of the gateway, if it has one."""

task_steps = _table("task_steps", "task", "key", "is_done", "value")
"""Recorded steps of tasks. A row is inserted when a step begins, and receives the JSON result when the step is done."""

checkpoints = _table("checkpoints", "seq", "owner", "id", "workflow", "graph", "iteration", "at", "form")
"""Checkpoints: saved states of workflow runs between two supersteps (rounds). `form` is the state as versioned JSON.

`graph` is a digest of the workflow's graph, because a state fits only the graph with which it was made."""

memories = _table("memories", "id", "owner", "collection", "text", "vector", "fields", "at")
"""Texts with their embeddings, for similarity search. `vector` is an array of 32-bit little-endian floats, scaled to length 1."""

versions = _table("versions", "name", "number")
"""Versions of shared data, one row per topic of the `ChangeFeed`. The transaction that changes the data increments `number`."""

installation = _table("installation", "id", "digest")
"""One row with a digest of the installation key of the gateways that share this database, to detect a gateway with another key."""

api_keys = _table("api_keys", "id", "name", "digest", "scopes", "created_at", "expires_at", "revoked_at")
"""API keys of gateways that share a database server. `digest` is the SHA-256 of the token, and `scopes` is JSON (a list, or `null`).

`revoked_at` is 0 while the key is not revoked. The rows of revoked keys remain, so that importing a key file again revives no key.
"""

loaded_tools = _table("loaded_tools", "client", "number", "tools")
"""The on-demand tools that clients of replicas have loaded, one row per client. `tools` is a JSON list of names.

`number` increases with each change of a row. The row with an empty client has the number of the latest change.
"""

tool_definitions = _table("tool_definitions", "server", "tool", "definition", "at")
"""The definitions of remote servers' tools as first listed, or as a person last accepted them, for gateways that share a database server.

`server` is the server's name and a digest of its configuration entry, and `definition` is JSON.
"""

oauth_grants = _table("oauth_grants", "id", "version", "sealed", "holder", "held_until")
"""The OAuth grants (registration and tokens) for remote servers, for gateways that share a database server.

`id` is a digest of the server, its URL and the owner. `sealed` is the encrypted grant as base64, or empty without a grant, such as after a
sign-out. `version` increases with each change. A gateway that renews the tokens holds the row until `held_until`, under a random id
(`holder`).
"""

TABLES: tuple[sa.TableClause, ...] = (
    locks, audit, audit_chain, sampling_use, asks, approval_rules, spent_approvals, sessions, history, tasks, task_owners, task_starts,
    task_steps, checkpoints, memories, versions, installation, api_keys, client_sessions, replicas,
    server_leases, loaded_tools, tool_definitions, oauth_grants, refused_replicas,
)  # fmt: skip
"""All tables, except those with the version of the schema."""


def database_clock(connection: AsyncConnection | sa.Connection) -> sa.ColumnElement[float]:
    """Return an SQL expression for the current time, to compare with times that other processes stored.

    With PostgreSQL, it is the time of the database server, because the clocks of machines differ. With SQLite, it is the time of this
    machine, in milliseconds.
    """
    if connection.dialect.name == "postgresql":
        return sa.cast(sa.func.date_part("epoch", sa.func.clock_timestamp()), sa.Float)
    return sa.cast((sa.func.julianday("now") - 2440587.5) * 86400.0, sa.Float)


def of_gateway(table: sa.TableClause, gateway: str) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a row of `table` belongs to the gateway with the id `gateway`; an empty id matches every row.

    Rows without the id of a gateway, which an earlier version of Moongate stored, match too. The id identifies a configuration, so all
    processes and ports of a configuration share their rows.
    """
    return table.c.gateway.in_((gateway, "")) if gateway else sa.true()


async def delete_oldest(
    connection: AsyncConnection, table: sa.TableClause, number: sa.ColumnClause[int], rows: sa.ColumnElement[bool], *, keep: int
) -> None:
    """Delete the oldest rows of `table` among those that match the condition `rows`, so that at most `keep` remain.

    `number` is a column whose value increases with each inserted row.
    """
    newest = sa.select(number).where(rows).order_by(number.desc()).offset(keep).limit(1)
    last = (await connection.execute(newest)).scalar_one_or_none()
    if last is not None:
        await connection.execute(sa.delete(table).where(rows & (number <= last)))
