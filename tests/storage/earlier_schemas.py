"""Turns a database back into one of an earlier schema version."""

from __future__ import annotations

import re
from collections.abc import Callable

from gateway.storage.migrations import STEPS

SCHEMA = 13
"""Schema version of the database after `back_to_13`."""


def tables_since(version: int) -> list[str]:
    """Return the tables that migration steps after a schema version create."""
    return [table for step in STEPS[version:] for table in re.findall(r"CREATE TABLE (\w+)", step.sql)]


def back_to_13(execute: Callable[[str], object]) -> list[int]:
    """Undo the migration steps after version 13 by `execute`, which runs an SQL statement. Return the numbers of these steps."""
    for table in ("sessions", "sampling_use"):
        execute(f"ALTER TABLE {table} DROP COLUMN gateway")
    for table in tables_since(SCHEMA):
        execute(f"DROP TABLE {table}")
    execute(f"DELETE FROM schema_version WHERE version > {SCHEMA}")
    return list(range(SCHEMA + 1, len(STEPS) + 1))
