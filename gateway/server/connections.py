"""`Connections`: limits the number of HTTP connections, and decides which connection to close when there are too many.

`wire.http1_server` reports when its connections open, close and receive incomplete requests; a request that arrives in one piece needs
no work here. Only a connection that waits for its client may be closed: because the client has sent nothing yet, has sent only a part of a
request, or is idle between requests. A request that is being served is never interrupted.

Decided: a new connection closes the connection that has waited longest for its client. Because: a flood of idle connections then closes
connections of the flood, while refusing new connections would lock out every client. Instead of: refusing new connections until a deadline
passes. Revisit when: HTTP/2 puts many requests on one connection.
"""

from __future__ import annotations

import ipaddress
import logging
import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING

from gateway.policy.quotas import ConnectionQuotas
from gateway.server.longest_idle import LongestIdle
from gateway.server.unread_answers import HeldBytes
from gateway.telemetry.sparse_log import SparseLog
from gateway.wire.http1_interfaces import Admission, Peer

if TYPE_CHECKING:
    from gateway.config.models import HttpSettings

logger = logging.getLogger(__name__)

DESCRIPTORS_KEPT_BACK = 0.5
"""Fraction of the process's limit of open files that is reserved for child processes, files and the database. HTTP connections may use the
rest."""


def connection_limit(settings: HttpSettings, open_files: int | None = None) -> int:
    """Return the maximum number of concurrent HTTP connections: `maxConnections`, or less if the process may not open enough files.

    `open_files` is the process's limit of open files, by default read from the operating system.
    """
    limit = _open_files() if open_files is None else open_files
    return settings.max_connections if limit is None else max(1, min(settings.max_connections, int(limit * (1 - DESCRIPTORS_KEPT_BACK))))


def raise_open_files(settings: HttpSettings) -> None:
    """Raise the process's soft limit of open files to the number that `maxConnections` needs, as far as the hard limit allows."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = int(settings.max_connections / (1 - DESCRIPTORS_KEPT_BACK))
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_files() -> int | None:
    """Return the process's limit of open files; `None` if it is unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def network_of(host: str | None) -> str | None:
    """Return the key under which the connections of a client with the IP address `host` are counted together.

    The key is the address itself for IPv4, and the /64 network for IPv6, because one machine may use all addresses of a /64 network.
    """
    if host is None:
        return None
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def is_local_network(network: str | None) -> bool:
    """Whether `network`, a result of `network_of`, is this machine: the peer is a local program, or a reverse proxy for many clients."""
    return network is None or network == "::1" or network.startswith("127.")


class Connections:
    """Counts all HTTP connections of the process and the bytes of their incomplete requests, and closes connections above the limits."""

    def __init__(self, quotas: ConnectionQuotas) -> None:
        """`quotas` has the limits on connections, and on incomplete requests and their bytes."""
        self._quotas = quotas
        self._all: LongestIdle[Peer] = LongestIdle()
        self._by_address: dict[str, LongestIdle[Peer]] = {}
        self._surplus: dict[Peer, None] = {}
        """Connections that were opened above a limit, oldest first. Some stay open, but serve only health checks and administrators."""
        self._incomplete: HeldBytes[Hashable, Peer] = HeldBytes()
        self._log = SparseLog(logger)

    # -- connections ---------------------------------------------------------------------------------------------

    def network_of(self, client: tuple[str, int] | None) -> str | None:
        """Return the key under which connections of a client with this `(address, port)` are counted: its IPv4 address or IPv6 network."""
        return network_of(client[0] if client else None)

    def opened(self, peer: Peer, now: float) -> bool | None:
        """Count the new connection `peer`, and decide whether it is served. At a limit, close a connection that waits for its client.

        Return true if the connection's requests are served, false if only health checks and administrators may use the connection, and
        `None` if the connection is refused. `now` is the event loop's time. A connection without an IP address is served, and not counted.
        """
        if peer.address is None:
            return True
        self._all.members[peer] = None
        group = self._by_address.get(peer.address)
        if group is None:
            group = self._by_address[peer.address] = LongestIdle()
        group.members[peer] = None
        most = self._quotas.per_address(is_local=is_local_network(peer.address))
        if len(group.members) > most and self._stays_full(group, peer, now):
            self._log.warning("connection refused reason=address address=%s limit=%s", peer.address, most)
            self._surplus[peer] = None
            return None
        if len(self._all.members) > self._quotas.connections and self._stays_full(self._all, peer, now):
            self._log.warning("connection refused reason=total limit=%s", self._quotas.connections)
            is_reserved = len(self._surplus) < self._quotas.reserve or self._frees_reserve()
            self._surplus[peer] = None
            return False if is_reserved else None
        return True

    def _frees_reserve(self) -> bool:
        """Close a connection that waits for its client: the oldest one of those that were opened above a limit. Return true.

        Return false if all connections that were opened above a limit are busy.
        """
        for peer in self._surplus:
            if peer.waits() is not None:
                peer.evict()
                del self._surplus[peer]
                return True
        return False

    def _stays_full(self, group: LongestIdle[Peer], newcomer: Peer, now: float) -> bool:
        """Close the connection of `group` that has waited longest for its client, to make room for the new connection `newcomer`.

        Return false if there is room now. Return true if no connection of `group` waits, or if the closed connection was itself opened
        above the limit: closing it made no room.
        """
        idle = group.find(now, but=newcomer)
        if idle is None:
            return True
        idle.evict()
        return idle in self._surplus

    def closed(self, peer: Peer) -> None:
        """Stop counting a connection, and the bytes of its incomplete request, because the connection was closed."""
        self._all.members.pop(peer, None)
        self._surplus.pop(peer, None)
        self.completed(peer)
        group = self._by_address.get(peer.address) if peer.address is not None else None
        if group is not None:
            group.members.pop(peer, None)
            if not group.members and peer.address is not None:
                del self._by_address[peer.address]

    # -- incomplete requests -------------------------------------------------------------------------------------

    def incomplete(self, peer: Peer, admission: Admission | None, size: int) -> None:
        """Count an incomplete request on the connection `peer`, of which `size` bytes have been received.

        It counts for its caller, or for the network of its client while the caller is unknown (`admission` is `None`). If the caller or
        network exceeds its quota, its oldest incomplete requests are ended. If all incomplete requests together exceed the total quota, the
        oldest ones of the caller or network with most bytes are ended. The request on `peer` may be among the ended requests.
        """
        held, quotas = self._incomplete, self._quotas
        owner, is_local = peer.address, is_local_network(peer.address)
        if admission is not None and admission.owner is not None:
            owner, is_local = admission.owner, admission.is_local
        held.set(peer, owner, size)
        while held.size(owner) > quotas.incomplete_bytes_of_one(is_local=is_local) or (
            held.count(owner) > quotas.incomplete_of_one(is_local=is_local)
        ):
            self._end_oldest(owner, "caller")
        while held.total > quotas.incomplete_bytes:
            self._end_oldest(held.largest(), "total")

    def _end_oldest(self, owner: Hashable, reason: str) -> None:
        peer = self._incomplete.oldest(owner)
        self._log.warning("incomplete request ended reason=%s owner=%s held_bytes=%s", reason, owner, self._incomplete.size(owner))
        self.completed(peer)
        peer.evict()

    def completed(self, peer: Peer) -> None:
        """Stop counting the incomplete request of the connection `peer`, because the request is complete or has ended."""
        self._incomplete.drop(peer)
