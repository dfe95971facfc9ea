"""`PendingQuestions`: stores the pending list (questions for a person, which the client of the call cannot show).

A question is a request for approval or a form of a workflow. Other processes, such as `moongate approvals`, list and answer the questions.
A question is `open` until it is approved, denied, answered, withdrawn by the waiting call, or expired, whichever comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.record_types import PendingQuestion, QuestionState
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import asks, locks
from gateway.storage.tables import spent_approvals as spent

KEEP_SECONDS = 86_400.0
"""Seconds for which a question to a person stays stored after its expiry, when it can no longer be answered."""

MAX_OPEN_PER_PRINCIPAL = 32
"""Maximum number of open questions per principal, so that a model in a loop cannot flood the person."""


class PendingQuestions:
    """Stores the questions of the pending list: questions for a person that the client of the call cannot show."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, ask: PendingQuestion) -> None:
        """Add a question to the pending list (questions for a person that the client of the call cannot show).

        The question is committed on return.

        Raises:
            PolicyDenied: The principal already has `MAX_OPEN_PER_PRINCIPAL` open questions.
            StorageError: The database is unavailable.
        """
        now = shared_now()
        own_rows = (asks.c.principal == ask.principal) & (asks.c.state == "open") & (asks.c.expires_at > now)
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(asks).where(asks.c.expires_at <= now - KEEP_SECONDS))
            waiting = (await connection.execute(sa.select(sa.func.count()).select_from(asks).where(own_rows))).scalar_one()
            if waiting >= MAX_OPEN_PER_PRINCIPAL:
                raise PolicyDenied(
                    f"{waiting} questions of this caller are already waiting for an answer; answer them with `moongate approvals` first.",
                    rule="approval.pending",
                    subject=ask.source,
                )
            await connection.execute(sa.insert(asks), _to_row(ask))

    async def state(self, ask_id: str) -> QuestionState:
        """Return the state of the question with this id; an unknown question counts as withdrawn. Raises `StorageError`."""
        found = await self.get(ask_id)
        return found.state if found is not None else "withdrawn"

    async def get(self, ask_id: str) -> PendingQuestion | None:
        """Return the question with this id, or `None` if the id is unknown. Raises `StorageError`."""
        found = await self._database.rows(sa.select(asks).where(asks.c.id == ask_id))
        return _to_ask(found[0]) if found else None

    async def list(self, *, only_open: bool) -> list[PendingQuestion]:
        """Return the stored questions for persons, or only those that are still open, oldest first. Raises `StorageError`."""
        found = [_to_ask(row) for row in await self._database.rows(sa.select(asks).order_by(asks.c.created_at, asks.c.id))]
        return [ask for ask in found if ask.state == "open"] if only_open else found

    async def move(self, ask_id: str, before: QuestionState, after: QuestionState, *, decided_by: str | None = None) -> bool:
        """Change the state of a question from `before` to `after`; return whether it changed.

        The state does not change if the question is in another state or has expired. `decided_by` is the id of the deciding principal,
        whose right to decide must have been checked (`policy.approval_policy.judge_approver`).

        Raises:
            StorageError: The database is unavailable.
        """
        here = (asks.c.id == ask_id) & (asks.c.state == before) & (asks.c.expires_at > shared_now())
        changed = {"state": after} if decided_by is None else {"state": after, "decided_by": decided_by}
        return bool(await self._database.change(sa.update(asks).where(here).values(**changed)))

    async def spend(self, mark: str, seconds: float) -> bool:
        """Record that an approval mark is used, and keep this record for `seconds`; return `False` if the mark was used before.

        The mark is part of the `requestState` of an approved call, and approves one retry of the call.

        Raises:
            StorageError: The database is unavailable.
        """
        now = shared_now()
        async with self._database.begin() as connection:
            await connection.execute(sa.select(locks).where(locks.c.name == "asks").with_for_update())
            await connection.execute(sa.delete(spent).where(spent.c.until <= now))
            if (await connection.execute(sa.select(spent.c.id).where(spent.c.id == mark))).first() is not None:
                return False
            await connection.execute(sa.insert(spent), {"id": mark, "until": now + seconds})
            return True

    async def answer(self, ask_id: str, answer: JsonObject) -> bool:
        """Store the answer to an open question that has a form; return `False` if it is not open or has expired. Raises `StorageError`."""
        here = (asks.c.id == ask_id) & (asks.c.state == "open") & (asks.c.expires_at > shared_now())
        changed = {"state": "answered", "answer": json.dumps(answer)}
        return bool(await self._database.change(sa.update(asks).where(here).values(**changed)))


def _to_row(ask: PendingQuestion) -> dict[str, Any]:
    values: dict[str, Any] = {**asdict(ask), "form": _to_text(ask.form), "answer": _to_text(ask.answer)}
    values["approver"] = values.pop("by")
    return values


def _to_ask(row: Mapping[Any, Any]) -> PendingQuestion:
    values: dict[str, Any] = dict(row)
    values["by"] = values.pop("approver")
    for key in ("form", "answer"):
        values[key] = json.loads(values[key]) if values[key] else None
    if (values["state"] in ("open", "answered") or values["state"].startswith("approved")) and values["expires_at"] <= shared_now():
        values["state"] = "expired"
    return PendingQuestion(**values)


def _to_text(value: JsonObject | None) -> str:
    return json.dumps(value) if value is not None else ""
