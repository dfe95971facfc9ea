"""Migrates the gateway's database from any earlier schema version to the newest. The module `engine` calls `migrate` under a lock.

The module never migrates to an earlier version. A released step never changes. Steps are SQL text, so that changes of the module `tables`
cannot alter them. Alembic is not used, because a version number and a list of steps need no tool that imports a project's configuration.

**Expand, then contract.** During a rolling upgrade, programs of two versions use one database. Therefore a change that an earlier program
would not survive takes two releases:

1. *Expand.* A release adds the new table, column (with a default, because earlier programs do not write it) or index, and writes both the
   old and the new form. The step's `oldest` stays that of the step before it: programs of the earlier schema continue to work.
2. *Contract.* The next release reads only the new form, and its step removes the old one. The step's `oldest` is the number of the
   expanding step: programs that know the expanded schema continue to work, and all earlier ones are refused.

The database stores `oldest` with each version (table `schema_support`), so that a program decides about versions that it does not know: it
uses a database of a later schema if `oldest` is at most its own newest schema, and refuses it otherwise. A new form of JSON in a column is
a change of the schema too, and gets a step, even if the step has no SQL. `is_additive` checks the SQL of an expanding step.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.errors import StorageError


@dataclass(frozen=True, slots=True)
class Step:
    """A migration step from schema version n - 1 to n, where n is the step's position in the list of steps, from 1."""

    sql: str
    """Statements that end with `;` and a line break. `{serial}`, `{float}` and `{bytes}` are replaced by types of the SQL dialect."""
    oldest: int
    """Newest schema version of the oldest program that can use the database after this step. It never decreases from step to step."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of a database: its version, and the newest schema version of the oldest program that can use the database."""

    version: int
    oldest: int


_FIRST = """
CREATE TABLE locks (name TEXT PRIMARY KEY);
INSERT INTO locks (name) VALUES ('audit'), ('sampling'), ('asks');
CREATE TABLE audit (id {serial}, at {float} NOT NULL, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    principal TEXT NOT NULL, fields TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX audit_at ON audit (at);
CREATE TABLE audit_chain (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, base TEXT NOT NULL, last INTEGER NOT NULL,
    head TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE sampling_use (id {serial}, server TEXT NOT NULL, principal TEXT NOT NULL, at {float} NOT NULL);
CREATE INDEX sampling_use_key ON sampling_use (server, principal, at);
CREATE TABLE asks (id TEXT PRIMARY KEY, kind TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL, principal TEXT NOT NULL,
    shown TEXT NOT NULL, state TEXT NOT NULL, created_at {float} NOT NULL, expires_at {float} NOT NULL);
CREATE INDEX asks_principal ON asks (principal, state);
"""

_SESSIONS = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, principal TEXT NOT NULL, agent TEXT NOT NULL, state TEXT NOT NULL, turns INTEGER NOT NULL,
    bytes INTEGER NOT NULL, created_at {float} NOT NULL, used_at {float} NOT NULL, expires_at {float} NOT NULL,
    holder TEXT NOT NULL, held_until {float} NOT NULL);
CREATE INDEX sessions_principal ON sessions (principal, used_at);
CREATE INDEX sessions_expiry ON sessions (expires_at);
CREATE TABLE history (id {serial}, owner TEXT NOT NULL, session TEXT NOT NULL, messages TEXT NOT NULL, at {float} NOT NULL);
CREATE INDEX history_session ON history (owner, session, id);
CREATE TABLE memories (id {serial}, owner TEXT NOT NULL, collection TEXT NOT NULL, text TEXT NOT NULL, vector {bytes} NOT NULL,
    fields TEXT NOT NULL, at {float} NOT NULL);
CREATE INDEX memories_owner ON memories (owner, collection, id);
"""

_TASKS = """
CREATE TABLE tasks (id TEXT PRIMARY KEY, principal TEXT NOT NULL, tool TEXT NOT NULL, call TEXT NOT NULL, status TEXT NOT NULL,
    message TEXT NOT NULL, outcome TEXT NOT NULL, asked TEXT NOT NULL, ttl_seconds {float} NOT NULL, created_at {float} NOT NULL,
    updated_at {float} NOT NULL, gone_at {float} NOT NULL, is_cancelled INTEGER NOT NULL, attempts INTEGER NOT NULL,
    owner TEXT NOT NULL, lease_until {float} NOT NULL);
CREATE INDEX tasks_principal ON tasks (principal, created_at);
CREATE INDEX tasks_lease ON tasks (gone_at, lease_until);
CREATE TABLE task_steps (task TEXT NOT NULL, key TEXT NOT NULL, is_done INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (task, key));
INSERT INTO locks (name) VALUES ('tasks');
"""

_RULES = """
CREATE TABLE approval_rules (id TEXT PRIMARY KEY, principal TEXT NOT NULL, source TEXT NOT NULL, name TEXT NOT NULL,
    arguments TEXT NOT NULL, shown TEXT NOT NULL, created_at {float} NOT NULL, expires_at {float} NOT NULL);
CREATE INDEX approval_rules_tool ON approval_rules (principal, source, name);
"""

_CHECKPOINTS = """
CREATE TABLE checkpoints (seq {serial}, owner TEXT NOT NULL, id TEXT NOT NULL, workflow TEXT NOT NULL, graph TEXT NOT NULL,
    iteration INTEGER NOT NULL, at {float} NOT NULL, form TEXT NOT NULL);
CREATE UNIQUE INDEX checkpoints_id ON checkpoints (owner, id);
CREATE INDEX checkpoints_workflow ON checkpoints (owner, workflow, at);
"""

_QUEUES = """
ALTER TABLE tasks ADD COLUMN limits TEXT NOT NULL DEFAULT '[]';
ALTER TABLE tasks ADD COLUMN admitted_at {float} NOT NULL DEFAULT 0;
UPDATE tasks SET admitted_at = created_at;
CREATE TABLE task_starts (scope TEXT NOT NULL, at {float} NOT NULL);
CREATE INDEX task_starts_at ON task_starts (at);
"""

_QUESTIONS = """
ALTER TABLE asks ADD COLUMN form TEXT NOT NULL DEFAULT '';
ALTER TABLE asks ADD COLUMN answer TEXT NOT NULL DEFAULT '';
"""

_OWNERS = """
CREATE TABLE task_owners (id TEXT PRIMARY KEY, until {float} NOT NULL);
DROP INDEX tasks_lease;
ALTER TABLE tasks DROP COLUMN lease_until;
CREATE INDEX tasks_open ON tasks (gone_at, owner);
"""

_KEYS = """
ALTER TABLE tasks ADD COLUMN request_key TEXT NOT NULL DEFAULT '';
CREATE INDEX tasks_key ON tasks (principal, request_key);
"""

_APPROVERS = """
ALTER TABLE asks ADD COLUMN approver TEXT NOT NULL DEFAULT 'operator';
ALTER TABLE asks ADD COLUMN decided_by TEXT NOT NULL DEFAULT '';
ALTER TABLE approval_rules ADD COLUMN made_by TEXT NOT NULL DEFAULT '';
UPDATE approval_rules SET made_by = 'local' WHERE principal = 'local';
CREATE TABLE spent_approvals (id TEXT PRIMARY KEY, until {float} NOT NULL);
"""

_DEATHS = """
ALTER TABLE tasks ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
"""

_GATEWAYS = """
ALTER TABLE tasks ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
"""

_RULES_OF_GATEWAYS = """
ALTER TABLE approval_rules ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
"""

_STATE_OF_GATEWAYS = """
ALTER TABLE sessions ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
ALTER TABLE sampling_use ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
"""

_REPLICAS = """
CREATE TABLE versions (name TEXT PRIMARY KEY, number BIGINT NOT NULL);
CREATE TABLE installation (id INTEGER PRIMARY KEY, digest TEXT NOT NULL);
CREATE TABLE api_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, scopes TEXT NOT NULL, created_at {float} NOT NULL,
    expires_at {float}, revoked_at {float} NOT NULL);
"""

_CLIENT_SESSIONS = """
CREATE TABLE client_sessions (name TEXT PRIMARY KEY, number INTEGER NOT NULL, log_level TEXT NOT NULL, watched TEXT NOT NULL,
    is_ended INTEGER NOT NULL, until {float} NOT NULL);
CREATE INDEX client_sessions_number ON client_sessions (number);
INSERT INTO client_sessions (name, number, log_level, watched, is_ended, until) VALUES ('', 0, '', '[]', 0, 0);
CREATE TABLE replicas (id TEXT PRIMARY KEY, address TEXT NOT NULL, path TEXT NOT NULL, version TEXT NOT NULL, until {float} NOT NULL);
"""

_SERVER_LEASES = """
CREATE TABLE server_leases (server TEXT PRIMARY KEY, owner TEXT NOT NULL, epoch INTEGER NOT NULL, until {float} NOT NULL);
"""

_SHARED_STATE = """
CREATE TABLE loaded_tools (client TEXT PRIMARY KEY, number INTEGER NOT NULL, tools TEXT NOT NULL);
CREATE INDEX loaded_tools_number ON loaded_tools (number);
INSERT INTO loaded_tools (client, number, tools) VALUES ('', 0, '[]');
CREATE TABLE tool_definitions (server TEXT NOT NULL, tool TEXT NOT NULL, definition TEXT NOT NULL, at {float} NOT NULL,
    PRIMARY KEY (server, tool));
CREATE TABLE oauth_grants (id TEXT PRIMARY KEY, version INTEGER NOT NULL, sealed TEXT NOT NULL, holder TEXT NOT NULL,
    held_until {float} NOT NULL);
ALTER TABLE replicas ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE replicas ADD COLUMN configuration TEXT NOT NULL DEFAULT '';
ALTER TABLE replicas ADD COLUMN lease {float} NOT NULL DEFAULT 4;
CREATE TABLE refused_replicas (id TEXT PRIMARY KEY, name TEXT NOT NULL, version TEXT NOT NULL, reason TEXT NOT NULL, at {float} NOT NULL);
"""

_BASE = (
    _FIRST, _SESSIONS, _TASKS, _RULES, _CHECKPOINTS, _QUEUES, _QUESTIONS, _OWNERS, _KEYS, _APPROVERS, _DEATHS, _GATEWAYS,
    _RULES_OF_GATEWAYS, _STATE_OF_GATEWAYS, _REPLICAS, _CLIENT_SESSIONS,
)  # fmt: skip
"""Steps from the time when a program refused every later schema. No earlier program uses the database after them."""

STEPS: tuple[Step, ...] = (
    *(Step(sql, oldest=number) for number, sql in enumerate(_BASE, 1)),
    Step(_SERVER_LEASES, oldest=len(_BASE)),
    Step(_SHARED_STATE, oldest=len(_BASE)),
)
"""All migration steps. Step n (from 1) migrates from schema version n - 1 to n. Append further steps; never change one."""

_WORDS = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "float": "FLOAT", "bytes": "BLOB"},
    "postgresql": {"serial": "INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "float": "DOUBLE PRECISION", "bytes": "BYTEA"},
}


_ADDITIVE = re.compile(
    r"CREATE TABLE |CREATE INDEX |INSERT INTO |UPDATE |ALTER TABLE \w+ ADD COLUMN (?:.*DEFAULT |(?:(?!NOT NULL).)*$)",
    re.DOTALL,
)


def is_additive(step: Step) -> bool:
    """Return whether the SQL of a step only adds tables, columns, indexes and rows, so that earlier programs can still write.

    A unique index is not additive, because an earlier program does not expect that the database rejects its rows. A new column that must
    not be null needs a default.
    """
    return all(_ADDITIVE.match(statement) for statement in _statements(step.sql))


def read_schema(connection: sa.Connection) -> Schema:
    """Return the schema of a database; version 0 if the database has no tables of Moongate. Reads only."""
    tables = sa.inspect(connection)
    if not tables.has_table("schema_version"):
        return Schema(0, 0)
    version: int = connection.exec_driver_sql("SELECT COALESCE(MAX(version), 0) FROM schema_version").scalar_one()
    oldest: int | None = None
    if tables.has_table("schema_support"):
        found = sa.text("SELECT oldest FROM schema_support WHERE version = :version")
        oldest = connection.execute(found, {"version": version}).scalar_one_or_none()
    return Schema(version, version if oldest is None else oldest)


def require_supported(schema: Schema, steps: Sequence[Step] = STEPS) -> None:
    """Check that a program with these migration steps can use a database with this schema.

    Raises:
        StorageError: A newer version of Moongate wrote the database and removed something that this program needs.
    """
    if schema.version > len(steps) and schema.oldest > len(steps):
        raise StorageError(
            f"The gateway's database has schema version {schema.version}, but this Moongate supports only {len(steps)}: "
            "a newer Moongate wrote it. Update Moongate, or set `storage.dir` to another folder."
        )


def migrate(connection: sa.Connection, steps: Sequence[Step] = STEPS) -> list[int]:
    """Run all migration steps that have not run on this database yet, in the open transaction of `connection`. Return their numbers.

    A database of a later schema that these steps' program can use stays as it is.

    Raises:
        StorageError: A newer version of Moongate wrote the database, and this program cannot use it.
    """
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, at FLOAT NOT NULL)")
    schema = read_schema(connection)
    require_supported(schema, steps)
    waiting = range(schema.version + 1, len(steps) + 1)
    if waiting:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS schema_support (version INTEGER PRIMARY KEY, oldest INTEGER NOT NULL)")
        connection.execute(sa.text("DELETE FROM schema_support WHERE version > :version"), {"version": schema.version})
    for number in waiting:
        step = steps[number - 1]
        for statement in _statements(step.sql.format_map(_WORDS[connection.dialect.name])):
            connection.exec_driver_sql(statement)
        done = sa.text("INSERT INTO schema_version (version, at) VALUES (:version, :at)")
        connection.execute(done, {"version": number, "at": time.time()})
        support = sa.text("INSERT INTO schema_support (version, oldest) VALUES (:version, :oldest)")
        connection.execute(support, {"version": number, "oldest": step.oldest})
    return list(waiting)


def _statements(sql: str) -> list[str]:
    return [statement.strip() for statement in sql.split(";\n") if statement.strip()]
