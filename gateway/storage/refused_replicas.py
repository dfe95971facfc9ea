"""Records that a gateway could not use the shared database, for example because of another installation key, so that the others report it.

The refused gateway writes the row itself, over a connection without migrations and checks.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from gateway.errors import StorageError
from gateway.storage.engine import SERVER_OPTIONS, Database, own_transactions, place_of
from gateway.storage.tables import database_clock, refused_replicas

KEPT_SECONDS = 86_400.0
"""Seconds for which a refusal is reported."""

MAX_ROWS = 100
"""Maximum number of refusals that are kept."""

MAX_REASON = 500
"""Maximum characters of a reason."""


@dataclass(frozen=True, slots=True)
class RefusedReplica:
    """A gateway that did not start, because it could not use the database that it shares with others."""

    name: str
    """Name of its machine."""
    version: str
    """Its version of Moongate."""
    reason: str
    seconds: float
    """Seconds since its last attempt to start."""


def record_refusal(url: str, name: str, version: str, reason: str) -> None:
    """Record that the gateway on the machine `name` could not use the database at `url`. Blocks. Does not raise.

    Nothing is recorded if the database is unavailable, or if its schema is too old to have the table.
    """
    with contextlib.suppress(StorageError, SQLAlchemyError, ImportError, OSError):
        place = place_of(url)
        if isinstance(place, sa.URL):
            engine = sa.create_engine(place, poolclass=NullPool, **SERVER_OPTIONS)
        elif place.exists():
            engine = sa.create_engine(sa.URL.create("sqlite", database=str(place)), poolclass=NullPool)
            own_transactions(engine)
        else:
            return
        try:
            _write(engine, name, version, reason[:MAX_REASON])
        finally:
            engine.dispose()


def _write(engine: sa.Engine, name: str, version: str, reason: str) -> None:
    row = {"id": hashlib.sha256(f"{name}\n{reason}".encode()).hexdigest()[:32], "name": name, "version": version, "reason": reason}
    own = refused_replicas.c.id == row["id"]
    with engine.begin() as connection:
        now = connection.execute(sa.select(database_clock(connection))).scalar_one()
        if not connection.execute(sa.update(refused_replicas).where(own).values(**row, at=now)).rowcount:
            connection.execute(sa.insert(refused_replicas).values(**row, at=now))
        newest = sa.select(refused_replicas.c.id).order_by(refused_replicas.c.at.desc()).limit(MAX_ROWS)
        is_old = (refused_replicas.c.at < now - KEPT_SECONDS) | refused_replicas.c.id.not_in(newest)
        connection.execute(sa.delete(refused_replicas).where(is_old))


async def recent_refusals(database: Database) -> list[RefusedReplica]:
    """Return the gateways that were refused within `KEPT_SECONDS`, latest first. Raises `StorageError`."""
    async with database.begin() as connection:
        ago = (database_clock(connection) - refused_replicas.c.at).label("ago")
        columns = refused_replicas.c.name, refused_replicas.c.version, refused_replicas.c.reason, ago
        rows = await connection.execute(sa.select(*columns).where(ago < KEPT_SECONDS).order_by(ago))
        return [RefusedReplica(name, version, reason, max(float(seconds), 0.0)) for name, version, reason, seconds in rows]
