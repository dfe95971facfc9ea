"""`ReplicaRows`: the table of the replicas of a gateway that run now, with the addresses at which they reach each other."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import database_clock, replicas


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A running replica: a gateway process that shares its database with others."""

    id: str
    """Random id of the process."""
    address: str
    """URL at which the other replicas reach it, without a path: `http://10.0.0.3:8765`."""
    path: str
    """URL path of its MCP endpoint."""
    version: str
    """Its version of Moongate."""


class ReplicaRows:
    """Stores which replicas run. The database's clock decides when a replica that no longer renews its row is dead."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, own: ReplicaRow, seconds: float) -> list[ReplicaRow]:
        """Store that the replica `own` runs for at least `seconds` from now. Return all running replicas, `own` included.

        Rows of replicas that are dead are deleted. Raises `StorageError`.
        """
        async with self._database.begin() as connection:
            now = database_clock(connection)
            values = {"address": own.address, "path": own.path, "version": own.version, "until": now + seconds}
            mine = sa.update(replicas).where(replicas.c.id == own.id).values(values)
            if not (await connection.execute(mine)).rowcount:
                await connection.execute(sa.insert(replicas).values(id=own.id, **values))
            await connection.execute(sa.delete(replicas).where(replicas.c.until < now))
            found = await connection.execute(sa.select(replicas.c.id, replicas.c.address, replicas.c.path, replicas.c.version))
            return [ReplicaRow(*row) for row in found]

    async def remove(self, replica: str) -> None:
        """Delete the row of the replica with this id, because it stops. Raises `StorageError`."""
        await self._database.change(sa.delete(replicas).where(replicas.c.id == replica))
