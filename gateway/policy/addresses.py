"""Decides to which network addresses the gateway may connect when a remote server chose the URL.

A server chooses the URLs of authorization servers and their endpoints in its OAuth metadata. Without this check, a server could make the
gateway connect to a cloud's metadata service or to a host in the private network. The functions are pure; `egress.guarded_fetch` resolves
host names and connects to exactly the addresses that were judged here.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

CLOUD_ADDRESSES = frozenset({IPv4Address("168.63.129.16")})
"""Globally routable addresses at which a cloud's services answer to its own machines (Azure's WireServer). They are rejected."""

_NOT_PUBLIC_IPV4 = (
    IPv4Network("0.0.0.0/8"),  # this network, RFC 791
    IPv4Network("10.0.0.0/8"),  # private, RFC 1918
    IPv4Network("100.64.0.0/10"),  # carrier-grade NAT, RFC 6598
    IPv4Network("127.0.0.0/8"),  # loopback, RFC 1122
    IPv4Network("169.254.0.0/16"),  # link-local, RFC 3927; cloud metadata
    IPv4Network("172.16.0.0/12"),  # private, RFC 1918
    IPv4Network("192.0.0.0/24"),  # protocol assignments, RFC 6890
    IPv4Network("192.0.2.0/24"),  # documentation, RFC 5737
    IPv4Network("192.88.99.0/24"),  # 6to4 relays, withdrawn by RFC 7526
    IPv4Network("192.168.0.0/16"),  # private, RFC 1918
    IPv4Network("198.18.0.0/15"),  # benchmarks, RFC 2544
    IPv4Network("198.51.100.0/24"),  # documentation, RFC 5737
    IPv4Network("203.0.113.0/24"),  # documentation, RFC 5737
    IPv4Network("224.0.0.0/4"),  # multicast, RFC 5771
    IPv4Network("240.0.0.0/4"),  # reserved and broadcast, RFC 1112
)
"""IPv4 networks to which the gateway does not connect: multicast, and those in the IANA IPv4 Special-Purpose Address Registry that are
not globally reachable.

They are listed here because the tables of Python's `ipaddress` differ between versions. The few anycast addresses that the registry
declares globally reachable inside a listed network are rejected too: no authorization server uses them.
"""

_GLOBAL_IPV6 = IPv6Network("2000::/3")
"""The only IPv6 range that IANA assigns to the internet (RFC 4291). Unique local (`fc00::/7`), link-local, site-local
(`fec0::/10`, still routed inside some networks), multicast, SRv6 (`5f00::/16`) and everything unassigned lie outside."""

_NOT_PUBLIC_IPV6 = (
    IPv6Network("2001::/23"),  # protocol assignments, Teredo included, RFC 2928
    IPv6Network("2001:db8::/32"),  # documentation, RFC 3849
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
)
"""Networks inside 2000::/3 that are not public by the IANA IPv6 Special-Purpose Address Registry. 6to4 (2002::/16) is judged separately,
by the embedded IPv4 address."""

_NAT64 = IPv6Network("64:ff9b::/96")
"""NAT64 prefix (RFC 6052), with which an IPv6-only network reaches IPv4. The last 32 bits are an IPv4 address, which is judged instead."""

_6TO4 = IPv6Network("2002::/16")
"""6to4 prefix (RFC 3056). The 32 bits after the prefix are an IPv4 address, which is judged instead."""


def judge_address(text: str, *, loopback_allowed: bool) -> str | None:
    """Return why the gateway must not connect to an IP address, or `None` if it may. `text` is numeric, as returned by a resolver.

    Addresses of this machine are allowed only with `loopback_allowed`. If an IPv6 address embeds an IPv4 address, the IPv4 address is
    judged, so that IPv6 cannot disguise a private address.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return "is not an IP address"
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or (IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address)
    if address.is_loopback:
        return None if loopback_allowed else "is this machine"
    if isinstance(address, IPv4Address):
        if address in CLOUD_ADDRESSES:
            return "belongs to the cloud's own services"
        is_public = not any(address in network for network in _NOT_PUBLIC_IPV4)
        return None if is_public else "is not a public address"
    if address not in _GLOBAL_IPV6 or any(address in network for network in _NOT_PUBLIC_IPV6):
        return "is not a public address"
    if address in _6TO4:
        inner = IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
        return judge_address(str(inner), loopback_allowed=False) and "leads to an address that is not public"
    return None


def is_loopback_host(host: str) -> bool:
    """Return whether a host name or IP address is one of this machine, judged by its text without resolving the name."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_same_origin(ours: str, other: str) -> bool:
    """Return whether the secret headers that are configured for the URL `ours` may also be sent to `other`, which a remote party named.

    The two URLs need the same scheme, host and port, and `other` must not contain a user name. `other` may also use https in place of
    http if both URLs use the default port.
    """
    first, second = urlsplit(ours), urlsplit(other)
    try:
        ports = first.port, second.port
    except ValueError:
        return False
    if not first.hostname or first.hostname != second.hostname or second.username is not None or second.password is not None:
        return False
    if first.scheme == second.scheme:
        own = {"http": 80, "https": 443}.get(first.scheme)
        return (ports[0] or own) == (ports[1] or own)
    return (first.scheme, second.scheme) == ("http", "https") and ports[0] in (None, 80) and ports[1] in (None, 443)
