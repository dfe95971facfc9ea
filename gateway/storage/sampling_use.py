"""`SamplingUse`: counts recent sampling requests per server and principal, over all processes of a gateway, to limit their number."""

from __future__ import annotations

import sqlalchemy as sa

from gateway.storage.engine import Database
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import locks, of_gateway, sampling_use


class SamplingUse:
    """Counts the sampling requests of servers in the database, with one row per request."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """Count only sampling requests of the gateway `gateway` (its id). An empty id means all gateways that share the database."""
        self._database = database
        self._gateway = gateway

    async def count(self, server: str, principal: str, *, limit: int, window_seconds: float) -> int:
        """Return how many sampling requests of the server for the principal were stored in the last `window_seconds`.

        If that number is below `limit`, the present request is stored too, so that later calls count it. Counting and storing are one
        transaction, so that concurrent processes never exceed the limit. Raises `StorageError`.
        """
        now = shared_now()
        own_rows = (sampling_use.c.server == server) & (sampling_use.c.principal == principal) & of_gateway(sampling_use, self._gateway)
        # Rows have a time in the future if the clock was set back. Without the second condition they would never expire.
        outside = (sampling_use.c.at <= now - window_seconds) | (sampling_use.c.at > now + window_seconds)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "sampling").with_for_update())
            await connection.execute(sa.delete(sampling_use).where(outside))
            used = (await connection.execute(sa.select(sa.func.count()).select_from(sampling_use).where(own_rows))).scalar_one()
            if used < limit:
                made = {"server": server, "principal": principal, "at": now, "gateway": self._gateway}
                await connection.execute(sa.insert(sampling_use), made)
        return used
