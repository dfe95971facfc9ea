"""`SealedSessions`: lets every replica of a gateway continue the 2025 sessions that another replica opened.

A replica is one of several gateways with the same configuration, installation key and database server. The `Mcp-Session-Id` of a session
contains the client's `initialize` request, encrypted and bound to the principal, so a replica that does not know a session can open it from
the id alone. The database has the rest: log level, watched resources, and whether the client ended the session. Each replica applies the
changes of the others within a second.

Decided: the id contains the state; it is not a name of a row that every replica reads. Because: most sessions then need no row, opening a
session writes nothing, and a stopped database stops only the sessions that move to another replica. Revisit when: ids become too long for
proxies (they have 400 to 1,000 characters; nginx accepts 8,000 in a header).
"""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gateway.errors import StorageError
from gateway.server.clients import DEFAULT_LOG_LEVEL, LegacySession
from gateway.server.session_table import NAME_LENGTH, SEALED_PREFIX, name_of
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.shared_clock import shared_now
from gateway.telemetry.sparse_log import SparseLog

if TYPE_CHECKING:
    from gateway.storage.client_sessions import ClientSessionRow, ClientSessions

logger = logging.getLogger(__name__)

SEALED_SECONDS = 86_400.0
"""Seconds after its opening during which a session can be continued by another replica. The replica that serves it has no such limit."""

SKEW_SECONDS = 600.0
"""Seconds by which the clocks of two replicas may differ."""

MAX_ID = 4_000
"""Maximum characters of a session id, because proxies limit the size of headers. A session whose `initialize` request does not fit stays at
its replica, to which the others forward its requests."""

MAX_ENDED = 10_000
"""Number of recently ended sessions that a replica remembers, so that a request that arrives at the same time does not open one again."""

TOPIC = "client-sessions"
"""Topic of the change feed under which changes of 2025 sessions are published."""

_NONCE_BYTES = 12

Apply = Callable[["ClientSessionRow"], Awaitable[None]]
"""Async function that applies the stored state of a session to the session of this process, if it has one."""


class SessionStore(Protocol):
    """Interface of `Records`, as far as this module needs it."""

    async def client_sessions(self) -> ClientSessions:
        """Open the database if necessary, and return the store of 2025 sessions. Raises `StorageError`."""
        ...


class SealedSessions:
    """Makes and reads the ids of 2025 sessions that every replica can continue, and shares the changes of these sessions."""

    def __init__(self, key: bytes, store: SessionStore, feed: ChangeFeed) -> None:
        """`key` (32 bytes) encrypts the ids. Replicas must have the same key. `feed` reports changes that other replicas have stored."""
        self._key = key
        self._store = store
        self._feed = feed
        self._seen = 0
        """Number of the latest change in the database that this process has applied. It starts with the first change, because the
        process may have sessions before it reads the changes for the first time."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._log = SparseLog(logger)

    def seal(self, body: bytes, principal: str) -> str:
        """Return a new session id that contains `body`, the client's `initialize` request. Only `principal` (an id) can use it.

        Return an empty string if the request is too large for an id.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = int(shared_now()).to_bytes(8, "big") + body
        sealed = AESGCM(self._key).encrypt(nonce, plain, principal.encode())
        wire_id = SEALED_PREFIX + _encode(nonce) + _encode(sealed)
        return wire_id if len(wire_id) <= MAX_ID else ""

    def open(self, wire_id: str, principal: str) -> bytes | None:
        """Return the `initialize` request in a session id.

        Return `None` if the id is not a sealed one of these replicas, belongs to another principal, or is older than `SEALED_SECONDS`.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not wire_id.startswith(SEALED_PREFIX) or len(wire_id) > MAX_ID:
            return None
        try:
            nonce, sealed = _decode(name_of(wire_id)), _decode(wire_id[len(SEALED_PREFIX) + NAME_LENGTH :])
            plain = AESGCM(self._key).decrypt(nonce, sealed, principal.encode())
        except (InvalidTag, ValueError, binascii.Error):
            return None
        age = shared_now() - int.from_bytes(plain[:8], "big")
        return plain[8:] if -SKEW_SECONDS <= age < SEALED_SECONDS + SKEW_SECONDS else None

    def was_ended(self, wire_id: str) -> bool:
        """Whether this process has recently learned that the session was ended by its client."""
        return name_of(wire_id) in self._ended

    async def state_of(self, wire_id: str) -> ClientSessionRow | None:
        """Return the stored state of a session; `None` if it has the initial state. Raises `StorageError`."""
        return await (await self._store.client_sessions()).get(name_of(wire_id))

    async def end(self, wire_id: str) -> None:
        """Store that the client ended a session, so that no replica continues it. Raises `StorageError`."""
        self._note_ended(name_of(wire_id))
        await self._put(wire_id, DEFAULT_LOG_LEVEL, (), is_ended=True)

    async def share(self, session: LegacySession) -> None:
        """Store the log level and the watched resources of a session for the other replicas, after the client changed them.

        If the database does not answer, the change holds only in this process, which is logged. A session with another id is not shared.
        """
        if not name_of(session.wire_id):
            return
        try:
            await self._put(session.wire_id, session.log_level, tuple(uri for uri, count in session.watched.items() if count))
        except StorageError as error:
            self._log.warning("session not shared with other replicas error=%s", error)

    def follow(self, apply: Apply) -> None:
        """From now on, call `apply` with each state that a replica has stored, this process included."""
        self._feed.subscribe(TOPIC, partial(self._catch_up, apply))

    async def _catch_up(self, apply: Apply) -> None:
        """Read the changes since the last call, and pass them on. Called by the change feed. Raises `StorageError`."""
        store = await self._store.client_sessions()
        rows, seen = await store.changed_since(self._seen)
        while rows:
            for row in rows:
                if row.is_ended:
                    self._note_ended(row.name)
                await apply(row)
            self._seen = seen
            rows, seen = await store.changed_since(seen)

    async def _put(self, wire_id: str, level: str, watched: tuple[str, ...], *, is_ended: bool = False) -> None:
        from gateway.storage.client_sessions import ClientSessionRow

        now = shared_now()
        until = now + SEALED_SECONDS + 2 * SKEW_SECONDS
        row = ClientSessionRow(name_of(wire_id), level, watched, is_ended)
        await (await self._store.client_sessions()).put(row, until=until, now=now, topic=TOPIC)

    def _note_ended(self, name: str) -> None:
        self._ended[name] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
