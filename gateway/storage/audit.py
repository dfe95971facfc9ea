"""`AuditLog`: stores the audit log in the database, with entries chained by digests, so that changed or missing entries are detected.

The digest of an entry covers the entry and the previous digest. A separate row stores both ends of the chain with a digest (the seal),
because old entries are deleted when they expire. All digests are keyed: they cannot be forged without the installation's key, even with
write access to the database. The digests do not reveal the loss of the whole database, or its replacement by an older copy together with
the key.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.json_types import JsonObject
from gateway.storage.engine import Database, storable
from gateway.storage.record_types import AuditEntry, ChainReport
from gateway.storage.tables import audit, audit_chain, locks

_START = "0" * 64
_PAGE = 1000
"""Number of audit entries that one database query reads while `verify` recomputes the digests of the log."""


class AuditLog:
    """Appends, reads, deletes and verifies the entries of the audit log.

    The digests that protect the entries are computed with `key`, the installation's secret key.
    """

    def __init__(self, database: Database, key: bytes) -> None:
        self._database = database
        self._key = key

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries to the log in their order, in one transaction, which is committed on return. Raises `StorageError`."""
        async with self._database.begin() as connection:
            chain = await self._chain(connection)
            digest, rows = chain["head"], list[dict[str, Any]]()
            for entry in entries:
                row = _to_row(entry)
                digest = row["digest"] = _digest(self._key, digest, row)
                rows.append(row)
            await connection.execute(sa.insert(audit), rows)
            last = (await connection.execute(sa.select(sa.func.max(audit.c.id)))).scalar_one()
            await self._seal(connection, {**chain, "last": last, "head": digest})

    async def prune(self, before: float) -> int:
        """Delete all entries up to the last one older than `before` (seconds since the epoch); return their number.

        Raises `StorageError`.
        """
        async with self._database.begin() as connection:
            chain = await self._chain(connection)
            cut = (await connection.execute(sa.select(sa.func.max(audit.c.id)).where(audit.c.at < before))).scalar_one()
            if cut is None:
                return 0
            base = (await connection.execute(sa.select(audit.c.digest).where(audit.c.id == cut))).scalar_one()
            gone = await connection.execute(sa.delete(audit).where(audit.c.id <= cut))
            await self._seal(connection, {**chain, "first": cut + 1, "base": base})
            return gone.rowcount

    async def read(self, *, since: float = 0, source: str | None = None, limit: int = 1000) -> list[AuditEntry]:
        """Return the newest `limit` entries since `since` (seconds since the epoch), oldest first.

        If `source` is given, only entries of this source are returned. Raises `StorageError`.
        """
        query = sa.select(audit).where(audit.c.at >= since)
        if source is not None:
            query = query.where(audit.c.source == source)
        rows = await self._database.rows(query.order_by(audit.c.id.desc()).limit(limit))
        return [_to_entry(row) for row in reversed(rows)]

    async def verify(self) -> ChainReport:
        """Recompute the digests of all entries, and report the first that was changed, removed or inserted. Raises `StorageError`."""
        async with self._database.begin() as connection:
            await connection.execute(_LOCK)
            return await connection.run_sync(verify_chain, self._key)

    async def _chain(self, connection: AsyncConnection) -> dict[str, Any]:
        await connection.execute(_LOCK)
        return await connection.run_sync(_chain_of, self._key)

    async def _seal(self, connection: AsyncConnection, chain: dict[str, Any]) -> None:
        sealed = {**chain, "seal": _seal_of(self._key, chain)}
        done = await connection.execute(sa.update(audit_chain).values(sealed))
        if not done.rowcount:
            await connection.execute(sa.insert(audit_chain), sealed)


_LOCK = sa.select(locks).where(locks.c.name == "audit").with_for_update()


def verify_chain(connection: sa.Connection, key: bytes) -> ChainReport:
    """Recompute the digests of all entries in an open transaction; report the first that was changed, removed or inserted.

    The caller holds the lock of the audit log, or its transaction sees one state of the database.
    """
    chain = _chain_of(connection, key)
    if chain["seal"] != _seal_of(key, chain):
        return ChainReport(0, "the end of the log was changed: its seal does not match")
    digest, after, count = chain["base"], chain["first"] - 1, 0
    while True:
        page = sa.select(audit).where(audit.c.id > after).order_by(audit.c.id).limit(_PAGE)
        rows = connection.execute(page).mappings().all()
        for row in rows:
            digest, after, count = _digest(key, digest, row), row["id"], count + 1
            if digest != row["digest"]:
                return ChainReport(count, f"entry {after} was changed, or one before it was removed")
        if len(rows) < _PAGE:
            break
    if digest != chain["head"]:
        return ChainReport(count, f"entries after {after} were removed")
    older = connection.execute(sa.select(sa.func.count()).where(audit.c.id < chain["first"])).scalar_one()
    return ChainReport(count, f"{older} entries were inserted before the first" if older else "")


def _chain_of(connection: sa.Connection, key: bytes) -> dict[str, Any]:
    found = connection.execute(sa.select(audit_chain)).mappings().one_or_none()
    if found is not None:
        return dict(found)
    empty = {"id": 1, "first": 1, "base": _START, "last": 0, "head": _START}
    return {**empty, "seal": _seal_of(key, empty)}


def _digest(key: bytes, before: str, row: Mapping[Any, Any]) -> str:
    parts = [before, repr(float(row["at"])), *(row[name] for name in ("kind", "source", "name", "principal", "fields"))]
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def _seal_of(key: bytes, chain: Mapping[str, Any]) -> str:
    parts = ["seal", chain["first"], chain["base"], chain["last"], chain["head"]]
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def _to_row(entry: AuditEntry) -> dict[str, Any]:
    row = {**asdict(entry), "fields": json.dumps(entry.fields, ensure_ascii=False, sort_keys=True)}
    # JSON may contain a lone surrogate, which databases reject.
    return {key: storable(value) if isinstance(value, str) else value for key, value in row.items()}


def _to_entry(row: Mapping[Any, Any]) -> AuditEntry:
    fields = cast("JsonObject", json.loads(row["fields"]))
    return AuditEntry(row["at"], row["kind"], row["source"], row["name"], row["principal"], fields)
