"""Checkpoints of workflow runs in the database, by owner and workflow. Their text is the workflows room's business."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import checkpoints

MAX_CHECKPOINT_BYTES = 67_108_864
"""A larger checkpoint is refused: it would fill the memory of whoever loads it."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint, with what is asked for without reading its text."""

    id: str
    workflow: str
    graph: str
    iteration: int
    at: float
    """Seconds since the epoch, as the checkpoint says."""
    form: str


class Checkpoints:
    """The repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, owner: str, row: CheckpointRow, *, keep: int) -> None:
        """Write or replace one, and let the oldest of its workflow go beyond `keep`; committed when this returns. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == row.workflow)
        values = {
            "owner": owner, "id": row.id, "workflow": row.workflow, "graph": row.graph, "iteration": row.iteration, "at": row.at,
            "form": row.form,
        }  # fmt: skip
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(checkpoints).where((checkpoints.c.owner == owner) & (checkpoints.c.id == row.id)))
            await connection.execute(sa.insert(checkpoints).values(**values))
            last = sa.select(checkpoints.c.seq).where(here).order_by(checkpoints.c.seq.desc()).offset(keep).limit(1)
            oldest = (await connection.execute(last)).scalar_one_or_none()
            if oldest is not None:
                await connection.execute(sa.delete(checkpoints).where(here & (checkpoints.c.seq <= oldest)))

    async def load(self, owner: str, checkpoint_id: str) -> str | None:
        """The text of one; `None` where there is none of that id. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.id == checkpoint_id)
        async with self._database.begin() as connection:
            return (await connection.execute(sa.select(checkpoints.c.form).where(here))).scalar_one_or_none()

    async def texts(self, owner: str, workflow: str) -> list[str]:
        """The texts of a workflow's, oldest first. Raises `StorageError`."""
        return await self._column(checkpoints.c.form, owner, workflow)

    async def ids(self, owner: str, workflow: str) -> list[str]:
        """The ids of a workflow's, oldest first. Raises `StorageError`."""
        return await self._column(checkpoints.c.id, owner, workflow)

    async def latest(self, owner: str, workflow: str) -> str | None:
        """The text of the newest of a workflow. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == workflow)
        newest = checkpoints.c.at.desc(), checkpoints.c.iteration.desc(), checkpoints.c.seq.desc()
        async with self._database.begin() as connection:
            return (await connection.execute(sa.select(checkpoints.c.form).where(here).order_by(*newest).limit(1))).scalar_one_or_none()

    async def delete(self, owner: str, checkpoint_id: str) -> bool:
        """Forget one; whether it was there. Raises `StorageError`."""
        here = (checkpoints.c.owner == owner) & (checkpoints.c.id == checkpoint_id)
        async with self._database.begin() as connection:
            return bool((await connection.execute(sa.delete(checkpoints).where(here))).rowcount)

    async def _column(self, column: sa.Column[str], owner: str, workflow: str) -> list[str]:
        here = (checkpoints.c.owner == owner) & (checkpoints.c.workflow == workflow)
        order = checkpoints.c.at, checkpoints.c.iteration, checkpoints.c.seq
        async with self._database.begin() as connection:
            return list((await connection.execute(sa.select(column).where(here).order_by(*order))).scalars())
