"""`oneOfHosts` and `oneOfRecipients`: an accepted value leads to a listed host in every parser."""

from __future__ import annotations

import email.utils
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.policy.host_rule import judge_recipient, judge_url, read_host_rule, read_recipient_rule
from tests.fakes.bypasses import RECIPIENTS, URLS, hosts_of


@pytest.mark.attack(20)
@pytest.mark.parametrize("value", URLS, ids=lambda value: ascii(value)[:60])
def test_url_elsewhere_or_in_a_doubtful_form_is_refused(value: str) -> None:
    reason = judge_url(value, read_host_rule(["api.example.com"], None))
    assert reason is not None
    assert "evil" not in reason


@pytest.mark.parametrize(
    ("hosts", "schemes", "admitted", "refused"),
    [
        (
            ["api.example.com"],
            None,
            ["https://api.example.com", "https://api.example.com/", "HTTPS://API.Example.COM/a?b=c@d#e", "https://api.example.com:443/",
             "https://api.example.com/a//b/../c", "https://api.example.com/Z\u00fcrich"],
            ["https://api.example.com?a=b", "https://api.example.com#a"],
        ),
        ("api.example.com", None, ["https://api.example.com/"], ["https://example.com/"]),
        (["API.example.com"], None, ["https://api.example.com/"], []),
        (
            ["*.example.org"],
            None,
            ["https://a.example.org/", "https://a.b.example.org/", "https://xn--bcher-kva.example.org/", "https://1.example.org/"],
            ["https://example.org/", "https://aexample.org/", "https://.example.org/", "https://a.example.org.evil.example/"],
        ),
        (["api.example.com:8443"], None, ["https://api.example.com:8443/"], ["https://api.example.com/", "https://api.example.com:443/"]),
        (["a.example"], ["http", "https"], ["http://a.example/", "https://a.example:443/", "http://a.example:80/"], ["http://a.example:443/"]),
        (["a.example"], ["wss"], ["wss://a.example/"], ["ws://a.example/", "https://a.example/"]),
        (["127.0.0.1:8080"], ["http"], ["http://127.0.0.1:8080/"], ["http://127.1:8080/", "http://2130706433:8080/", "http://localhost:8080/"]),
        (["[::1]"], None, ["https://[::1]/"], ["https://[0:0:0:0:0:0:0:1]/", "https://[::1%251]/", "https://::1/"]),
        (["*"], None, ["https://any.example/", "https://a.b.c/"], ["https://localhost/", "https://127.0.0.1/", "https://[::1]/", "http://a.example/"]),
    ],
)  # fmt: skip
def test_rule_admits_its_hosts_only(hosts: list[str], schemes: list[str] | None, admitted: list[str], refused: list[str]) -> None:
    rule = read_host_rule(hosts, schemes)
    assert [value for value in admitted if judge_url(value, rule) is not None] == []
    assert [value for value in refused if judge_url(value, rule) is None] == []


@pytest.mark.parametrize(
    ("hosts", "schemes", "says"),
    [
        (["https://api.example.com"], None, "write the host only"),
        (["api.example.com/v1"], None, "write the host only"),
        (["user@api.example.com"], None, "write the host only"),
        (["*api.example.com"], None, "write the host only"),
        (["b\u00fccher.example"], None, "xn--"),
        (["api.example.com."], None, "neither a host name nor an address"),
        (["127.1"], None, "neither a host name nor an address"),
        (["0x7f000001"], None, "neither a host name nor an address"),
        (["*.1"], None, "neither a host name nor an address"),
        (["[0:0::1]"], None, "write the address as '[::1]'"),
        (["[::ffff:127.0.0.1]"], None, "neither a host name nor an address"),
        (["a.example:99999"], None, "port"),
        ([], None, "needs a list"),
        ([3], None, "needs a list"),
        (None, None, "needs a list"),
        (["a.example"], ["git"], "schemes"),
        (["a.example"], [], "needs a list"),
    ],
)
def test_rule_with_an_undetermined_host_is_rejected(hosts: object, schemes: object, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read_host_rule(hosts, schemes)


# -- other parsers ---------------------------------------------------------------------------------------------------

HOSTS = ("api.example.com", "a.example.org", "b.a.example.org", "127.0.0.1", "[::1]")
RULE = read_host_rule(["api.example.com", "*.example.org", "127.0.0.1", "[::1]"], ["https", "http"])
TOKENS = [
    "https", "http", "HTTPS", "ftp", "javascript", ":", "/", "//", "\\", "\\\\", "@", "user", ":pw", "#", "?", ";", "&", "%", "%2f",
    "%40", "%2e", "%00", ".",
    "api.example.com", "API.EXAMPLE.COM", "example.com", ".example.org", "a.example.org", "evil.example", "localhost", "127.0.0.1",
    "127.1", "0x7f.1",
    "2130706433", "017700000001", "[::1]", "[::ffff:1.2.3.4]", "[::1%25a]", "::1", ":443", ":80", ":0443", ":8443", ":", " ", "\t",
    "\n", "\r", "\0", "\x7f",
    "\u200b", "\u00ad", "\u3002", "\uff0e", "\uff0f", "\uff20", "\uff1a", "\u2100", "\u0430", "\u00fc", "\u00df", "xn--bcher-kva", "1",
    "x", "-", "_", "|", "^", "{",
]  # fmt: skip
LEADS = st.sampled_from(["https://", "http://", "https://api.example.com", "https://a.example.org", "https://127.0.0.1/", "", "https:"])
PARTS = st.lists(st.sampled_from(TOKENS), max_size=7).map("".join)
TEXTS = st.one_of(st.tuples(LEADS, PARTS).map("".join), st.tuples(LEADS, st.text(max_size=10)).map("".join), st.text(max_size=30))


def read_as_listed_host(value: str) -> None:
    if judge_url(value, RULE) is not None:
        return
    for parser, host in hosts_of(value).items():
        assert host in ("api.example.com", "127.0.0.1", "::1") or (host or "").endswith(".example.org"), (parser, host)


@pytest.mark.attack(20)
@settings(max_examples=300)
@given(TEXTS)
@example("https://api.example.com/\\@evil.example")
@example("https://api.example.com:443/@evil.example")
@example("https://xn--bcher-kva.example.org/")
def test_every_parser_reads_an_admitted_url_as_a_listed_host(value: str) -> None:
    read_as_listed_host(value)


@pytest.mark.faults
@pytest.mark.attack(20)
@pytest.mark.timeout(600)
@settings(max_examples=20_000, derandomize=False)
@given(TEXTS)
def test_every_parser_reads_admitted_urls_as_a_listed_host(value: str) -> None:
    read_as_listed_host(value)


@settings(max_examples=100)
@given(st.sampled_from(HOSTS), st.from_regex(r"(/[A-Za-z0-9._~-]{1,8}){0,4}(/\?[a-z]=[A-Za-z0-9%+]{0,5})?(#[a-z]{1,5})?", fullmatch=True))
def test_ordinary_url_passes(host: str, rest: str) -> None:
    assert judge_url(f"https://{host}/{rest}", RULE) is None


# -- mail addresses --------------------------------------------------------------------------------------------------


@pytest.mark.attack(20)
@pytest.mark.parametrize("value", RECIPIENTS, ids=lambda value: ascii(value)[:60])
def test_other_recipient_is_refused(value: str) -> None:
    assert judge_recipient(value, read_recipient_rule(["example.com"])) is not None


@pytest.mark.parametrize(
    ("rule", "admitted", "refused"),
    [
        (["example.com"], ["ann@example.com", "Ann.Lee+x@EXAMPLE.com", "o'neil@example.com"], ["ann@a.example.com"]),
        (["*.example.com"], ["ann@a.example.com"], ["ann@example.com"]),
        (["ops@example.org"], ["ops@example.org", "ops@Example.ORG"], ["ann@example.org", "Ops@example.org"]),
        ("ops@example.org", ["ops@example.org"], []),
        (["*"], ["ann@any.example"], ["ann@localhost", "ann", "a@x.example,b@y.example"]),
    ],
)
def test_recipient_rule_admits_its_own_only(rule: list[str], admitted: list[str], refused: list[str]) -> None:
    compiled = read_recipient_rule(rule)
    assert [value for value in admitted if judge_recipient(value, compiled) is not None] == []
    assert [value for value in refused if judge_recipient(value, compiled) is None] == []


@pytest.mark.parametrize("written", [[], [3], None, ["a@b@c"], ["a.example:25"], ["[::1]"], ["Ann <a@a.example>"], ["127.0.0.1"]], ids=str)
def test_rule_with_an_undetermined_recipient_is_rejected(written: object) -> None:
    with pytest.raises(ValueError, match="oneOfRecipients"):
        read_recipient_rule(written)


MAIL_TOKENS = [
    "ann", "eve", "@", "example.com", "evil.example", ",", ";", " ", "\n", "Bcc: ", "<", ">", '"', "(", ")", "%", "!", ":", ".", "-",
    "\\", "\0",
]  # fmt: skip
MAIL_TEXTS = st.one_of(
    st.lists(st.sampled_from(MAIL_TOKENS), max_size=9).map("".join), st.text(max_size=12).map(lambda text: f"ann{text}@example.com")
)


def read_as_one_address(value: str) -> None:
    if judge_recipient(value, read_recipient_rule(["example.com"])) is None:
        assert [address for _, address in email.utils.getaddresses([value])] == [value]
        assert value.count("@") == 1 and value.endswith("@example.com")


@pytest.mark.attack(20)
@settings(max_examples=200)
@given(MAIL_TEXTS)
def test_standard_library_reads_an_admitted_recipient_alike(value: str) -> None:
    read_as_one_address(value)


@pytest.mark.faults
@pytest.mark.attack(20)
@pytest.mark.timeout(600)
@settings(max_examples=10_000, derandomize=False)
@given(MAIL_TEXTS)
def test_standard_library_reads_many_admitted_recipients_alike(value: str) -> None:
    read_as_one_address(value)
