"""Programs of two versions on one database: a newer one expands the schema, the older one continues; a contraction is refused."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.errors import StorageError
from gateway.storage.engine import place_of
from gateway.storage.migrations import STEPS, Schema, Step, is_additive, migrate, read_schema
from tests.cli.processes import moongate, write_gateway
from tests.fakes.postgres import Postgres, postgres

KNOWN = len(STEPS)
EXPAND = Step(
    """
ALTER TABLE tasks ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
CREATE TABLE labels (id {serial}, task TEXT NOT NULL);
CREATE INDEX labels_task ON labels (task);
""",
    oldest=KNOWN,
)
CONTRACT = Step("ALTER TABLE tasks DROP COLUMN deaths;\n", oldest=KNOWN + 1)
"""Steps of later versions: the first adds, and the second removes what only programs before the first one need."""


@pytest.fixture(scope="module")
def server() -> Generator[Postgres]:
    with postgres() as running:
        yield running


@dataclass(frozen=True)
class Later:
    """A database on which programs of later versions run."""

    url: str

    def __call__(self, steps: Sequence[Step]) -> list[int]:
        """Migrate the database as a program with these steps does."""
        with connection_to(self.url) as connection:
            return migrate(connection, steps)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def later(request: pytest.FixtureRequest, tmp_path: Path) -> Later:
    """The migrated database of the configuration in `tmp_path`."""
    url = f"sqlite:///{tmp_path / 'state/gateway.db'}"
    storage: dict[str, Any] = {"dir": "state"}
    if request.param == "postgresql":
        running: Postgres = request.getfixturevalue("server")
        url = storage["url"] = running.database("".join(filter(str.isalnum, request.node.name)).lower()[:40])
    write_gateway(tmp_path, mcpServers={}, storage=storage)
    assert moongate("db", "migrate", cwd=tmp_path).code == 0
    return Later(url)


@contextmanager
def connection_to(url: str) -> Generator[sa.Connection]:
    place = place_of(url)
    engine = sa.create_engine(f"sqlite:///{place}" if isinstance(place, Path) else place)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def test_program_uses_a_schema_that_a_newer_one_expanded(later: Later, tmp_path: Path) -> None:
    assert later([*STEPS, EXPAND]) == [KNOWN + 1]
    checked = moongate("db", "check", "--json", cwd=tmp_path)
    assert (checked.code, checked.data["schema"], checked.data["oldestSchema"], checked.data["knownSchema"]) == (0, KNOWN + 1, KNOWN, KNOWN)
    assert moongate("db", "migrate", "--json", cwd=tmp_path).data == {"schema": KNOWN + 1, "steps": []}
    assert moongate("doctor", cwd=tmp_path).code == 0  # opens the database as a gateway does
    assert moongate("tasks", "--json", cwd=tmp_path).data["tasks"] == []
    assert moongate("approvals", "list", "--json", cwd=tmp_path).data == {"approvals": []}
    refused = moongate("db", "backup", "b.tar", cwd=tmp_path)
    assert (refused.code, "newer Moongate" in refused.err) == (2, True)
    assert later([*STEPS, EXPAND]) == []


def test_program_is_refused_after_a_newer_one_contracted_the_schema(later: Later, tmp_path: Path) -> None:
    assert later([*STEPS, EXPAND, CONTRACT]) == [KNOWN + 1, KNOWN + 2]
    for words in (("db", "check"), ("db", "migrate"), ("tasks",), ("audit",)):
        done = moongate(*words, cwd=tmp_path)
        assert done.code == 2, done.out
        assert f"schema version {KNOWN + 2}, but this Moongate supports only {KNOWN}" in " ".join(done.err.split())
    # The version between them continues.
    assert later([*STEPS, EXPAND]) == []
    with pytest.raises(StorageError, match="a newer Moongate wrote it"):
        later(STEPS)


def test_program_refuses_a_later_schema_that_says_nothing_about_support(later: Later, tmp_path: Path) -> None:
    later([*STEPS, EXPAND])
    with connection_to(later.url) as connection:
        connection.exec_driver_sql("DROP TABLE schema_support")
        assert read_schema(connection) == Schema(KNOWN + 1, KNOWN + 1)
    assert moongate("db", "check", cwd=tmp_path).code == 2


def test_steps_say_which_programs_they_support() -> None:
    for number, (before, step) in enumerate(zip((Step("", 0), *STEPS), STEPS, strict=False), 1):
        assert before.oldest <= step.oldest <= number
        assert step.oldest > before.oldest or is_additive(step), f"step {number} removes something, so earlier programs cannot continue"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (EXPAND.sql, True),
        ("ALTER TABLE tasks ADD COLUMN note TEXT;\n", True),
        ("ALTER TABLE tasks ADD COLUMN note TEXT NOT NULL;\n", False),
        ("CREATE UNIQUE INDEX x ON tasks (id);\n", False),
        ("DROP TABLE asks;\n", False),
        ("ALTER TABLE tasks RENAME COLUMN id TO key;\n", False),
        ("CREATE TABLE a (b TEXT);\nDELETE FROM asks;\n", False),
        ("", True),
    ],
)
def test_step_that_only_adds_is_told_from_others(sql: str, expected: bool) -> None:
    assert is_additive(Step(sql, oldest=1)) is expected
