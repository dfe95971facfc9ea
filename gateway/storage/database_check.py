"""`check_database`: compares a database's schema with this program's, and finds damage. It reads only. Used by `moongate db check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError

from gateway.errors import StorageUnusable
from gateway.storage.audit import verify_chain
from gateway.storage.database_location import DatabaseLocation
from gateway.storage.migrations import STEPS, Schema, read_schema, require_supported

MAX_SHOWN = 5
"""Maximum number of lines of SQLite's integrity check in one finding."""

_ORPHANED_STEPS = "SELECT COUNT(*) FROM task_steps WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = task_steps.task)"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `waits` means that migration steps wait, `damaged` that rows or the file are damaged."""

    check: Literal["schema", "file", "rows", "audit"]
    state: Literal["ok", "waits", "damaged"]
    text: str


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """What `check_database` found, in the order of the checks."""

    schema: Schema
    waiting: tuple[int, ...]
    """Numbers of the migration steps that wait."""
    findings: tuple[Finding, ...]

    def is_in_state(self, state: Literal["waits", "damaged"]) -> bool:
        """Return whether any check ended in this state."""
        return any(finding.state == state for finding in self.findings)


def check_database(location: DatabaseLocation, audit_key: Callable[[], bytes | None]) -> DatabaseReport:
    """Check the schema version, the file (SQLite), rows that belong to nothing, and the digests of the audit log.

    `audit_key` returns the key of the audit log's digests, or `None` if the installation has no key. It is called if there are entries.

    Raises:
        StorageError: The database cannot be opened, or a newer Moongate wrote it and this program cannot use it.
    """
    if not location.exists():
        return DatabaseReport(Schema(0, 0), (), (Finding("schema", "ok", "no database yet; the first start of a gateway creates it"),))
    with location.snapshot() as connection:
        try:
            schema = read_schema(connection)
        except DatabaseError as error:
            if not isinstance(location.place, Path):
                raise
            text = f"not a usable SQLite file ({_driver_text(error)}); restore it from a backup (`moongate db restore`)"
            return DatabaseReport(Schema(0, 0), (), (Finding("file", "damaged", text),))
        require_supported(schema)
        waiting = tuple(range(schema.version + 1, len(STEPS) + 1))
        findings = [_schema_finding(schema, waiting), *_damage(connection, schema, audit_key)]
        return DatabaseReport(schema, waiting, tuple(findings))


def _schema_finding(schema: Schema, waiting: tuple[int, ...]) -> Finding:
    if schema.version == 0:
        return Finding("schema", "ok", "no tables yet; the first start of a gateway creates them")
    if waiting:
        steps = ", ".join(map(str, waiting))
        text = f"version {schema.version}; steps {steps} wait: `moongate db migrate`, or the next start of a gateway, runs them"
        return Finding("schema", "waits", text)
    if schema.version > len(STEPS):
        text = f"version {schema.version} of a newer Moongate; this Moongate knows {len(STEPS)} and can use it"
        return Finding("schema", "ok", text)
    return Finding("schema", "ok", f"version {schema.version}, the newest that this Moongate knows")


def _damage(connection: sa.Connection, schema: Schema, audit_key: Callable[[], bytes | None]) -> Iterator[Finding]:
    if connection.dialect.name == "sqlite":
        lines = integrity_problems(connection)
        more = f" (and {len(lines) - MAX_SHOWN} more)" if len(lines) > MAX_SHOWN else ""
        text = f"SQLite's integrity check: {'; '.join(lines[:MAX_SHOWN])}{more}; restore the database from a backup"
        yield Finding("file", "damaged", text) if lines else Finding("file", "ok", "SQLite's integrity check found nothing")
        if lines:
            return  # queries on a damaged file may fail
    if schema.version >= _TASKS_SINCE:
        count: int = connection.exec_driver_sql(_ORPHANED_STEPS).scalar_one()
        text = f"{count} recorded steps of tasks that do not exist; restore a backup, or delete these rows of `task_steps`"
        yield Finding("rows", "damaged", text) if count else Finding("rows", "ok", "every recorded step belongs to a task")
    if schema.version:
        yield _audit_finding(connection, audit_key)


_TASKS_SINCE = 3
"""Schema version since which there are tasks."""


def _audit_finding(connection: sa.Connection, audit_key: Callable[[], bytes | None]) -> Finding:
    if not connection.exec_driver_sql("SELECT COUNT(*) FROM audit_chain").scalar_one():
        return Finding("audit", "ok", "the audit log is empty")
    key = audit_key()
    if key is None:
        text = "the state folder has no installation key, so the audit log cannot be verified; restore the key from a backup"
        return Finding("audit", "damaged", text)
    report = verify_chain(connection, key)
    if report.problem:
        return Finding("audit", "damaged", f"the audit log is not as it was written: {report.problem}")
    return Finding("audit", "ok", f"{report.entries} entries of the audit log, none changed or removed")


def integrity_problems(connection: sa.Connection) -> list[str]:
    """Return what SQLite's integrity check reports about the open file; an empty list if the file is sound."""
    try:
        found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check")]
    except DatabaseError as error:
        return [_driver_text(error)]
    return [] if found == ["ok"] else [line for text in found for line in text.splitlines()]


def require_sound(connection: sa.Connection, shown: str) -> None:
    """Check the open SQLite file. Raises `StorageUnusable`, which names the file as `shown`, if it is damaged."""
    if lines := integrity_problems(connection):
        raise StorageUnusable(f"{shown} is damaged: {lines[0]}. `moongate db check` shows everything; restore an earlier backup.")


def _driver_text(error: DatabaseError) -> str:
    return str(error.orig).partition("\n")[0]
