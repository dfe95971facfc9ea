"""Conversations of callers with agents: whose they are, who is in the middle of one, and when they end.

A session belongs to the principal that began it; to anybody else it is as unknown as one that never was. A run holds its session
for a short time and renews that, so a holder that died lets go by itself; a turn is stored in one transaction, and only by who still
holds the session. What was said is in `history`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.json_types import JsonObject
from gateway.storage.engine import Database
from gateway.storage.entries import StoredSession
from gateway.storage.history import add_messages, load_messages, to_text
from gateway.storage.tables import history, of_gateway, sessions

HOLD_SECONDS = 6.0
"""How long a run holds a session without renewing: after a crash it is free again within this time."""

MAX_SESSION_BYTES = 16_777_216
"""A conversation that has grown beyond this takes no more turns."""


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that the caller of `claim` or `begin` holds, with everything that was said."""

    id: str
    principal: str
    agent: str
    holder: str
    """Proves that it is still held."""
    state: JsonObject
    messages: list[JsonObject]
    is_new: bool = False


class Sessions:
    """The repository."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """`gateway` names the gateway whose sessions these are; empty: all that share the database."""
        self._database = database
        self._gateway = gateway
        self._ours = of_gateway(sessions, gateway)

    async def begin(self, principal: str, agent: str, *, most: int) -> HeldSession:
        """A new conversation; nothing of it is stored before its first turn.

        Raises:
            PolicyDenied: The caller has `most` already.
            StorageError: See `Database.begin`.
        """
        mine = (sessions.c.principal == principal) & self._ours
        async with self._database.begin() as connection:
            await _sweep(connection)
            count = (await connection.execute(sa.select(sa.func.count()).select_from(sessions).where(mine))).scalar_one()
        if count >= most:
            raise PolicyDenied(
                f"You have {count} sessions, and no more are kept; delete some with `session_delete`.", rule="sessions.max", subject=agent
            )
        return HeldSession(secrets.token_hex(16), principal, agent, secrets.token_hex(8), {}, [], is_new=True)

    async def claim(self, session_id: str, principal: str) -> HeldSession | None:
        """Hold a session of this caller; `None` while somebody else does.

        A session of a version before sessions named their gateway becomes this gateway's.

        Raises:
            NotFound: It is unknown, over, or another caller's.
            StorageError: See `Database.begin`; or what is stored of it is damaged or too large.
        """
        now, holder = time.time(), secrets.token_hex(8)
        mine = self._mine(session_id, principal, now)
        # A clock that was set back must not keep a session held for ever.
        free = (sessions.c.held_until <= now) | (sessions.c.held_until > now + 2 * HOLD_SECONDS)
        async with self._database.begin() as connection:
            values: dict[str, Any] = {"holder": holder, "held_until": now + HOLD_SECONDS}
            if self._gateway:
                values["gateway"] = self._gateway
            taken = await connection.execute(sa.update(sessions).where(mine & free).values(values))
            row = (await connection.execute(sa.select(sessions).where(mine))).mappings().one_or_none()
            if row is None:
                raise unknown_session(session_id)
            if not taken.rowcount:
                return None
            if row["bytes"] > MAX_SESSION_BYTES:
                raise StorageError(f"Session {session_id!r} has grown to {row['bytes']} bytes and takes no more; start a new one.")
            messages = await load_messages(connection, principal, session_id)
            return HeldSession(session_id, principal, row["agent"], holder, _state_of(row), messages)

    async def renew(self, held: HeldSession) -> None:
        """Hold it for another `HOLD_SECONDS`. Raises `StorageError`."""
        here = (sessions.c.id == held.id) & (sessions.c.holder == held.holder)
        async with self._database.begin() as connection:
            await connection.execute(sa.update(sessions).where(here).values(held_until=time.time() + HOLD_SECONDS))

    async def release(self, held: HeldSession) -> None:
        """Let go of it. Raises `StorageError`."""
        here = (sessions.c.id == held.id) & (sessions.c.holder == held.holder)
        async with self._database.begin() as connection:
            await connection.execute(sa.update(sessions).where(here).values(held_until=0))

    async def keep(self, held: HeldSession, messages: Sequence[JsonObject], state: JsonObject, *, ttl_seconds: float) -> None:
        """Store a turn: all of it, or nothing. Its time begins anew.

        Raises:
            StorageError: See `Database.begin`; the state is no JSON; or the session was deleted or taken by another call meanwhile.
        """
        now = time.time()
        text = to_text(state, f"the state of session {held.id!r}")
        async with self._database.begin() as connection:
            values: dict[str, Any] = {"state": text, "used_at": now, "expires_at": now + ttl_seconds}
            if held.is_new:
                fixed = {"id": held.id, "principal": held.principal, "agent": held.agent, "created_at": now, "turns": 0, "bytes": 0}
                first = {**fixed, **values, "holder": held.holder, "held_until": 0.0, "gateway": self._gateway}
                await connection.execute(sa.insert(sessions), first)
            here = (sessions.c.id == held.id) & (sessions.c.holder == held.holder)
            done = await connection.execute(sa.update(sessions).where(here).values(**values, turns=sessions.c.turns + 1))
            if not done.rowcount:
                raise StorageError(f"Session {held.id!r} was deleted, or another call went on with it meanwhile.")
            if messages:
                size = await add_messages(connection, held.principal, held.id, messages)
                await connection.execute(sa.update(sessions).where(here).values(bytes=sessions.c.bytes + size))

    async def list(self, principal: str | None = None) -> list[StoredSession]:
        """A caller's sessions, or everybody's; the one used last comes first. Raises `StorageError`."""
        query = sa.select(sessions).where(self._ours).order_by(sessions.c.used_at.desc(), sessions.c.id)
        if principal is not None:
            query = query.where(sessions.c.principal == principal)
        async with self._database.begin() as connection:
            await _sweep(connection)
            rows = (await connection.execute(query)).mappings().all()
        return [_to_session(row) for row in rows]

    async def get(self, session_id: str, principal: str) -> tuple[StoredSession, list[JsonObject]]:
        """A session of this caller with everything that was said.

        Raises:
            NotFound: It is unknown, over, or another caller's.
            StorageError: See `Database.begin`; or what is stored of it is damaged or too large.
        """
        async with self._database.begin() as connection:
            query = sa.select(sessions).where(self._mine(session_id, principal, time.time()))
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                raise unknown_session(session_id)
            return _to_session(row), await load_messages(connection, principal, session_id)

    async def delete(self, session_id: str, principal: str) -> None:
        """Forget a session and what was said. A call that is in the middle of it fails at its end.

        Raises:
            NotFound: It is unknown, over, or another caller's.
            StorageError: See `Database.begin`.
        """
        async with self._database.begin() as connection:
            gone = await connection.execute(sa.delete(sessions).where(self._mine(session_id, principal, time.time())))
            if not gone.rowcount:
                raise unknown_session(session_id)
            await _forget(connection, principal, session_id)

    def _mine(self, session_id: str, principal: str, now: float) -> sa.ColumnElement[bool]:
        one = (sessions.c.id == _storable(session_id)) & (sessions.c.principal == principal)
        return one & (sessions.c.expires_at > now) & self._ours


def unknown_session(session_id: str) -> NotFound:
    """One error for what never was, is over, and is another caller's."""
    shown = session_id[:100]
    return NotFound("session", shown, f"Unknown session: {shown!r}. It may be over; `session_list` shows yours, `new` begins one.")


def _storable(text: str) -> str:
    """A text from outside as every database takes it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


async def _sweep(connection: AsyncConnection) -> None:
    """Forget what is over, unless somebody is in the middle of it."""
    now = time.time()
    over = (sessions.c.expires_at <= now) & (sessions.c.held_until <= now)
    rows = (await connection.execute(sa.select(sessions.c.id, sessions.c.principal).where(over))).all()
    for session_id, principal in rows:
        await _forget(connection, principal, session_id)
        await connection.execute(sa.delete(sessions).where((sessions.c.id == session_id) & over))


async def _forget(connection: AsyncConnection, principal: str, session_id: str) -> None:
    await connection.execute(sa.delete(history).where((history.c.owner == principal) & (history.c.session == session_id)))


def _state_of(row: Mapping[Any, Any]) -> JsonObject:
    try:
        return cast("JsonObject", json.loads(row["state"]))
    except ValueError:
        raise StorageError(f"The state of session {row['id']!r} is damaged; start a new session. Nothing was changed.") from None


def _to_session(row: Mapping[Any, Any]) -> StoredSession:
    return StoredSession(
        id=row["id"], principal=row["principal"], agent=row["agent"], turns=row["turns"], created_at=row["created_at"],
        used_at=row["used_at"], expires_at=row["expires_at"], is_busy=row["held_until"] > time.time(),
    )  # fmt: skip
