"""`History`: stores the messages of agents' conversations in the database, by owner and session, in the order of the agents' runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import StorageError
from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.tables import history

MAX_CONVERSATION_BYTES = 67_108_864
"""Maximum size of a conversation that is loaded, in bytes. A longer conversation would exceed every model's context and fill the memory."""


class History:
    """Stores the messages of agents' conversations by owner, which is any text, and session id."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def messages(self, owner: str, session: str) -> list[JsonObject]:
        """Return the messages of a conversation, oldest first; an empty list if the conversation does not exist.

        Raises:
            StorageError: The database is unavailable (see `Database.begin`), or the conversation is damaged or too large.
        """
        async with self._database.begin() as connection:
            return await load_messages(connection, owner, session)

    async def append(self, owner: str, session: str, messages: Sequence[JsonObject]) -> None:
        """Append the messages that one run of an agent added to a conversation. Committed on return. Raises `StorageError`."""
        async with self._database.begin() as connection:
            await add_messages(connection, owner, session, messages)

    async def delete(self, owner: str, session: str) -> bool:
        """Delete all messages of a conversation; return whether it existed. Raises `StorageError`."""
        here = (history.c.owner == owner) & (history.c.session == session)
        return bool(await self._database.change(sa.delete(history).where(here)))


async def load_messages(connection: AsyncConnection, owner: str, session: str) -> list[JsonObject]:
    """Return the messages of a conversation, oldest first, within an open transaction.

    Raises `StorageError` if the conversation is damaged or too large.
    """
    here = (history.c.owner == owner) & (history.c.session == session)
    size = (await connection.execute(sa.select(sa.func.sum(sa.func.length(history.c.messages))).where(here))).scalar_one()
    if size is not None and size > MAX_CONVERSATION_BYTES:
        raise StorageError(f"Conversation {session!r} has {size} characters, more than {MAX_CONVERSATION_BYTES}; start a new one.")
    found: list[JsonObject] = []
    rows = await connection.execute(sa.select(history.c.id, history.c.messages).where(here).order_by(history.c.id))
    for number, text in rows.all():
        try:
            decoded: Any = json.loads(text)
        except ValueError:
            decoded = None
        if not isinstance(decoded, list):
            raise StorageError(
                f"Row {number} of the table `history` is damaged, so conversation {session!r} cannot continue; "
                "restore it from a backup, or start a new conversation. Nothing was changed."
            )
        found += cast("list[JsonObject]", decoded)
    return found


async def add_messages(connection: AsyncConnection, owner: str, session: str, messages: Sequence[JsonObject]) -> int:
    """Append messages to a conversation within an open transaction; return the number of bytes added. Raises `StorageError`."""
    text = to_text(list(messages), f"a message of conversation {session!r}")
    await connection.execute(sa.insert(history), {"owner": owner, "session": session, "messages": text, "at": time.time()})
    return len(text.encode())


def to_text(value: object, what: str) -> str:
    """Encode a value as JSON text that every database accepts.

    Raises:
        StorageError: JSON cannot represent the value; the error text calls the value `what`.
    """
    try:
        return json.dumps(value)  # ASCII: NUL and lone surrogates stay escaped
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"Cannot store {what}: {error}. Use only values that JSON supports, or give them a `to_dict`.") from None
