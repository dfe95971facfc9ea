"""`ServerLeases`: the table that says which replica of a gateway runs the process of each stdio server with `single: true`."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import database_clock, server_leases


@dataclass(frozen=True, slots=True)
class ServerLease:
    """The right of one replica to run the process of a server."""

    owner: str
    """Id of the replica."""
    epoch: int
    """Number of the lease. It increases each time another lease of the server begins."""


class ServerLeases:
    """Stores the leases of servers, by name of the server. The database's clock decides when a lease has expired."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, server: str, owner: str, seconds: float, *, may_own: bool = True) -> tuple[ServerLease, bool]:
        """Begin a lease of `seconds` for `owner` if no lease of `server` is valid. Return the valid lease, and whether it began now.

        If `may_own` is false, begin no lease; the returned lease may then have expired. Raises `StorageError`.
        """
        table = server_leases
        async with self._database.begin() as connection:
            now = database_clock(connection)
            has_begun = False
            if may_own:
                new = "INSERT INTO server_leases (server, owner, epoch, until) VALUES (:s, '', 0, 0) ON CONFLICT DO NOTHING"
                await connection.execute(sa.text(new), {"s": server})
                expired = sa.update(table).where(table.c.server == server, table.c.until < now)
                begun = await connection.execute(expired.values(owner=owner, epoch=table.c.epoch + 1, until=now + seconds))
                has_begun = bool(begun.rowcount)
            found = (await connection.execute(sa.select(table.c.owner, table.c.epoch).where(table.c.server == server))).first()
            return (ServerLease("", 0) if found is None else ServerLease(*found)), has_begun

    async def renew(self, server: str, lease: ServerLease, seconds: float) -> bool:
        """Extend a lease to `seconds` from now. Return false if it has expired, or another lease has begun. Raises `StorageError`."""
        async with self._database.begin() as connection:
            now = database_clock(connection)
            mine = sa.update(server_leases).where(*_held(server, lease), server_leases.c.until >= now)
            return bool((await connection.execute(mine.values(until=now + seconds))).rowcount)

    async def release(self, server: str, lease: ServerLease) -> None:
        """End a lease, so that another replica can begin one at once. Raises `StorageError`."""
        await self._database.change(sa.update(server_leases).where(*_held(server, lease)).values(until=0))


def _held(server: str, lease: ServerLease) -> tuple[sa.ColumnElement[bool], ...]:
    return server_leases.c.server == server, server_leases.c.owner == lease.owner, server_leases.c.epoch == lease.epoch
