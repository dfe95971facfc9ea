"""`UnreadAnswers`: limits, per caller and in total, the bytes of HTTP responses that clients have not read yet. `HeldBytes` counts them.

`wire.http1_exchange` reports a response to this module only if the socket does not accept the whole response at once. `server.usage`
refuses further calls of a caller that has reached its quota; calls in flight at that time may still respond. At more than
`policy.quotas.UNREAD_EXCESS` times a quota, the connection whose response has been unread longest is closed, unless it is the only one
with unread bytes.

Decided: close the connection, because the tool has run, its result is in memory, and only closing frees this memory. Instead of: keeping
the call's concurrency slot occupied until its response is read, which bounds the number of unread responses but not their bytes. Revisit
when: responses are streamed from the server to the client.
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
    from gateway.wire.http1_exchange import Exchange, UnreadConnection

logger = logging.getLogger(__name__)

OwnerT = TypeVar("OwnerT", bound=Hashable)
PeerT = TypeVar("PeerT", bound=Hashable)


class HeldBytes(Generic[OwnerT, PeerT]):
    """Counts the bytes in memory for each HTTP connection, with sums per owner and in total.

    An owner is the caller, or, while the caller is unknown, the network of the client: its IPv4 address or its IPv6 /64. Used for the bytes
    of responses that clients have not read yet, and for the bytes of incomplete requests.
    """

    __slots__ = ("_held", "_owner", "_size", "total")

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[OwnerT, dict[PeerT, int]] = {}
        """Bytes of each connection, by owner. The connection that has had bytes in memory for the longest time comes first."""
        self._owner: dict[PeerT, OwnerT] = {}
        self._size: dict[OwnerT, int] = {}

    def set(self, peer: PeerT, owner: OwnerT, size: int) -> None:
        """Set how many bytes (of unread responses or incomplete requests) the connection `peer` has in memory. They count for `owner`.

        This replaces the number of bytes and the owner that were set for the connection before.
        """
        if self._owner.get(peer, owner) != owner:
            self.drop(peer)
        held = self._held.setdefault(owner, {})
        grown = size - held.get(peer, 0)
        held[peer] = size
        self._owner[peer] = owner
        self._size[owner] = self._size.get(owner, 0) + grown
        self.total += grown

    def drop(self, peer: PeerT) -> OwnerT | None:
        """Stop counting the bytes of the connection `peer`, and return its owner; `None` if no bytes were counted."""
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
        """Return the owner (caller or network) of the connection `peer`; `None` if no bytes are counted for the connection."""
        return self._owner.get(peer)

    def size(self, owner: OwnerT) -> int:
        """Return the number of bytes that all connections of an owner (caller or network) have in memory."""
        return self._size.get(owner, 0)

    def count(self, owner: OwnerT) -> int:
        """Return the number of connections whose bytes are counted for an owner (caller or network)."""
        return len(self._held.get(owner, ()))

    def oldest(self, owner: OwnerT) -> PeerT:
        """Return the connection of an owner that has had bytes in memory longest. Raises `KeyError` if the owner has no connection."""
        return next(iter(self._held[owner]))

    def largest(self) -> OwnerT:
        """Return the owner (caller or network) whose connections have most bytes in memory. Raises `ValueError` if there are no owners."""
        return max(self._size, key=self._size.__getitem__)

    def __len__(self) -> int:
        """Return the number of connections for which bytes are counted."""
        return len(self._owner)


class UnreadAnswers:
    """Counts the bytes of HTTP responses that clients have not read yet, and closes connections if a caller leaves too many unread."""

    def __init__(self, usages: Usages) -> None:
        """`usages` has the quotas of callers, and receives the number of bytes that each caller has left unread."""
        self._usages = usages
        self._held: HeldBytes[Usage, UnreadConnection] = HeldBytes()
        self._log = SparseLog(logger)

    def hold(self, connection: UnreadConnection, exchange: Exchange[Head], size: int) -> bool:
        """Set the number of unread response bytes of a connection to `size`.

        The bytes count for the caller of an earlier response that is still unread, or else for the caller of the request in `exchange`.
        Return false if the request has no caller, because it was rejected or was for a page that needs no API key: its bytes are not
        counted. If more than `UNREAD_EXCESS` times a quota is unread, close connections, but not the last one that counts for the quota.
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
        """Stop counting the unread bytes of a connection, because its client has read everything or has disconnected."""
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
