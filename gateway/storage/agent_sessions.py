"""`Sessions`: stores agent sessions (conversations of principals with agents) in the database, and reserves each for one call at a time.

A session belongs to the principal that began it, and expires; other principals cannot see it. A running call reserves its session for a few
seconds, so that no other call uses it, and renews the reservation. If a process dies, its reservations soon expire. A call (one turn of the
conversation) stores all its changes in one transaction, and only while it has the session reserved. `history_rows` stores the messages.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import NotFound, PolicyDenied, StorageError
from gateway.json_types import JsonObject
from gateway.storage.engine import Database, storable
from gateway.storage.history_rows import add_messages, load_messages, to_text
from gateway.storage.record_types import StoredSession
from gateway.storage.shared_clock import shared_now
from gateway.storage.tables import history, of_gateway, sessions

HOLD_SECONDS = 6.0
"""Seconds after which a call's reservation of a session expires, unless the call renews it. After a crash, the session is soon free."""

MAX_SESSION_BYTES = 16_777_216
"""Maximum size of a session's messages, in bytes. A larger session cannot be continued."""


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session and its messages, reserved for one call, so that no other call uses the session. `claim` and `begin` return it."""

    id: str
    principal: str
    agent: str
    holder: str
    """Random id of this reservation. While the database contains this id, no other call has reserved the session."""
    state: JsonObject
    messages: list[JsonObject]
    is_new: bool = False


class Sessions:
    """Stores agent sessions: conversations of principals with agents, and which call uses each of them."""

    def __init__(self, database: Database, gateway: str = "") -> None:
        """Use only the sessions of the gateway `gateway` (its id). An empty id means all gateways that share the database."""
        self._database = database
        self._gateway = gateway
        self._ours = of_gateway(sessions, gateway)

    async def begin(self, principal: str, agent: str, *, most: int) -> HeldSession:
        """Create a new session of the principal with the agent. `keep` stores it when its first call has ended.

        Raises:
            PolicyDenied: The principal already has `most` sessions.
            StorageError: The database is unavailable.
        """
        mine = (sessions.c.principal == principal) & self._ours
        async with self._database.begin() as connection:
            await _sweep(connection)
            count = (await connection.execute(sa.select(sa.func.count()).select_from(sessions).where(mine))).scalar_one()
        if count >= most:
            raise PolicyDenied(
                f"You have {count} sessions, the maximum; delete some with `session_delete`.", rule="sessions.max", subject=agent
            )
        return HeldSession(secrets.token_hex(16), principal, agent, secrets.token_hex(8), {}, [], is_new=True)

    async def claim(self, session_id: str, principal: str) -> HeldSession | None:
        """Reserve a session of the principal for one call and return it, or return `None` if another call uses the session now.

        A session that an earlier version of Moongate stored without the id of a gateway becomes a session of this gateway.

        Raises:
            NotFound: The session is unknown, expired, or belongs to another principal.
            StorageError: The database is unavailable, or the session is damaged or too large.
        """
        now, holder = shared_now(), secrets.token_hex(8)
        mine = self._mine(session_id, principal, now)
        # Without the second condition, a reservation could last very long after the clock was set back.
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
                raise StorageError(f"Session {session_id!r} has {row['bytes']} bytes and accepts no more; start a new one.")
            messages = await load_messages(connection, principal, session_id)
            return HeldSession(session_id, principal, row["agent"], holder, _state_of(row), messages)

    async def renew(self, held: HeldSession) -> None:
        """Extend the reservation of a session for its call by `HOLD_SECONDS` from now. Raises `StorageError`."""
        await self._database.change(sa.update(sessions).where(_held_by(held)).values(held_until=shared_now() + HOLD_SECONDS))

    async def release(self, held: HeldSession) -> None:
        """End the reservation of a session, so that other calls can use it. Raises `StorageError`."""
        await self._database.change(sa.update(sessions).where(_held_by(held)).values(held_until=0))

    async def keep(self, held: HeldSession, messages: Sequence[JsonObject], state: JsonObject, *, ttl_seconds: float) -> None:
        """Store the new messages and the state of a reserved session in one transaction. The session then expires after `ttl_seconds`.

        Raises:
            StorageError: The database is unavailable, the messages or the state are not JSON, or the session was deleted or taken by
                another call.
        """
        now = shared_now()
        text = to_text(state, f"the state of session {held.id!r}")
        async with self._database.begin() as connection:
            values: dict[str, Any] = {"state": text, "used_at": now, "expires_at": now + ttl_seconds}
            if held.is_new:
                fixed = {"id": held.id, "principal": held.principal, "agent": held.agent, "created_at": now, "turns": 0, "bytes": 0}
                first = {**fixed, **values, "holder": held.holder, "held_until": 0.0, "gateway": self._gateway}
                await connection.execute(sa.insert(sessions), first)
            done = await connection.execute(sa.update(sessions).where(_held_by(held)).values(**values, turns=sessions.c.turns + 1))
            if not done.rowcount:
                raise StorageError(f"Session {held.id!r} was deleted, or another call continued it in the meantime.")
            if messages:
                size = await add_messages(connection, held.principal, held.id, messages)
                await connection.execute(sa.update(sessions).where(_held_by(held)).values(bytes=sessions.c.bytes + size))

    async def list(self, principal: str | None = None) -> list[StoredSession]:
        """Return the sessions of one principal, or of all principals, the most recently used first. Raises `StorageError`."""
        query = sa.select(sessions).where(self._ours).order_by(sessions.c.used_at.desc(), sessions.c.id)
        if principal is not None:
            query = query.where(sessions.c.principal == principal)
        async with self._database.begin() as connection:
            await _sweep(connection)
            rows = (await connection.execute(query)).mappings().all()
        return [_to_session(row) for row in rows]

    async def get(self, session_id: str, principal: str) -> tuple[StoredSession, list[JsonObject]]:
        """Return a session of the principal and its messages, without reserving the session.

        Raises:
            NotFound: The session is unknown, expired, or belongs to another principal.
            StorageError: The database is unavailable, or the session is damaged or too large.
        """
        async with self._database.begin() as connection:
            query = sa.select(sessions).where(self._mine(session_id, principal, shared_now()))
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                raise unknown_session(session_id)
            return _to_session(row), await load_messages(connection, principal, session_id)

    async def delete(self, session_id: str, principal: str) -> None:
        """Delete a session of the principal and its messages. A call that is running in the session fails when it ends.

        Raises:
            NotFound: The session is unknown, expired, or belongs to another principal.
            StorageError: The database is unavailable.
        """
        async with self._database.begin() as connection:
            gone = await connection.execute(sa.delete(sessions).where(self._mine(session_id, principal, shared_now())))
            if not gone.rowcount:
                raise unknown_session(session_id)
            await _forget(connection, principal, session_id)

    def _mine(self, session_id: str, principal: str, now: float) -> sa.ColumnElement[bool]:
        one = (sessions.c.id == storable(session_id)) & (sessions.c.principal == principal)
        return one & (sessions.c.expires_at > now) & self._ours


def unknown_session(session_id: str) -> NotFound:
    """Return the error for a session that is unknown, expired, or belongs to another principal; it does not reveal which."""
    shown = session_id[:100]
    return NotFound("session", shown, f"Unknown session: {shown!r}. It may have expired; `session_list` lists yours, `new` begins one.")


def _held_by(held: HeldSession) -> sa.ColumnElement[bool]:
    """Return the SQL condition that the reservation `held` is still in the database: no other call has reserved the session since then."""
    return (sessions.c.id == held.id) & (sessions.c.holder == held.holder)


async def _sweep(connection: AsyncConnection) -> None:
    """Delete expired sessions, except those in which a call is running."""
    now = shared_now()
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
        used_at=row["used_at"], expires_at=row["expires_at"], is_busy=row["held_until"] > shared_now(),
    )  # fmt: skip
