"""`DatabaseKeys`: the API keys of gateways that share a database server (`storage.url`).

The keys are rows of the table `api_keys`. Each gateway checks requests against a copy of the rows in memory, which the `ChangeFeed` renews
within a second after a change by any gateway or command. A gateway that cannot learn of changes for `GRACE_SECONDS` accepts nobody, because
a key may have been revoked meanwhile. Expiry is judged by the database server's clock.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from gateway.auth.api_keys import MOVED_SUFFIX, ApiKeys, KeyInfo, KeyStore, NewKey, StoredKey, decode_scopes, new_key
from gateway.errors import NotFound, StorageError, StorageUnusable
from gateway.storage.change_feed import ChangeFeed, Subscription, publish_in

if TYPE_CHECKING:
    import sqlalchemy as sa

    from gateway.storage.engine import Database

logger = logging.getLogger(__name__)

TOPIC = "api-keys"
"""Topic of the `ChangeFeed` for changes of the API keys."""

TABLE = "api_keys"
"""Name of the table of the keys."""

GRACE_SECONDS = 30.0
"""Seconds for which the keys in memory stay valid while the database is unavailable. After that, every request gets 503."""

IMPORT_ATTEMPTS = 5
"""Maximum number of attempts to move the keys of a file whose content changes during the move."""


class DatabaseKeys(ApiKeys):
    """The API keys in a database, with a copy in memory. Until `load` has read them, every check raises `StorageError`."""

    def __init__(self, database: Callable[[], Awaitable[Database]], feed: ChangeFeed) -> None:
        """`database` opens the database on first use, and returns it. `feed` reports changes; its owner runs it."""
        super().__init__()
        self._database = database
        self._feed = feed
        self._subscription: Subscription | None = None
        self._loaded_at = float("-inf")

    async def start(self) -> None:
        """Load all keys, and keep them current from now on. Raises `StorageError`."""
        self._subscription = self._feed.subscribe(TOPIC, self.load)
        await self.load()

    async def load(self) -> None:
        """Read all keys from the database. Raises `StorageError`."""
        import sqlalchemy as sa

        from gateway.storage.tables import api_keys

        began = time.monotonic()
        query = sa.select(api_keys).where(api_keys.c.revoked_at == 0).order_by(api_keys.c.created_at, api_keys.c.id)
        async with (await self._database()).begin(urgent=True) as connection:
            rows = (await connection.execute(query)).mappings().all()
            await self._feed.read_clock(connection)
        before = self._stored
        found = {row["id"]: _to_key(row) for row in rows}
        # Requests on an open connection compare the identity of their key (`holds`), so unchanged keys stay the same objects.
        self._keep({key_id: before[key_id] if before.get(key_id) == key else key for key_id, key in found.items()})
        self._loaded_at = began

    def _reload(self) -> None:
        subscription = self._subscription
        current_at = self._loaded_at if subscription is None else max(self._loaded_at, subscription.current_at)
        if time.monotonic() - current_at > GRACE_SECONDS:
            raise StorageUnusable(
                f"No API key is accepted: the database of `storage.url` with the API keys could not be read for {GRACE_SECONDS:g} s, so it "
                "is unknown which keys were revoked. Requests are accepted again when the database can be used."
            )
        self._clock_offset = self._feed.clock_offset

    async def add(self, name: str, *, expires_days: float | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        """Create a key, store its digest in the database, and return the key with its token. The arguments are those of `KeyStore.add`.

        Raises:
            ValueError: `name`, `expires_days` or a scope is invalid.
            StorageError: The database cannot be used.
        """
        new_key(name, expires_days=expires_days, scopes=scopes, now=0.0)  # invalid arguments raise before the database is opened
        async with (await self._database()).begin() as connection:
            now = await self._feed.read_clock(connection)
            key, made = new_key(name, expires_days=expires_days, scopes=scopes, now=now)
            await connection.execute(_insertion(), _to_row(key))
            await publish_in(connection, TOPIC)
        await self.load()
        return made

    async def revoke(self, key_id: str) -> KeyInfo:
        """Revoke a key, and return its data. All gateways of the database reject the key within a second.

        Raises:
            NotFound: The key does not exist, or is revoked already.
            StorageError: The database cannot be used.
        """
        import sqlalchemy as sa

        from gateway.storage.tables import api_keys

        is_valid = (api_keys.c.id == key_id) & (api_keys.c.revoked_at == 0)
        async with (await self._database()).begin() as connection:
            row = (await connection.execute(sa.select(api_keys).where(is_valid))).mappings().one_or_none()
            now = await self._feed.read_clock(connection)
            gone = await connection.execute(sa.update(api_keys).where(is_valid).values(revoked_at=now, digest=""))
            if row is None or not gone.rowcount:
                raise NotFound("key", key_id)
            await publish_in(connection, TOPIC)
        await self.load()
        return _to_key(row).info

    async def unmoved(self, file: Path) -> Mapping[str, StoredKey]:
        """Return the keys of a key file that an earlier start without `storage.url` left, and that are unknown to the database.

        Raises:
            StorageError: The database or the file cannot be used.
        """
        import sqlalchemy as sa

        from gateway.storage.tables import api_keys

        keys = await anyio.to_thread.run_sync(_keys_of, file)
        if not keys:
            return {}
        known = {row["id"] for row in await (await self._database()).rows(sa.select(api_keys.c.id))}
        return {key_id: key for key_id, key in keys.items() if key_id not in known}

    async def take_over(self, file: Path) -> None:
        """Move the keys of a key file, which an earlier start without `storage.url` left, to the database. They keep their ids.

        Keys that were revoked in the database stay revoked. The file is replaced by a marker (`KeyStore.mark_moved`), so that its keys are
        moved only once.

        Raises:
            StorageError: The database or the file cannot be used.
        """
        for _ in range(IMPORT_ATTEMPTS):
            keys = await anyio.to_thread.run_sync(_keys_of, file)
            if not keys:
                return
            async with (await self._database()).begin() as connection:
                await connection.execute(_insertion(), [_to_row(key) for key in keys.values()])
                await publish_in(connection, TOPIC)
            await self.load()
            if await anyio.to_thread.run_sync(KeyStore(file).mark_moved, keys):
                logger.warning("API keys moved to the database keys=%d file=%s copy=%s", len(keys), file, f"{file.name}{MOVED_SUFFIX}")
                return
        raise StorageError(f"The API keys of {str(file)!r} cannot be moved to the database: other processes change the file all the time.")


def _keys_of(file: Path) -> Mapping[str, StoredKey]:
    """Return the keys in a key file; an empty mapping if it does not exist or its keys were moved. Raises `StorageError`."""
    store = KeyStore(file)
    try:
        return store.stored()
    except StorageError:
        if store.has_moved():
            return {}
        raise


def write_key_file(rows: Path, files: Path) -> None:
    """Write the keys among the rows of a backup, in the folder `rows`, to the key file in the folder `files`. Remove the rows. Blocks.

    `restore` calls this for a gateway without `storage.url`, which reads its keys from the file. Without this, it would have no keys, and
    would serve everybody on its machine. The rows are removed, because they would not follow later changes of the file.

    Raises:
        StorageError: The rows are damaged, or the file cannot be written.
    """
    source = rows / f"{TABLE}.jsonl"
    if not source.exists():
        return
    try:
        columns, *lines = (json.loads(line) for line in source.read_bytes().splitlines())
        found = [dict(zip(columns, line, strict=True)) for line in lines]
        keys = [_to_key(row) for row in found if not row["revoked_at"]]
    except (KeyError, TypeError, ValueError):
        raise StorageError("The backup's API keys are damaged.") from None
    if keys:
        KeyStore(files / "keys.json").replace_by({key.info.id: key for key in keys})
    if found:
        source.write_bytes(json.dumps(columns).encode() + b"\n")


def _insertion() -> sa.TextClause:
    """Return the statement that inserts a key, unless a key with this id exists or existed."""
    import sqlalchemy as sa

    return sa.text(
        "INSERT INTO api_keys (id, name, digest, scopes, created_at, expires_at, revoked_at) "
        "VALUES (:id, :name, :digest, :scopes, :created_at, :expires_at, 0) ON CONFLICT (id) DO NOTHING"
    )


def _to_row(key: StoredKey) -> dict[str, Any]:
    info = key.info
    scopes = json.dumps(None if info.scopes is None else list(info.scopes))
    row = {"id": info.id, "name": info.name, "digest": key.digest, "scopes": scopes}
    return {**row, "created_at": info.created_at, "expires_at": info.expires_at}


def _to_key(row: Mapping[Any, Any]) -> StoredKey:
    """Convert a row to a key. Raises `StorageError` if its scopes are damaged, because a guess could widen the rights of a key."""
    try:
        granted = decode_scopes(json.loads(row["scopes"]))
    except (TypeError, ValueError):
        raise StorageError(f"The API key {row['id']!r} in the database has damaged scopes; revoke it.") from None
    return StoredKey(KeyInfo(row["id"], row["name"], row["created_at"], row["expires_at"], granted), row["digest"])
