"""`SharedGrants`: the OAuth grants of servers for gateways that share a database (`storage.url`).

A grant is encrypted as in the token files (`tokens`), with a key that all gateways have. Many authorization servers revoke a grant whose
refresh token is used twice. So a gateway takes a lease on the grant's row in the database before it sends the refresh token, and only one
gateway at a time renews a token. No transaction is open meanwhile. A lease that its gateway does not return, because it was killed, ends by
the database's clock. A gateway whose lease has ended cannot store a token. Stored times are those of the database's clock. Methods of
`SharedGrant` that are not async block, and must run in a worker thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from gateway.errors import StorageError, StorageUnusable
from gateway.storage.shared_database import SharedDatabase
from gateway.upstream.oauth.tokens import LOCK_SECONDS, Grant, TokenFile

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from gateway.storage.engine import Database

logger = logging.getLogger(__name__)

TOPIC = "oauth-grants"
"""Topic of the change feed under which changes of grants are published."""

LEASE_SECONDS = 20.0
"""Seconds after which a lease ends if its gateway does not return it. Longer than discovery and token request together (14 s)."""

POLL_SECONDS = 0.1
"""Seconds between two attempts to take the lease of a row that another gateway holds."""

STORE_SECONDS = 5.0
"""Seconds for which a gateway tries again to store a new token while the database is unavailable, because the old token is spent."""

STORE_RETRY_SECONDS = 0.25
"""Seconds between two attempts to store a new token."""


class SharedGrants:
    """The versions of all grants in the shared database, as last read. A gateway keeps them current by `load`; commands need not."""

    def __init__(self, database: SharedDatabase) -> None:
        """Store the arguments, without side effects."""
        self.database = database
        self._versions: dict[str, int] | None = None

    async def load(self) -> None:
        """Read the versions of all grants. The change feed calls it after each change. Raises `StorageError`."""
        import sqlalchemy as sa

        from gateway.storage.tables import oauth_grants

        query = sa.select(oauth_grants.c.id, oauth_grants.c.version).where(oauth_grants.c.sealed != "")
        rows = await (await self.database.open()).rows(query)
        self._versions = {row["id"]: row["version"] for row in rows}

    def version_of(self, row: str) -> int | None:
        """Return the version of a grant, or `None` without a grant. Raises `StorageError` before the first `load`."""
        if self._versions is None:
            self.database.run(lambda _: self.load())
        return (self._versions or {}).get(row)


class SharedGrant:
    """The row with the grant (client registration and tokens) for one server. Implements `GrantStore`."""

    def __init__(self, grants: SharedGrants, own: TokenFile) -> None:
        """`own` encrypts the grant. Its file, if it is from a time before this gateway shared a database, is moved to the database."""
        self._grants = grants
        self._database = grants.database
        self._own = own
        self._id = hashlib.sha256(own.identity).hexdigest()
        self._holder = ""
        self._using = anyio.Lock()

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes when the grant changes; `None` without a grant. Raises `StorageError`."""
        version = self._grants.version_of(self._id)
        return None if version is None else (version, 0)

    def read(self) -> Grant | None:
        """Decrypt and return the stored grant, or `None` if nothing is stored.

        Raises:
            StorageError: The database cannot be used, or the grant is damaged. Signing in again replaces it.
        """
        found, offset = self._database.run(self._select)
        if found is None:
            found = self._database.run(self._take_over)
        if not found:
            return None
        try:
            return _moved(self._own.unseal(base64.b64decode(found, validate=True)), -offset)
        except (binascii.Error, ValueError):
            raise StorageError("A sign-in in the database is damaged or of another installation; sign in again.") from None

    def write(self, grant: Grant) -> None:
        """Encrypt `grant`, and replace the stored one. The caller is in the block of `locked`.

        Raises:
            StorageError: The database cannot be used, or the lease of this gateway has ended, so that another gateway may have replaced the
                grant.
        """
        if not self._database.run(lambda database: self._store_soon(database, grant)):
            raise StorageUnusable("The new token was not stored, because another gateway may have replaced it meanwhile. Try again.")

    def delete(self) -> bool:
        """Delete the grant, and return whether it existed. The caller is in the block of `locked`. Raises `StorageError`."""
        had = bool(self._database.run(self._select)[0])
        self._database.run(lambda database: self._store(database, None))
        self._own.delete()
        return had

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Async context manager: hold the lease of the row, so that no other gateway changes the grant. Not re-entrant.

        Raises:
            StorageError: The database cannot be used, or others have held the lease for `LOCK_SECONDS`.
        """
        async with self._using:
            database = await self._database.open()
            holder = secrets.token_hex(8)
            try:
                with anyio.move_on_after(LOCK_SECONDS):
                    while not await self._lease(database, holder):  # noqa: ASYNC110  # held by another process, which sends no event
                        await anyio.sleep(POLL_SECONDS)
                    self._holder = holder
                if self._holder != holder:
                    raise StorageUnusable(f"Another gateway has used this sign-in for more than {LOCK_SECONDS:g} s. Try again.")
                yield
            finally:  # also if the lease was taken in the moment in which the wait for it ended
                self._holder = ""
                await self._give_back(database, holder)

    # -- rows --------------------------------------------------------------------------------------------------

    async def _select(self, database: Database) -> tuple[str | None, float]:
        """Return the encrypted grant, and the seconds by which the database's clock is ahead.

        The grant is an empty string after a sign-out, and `None` if there never was a grant.
        """
        import sqlalchemy as sa

        from gateway.storage.tables import oauth_grants

        query = sa.select(oauth_grants.c.sealed).where((oauth_grants.c.id == self._id) & (oauth_grants.c.version > 0))
        async with database.begin() as connection:
            return (await connection.execute(query)).scalar_one_or_none(), await _offset(connection)

    async def _take_over(self, database: Database) -> str:
        """Move the grant of the token file to the database, unless the database got one meanwhile. Return the encrypted grant there."""
        import sqlalchemy as sa

        from gateway.storage.change_feed import publish_in
        from gateway.storage.tables import oauth_grants

        try:
            grant = await anyio.to_thread.run_sync(self._own.read)
        except StorageError as error:
            logger.warning("sign-in in a file not used reason=%s", error)
            return ""
        if grant is None:
            return ""
        is_new = (oauth_grants.c.id == self._id) & (oauth_grants.c.version == 0)
        async with database.begin() as connection:
            await self._insert(connection)
            sealed = self._seal(grant, await _offset(connection))
            await connection.execute(sa.update(oauth_grants).where(is_new).values(sealed=sealed, version=1))
            await publish_in(connection, TOPIC)
        await anyio.to_thread.run_sync(self._own.delete)
        logger.info("sign-in moved to the database file=%s", self._own.path)
        return (await self._select(database))[0] or ""

    def _seal(self, grant: Grant, offset: float) -> str:
        return base64.b64encode(self._own.seal(_moved(grant, offset))).decode()

    async def _insert(self, connection: AsyncConnection) -> None:
        """Insert a row without a grant, unless the row exists."""
        import sqlalchemy as sa

        text = "INSERT INTO oauth_grants (id, version, sealed, holder, held_until) VALUES (:id, 0, '', '', 0) ON CONFLICT (id) DO NOTHING"
        await connection.execute(sa.text(text), {"id": self._id})

    async def _lease(self, database: Database, holder: str) -> bool:
        """Take the lease of the row if no gateway holds it. Return whether this succeeded."""
        import sqlalchemy as sa

        from gateway.storage.tables import database_clock, oauth_grants

        async with database.begin() as connection:
            await self._insert(connection)
            now = database_clock(connection)
            is_free = (oauth_grants.c.id == self._id) & ((oauth_grants.c.holder == "") | (oauth_grants.c.held_until < now))
            taken = sa.update(oauth_grants).where(is_free).values(holder=holder, held_until=now + LEASE_SECONDS)
            return bool((await connection.execute(taken)).rowcount)

    async def _give_back(self, database: Database, holder: str) -> None:
        import sqlalchemy as sa

        from gateway.storage.tables import oauth_grants

        is_own = (oauth_grants.c.id == self._id) & (oauth_grants.c.holder == holder)
        with anyio.CancelScope(shield=True):
            try:
                await database.change(sa.update(oauth_grants).where(is_own).values(holder="", held_until=0.0))
            except StorageError as error:
                logger.warning("lease of sign-in not returned seconds=%g error=%s", LEASE_SECONDS, error)

    async def _store_soon(self, database: Database, grant: Grant) -> bool:
        """Store a grant, and try again while the database is unavailable. Return whether this gateway still held the lease."""
        deadline = anyio.current_time() + STORE_SECONDS
        while True:
            try:
                return await self._store(database, grant)
            except StorageUnusable:
                if anyio.current_time() > deadline:
                    raise
            await anyio.sleep(STORE_RETRY_SECONDS)

    async def _store(self, database: Database, grant: Grant | None) -> bool:
        import sqlalchemy as sa

        from gateway.storage.change_feed import publish_in
        from gateway.storage.tables import oauth_grants

        is_own = (oauth_grants.c.id == self._id) & (oauth_grants.c.holder == self._holder)
        async with database.begin() as connection:
            sealed = "" if grant is None else self._seal(grant, await _offset(connection))
            changed = sa.update(oauth_grants).where(is_own).values(sealed=sealed, version=oauth_grants.c.version + 1)
            if not (await connection.execute(changed)).rowcount:
                return False
            await publish_in(connection, TOPIC)
            return True


async def _offset(connection: AsyncConnection) -> float:
    """Return the seconds by which the database's clock is ahead of this machine's."""
    import sqlalchemy as sa

    from gateway.storage.tables import database_clock

    return (await connection.execute(sa.select(database_clock(connection)))).scalar_one() - time.time()


def _moved(grant: Grant, seconds: float) -> Grant:
    """Return a grant whose times are later by `seconds`."""
    expires_at = None if grant.expires_at is None else grant.expires_at + seconds
    return replace(grant, expires_at=expires_at, obtained_at=grant.obtained_at + seconds)
