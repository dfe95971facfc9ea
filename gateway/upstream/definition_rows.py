"""`SharedDefinitions`: the recorded tool definitions of a remote MCP server for gateways that share a database (`storage.url`).

The first gateway that lists a tool records its definition in the table `tool_definitions`, and all gateways compare their listings with it.
So a server that changes a definition between the first listings of two gateways is noticed by both. All methods block, and must run in a
worker thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from gateway.errors import StorageError
from gateway.json_types import JsonObject
from gateway.storage.shared_database import SharedDatabase
from gateway.upstream.accepted_definitions import AcceptedDefinitions, Forms

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.engine import Database

TOPIC = "tool-definitions"
"""Topic of the change feed under which a person's acceptance of tool definitions is published."""

_FIRST_STAYS = (
    "INSERT INTO tool_definitions (server, tool, definition, at) VALUES (:server, :tool, :definition, :at) "
    "ON CONFLICT (server, tool) DO NOTHING"
)
_LAST_STAYS = (
    "INSERT INTO tool_definitions (server, tool, definition, at) VALUES (:server, :tool, :definition, :at) "
    "ON CONFLICT (server, tool) DO UPDATE SET definition = excluded.definition, at = excluded.at"
)


class SharedDefinitions:
    """The recorded tool definitions of one remote MCP server in the shared database."""

    def __init__(self, database: SharedDatabase, own: AcceptedDefinitions) -> None:
        """`own` is the record in the state folder from a time before this gateway shared a database. It is read only if no row exists."""
        self._database = database
        self._own = own
        self._key = own.key

    def read(self) -> Forms | None:
        """Return the recorded definitions of the server's tools, or `None` if nothing was recorded yet.

        If only the state folder has a record, it becomes the shared record.

        Raises:
            StorageError: The database or the file cannot be used.
        """
        found = self._database.run(self._all)
        if found:
            return found
        before = self._own.read()
        return self.add(before) if before else None

    def add(self, found: Forms) -> Forms:
        """Record those definitions in `found` whose tools are not recorded yet, and return all recorded definitions.

        Raises:
            StorageError: The database cannot be used.
        """
        return self._database.run(lambda database: self._add(database, found))

    def accept(self, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        """Replace the recorded definitions with the result of `edit`, which receives a copy of them, and notify all gateways.

        Raises:
            StorageError: The database cannot be used.
        """
        self._database.run(lambda database: self._accept(database, edit))

    async def _all(self, database: Database) -> Forms:
        async with database.begin() as connection:
            return await self._read(connection)

    async def _add(self, database: Database, found: Forms) -> Forms:
        import sqlalchemy as sa

        async with database.begin() as connection:
            if found:
                await connection.execute(sa.text(_FIRST_STAYS), self._rows(found))
            return await self._read(connection)

    async def _accept(self, database: Database, edit: Callable[[dict[str, JsonObject]], Forms]) -> None:
        import sqlalchemy as sa

        from gateway.storage.change_feed import publish_in
        from gateway.storage.tables import tool_definitions

        async with database.begin() as connection:
            await publish_in(connection, TOPIC)  # first, because it lets only one acceptance at a time read and change the rows
            before = dict(await self._read(connection))
            after = edit(dict(before))
            gone = [name for name in before if name not in after]
            changed = {name: form for name, form in after.items() if before.get(name) != form}
            is_gone = (tool_definitions.c.server == self._key) & tool_definitions.c.tool.in_(gone)
            if gone:
                await connection.execute(sa.delete(tool_definitions).where(is_gone))
            if changed:
                await connection.execute(sa.text(_LAST_STAYS), self._rows(changed))

    async def _read(self, connection: AsyncConnection) -> Forms:
        import sqlalchemy as sa

        from gateway.storage.tables import tool_definitions

        query = sa.select(tool_definitions.c.tool, tool_definitions.c.definition).where(tool_definitions.c.server == self._key)
        return {tool: self._to_form(tool, text) for tool, text in await connection.execute(query)}

    def _to_form(self, tool: str, text: str) -> JsonObject:
        try:
            form = cast("JsonObject | None", json.loads(text))
        except ValueError:
            form = None
        if not isinstance(form, dict):  # not treated as missing, because then every changed definition would be accepted
            fix = "Delete the row in `tool_definitions`: then the next listing is recorded."
            raise StorageError(f"The recorded definition of tool {tool!r} of {self._key!r} in the database is damaged. {fix}")
        return form

    def _rows(self, forms: Forms) -> list[Mapping[str, Any]]:
        at = time.time()
        # Sorted, so that two gateways that insert the same rows never wait for each other.
        return [{"server": self._key, "tool": name, "definition": json.dumps(forms[name]), "at": at} for name in sorted(forms)]
