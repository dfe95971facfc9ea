"""Addresses that somebody else's URL may lead to: every spelling of a private one is refused (security.md C2 row 3)."""

from __future__ import annotations

import pytest

from gateway.policy.addresses import judge_address

PRIVATE = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 169.254.169.254 169.254.0.1 172.16.0.1 172.31.255.254
    192.0.0.8 192.0.2.1 192.168.0.1 198.18.0.1 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1 255.255.255.255
    168.63.129.16 :: fe80::1 fe80::1%eth0 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 2001:db8::1 100::1 2001:0:4136:e378:8000:63bf:3fff:fdd2
    ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:168.63.129.16 ::10.0.0.1 ::a9fe:a9fe 64:ff9b::a00:1 64:ff9b::169.254.169.254
    64:ff9b:1::a00:1 2002:a00:1:: 2002:a9fe:a9fe::1 2002:7f00:1::
""".split()

LOOPBACK = "127.0.0.1 127.255.0.3 ::1 ::ffff:127.0.0.1 64:ff9b::7f00:1".split()

PUBLIC = "8.8.8.8 1.1.1.1 2606:4700:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808 2002:808:808::1".split()


@pytest.mark.parametrize("address", PRIVATE)
@pytest.mark.attack(3)
def test_a_private_address_is_refused_in_every_spelling(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) is not None
    assert judge_address(address, loopback_allowed=True) is not None


@pytest.mark.parametrize("address", LOOPBACK)
def test_this_machine_is_allowed_only_where_the_server_is_on_it(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) == "is this machine"
    assert judge_address(address, loopback_allowed=True) is None


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_fine(address: str) -> None:
    assert judge_address(address, loopback_allowed=False) is None


def test_what_is_no_address_is_refused() -> None:
    assert judge_address("localhost", loopback_allowed=True) is not None
