"""Texts with their embeddings in the database, searched by meaning; by owner and collection.

Vectors are compared one by one, which is quick enough for what a person or an agent remembers: `MAX_MEMORIES` of a collection. The
database needs no extension for it.
"""

from __future__ import annotations

import json
import math
import operator
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import cast

import anyio.to_thread
import sqlalchemy as sa

from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.history import to_text
from gateway.storage.tables import memories

MAX_MEMORIES = 5_000
"""Texts of one owner in one collection; the oldest make room."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A text that was found."""

    text: str
    similarity: float
    """Cosine, from -1 to 1."""
    fields: JsonObject


class Memories:
    """The repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, owner: str, collection: str, items: Sequence[tuple[str, Sequence[float], JsonObject]]) -> None:
        """Keep texts with their vectors; a text that is there already is kept once, as the newest. Raises `StorageError`."""
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        rows = [
            {
                "owner": owner, "collection": collection, "text": _storable(text), "vector": _to_bytes(vector),
                "fields": to_text(fields, "a memory"), "at": time.time(),
            }
            for text, vector, fields in {item[0]: item for item in items}.values()
        ]  # fmt: skip
        if not rows:
            return
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(memories).where(here & memories.c.text.in_([row["text"] for row in rows])))
            await connection.execute(sa.insert(memories), rows)
            oldest = sa.select(memories.c.id).where(here).order_by(memories.c.id.desc()).offset(MAX_MEMORIES).limit(1)
            last = (await connection.execute(oldest)).scalar_one_or_none()
            if last is not None:
                await connection.execute(sa.delete(memories).where(here & (memories.c.id <= last)))

    async def search(self, owner: str, collection: str, vector: Sequence[float], *, top: int, at_least: float) -> list[Memory]:
        """The texts nearest in meaning, the nearest first. Vectors of another length, of another model, are not compared.

        Raises:
            StorageError: See `Database.begin`.
        """
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        async with self._database.begin() as connection:
            rows = (await connection.execute(sa.select(memories.c.id, memories.c.vector).where(here))).all()
            wanted = _normal(vector)
            scored = await anyio.to_thread.run_sync(_score, [(row[0], row[1]) for row in rows], wanted)
            best = [(score, row_id) for score, row_id in nlargest(top, scored) if score >= at_least]
            query = sa.select(memories.c.id, memories.c.text, memories.c.fields).where(memories.c.id.in_([row_id for _, row_id in best]))
            found = {row[0]: row for row in (await connection.execute(query)).all()}
        return [Memory(found[row_id][1], score, cast("JsonObject", json.loads(found[row_id][2]))) for score, row_id in best]

    async def delete(self, owner: str, collection: str) -> int:
        """Forget a collection of an owner; how many texts it had. Raises `StorageError`."""
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        async with self._database.begin() as connection:
            return (await connection.execute(sa.delete(memories).where(here))).rowcount


def _normal(vector: Sequence[float]) -> array[float]:
    """The vector with length 1, so that comparing is a product; a vector of nothing stays one."""
    length = math.sqrt(math.fsum(value * value for value in vector)) or 1.0
    return array("f", (value / length for value in vector))


def _to_bytes(vector: Sequence[float]) -> bytes:
    values = _normal(vector)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _score(rows: Sequence[tuple[int, bytes]], wanted: array[float]) -> list[tuple[float, int]]:
    scored: list[tuple[float, int]] = []
    for row_id, raw in rows:
        values = array("f")
        if len(raw) != len(wanted) * values.itemsize:
            continue
        values.frombytes(raw)
        if sys.byteorder == "big":
            values.byteswap()
        scored.append((sum(map(operator.mul, values, wanted)), row_id))
    return scored


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
