"""Addresses that a peer's URL may lead to: every spelling of a private address is rejected."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.policy.addresses import judge_address

PRIVATE = """
    fec0::1 feff:ffff::1
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 169.254.169.254 169.254.0.1 172.16.0.1 172.31.255.254
    192.0.0.8 192.0.2.1 192.168.0.1 198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    168.63.129.16 :: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 2001:db8::1 100::1 2001:0:4136:e378:8000:63bf:3fff:fdd2
    ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:168.63.129.16 ::10.0.0.1 ::a9fe:a9fe 64:ff9b::a00:1 64:ff9b::169.254.169.254
    64:ff9b:1::a00:1 2002:a00:1:: 2002:a9fe:a9fe::1 2002:7f00:1::
""".split()

LOOPBACK = "127.0.0.1 127.255.0.3 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1".split()

PUBLIC = "8.8.8.8 1.1.1.1 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1".split()


IANA_NOT_GLOBAL = """
    0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.0.0/29 192.0.0.8/32
    192.0.0.170/32 192.0.0.171/32 192.0.2.0/24 192.88.99.0/24 192.88.99.2/32 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32
    ::/128 ::1/128 ::/96 ::ffff:0:0:0/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:2::/48 2001:10::/28
    2001:db8::/32 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8
""".split()
"""Special-purpose networks of the IANA registries (read 2026-11) that are not globally reachable; with multicast, the site-local
range that RFC 3879 deprecates and the IPv4-compatible and IPv4-translated ranges of RFC 4291 and RFC 2765."""

NEIGHBOURS = """
    1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255
    172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
    198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 192.31.196.1 192.52.193.1 192.175.48.1
    2000:: 2001:200:: 2001:db7:ffff:: 2001:db9:: 2620:4f:8000::1 3ffe:ffff:: 3fff:1000:: 2606:4700::1111
""".split()
"""Addresses beside those networks, and ones that the registries call globally reachable."""


@pytest.mark.attack(3)
@pytest.mark.parametrize("network", IANA_NOT_GLOBAL)
def test_both_ends_of_each_special_network_are_refused(network: str) -> None:
    for address in (ip_network(network)[0], ip_network(network)[-1]):
        assert judge_address(str(address), loopback_allowed=False) is not None


@pytest.mark.parametrize("address", NEIGHBOURS)
def test_addresses_beside_special_networks_are_public(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) is None


@pytest.mark.attack(3)
def test_nat64_and_6to4_addresses_are_judged_by_their_ipv4_address() -> None:
    for network in (ip_network(n) for n in IANA_NOT_GLOBAL if "." in n):
        carried = int(network[0])
        assert judge_address(f"64:ff9b::{carried >> 16:x}:{carried & 0xFFFF:x}", loopback_allowed=False) is not None
        assert judge_address(f"2002:{carried >> 16:x}:{carried & 0xFFFF:x}::1", loopback_allowed=False) is not None
        assert judge_address(f"::ffff:{network[0]}", loopback_allowed=False) is not None


@pytest.mark.parametrize("address", PRIVATE)
@pytest.mark.attack(3)
def test_private_address_is_refused_in_every_spelling(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) is not None
    assert judge_address(address, loopback_allowed=True) is not None


@pytest.mark.parametrize("address", LOOPBACK)
def test_this_machine_is_allowed_only_where_the_server_is_on_it(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) == "is this machine"
    assert judge_address(address, loopback_allowed=True) is None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_fine(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) is None


def test_malformed_address_is_rejected() -> None:
    assert judge_address("localhost", loopback_allowed=True) is not None
