"""`LoadedTools`: stores which on-demand tools the model of each client has loaded, for gateways that share a database server.

There is one row per client that has loaded tools. Rows are numbered in the order in which they change, so that a replica reads only the
rows that changed since its last read. The row with an empty client has the number of the latest change.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from gateway.storage.change_feed import publish_in
from gateway.storage.engine import Database
from gateway.storage.tables import delete_oldest, loaded_tools

MAX_ROWS = 1_000
"""Maximum number of changed rows that `changed_since` returns; the next call returns the following rows."""

_LAST = loaded_tools.c.client == ""


@dataclass(frozen=True, slots=True)
class LoadedToolsRow:
    """The on-demand tools of one client."""

    client: str
    """Key of the client (`catalog.disclosure.scope_of`)."""
    tools: frozenset[str]
    """Exposed names of the loaded tools."""
    number: int
    """Number of the row's latest change; larger than the numbers of all earlier changes of all rows."""


class LoadedTools:
    """Stores the loaded on-demand tools of clients. Every method raises `StorageError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def change(self, client: str, names: Collection[str], *, load: bool, keep: int, topic: str) -> LoadedToolsRow:
        """Add tools to a client's loaded tools, or remove them if `load` is false. Return the result.

        If the set changes, only the `keep` clients with the latest changes are kept, and the change is published under `topic`
        (`change_feed`).
        """
        own = loaded_tools.c.client == client
        async with self._database.begin() as connection:
            # The update locks the row: no smaller number is committed after a replica has seen a greater one, and no change is lost.
            await connection.execute(sa.update(loaded_tools).where(_LAST).values(number=loaded_tools.c.number + 1))
            number = (await connection.execute(sa.select(loaded_tools.c.number).where(_LAST))).scalar_one()
            stored = (await connection.execute(sa.select(loaded_tools).where(own))).mappings().one_or_none()
            before = frozenset[str]() if stored is None else frozenset[str](json.loads(stored["tools"]))
            after = before | set(names) if load else before - set(names)
            if after == before:
                return LoadedToolsRow(client, before, 0 if stored is None else stored["number"])
            tools = json.dumps(sorted(after))
            if stored is None:
                await connection.execute(sa.insert(loaded_tools).values(client=client, number=number, tools=tools))
            else:
                await connection.execute(sa.update(loaded_tools).where(own).values(number=number, tools=tools))
            await delete_oldest(connection, loaded_tools, loaded_tools.c.number, ~_LAST, keep=keep)
            await publish_in(connection, topic)
            return LoadedToolsRow(client, after, number)

    async def changed_since(self, number: int) -> list[LoadedToolsRow]:
        """Return at most `MAX_ROWS` rows that changed after the change `number`, oldest change first."""
        query = sa.select(loaded_tools).where(~_LAST & (loaded_tools.c.number > number)).order_by(loaded_tools.c.number).limit(MAX_ROWS)
        found = await self._database.rows(query)
        return [LoadedToolsRow(row["client"], frozenset(json.loads(row["tools"])), row["number"]) for row in found]
