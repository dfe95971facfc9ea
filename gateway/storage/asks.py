"""Questions for a person whose client cannot ask them, where another process can read and answer them.

A row is `open` until it is answered once, withdrawn by the waiting call, or past its time; whichever comes first counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.entries import AskState, PendingAsk
from gateway.storage.tables import asks, locks
from gateway.storage.tables import spent_approvals as spent

KEEP_SECONDS = 86_400.0
"""How long an answered or expired question can still be looked up."""

MAX_OPEN_PER_PRINCIPAL = 32
"""Questions of one caller that may wait at once: a model in a loop must not bury the person."""


class Asks:
    """The repository."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, ask: PendingAsk) -> None:
        """Put a new question on the list; committed when this returns.

        Raises:
            PolicyDenied: The caller already has `MAX_OPEN_PER_PRINCIPAL` open ones.
            StorageError: See `Database.begin`.
        """
        now = time.time()
        mine = (asks.c.principal == ask.principal) & (asks.c.state == "open") & (asks.c.expires_at > now)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(asks).where(asks.c.expires_at <= now - KEEP_SECONDS))
            waiting = (await connection.execute(sa.select(sa.func.count()).select_from(asks).where(mine))).scalar_one()
            if waiting >= MAX_OPEN_PER_PRINCIPAL:
                raise PolicyDenied(
                    f"{waiting} questions of this caller already wait for an answer (`moongate approvals`); answer those first.",
                    rule="approval.pending",
                    subject=ask.source,
                )
            await connection.execute(sa.insert(asks), _to_row(ask))

    async def state(self, ask_id: str) -> AskState:
        """How a question stands; one that is gone counts as withdrawn. Raises `StorageError`."""
        found = await self.get(ask_id)
        return found.state if found is not None else "withdrawn"

    async def get(self, ask_id: str) -> PendingAsk | None:
        """One question. Raises `StorageError`."""
        async with self._database.begin() as connection:
            row = (await connection.execute(sa.select(asks).where(asks.c.id == ask_id))).mappings().one_or_none()
        return _to_ask(row) if row is not None else None

    async def list(self, *, only_open: bool) -> list[PendingAsk]:
        """Questions, oldest first. Raises `StorageError`."""
        async with self._database.begin() as connection:
            rows = (await connection.execute(sa.select(asks).order_by(asks.c.created_at, asks.c.id))).mappings().all()
        found = [_to_ask(row) for row in rows]
        return [ask for ask in found if ask.state == "open"] if only_open else found

    async def move(self, ask_id: str, before: AskState, after: AskState, *, decided_by: str | None = None) -> bool:
        """Change a question's state if it still stands at `before` and is not past its time; whether it did.

        `decided_by` is the id of the principal that decided. Judge it before (`policy.approvals.judge_approver`).

        Raises:
            StorageError: See `Database.begin`.
        """
        here = (asks.c.id == ask_id) & (asks.c.state == before) & (asks.c.expires_at > time.time())
        changed = {"state": after} if decided_by is None else {"state": after, "decided_by": decided_by}
        async with self._database.begin() as connection:
            return bool((await connection.execute(sa.update(asks).where(here).values(**changed))).rowcount)

    async def spend(self, mark: str, seconds: float) -> bool:
        """Note that the mark of an approved call is used up, for as long as it could come again; False where it was before.

        Raises:
            StorageError: See `Database.begin`.
        """
        now = time.time()
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(spent).where(spent.c.until <= now))
            if (await connection.execute(sa.select(spent.c.id).where(spent.c.id == mark))).first() is not None:
                return False
            await connection.execute(sa.insert(spent), {"id": mark, "until": now + seconds})
            return True

    async def answer(self, ask_id: str, answer: JsonObject) -> bool:
        """Answer an open question that has a form, if it is not past its time; whether it was. Raises `StorageError`."""
        here = (asks.c.id == ask_id) & (asks.c.state == "open") & (asks.c.expires_at > time.time())
        changed = {"state": "answered", "answer": json.dumps(answer)}
        async with self._database.begin() as connection:
            return bool((await connection.execute(sa.update(asks).where(here).values(**changed))).rowcount)


def _to_row(ask: PendingAsk) -> dict[str, Any]:
    return {
        "id": ask.id, "kind": ask.kind, "source": ask.source, "name": ask.name, "principal": ask.principal, "shown": ask.shown,
        "state": ask.state, "created_at": ask.created_at, "expires_at": ask.expires_at, "form": _to_text(ask.form),
        "answer": _to_text(ask.answer), "approver": ask.by, "decided_by": ask.decided_by,
    }  # fmt: skip


def _to_ask(row: Mapping[Any, Any]) -> PendingAsk:
    values: dict[str, Any] = dict(row)
    values["by"] = values.pop("approver")
    for key in ("form", "answer"):
        values[key] = json.loads(values[key]) if values[key] else None
    if (values["state"] in ("open", "answered") or values["state"].startswith("approved")) and values["expires_at"] <= time.time():
        values["state"] = "expired"
    return PendingAsk(**values)


def _to_text(value: JsonObject | None) -> str:
    return json.dumps(value) if value is not None else ""
