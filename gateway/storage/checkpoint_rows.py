"""`Checkpoints`: stores checkpoints (saved states of workflow runs) in the database, by owner and workflow.

The package `workflows` defines the format of the checkpoints' text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import checkpoints, delete_oldest

MAX_CHECKPOINT_BYTES = 67_108_864
"""Maximum size of a checkpoint in bytes, so that loading a checkpoint cannot fill the memory."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint of a workflow run: its JSON text (`form`), and the fields that queries use, so that they need not parse the text."""

    id: str
    workflow: str
    graph: str
    iteration: int
    at: float
    """Time at which the checkpoint was created, in seconds since the epoch."""
    form: str


class Checkpoints:
    """Stores checkpoints (saved states of workflow runs) by owner, which is any text, and name of the workflow."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, owner: str, row: CheckpointRow, *, keep: int) -> None:
        """Store a checkpoint, or replace the checkpoint with the same id.

        The workflow's oldest checkpoints are deleted, so that at most `keep` remain. The change is committed on return. Raises
        `StorageError`.
        """
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == row.workflow)
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(checkpoints).where((checkpoints.c.owner == owner) & (checkpoints.c.id == row.id)))
            await connection.execute(sa.insert(checkpoints), {"owner": owner, **asdict(row)})
            await delete_oldest(connection, checkpoints, checkpoints.c.seq, here, keep=keep)

    async def load(self, owner: str, checkpoint_id: str) -> str | None:
        """Return the JSON text of the checkpoint with this id, or `None` if the id is unknown. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.id == checkpoint_id)
        found = await self._database.rows(sa.select(checkpoints.c.form).where(here))
        return found[0]["form"] if found else None

    async def texts(self, owner: str, workflow: str) -> list[str]:
        """Return the JSON texts of all checkpoints of a workflow, oldest first. Raises `StorageError`."""
        return await self._column(checkpoints.c.form, owner, workflow)

    async def ids(self, owner: str, workflow: str) -> list[str]:
        """Return the ids of all checkpoints of a workflow, oldest first. Raises `StorageError`."""
        return await self._column(checkpoints.c.id, owner, workflow)

    async def latest(self, owner: str, workflow: str) -> str | None:
        """Return the JSON text of the newest checkpoint of a workflow, or `None` if it has none. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == workflow)
        newest = checkpoints.c.at.desc(), checkpoints.c.iteration.desc(), checkpoints.c.seq.desc()
        found = await self._database.rows(sa.select(checkpoints.c.form).where(here).order_by(*newest).limit(1))
        return found[0]["form"] if found else None

    async def delete(self, owner: str, checkpoint_id: str) -> bool:
        """Delete the checkpoint with this id; return whether it existed. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.id == checkpoint_id)
        return bool(await self._database.change(sa.delete(checkpoints).where(here)))

    async def _column(self, column: sa.ColumnClause[str], owner: str, workflow: str) -> list[str]:
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == workflow)
        order = checkpoints.c.at, checkpoints.c.iteration, checkpoints.c.seq
        return [row[column] for row in await self._database.rows(sa.select(column).where(here).order_by(*order))]
