"""`ReplicaRows`: the table of the replicas of a gateway that run now, with the addresses at which they reach each other."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import database_clock, refused_replicas, replicas

SILENT_SECONDS = 3600.0
"""Seconds after its death for which the row of a replica is kept, so that `moongate doctor` can report it."""


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
    name: str = ""
    """Name of its machine; empty for an earlier version of Moongate."""
    configuration: str = ""
    """Digest of its configuration; empty for an earlier version of Moongate."""


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """A replica in the table, also if it is dead."""

    row: ReplicaRow
    is_running: bool
    seconds: float
    """Seconds since the replica last renewed its row."""


_COLUMNS = tuple(replicas.c[name] for name in ReplicaRow.__dataclass_fields__)


class ReplicaRows:
    """Stores which replicas run. The database's clock decides when a replica that no longer renews its row is dead."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, own: ReplicaRow, seconds: float) -> list[ReplicaRow]:
        """Store that the replica `own` runs for at least `seconds` from now. Return all running replicas, `own` included.

        Rows of replicas that have been dead for `SILENT_SECONDS` are deleted. Raises `StorageError`.
        """
        async with self._database.begin() as connection:
            now = database_clock(connection)
            values = {name: getattr(own, name) for name in ReplicaRow.__dataclass_fields__ if name != "id"}
            values |= {"until": now + seconds, "lease": seconds}
            mine = sa.update(replicas).where(replicas.c.id == own.id).values(values)
            if not (await connection.execute(mine)).rowcount:
                await connection.execute(sa.insert(replicas).values(id=own.id, **values))
                await connection.execute(sa.delete(refused_replicas).where(refused_replicas.c.name == own.name))
            await connection.execute(sa.delete(replicas).where(replicas.c.until < now - SILENT_SECONDS))
            found = await connection.execute(sa.select(*_COLUMNS).where(replicas.c.until >= now))
            return [ReplicaRow(*row) for row in found]

    async def remove(self, replica: str) -> None:
        """Delete the row of the replica with this id, because it stops. Raises `StorageError`."""
        await self._database.change(sa.delete(replicas).where(replicas.c.id == replica))

    async def all(self) -> list[SeenReplica]:
        """Return all replicas in the table, in the order of their names and addresses. Raises `StorageError`."""
        async with self._database.begin() as connection:
            left = (replicas.c.until - database_clock(connection)).label("until_end")
            query = sa.select(*_COLUMNS, left, replicas.c.lease).order_by(replicas.c.name, replicas.c.address)
            found = (await connection.execute(query)).mappings().all()
        names = ReplicaRow.__dataclass_fields__
        return [
            SeenReplica(ReplicaRow(**{name: row[name] for name in names}), row["until_end"] >= 0, max(row["lease"] - row["until_end"], 0.0))
            for row in found
        ]
