"""`ClientSessions`: stores the state that replicas share about 2025 sessions of clients over HTTP.

The `Mcp-Session-Id` itself contains what a session needs (`server.sealed_sessions`). A row exists only for a session that differs: it has
another log level, watches resources, or was ended by its client. Rows are numbered in the order in which they change, so that a replica
reads only the rows that changed since its last look.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import sqlalchemy as sa

from gateway.errors import StorageError
from gateway.storage.change_feed import publish_in
from gateway.storage.engine import Database
from gateway.storage.tables import client_sessions

MAX_ROWS = 1_000
"""Maximum number of changed rows that one look returns; the next look returns the following rows."""

_LAST = client_sessions.c.name == ""
"""Selects the row that has no session, but the number of the latest change."""


@dataclass(frozen=True, slots=True)
class ClientSessionRow:
    """The shared state of one 2025 session. `name` is the part of its `Mcp-Session-Id` that identifies it (`sealed_sessions.name_of`)."""

    name: str
    log_level: str
    watched: Sequence[str]
    """URIs of the resources to whose updates the client subscribed."""
    is_ended: bool = False
    """Whether the client ended the session with DELETE, so that no replica may continue it."""


@dataclass(slots=True)
class _Batch:
    """Sessions that are read together, by the first task that wanted one of them."""

    names: set[str]
    done: anyio.Event = field(default_factory=anyio.Event)
    rows: dict[str, ClientSessionRow] | None = None
    error: StorageError | None = None
    """The failure of the read. Without `rows` and `error` after `done`, the reading task was cancelled."""


class ClientSessions:
    """Stores the log level, the subscriptions and the end of 2025 sessions. Every method raises `StorageError`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading = anyio.Lock()
        self._next: _Batch | None = None
        """The batch that waits for the current read; further sessions join it."""

    async def get(self, name: str) -> ClientSessionRow | None:
        """Return the row of a session; `None` if the session has the initial state.

        Sessions that are wanted during a read are read together after it: when a replica dies, hundreds of its sessions continue at another
        one within a second, and a query for each would keep that replica from answering calls.
        """
        while True:
            batch = self._next
            if batch is None or len(batch.names) >= MAX_ROWS:
                batch = self._next = _Batch({name})
                await self._read(batch)
            else:
                batch.names.add(name)
                await batch.done.wait()
            if batch.error is not None:
                raise batch.error
            if batch.rows is not None:
                return batch.rows.get(name)

    async def _read(self, batch: _Batch) -> None:
        """Read the sessions of a batch after the current read has ended. Store a failure in the batch."""
        try:
            async with self._reading:
                self._close(batch)
                found = await self._database.rows(sa.select(client_sessions).where(client_sessions.c.name.in_(sorted(batch.names))))
                batch.rows = {row["name"]: _to_row(row) for row in found}
        except StorageError as error:
            batch.error = error
        finally:
            self._close(batch)
            batch.done.set()

    def _close(self, batch: _Batch) -> None:
        """Let no further session join a batch."""
        if self._next is batch:
            self._next = None

    async def put(self, row: ClientSessionRow, *, until: float, now: float, topic: str) -> None:
        """Store the state of a session until the time `until` (seconds since the epoch), and delete expired rows.

        A session that was ended stays ended. The change is published under `topic` (`change_feed`).
        """
        values: dict[str, Any] = {
            "log_level": row.log_level, "watched": json.dumps(list(row.watched)), "is_ended": int(row.is_ended), "until": until,
        }  # fmt: skip
        own = client_sessions.c.name == row.name
        async with self._database.begin() as connection:
            # The update locks the row, so that no smaller number is committed after a replica has seen a greater one.
            await connection.execute(sa.update(client_sessions).where(_LAST).values(number=client_sessions.c.number + 1))
            number = (await connection.execute(sa.select(client_sessions.c.number).where(_LAST))).scalar_one()
            await connection.execute(sa.delete(client_sessions).where(~_LAST & (client_sessions.c.until < now)))
            stored = (await connection.execute(sa.select(client_sessions.c.is_ended).where(own))).scalar_one_or_none()
            if stored is None:
                await connection.execute(sa.insert(client_sessions), {"name": row.name, "number": number, **values})
            elif not stored:
                await connection.execute(sa.update(client_sessions).where(own).values(number=number, **values))
            await publish_in(connection, topic)

    async def changed_since(self, number: int) -> tuple[list[ClientSessionRow], int]:
        """Return the rows that changed after the change `number`, oldest change first, and the number of the last of them."""
        query = sa.select(client_sessions).where(~_LAST & (client_sessions.c.number > number))
        query = query.order_by(client_sessions.c.number).limit(MAX_ROWS)
        found = await self._database.rows(query)
        return [_to_row(row) for row in found], int(found[-1]["number"]) if found else number


def _to_row(found: sa.RowMapping) -> ClientSessionRow:
    return ClientSessionRow(found["name"], found["log_level"], tuple(json.loads(found["watched"])), bool(found["is_ended"]))
