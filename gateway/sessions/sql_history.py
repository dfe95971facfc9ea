"""`SqlHistoryProvider`: stores conversations in a SQLite or PostgreSQL database, in the gateway's tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack

import anyio.to_thread

from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.sessions.history import HistoryOptions, HistoryProvider
from gateway.storage.state_folder import StateFolder, default_state_dir
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.storage.engine import Database
    from gateway.storage.history_rows import History

DATABASE_NAME = "gateway.db"


class SqlHistoryProvider(HistoryProvider):
    """Stores conversations in a database that several processes may share.

    Each statement opens its own connection, so the provider has nothing to close.
    """

    DEFAULT_SOURCE_ID: ClassVar[str] = "sql_history"

    def __init__(
        self,
        url: str | Path | None = None,
        *,
        owner: str = "local",
        source_id: str = DEFAULT_SOURCE_ID,
        **options: Unpack[HistoryOptions],
    ) -> None:
        """`url` is `postgresql://…` (with the extra `postgres`), `sqlite:///…` or a file path; by default the user's `gateway.db`.

        `owner` separates the conversations of several users.
        """
        super().__init__(source_id, **options)
        self.owner = owner
        self._database = LazyDatabase(url)

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the conversation, oldest message first. Raises `StorageError`."""
        history = await self._history()
        try:
            return [Message.from_dict(message) for message in await history.messages(self.owner, _key(session_id))]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StorageError(f"Conversation {session_id!r} in the database is damaged: not every entry is a message.") from None

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the conversation in one transaction, which is committed on return. Raises `StorageError`."""
        if messages:
            await (await self._history()).append(self.owner, _key(session_id), [message.to_dict() for message in messages])

    async def delete_messages(self, session_id: str | None) -> bool:
        """Delete a conversation; return whether it existed. Raises `StorageError`."""
        return await (await self._history()).delete(self.owner, _key(session_id))

    async def _history(self) -> History:
        database = await self._database.open()

        from gateway.storage.history_rows import History

        return History(database)


def _key(session_id: str | None) -> str:
    """Return a session id (`default` for `None`), with escapes for characters that databases reject in text."""
    return (session_id or "default").encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class LazyDatabase:
    """A program's own database, opened and migrated on first use. Its driver is imported then, in a thread."""

    def __init__(self, url: str | Path | None) -> None:
        self._url = url
        self._opened: Database | None = None

    async def open(self) -> Database:
        """Return the open database. Raises `StorageError`."""
        if self._opened is None:
            self._opened = await anyio.to_thread.run_sync(self._open)
        return self._opened

    def _open(self) -> Database:
        from gateway.storage.engine import open_url

        url = self._url
        if isinstance(url, str) and "://" in url:
            return open_url(url, pooled=False)
        path = Path(url) if url is not None else StateFolder(default_state_dir()).ensure() / DATABASE_NAME
        return open_url(f"sqlite:///{path.absolute()}", pooled=False)
