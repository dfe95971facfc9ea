"""`UnreadAnswers`: counts the bytes of answers that clients do not read against their callers; `HeldBytes`: bytes of connections by owner.

`wire.http1_writer` reports an answer only if its socket does not take the whole answer at once. `server.usage` refuses further calls of a
caller that is at its quota; calls that are in progress by then may still answer. Beyond `policy.quotas.UNREAD_EXCESS` times a quota, the
connection whose answer has been unread longest is cut.

Decided: cut an unread answer, because the tool has run and its result is in memory, so only the connection can give way. Instead of:
holding the call's slot until its answer is read, which bounds the number of unread answers but not their bytes. Revisit when: answers
are streamed from the server to the client.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

from gateway.auth.principal import LOCAL, Principal
from gateway.policy.quotas import UNREAD_EXCESS
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.telemetry.sparse_log import SparseLog

if TYPE_CHECKING:
    from gateway.server.head import Head
    from gateway.server.usage import Usage, Usages
    from gateway.wire.http1_exchange import Exchange
    from gateway.wire.http1_writer import UnreadConnection

logger = logging.getLogger(__name__)

OwnerT = TypeVar("OwnerT", bound=Hashable)
PeerT = TypeVar("PeerT", bound=Hashable)


class HeldBytes(Generic[OwnerT, PeerT]):
    """Bytes that connections hold, by the owner for whom they count."""

    __slots__ = ("_held", "_owner", "_size", "total")

    def __init__(self) -> None:
        """No side effects."""
        self.total = 0
        self._held: dict[OwnerT, dict[PeerT, int]] = {}
        """By connection; the connection that has held bytes longest is first."""
        self._owner: dict[PeerT, OwnerT] = {}
        self._size: dict[OwnerT, int] = {}

    def set(self, peer: PeerT, owner: OwnerT, size: int) -> None:
        """Count `size` bytes for `owner`, instead of what the connection has held so far."""
        if self._owner.get(peer, owner) != owner:
            self.drop(peer)
        held = self._held.setdefault(owner, {})
        grown = size - held.get(peer, 0)
        held[peer] = size
        self._owner[peer] = owner
        self._size[owner] = self._size.get(owner, 0) + grown
        self.total += grown

    def drop(self, peer: PeerT) -> OwnerT | None:
        """Count nothing more for a connection; return the owner if there was one."""
        if peer not in self._owner:
            return None
        owner = self._owner.pop(peer)
        held = self._held[owner]
        size = held.pop(peer)
        self.total -= size
        self._size[owner] -= size
        if not held:
            del self._held[owner], self._size[owner]
        return owner

    def owner(self, peer: PeerT) -> OwnerT | None:
        """Return the owner of what a connection holds."""
        return self._owner.get(peer)

    def size(self, owner: OwnerT) -> int:
        """Return the bytes of one owner."""
        return self._size.get(owner, 0)

    def count(self, owner: OwnerT) -> int:
        """Return the number of connections that hold bytes for one owner."""
        return len(self._held.get(owner, ()))

    def oldest(self, owner: OwnerT) -> PeerT:
        """Return the connection that has held bytes for an owner longest."""
        return next(iter(self._held[owner]))

    def largest(self) -> OwnerT:
        """Return the owner with most bytes."""
        return max(self._size, key=self._size.__getitem__)

    def __len__(self) -> int:
        """Return the number of connections that hold bytes."""
        return len(self._owner)


class UnreadAnswers:
    """Of all connections of one process."""

    def __init__(self, usages: Usages) -> None:
        """`usages` has the quotas, and gets what each caller holds."""
        self._usages = usages
        self._held: HeldBytes[Usage, UnreadConnection] = HeldBytes()
        self._log = SparseLog(logger)

    def hold(self, connection: UnreadConnection, exchange: Exchange[Head], size: int) -> bool:
        """Count `size` bytes of responses on a connection, for the caller of its first request until the client has read them.

        Returns whether they count; responses of pages that need no key, and of rejected requests, do not.
        """
        caller = _caller_of(exchange)
        if caller is None:
            return False
        held = self._held
        usage = held.owner(connection) or self._usages.of(caller)
        held.set(connection, usage, size)
        usage.set_unread(held.size(usage))
        quota = usage.unread_quota
        while held.size(usage) > UNREAD_EXCESS * quota.per_caller and held.count(usage) > 1:
            self._cut(usage, quota.caller_key)
        while held.total > UNREAD_EXCESS * quota.total and len(held) > 1:
            self._cut(held.largest(), quota.total_key)
        return True

    def drop(self, connection: UnreadConnection) -> None:
        """Count nothing more for a connection: the client reads again, or is gone."""
        usage = self._held.drop(connection)
        if usage is not None:
            usage.set_unread(self._held.size(usage))

    def _cut(self, usage: Usage, setting: str) -> None:
        connection = self._held.oldest(usage)
        self._log.warning("unread answer cut caller=%s setting=%s unread_bytes=%s", usage.name, setting, usage.unread)
        self.drop(connection)
        connection.cut()


def _caller_of(exchange: Exchange[Head]) -> Principal | None:
    if exchange.known_scope is not None:
        return exchange.known_scope.get(PRINCIPAL_SCOPE_KEY)
    if not exchange.is_fast:
        return None
    return LOCAL if exchange.head.key is None else exchange.head.key.principal
