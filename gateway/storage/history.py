"""Conversations in the database: what each run added, in order, by owner and session."""

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
"""A longer conversation is refused when it is loaded: it fits no model, and should not fill the memory."""


class History:
    """The repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def messages(self, owner: str, session: str) -> list[JsonObject]:
        """The messages of a conversation, oldest first; none where there is none.

        Raises:
            StorageError: See `Database.begin`; or it is too large, or damaged.
        """
        async with self._database.begin() as connection:
            return await load_messages(connection, owner, session)

    async def append(self, owner: str, session: str, messages: Sequence[JsonObject]) -> None:
        """Add what one run added; committed when this returns. Raises `StorageError`."""
        async with self._database.begin() as connection:
            await add_messages(connection, owner, session, messages)

    async def delete(self, owner: str, session: str) -> bool:
        """Forget a conversation; whether there was one. Raises `StorageError`."""
        here = (history.c.owner == owner) & (history.c.session == session)
        async with self._database.begin() as connection:
            return bool((await connection.execute(sa.delete(history).where(here))).rowcount)


async def load_messages(connection: AsyncConnection, owner: str, session: str) -> list[JsonObject]:
    """`History.messages` inside a transaction."""
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
                f"Row {number} of the table `history` is damaged, so conversation {session!r} cannot go on; "
                "restore it from a backup, or start a new conversation. Nothing was changed."
            )
        found += cast("list[JsonObject]", decoded)
    return found


async def add_messages(connection: AsyncConnection, owner: str, session: str, messages: Sequence[JsonObject]) -> int:
    """`History.append` inside a transaction; how many bytes were added."""
    text = to_text(list(messages), f"a message of conversation {session!r}")
    await connection.execute(sa.insert(history), {"owner": owner, "session": session, "messages": text, "at": time.time()})
    return len(text.encode())


def to_text(value: object, what: str) -> str:
    """JSON as it is stored: without characters that a database does not take as text.

    Raises:
        StorageError: It is no JSON; `what` says what is not.
    """
    try:
        return json.dumps(value)  # ASCII: NUL and lone surrogates stay escapes, which every database takes
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"Cannot store {what}: {error}. Keep values in it that JSON has, or give them a `to_dict`.") from None
