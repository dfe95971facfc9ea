"""`AuditLog`: stores the audit log in the database, with entries chained by digests, so that changed or missing entries are detected.

The digest of an entry covers the entry and the previous digest. A separate row stores both ends of the chain with a digest (the seal),
because old entries are deleted when they expire. All digests are keyed: they cannot be forged without the installation's key, even with
write access to the database. The digests do not reveal the loss of the whole database, or its replacement by an older copy together with
the key.

Decided: facts about a call (owner, client, endpoint, duration, …) are members of the JSON in the column `fields`, and have no columns of
their own. Because: the digest covers `fields`, so a log of an earlier version and one of this version verify as one chain, and programs of
both versions write to one database during an upgrade. Instead of: a digest of new columns, which an earlier program would take for
tampering. Revisit when: a query by such a fact must be fast over millions of entries.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, cast

import anyio.lowlevel
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.json_types import JsonObject
from gateway.storage.audit_writer import PRUNED_AT_ONCE, SLICE
from gateway.storage.engine import Database, storable
from gateway.storage.record_types import CALL_KINDS, AuditEntry, ChainReport
from gateway.storage.tables import audit, audit_chain, locks

_START = "0" * 64
_PAGE = 1000
"""Number of audit entries that one database query reads."""

_DIGESTED = ("kind", "source", "name", "principal", "fields")
_INSERT = sa.insert(audit)
_encode = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode
_INSERTED_AT_ONCE = 500
"""Number of entries that one statement inserts. Each statement costs a switch to the driver's thread and back."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of the audit log as it is stored, with its number and digest."""

    id: int
    digest: str
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class ChainEnds:
    """The ends of the audit log's chain: ids of its first and last entry, and the digests before the first and of the last entry."""

    first: int
    base: str
    last: int
    head: str


class AuditLog:
    """Appends, reads, deletes and verifies the entries of the audit log.

    The digests that protect the entries are computed with `key`, the installation's secret key.
    """

    def __init__(self, database: Database, key: bytes) -> None:
        self._database = database
        self._key = key

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Append entries to the log in their order, in one transaction, which is committed on return. Raises `StorageError`.

        Other tasks run while many entries are encoded.
        """
        rows = list[dict[str, Any]]()
        for entry in entries:
            rows.append(_to_row(entry))
            if not len(rows) % SLICE:
                await anyio.lowlevel.checkpoint()
        async with self._database.begin() as connection:
            chain = await self._chain(connection)
            digest = chain["head"]
            for number, row in enumerate(rows, 1):
                digest = row["digest"] = _digest(self._key, digest, row)
                if not number % SLICE:
                    await anyio.lowlevel.checkpoint()
            for start in range(0, len(rows), _INSERTED_AT_ONCE):
                await connection.execute(_INSERT, rows[start : start + _INSERTED_AT_ONCE])
            last = (await connection.execute(sa.select(sa.func.max(audit.c.id)))).scalar_one()
            await self._seal(connection, {**chain, "last": last, "head": digest})

    async def prune(self, before: float, *, keep: int | None = None) -> int:
        """Delete the oldest entries, and return their number, which is at most `PRUNED_AT_ONCE`. Raises `StorageError`.

        The entries up to the last one that is older than `before` (seconds since the epoch) are deleted, and, with `keep`, those beyond the
        newest `keep` entries.
        """
        async with self._database.begin() as connection:
            chain = await self._chain(connection)
            cut: int = (await connection.execute(sa.select(sa.func.max(audit.c.id)).where(audit.c.at < before))).scalar_one() or 0
            cut = max(cut, chain["last"] - keep if keep is not None else 0)
            oldest = sa.select(audit.c.id, audit.c.digest).where(audit.c.id <= cut).order_by(audit.c.id).limit(PRUNED_AT_ONCE).subquery()
            found = (await connection.execute(sa.select(oldest).order_by(oldest.c.id.desc()).limit(1))).one_or_none()
            if found is None:
                return 0
            gone = await connection.execute(sa.delete(audit).where(audit.c.id <= found.id))
            await self._seal(connection, {**chain, "first": found.id + 1, "base": found.digest})
            return gone.rowcount

    async def read(self, *, since: float = 0, source: str | None = None, limit: int = 1000, with_calls: bool = False) -> list[AuditEntry]:
        """Return the newest `limit` entries since `since` (seconds since the epoch), oldest first.

        If `source` is given, only entries of this source are returned. Allowed calls and reads are left out without `with_calls`. Raises
        `StorageError`.
        """
        query = sa.select(audit).where(audit.c.at >= since)
        if source is not None:
            query = query.where(audit.c.source == source)
        if not with_calls:
            query = query.where(audit.c.kind.not_in(CALL_KINDS))
        rows = await self._database.rows(query.order_by(audit.c.id.desc()).limit(limit))
        return [_to_entry(row) for row in reversed(rows)]

    async def last(self) -> int:
        """Return the id of the newest entry; 0 without one. Raises `StorageError`."""
        rows = await self._database.rows(sa.select(sa.func.max(audit.c.id).label("last")))
        return rows[0]["last"] or 0

    async def after(self, number: int, *, up_to: int | None = None, limit: int = _PAGE) -> list[StoredEntry]:
        """Return the oldest `limit` entries whose id is greater than `number`, and at most `up_to`. Raises `StorageError`."""
        return [StoredEntry(row["id"], row["digest"], _to_entry(row)) for row in await self._page(number, up_to, limit)]

    async def first_since(self, since: float) -> int:
        """Return the id of the oldest entry since `since` (seconds since the epoch); 0 without one. Raises `StorageError`."""
        rows = await self._database.rows(sa.select(sa.func.min(audit.c.id).label("first")).where(audit.c.at >= since))
        return rows[0]["first"] or 0

    async def ends(self) -> tuple[ChainEnds, str]:
        """Return the ends of the chain, and a description if they, or the entries around them, were changed. Raises `StorageError`."""
        async with self._database.begin() as connection:
            chain = await self._chain(connection)
            older = sa.select(sa.func.count()).where(audit.c.id < chain["first"])
            before = (await connection.execute(older)).scalar_one()
            newest = (await connection.execute(sa.select(sa.func.max(audit.c.id)))).scalar_one() or 0
        problem = f"{before} entries were inserted before the first" if before else ""
        problem = "entries were inserted after the last" if newest > chain["last"] else problem
        if chain["seal"] != _seal_of(self._key, chain):
            problem = "the end of the log was changed: its seal does not match"
        return ChainEnds(chain["first"], chain["base"], chain["last"], chain["head"]), problem

    async def verify(self) -> ChainReport:
        """Recompute the digests of all entries, and report the first that was changed, removed or inserted. Raises `StorageError`.

        Entries are read in pages, so that new entries do not wait. Entries that are stored meanwhile are not verified.
        """
        while True:
            ends, problem = await self.ends()
            count = 0
            if not problem:
                async for _, problem in self.checked(ends):
                    count += not problem
            if problem and (await self.ends())[0].first != ends.first:  # expired entries were deleted meanwhile
                continue
            return ChainReport(count, problem)

    async def checked(self, ends: ChainEnds) -> AsyncGenerator[tuple[StoredEntry | None, str], None]:
        """Yield the entries from `ends.first` to `ends.last`, each after its digest was verified, with an empty text.

        If an entry was changed, removed or inserted, yield `None` with a description instead, and stop. Raises `StorageError`.
        """
        digest, after = ends.base, ends.first - 1
        while True:
            rows = await self._page(after, ends.last, _PAGE)
            for row in rows:
                digest, after = _digest(self._key, digest, row), row["id"]
                if digest != row["digest"]:
                    yield None, f"entry {after} was changed, or one before it was removed"
                    return
                yield StoredEntry(after, digest, _to_entry(row)), ""
                if not after % SLICE:
                    await anyio.lowlevel.checkpoint()
            if len(rows) < _PAGE:
                break
        if digest != ends.head:
            yield None, f"entries after {after} were removed"

    async def _page(self, after: int, up_to: int | None, limit: int) -> Sequence[sa.RowMapping]:
        query = sa.select(audit).where(audit.c.id > after)
        if up_to is not None:
            query = query.where(audit.c.id <= up_to)
        return await self._database.rows(query.order_by(audit.c.id).limit(limit))

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
    parts = [before, repr(float(row["at"])), *[row[name] for name in _DIGESTED]]
    # The same text as `json.dumps(parts)`, in a third of the time.
    return hmac.digest(key, f"[{', '.join(map(encode_basestring_ascii, parts))}]".encode(), "sha256").hex()


def _seal_of(key: bytes, chain: Mapping[str, Any]) -> str:
    parts = ["seal", chain["first"], chain["base"], chain["last"], chain["head"]]
    return hmac.digest(key, json.dumps(parts).encode(), "sha256").hex()


def _to_row(entry: AuditEntry) -> dict[str, Any]:
    # JSON may contain a lone surrogate, which databases reject.
    return {
        "at": entry.at, "kind": _storable(entry.kind), "source": _storable(entry.source), "name": _storable(entry.name),
        "principal": _storable(entry.principal), "fields": _storable(_encode_fields(entry.fields)),
    }  # fmt: skip


def _encode_fields(fields: JsonObject) -> str:
    """Return `fields` as JSON, in a third of the time that the encoder takes for small objects."""
    members: list[str] = []
    for name, value in fields.items():
        is_number = not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)))
        text = encode_basestring(value) if isinstance(value, str) else repr(value) if is_number else _encode(value)
        members.append(f"{encode_basestring(name)}: {text}")
    return f"{{{', '.join(members)}}}"


def _storable(text: str) -> str:
    return text if text.isascii() and "\0" not in text else storable(text)


def _to_entry(row: Mapping[Any, Any]) -> AuditEntry:
    fields = cast("JsonObject", json.loads(row["fields"]))
    return AuditEntry(row["at"], row["kind"], row["source"], row["name"], row["principal"], fields)
