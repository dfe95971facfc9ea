"""`ContinuedSessions`: continues the 2025 sessions that another replica of the gateway opened, and applies changes that replicas share."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import anyio

from gateway.auth.principal import Principal
from gateway.errors import StorageError
from gateway.protocol import INTERNAL_ERROR
from gateway.server.clients import Clients, LegacySession
from gateway.server.fast_path.fast_sessions import FastSessions
from gateway.server.fast_path.handshake import plain_initialize
from gateway.server.head import Head
from gateway.server.http_responses import Refusal
from gateway.server.replica_routes import FORWARDED_SCOPE_KEY
from gateway.server.sealed_sessions import SealedSessions
from gateway.server.session_table import SHOWN_CHARACTERS, SessionTable
from gateway.server.usage import RETRY_SECONDS, Usages
from gateway.server.watches import Watches
from gateway.tools.context import CallContext
from gateway.tools.ports import LogLevel
from gateway.wire.jsonrpc import decode_object

if TYPE_CHECKING:
    from starlette.types import Scope

    from gateway.storage.client_sessions import ClientSessionRow

logger = logging.getLogger(__name__)

STREAM_PAUSE_SECONDS = 0.1
"""Longest pause before a session is continued because its client sends a GET.

Pauses end together, at fixed times, so that the stored states of several sessions are read together.
"""

STREAMS_AT_ONCE = 20
"""Maximum number of GETs in this pause. Further GETs wait in a queue.

After the death of a replica, hundreds of clients open their streams at another one. The queue leaves time for the calls of all clients.
"""

_NOT_CONTINUED = "The gateway's database does not answer, so this session cannot be continued now. Try again."
_NOT_ENDED = "The gateway's database does not answer, so the session was not ended. Try again."


class ContinuedParts(Protocol):
    """The part of `GatewayServer`'s interface that is needed to continue sessions of other replicas."""

    clients: Clients
    usages: Usages
    watches: Watches

    def context_of(self, session: LegacySession) -> CallContext | None:
        """Return the context in which the gateway itself acts for a session; `None` if the key of its caller is no longer valid."""
        ...


class ContinuedSessions:
    """Opens sessions of other replicas at their first request here, and applies the changes of sessions that other replicas store."""

    def __init__(self, sealed: SealedSessions | None, sessions: FastSessions, parts: ContinuedParts, table: SessionTable) -> None:
        """`sealed` reads the session ids, and is `None` without replicas. `sessions` opens sessions, and `table` has all that are open."""
        self._sealed = sealed
        self._sessions = sessions
        self._parts = parts
        self._table = table
        self._streams = anyio.Semaphore(STREAMS_AT_ONCE)
        """Held by GETs during their pause."""
        self._wanted: dict[LegacySession, Sequence[str]] = {}
        """URIs of the resources that each session must watch, as long as a task subscribes to them."""
        if sealed is not None:
            sealed.follow(self._apply)

    async def prepare(self, head: Head, principal: Principal, scope: Scope) -> Refusal | None:
        """Open the session of a request if another replica opened it; before a DELETE, store for the replicas that the client ended it.

        Return a refusal if a quota does not allow the session, or the database does not answer; else `None`. An id that names no session of
        the replicas, or one that its client ended, opens nothing; the SDK path then answers 404. A request that another replica forwarded
        opens nothing either, because it is for a session that is open here.
        """
        sealed, wire_id, is_delete = self._sealed, head.session_id, head.method == "DELETE"
        if sealed is None or FORWARDED_SCOPE_KEY in scope or (wire_id in self._table and not is_delete):
            return None
        if (body := sealed.open(wire_id, principal.id)) is None:
            return None
        if head.method == "GET":
            async with self._streams:  # first come, first served; the quota of streams bounds how many GETs of one caller wait
                await anyio.sleep(STREAM_PAUSE_SECONDS - anyio.current_time() % STREAM_PAUSE_SECONDS)
        try:
            if wire_id not in self._table:
                refusal = await self._continue(sealed, wire_id, body, principal)
                if refusal is not None:
                    return refusal
            if is_delete:
                await sealed.end(wire_id)
        except StorageError:
            return Refusal(503, INTERNAL_ERROR, _NOT_ENDED if is_delete else _NOT_CONTINUED, RETRY_SECONDS)
        return None

    async def _continue(self, sealed: SealedSessions, wire_id: str, body: bytes, principal: Principal) -> Refusal | None:
        """Open a session that another replica opened, unless its client ended it. Raises `StorageError`."""
        state = await sealed.state_of(wire_id)
        if wire_id in self._table or sealed.was_ended(wire_id) or (state is not None and state.is_ended):
            return None
        return await self._open(wire_id, body, principal, state)

    async def _open(self, wire_id: str, body: bytes, principal: Principal, state: ClientSessionRow | None) -> Refusal | None:
        message = decode_object(body)
        hello = None if message is None else plain_initialize(message)
        if hello is None:
            return None
        refusal = self._table.admit(self._parts.usages.of(principal))
        if refusal is not None:
            return refusal
        session = self._sessions.open(wire_id, body, hello.client, principal).legacy
        session.is_initialized = session.is_here = True
        logger.info("session continued session=%s", wire_id[:SHOWN_CHARACTERS])
        if state is not None:
            self._match(session, state)
        return None

    async def _apply(self, state: ClientSessionRow) -> None:
        """Apply the stored state of a session to the session of this process, if it is open here."""
        wire_id = self._table.find(state.name)
        if state.is_ended:
            self._table.end(wire_id)
        elif (session := self._parts.clients.of_wire_id(wire_id)) is not None:
            self._match(session, state)

    def _match(self, session: LegacySession, state: ClientSessionRow) -> None:
        """Apply a stored state to a session. The subscriptions follow in a separate task, because servers may answer slowly."""
        session.log_level = cast("LogLevel", state.log_level)
        tasks, is_running = self._parts.clients.tasks, session in self._wanted
        if tasks is not None and (state.watched or session.watched):
            self._wanted[session] = state.watched
            if not is_running:
                tasks.start_soon(self._watch, session)

    async def _watch(self, session: LegacySession) -> None:
        """Let a session watch the resources that were last requested for it, until no other resources are requested meanwhile."""
        done: Sequence[str] | None = None
        try:
            while (wanted := self._wanted[session]) is not done:
                ctx = self._parts.context_of(session)
                if ctx is not None and session.wire_id in self._table:
                    await self._parts.watches.match(session, wanted, ctx)
                done = wanted
        except Exception as error:  # a fault of a server or of the key store must not end the gateway
            logger.warning("resources of continued session not watched session=%s error=%s", session.wire_id[:SHOWN_CHARACTERS], error)
        finally:
            del self._wanted[session]
