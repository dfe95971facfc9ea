"""How many sampling requests each server made for each caller lately; shared by every process of a gateway."""

from __future__ import annotations

import time

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.tables import locks, of_gateway, sampling_use


class SamplingUse:
    """The repository."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """`gateway` names the gateway whose requests are counted; empty: all that share the database."""
        self._database = database
        self._gateway = gateway

    async def count(self, server: str, principal: str, *, limit: int, window_seconds: float) -> int:
        """Requests counted in the window before this one; this one is counted too where `limit` leaves room.

        Atomic over processes, so two of them never use the same place of a budget. Raises `StorageError`.
        """
        now = time.time()
        mine = (sampling_use.c.server == server) & (sampling_use.c.principal == principal) & of_gateway(sampling_use, self._gateway)
        # A clock that was set back would otherwise keep what lies in the future for ever.
        outside = (sampling_use.c.at <= now - window_seconds) | (sampling_use.c.at > now + window_seconds)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "sampling").with_for_update())
            await connection.execute(sa.delete(sampling_use).where(outside))
            used = (await connection.execute(sa.select(sa.func.count()).select_from(sampling_use).where(mine))).scalar_one()
            if used < limit:
                made = {"server": server, "principal": principal, "at": now, "gateway": self._gateway}
                await connection.execute(sa.insert(sampling_use), made)
        return used
