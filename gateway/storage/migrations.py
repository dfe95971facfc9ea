"""Migrates the gateway's database from any earlier schema version to the newest. The module `engine` calls `migrate` under a lock.

The module never migrates to an earlier version. A released migration step never changes. Steps are SQL text, so that changes of the module
`tables` cannot alter them. Alembic is not used, because a version number and a list of steps need no tool that imports a project's
configuration.
"""

from __future__ import annotations

import time

import sqlalchemy as sa

from gateway.errors import StorageError

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

STEPS: tuple[str, ...] = (
    _FIRST, _SESSIONS, _TASKS, _RULES, _CHECKPOINTS, _QUEUES, _QUESTIONS, _OWNERS, _KEYS, _APPROVERS, _DEATHS, _GATEWAYS,
    _RULES_OF_GATEWAYS, _STATE_OF_GATEWAYS, _REPLICAS, _CLIENT_SESSIONS,
)  # fmt: skip
"""SQL of the migrations: step n (from 1) migrates from schema version n - 1 to n.

`{serial}`, `{float}` and `{bytes}` are replaced by the types of the SQL dialect.
"""

_WORDS = {
    "sqlite": {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "float": "FLOAT", "bytes": "BLOB"},
    "postgresql": {"serial": "INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "float": "DOUBLE PRECISION", "bytes": "BYTEA"},
}


def migrate(connection: sa.Connection) -> None:
    """Run all migration steps that have not run on this database yet, in the open transaction of `connection`.

    Raises:
        StorageError: A newer version of Moongate wrote the database.
    """
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, at FLOAT NOT NULL)")
    version = connection.exec_driver_sql("SELECT COALESCE(MAX(version), 0) FROM schema_version").scalar_one()
    if version > len(STEPS):
        raise StorageError(
            f"The gateway's database has schema version {version}, but this Moongate supports only {len(STEPS)}: "
            "a newer Moongate wrote it. Update Moongate, or set `storage.dir` to another folder."
        )
    for number, step in enumerate(STEPS[version:], version + 1):
        for statement in step.format_map(_WORDS[connection.dialect.name]).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        done = sa.text("INSERT INTO schema_version (version, at) VALUES (:version, :at)")
        connection.execute(done, {"version": number, "at": time.time()})
