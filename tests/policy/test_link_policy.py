"""Links that a server may ask a person to open."""

from __future__ import annotations

import pytest

from gateway.policy.link_policy import MAX_LINK_CHARS, Link, judge_link


@pytest.mark.parametrize(
    ("url", "opened", "host"),
    [
        ("https://example.com/x?y=1#z", "https://example.com/x?y=1#z", "example.com"),
        ("https://EXAMPLE.com./a", "https://example.com/a", "example.com"),
        ("https://example.com:8443/", "https://example.com:8443/", "example.com"),
        ("https://b\u00fccher.example/x", "https://xn--bcher-kva.example/x", "xn--bcher-kva.example"),
        ("https://\u043c\u043e\u0441\u043a\u0432\u0430.\u0440\u0444/", "https://xn--80adxhks.xn--p1ai/", "xn--80adxhks.xn--p1ai"),
        ("https://xn--strae-oqa.de/", "https://xn--strae-oqa.de/", "xn--strae-oqa.de"),
        ("https://example.com/@user", "https://example.com/@user", "example.com"),
        ("https://pay.box/a", "https://pay.box/a", "pay.box"),
        ("https://v1-2-3-400.example.com/", "https://v1-2-3-400.example.com/", "v1-2-3-400.example.com"),
        ("https://ec2-8-8-8-8.example.com/", "https://ec2-8-8-8-8.example.com/", "ec2-8-8-8-8.example.com"),
        ("https://clients.net/nip.io", "https://clients.net/nip.io", "clients.net"),
        ("https://0a000001.app.example/", "https://0a000001.app.example/", "0a000001.app.example"),
        ("https://not-fuf.me/", "https://not-fuf.me/", "not-fuf.me"),
    ],
)
def test_public_names_over_https_are_shown_as_they_are_looked_up(url: str, opened: str, host: str) -> None:
    assert judge_link(url) == Link(opened, host)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com", "http://localhost/", "http://127.0.0.1:8080/cb", "http://[::1]:1/", "https://localhost", "https://localhost./",
        "https://a.localhost/", "https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/",
        "https://017700000001/", "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[fe80::1]/", "https://169.254.169.254/",
        "https://8.8.8.8/", "https://127\u30020\u30020\u30021/", "https://\uff11\uff12\uff17.0.0.1/", "https://intranet/", "https://printer.local/",
        "https://portal.corp/", "https://router.lan/", "https://db.internal/", "https://x.home.arpa/", "https://%6cocalhost/",
        "https://bank.example@evil.example/", "https://a:b@evil.example/", "https://a\\@b.example", "https://exa mple.com",
        "https://a\n.example", "https://a\u2060.example", "https://p\u0430ypal.com/", "https://xn--80ak6aa92e.com/", "https://stra\u00dfe.de/",
        "https://a..b.example/", "https://-a.example/", "https://example.com:99999/", "https://" + "a" * 64 + ".example/", "https://[::1",
        "https:example.com", "//example.com", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "https://", "https:///x", "",
        "https://nas.fritz.box/", "https://fritz.box/", "https://host.tail1234.ts.net/", "https://x.consul/", "https://portal.intra/",
        "https://api.svc/", "https://pc.workgroup/", "https://vm.lxd/", "https://localtest.me/", "https://a.LocalTest.me./",
        "https://app.lvh.me/", "https://127.0.0.1.nip.io/", "https://app-7f000001.nip.io/", "https://10-0-0-1.sslip.io/",
        "https://0a000001.0x.no/", "https://localhost.me/", "https://7f000001.c0a80001.rbndr.us/", "https://a--1.ip6.name/",
        "https://readme.localtest.me/", "https://fuf.me/", "https://0--1.backname.io/", "https://7f000001.xip.name/", "https://a.localho.st/",
        "https://app.lcl.host/", "https://ac100001.rebind.network/", "https://x.1u.ms/", "https://spoofed.burpcollaborator.net/",
        "https://--1.sslip.io/", "https://192.168.1.1.example.com/", "https://app-10-1-2-3.example.com/", "https://1.127.0.0.1.example.com/",
        "https://example.com/" + "x" * MAX_LINK_CHARS, None, 5,
    ],
    ids=ascii,
)  # fmt: skip
@pytest.mark.attack(17)
def test_other_links_are_refused(url: object) -> None:
    assert isinstance(judge_link(url), str)


def test_the_operator_allows_hosts_by_globs() -> None:
    allowed = ["portal.corp", "*.lan", "localhost", "127.0.0.1", "::1"]
    assert judge_link("https://portal.corp/x", allowed) == Link("https://portal.corp/x", "portal.corp")
    assert judge_link("https://ROUTER.lan/", allowed) == Link("https://router.lan/", "router.lan")
    assert judge_link("http://localhost:8080/cb", allowed) == Link("http://localhost:8080/cb", "localhost")
    assert judge_link("http://[::1]:8080/", allowed) == Link("http://[::1]:8080/", "::1")


@pytest.mark.parametrize("url", ["http://portal.corp/", "http://router.lan/", "https://other.corp/", "ftp://localhost/", "https://x@portal.corp/"])
@pytest.mark.attack(17)
def test_allowed_host_does_not_allow_other_schemes_or_hosts(url: str) -> None:
    assert isinstance(judge_link(url, ["portal.corp", "*.lan", "localhost"]), str)
