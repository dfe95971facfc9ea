"""`Memories`: stores texts with their embeddings in the database, by owner and collection, and searches them by similarity.

A search compares the query with every vector, which is fast enough for `MAX_MEMORIES` per collection and needs no database extension.
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
from gateway.storage.engine import Database, storable
from gateway.storage.history_rows import to_text
from gateway.storage.tables import delete_oldest, memories

MAX_MEMORIES = 5_000
"""Maximum number of texts per owner and collection. Beyond it, the oldest are deleted."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A stored text that a search has found, and the fields that were stored with the text."""

    text: str
    fields: JsonObject


class Memories:
    """Stores texts with their embeddings by owner (any text) and collection, and finds the texts most similar to a vector."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, owner: str, collection: str, items: Sequence[tuple[str, Sequence[float], JsonObject]]) -> None:
        """Store texts in a collection. Each item is a text, its embedding, and fields that are returned with the text when it is found.

        If a text is already stored, it is replaced and becomes the newest.

        Raises `StorageError`.
        """
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        rows = [
            {
                "owner": owner, "collection": collection, "text": storable(text), "vector": _to_bytes(vector),
                "fields": to_text(fields, "a memory"), "at": time.time(),
            }
            for text, vector, fields in {item[0]: item for item in items}.values()
        ]  # fmt: skip
        if not rows:
            return
        async with self._database.begin() as connection:
            await connection.execute(sa.delete(memories).where(here & memories.c.text.in_([row["text"] for row in rows])))
            await connection.execute(sa.insert(memories), rows)
            await delete_oldest(connection, memories, memories.c.id, here, keep=MAX_MEMORIES)

    async def search(self, owner: str, collection: str, vector: Sequence[float], *, top: int, at_least: float) -> list[Memory]:
        """Return the `top` texts of a collection that are most similar to `vector`, best first.

        Texts with a similarity below `at_least`, and texts whose vectors have another length (from another model), are left out. Raises
        `StorageError`.
        """
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        async with self._database.begin() as connection:
            rows = (await connection.execute(sa.select(memories.c.id, memories.c.vector).where(here))).all()
            wanted = _normal(vector)
            scored = await anyio.to_thread.run_sync(_score, [(row[0], row[1]) for row in rows], wanted)
            best = [(score, row_id) for score, row_id in nlargest(top, scored) if score >= at_least]
            query = sa.select(memories.c.id, memories.c.text, memories.c.fields).where(memories.c.id.in_([row_id for _, row_id in best]))
            found = {row[0]: row for row in (await connection.execute(query)).all()}
        return [Memory(found[row_id][1], cast("JsonObject", json.loads(found[row_id][2]))) for _, row_id in best]

    async def delete(self, owner: str, collection: str) -> int:
        """Delete all texts of an owner's collection; return their number. Raises `StorageError`."""
        here = (memories.c.owner == owner) & (memories.c.collection == collection)
        return await self._database.change(sa.delete(memories).where(here))


def _normal(vector: Sequence[float]) -> array[float]:
    """Scale a vector to length 1, so that the dot product of two vectors is their cosine similarity. A zero vector stays zero."""
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
