"""`SqlHistoryProvider`: stores conversations with agents in an SQLite or PostgreSQL database, in the same tables as the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Unpack

import anyio.to_thread

from gateway.errors import StorageError
from gateway.json_types import JsonObject, JsonValue
from gateway.sessions.history import HistoryOptions, HistoryProvider
from gateway.storage.file_names import DATABASE_FILE
from gateway.storage.state_folder import StateFolder, default_state_dir
from gateway.types.messages import Message

if TYPE_CHECKING:
    from gateway.storage.engine import Database
    from gateway.storage.history_rows import History


class SqlHistoryProvider(HistoryProvider):
    """History provider that stores conversations in an SQL database, which several processes may share.

    Each transaction opens a new connection, so the provider need not be closed.
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
        """Store the settings; the database is opened on first use.

        `url` is `postgresql://…` (with the extra `postgres`), `sqlite:///…` or a file path; by default the user's `gateway.db`. `owner`
        separates the conversations of several users.
        """
        super().__init__(source_id, **options)
        self.owner = owner
        self._database = LazyDatabase(url)

    async def get_messages(self, session_id: str | None, *, state: JsonObject | None = None, **kwargs: JsonValue) -> list[Message]:
        """Return the stored messages of the session, oldest first. Raises `StorageError`."""
        history = await self._history()
        try:
            return [Message.from_dict(message) for message in await history.messages(self.owner, _key(session_id))]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise StorageError(f"Conversation {session_id!r} in the database is damaged: not every entry is a message.") from None

    async def save_messages(
        self, session_id: str | None, messages: Sequence[Message], *, state: JsonObject | None = None, **kwargs: JsonValue
    ) -> None:
        """Append messages to the stored conversation of the session, in one transaction. Committed on return. Raises `StorageError`."""
        if messages:
            await (await self._history()).append(self.owner, _key(session_id), [message.to_dict() for message in messages])

    async def delete_messages(self, session_id: str | None) -> bool:
        """Delete all stored messages of the session; return whether there were any. Raises `StorageError`."""
        return await (await self._history()).delete(self.owner, _key(session_id))

    async def _history(self) -> History:
        database = await self._database.open()

        from gateway.storage.history_rows import History

        return History(database)


def _key(session_id: str | None) -> str:
    """Return the session id under which messages are stored: `default` for `None`. Characters that databases reject are escaped."""
    return (session_id or "default").encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class LazyDatabase:
    """Opens the database of a program on first use, in a thread: imports the driver, and migrates the database to the newest schema."""

    def __init__(self, url: str | Path | None) -> None:
        self._url = url
        self._opened: Database | None = None

    async def open(self) -> Database:
        """Open the database on the first call, and return it. Raises `StorageError`."""
        if self._opened is None:
            self._opened = await anyio.to_thread.run_sync(self._open)
        return self._opened

    def _open(self) -> Database:
        from gateway.storage.engine import open_url

        url = self._url
        if isinstance(url, str) and "://" in url:
            return open_url(url, pooled=False)
        path = Path(url) if url is not None else StateFolder(default_state_dir()).ensure() / DATABASE_FILE
        return open_url(f"sqlite:///{path.absolute()}", pooled=False)
