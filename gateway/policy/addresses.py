"""Which network addresses a request may go to whose URL somebody else wrote.

Used for what a remote server's metadata names (authorization servers, their endpoints): without it, a server could
make the gateway ask the cloud's metadata service or a neighbour in the private network. Pure; `egress.guarded`
resolves the names and connects to exactly the addresses that were judged here.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

CLOUD_ADDRESSES = frozenset({ip_address("168.63.129.16")})
"""Global by number, yet answered by the cloud host itself (Azure's WireServer); the others are link-local or shared."""

_ALSO_SPECIAL = (
    IPv4Network("192.0.0.0/24"),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("3fff::/20"),
    IPv6Network("5f00::/16"),
)
"""Special-purpose networks that the tables of some Python versions take for global."""

_NAT64 = IPv6Network("64:ff9b::/96")
"""An IPv6-only network reaches all of IPv4 through it (RFC 6052), so its addresses are the IPv4 addresses they carry."""

_6TO4 = IPv6Network("2002::/16")
"""Carries an IPv4 address behind its first 16 bits (RFC 3056)."""


def judge_address(text: str, *, loopback_allowed: bool) -> str | None:
    """Why an address may not be connected to, or `None`. `text` is numeric, as the resolver gives it.

    An IPv6 address that carries an IPv4 address is judged by both, so no spelling hides a private one.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return "is no address"
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address)
    if address.is_loopback:
        return None if loopback_allowed else "is this machine"
    if any(address in network for network in _ALSO_SPECIAL):
        return "is not a public address"
    if address in CLOUD_ADDRESSES:
        return "belongs to the cloud's own services"
    if address.is_multicast or address.is_unspecified or address.is_reserved or not address.is_global:
        return "is not a public address"
    if isinstance(address, IPv6Address) and address in _6TO4:
        inner = IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
        return judge_address(str(inner), loopback_allowed=False) and "leads to an address that is not public"
    return None


def is_loopback_host(host: str) -> bool:
    """Whether a host as written names this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_same_origin(ours: str, other: str) -> bool:
    """Whether what belongs to `ours` may go to `other`: the same scheme, host and port, or https instead of http on both's own port."""
    mine, theirs = urlsplit(ours), urlsplit(other)
    try:
        ports = mine.port, theirs.port
    except ValueError:
        return False
    if not mine.hostname or mine.hostname != theirs.hostname or theirs.username is not None or theirs.password is not None:
        return False
    if mine.scheme == theirs.scheme:
        own = {"http": 80, "https": 443}.get(mine.scheme)
        return (ports[0] or own) == (ports[1] or own)
    return (mine.scheme, theirs.scheme) == ("http", "https") and ports[0] in (None, 80) and ports[1] in (None, 443)
