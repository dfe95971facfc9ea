"""Compiles and applies two keywords of argument rules: `oneOfHosts` (with `schemes`) for URLs, and `oneOfRecipients` for mail addresses.

They are Moongate's own keywords ("rule words") inside the JSON Schema of a rule: a text must be a URL on, or a mail address at, a listed
host. The functions are pure and used by `policy.rule_words`. URL parsers disagree: the WHATWG standard repairs URLs that RFC 3986 rejects,
and libraries differ from both. A value passes only in the plain form that all parsers read alike. A rule judges only the text: it does
not resolve the name and does not see redirects that the server follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import cast

from gateway.json_types import JsonValue

SCHEMES = {"https": 443, "http": 80, "wss": 443, "ws": 80}
"""Schemes of URLs that a rule may name, with their default ports. For other schemes, parsers disagree about the host."""

MAX_URL_CHARACTERS = 8_192
"""Maximum length of a URL that servers commonly accept (RFC 9110 section 4.1 recommends 8,000)."""

_URL = re.compile(
    r"""
    (?P<scheme> [A-Za-z][A-Za-z0-9+.-]* ) ://
    (?P<host> \[ [0-9A-Fa-f:.]+ \] | [A-Za-z0-9_.-]+ )
    (?: : (?P<port> [1-9][0-9]{0,4} ) )?
    (?: / [^\s\\\x00-\x1f\x7f-\x9f]* )?
    """,
    re.VERBOSE,
)
"""Matches a URL in the form that all parsers read alike.

It has no user, backslash, space or control character, an ASCII host, a port without leading zeros, and a `/` before any `?` or `#`: without
the `/`, old parsers read these as part of the host or of a user name.
"""

_ADDRESS = re.compile(r"(?P<local>[A-Za-z0-9_+][A-Za-z0-9_+'=-]*(?:\.[A-Za-z0-9_+'=-]+)*)@(?P<host>[A-Za-z0-9_.-]+)")
"""Matches a single mail address without display name, comment, quoted part or route.

The local part must not contain `%` or `!`, which route through other hosts, or begin with `-`, which mail programs read as an option.
"""

_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")

_NUMERIC = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
"""Matches the last label of a host (the part after the last dot) if it makes the WHATWG parser read the host as an IPv4 address."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host, or wildcard for hosts, that a rule with `oneOfHosts` or `oneOfRecipients` allows."""

    name: str
    """Host name in lower case, or IP address in canonical spelling. For a wildcard, the part after `*`; `""` for `*` alone."""
    is_wildcard: bool = False
    port: int | None = None
    """The only port that is allowed; `None` for the scheme's default port."""


@dataclass(frozen=True, slots=True)
class HostRule:
    """A compiled rule `oneOfHosts` with its `schemes`: the hosts and schemes that a URL may have."""

    hosts: tuple[Host, ...]
    schemes: tuple[str, ...]
    written: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' or '.join(self.schemes)} URL on {_any_of(self.written)}"


@dataclass(frozen=True, slots=True)
class RecipientRule:
    """A compiled rule `oneOfRecipients`: the mail addresses and domains that a value may name."""

    domains: tuple[Host, ...]
    addresses: frozenset[tuple[str, str]]
    """Allowed e-mail addresses that the rule names in full, each as a pair of local part and lower-case domain."""
    written: tuple[str, ...]

    def __str__(self) -> str:
        return _any_of(self.written)


def _any_of(written: tuple[str, ...]) -> str:
    return " or ".join("any host" if host == "*" else host for host in written)


# -- compiling -----------------------------------------------------------------------------------------------------


def read_host_rule(written: JsonValue, schemes: JsonValue) -> HostRule:
    """Compile the values of the keywords `oneOfHosts` and `schemes` of an argument rule. `None` for `schemes` allows https only.

    Raises:
        ValueError: A value is not a list of strings, a string is not a host, or a scheme is unsupported; the message is the end of a
            sentence whose subject is the rule.
    """
    names = _texts(written, "oneOfHosts", '["api.example.com", "*.example.org"]')
    allowed = ("https",) if schemes is None else _texts(schemes, "schemes", '["https", "http"]')
    unknown = [scheme for scheme in allowed if scheme not in SCHEMES]
    if unknown:
        raise ValueError(f"has {unknown[0]!r} under `schemes`, which may list {', '.join(SCHEMES)}")
    return HostRule(tuple(_read_host(name) for name in names), allowed, names)


def read_recipient_rule(written: JsonValue) -> RecipientRule:
    """Compile the value of the rule keyword `oneOfRecipients`: domains, `*.` domains, whole mail addresses, or `*` for any domain.

    Raises:
        ValueError: The value has another form; the message is the end of a sentence whose subject is the rule.
    """
    names = _texts(written, "oneOfRecipients", '["example.com", "ops@example.org"]')
    domains: list[Host] = []
    addresses: set[tuple[str, str]] = set()
    for name in names:
        address = _ADDRESS.fullmatch(name)
        if address is not None and _is_name(address["host"]):
            addresses.add((address["local"], address["host"].lower()))
            continue
        host = _read_host(name, word="oneOfRecipients")
        if host.port is not None or (host.name and not _is_name(host.name.removeprefix("."))):
            raise ValueError(f"has {name!r} under `oneOfRecipients`; write a domain, `*.` and a domain, or a mail address")
        domains.append(host)
    return RecipientRule(tuple(domains), frozenset(addresses), names)


def _texts(written: JsonValue, word: str, example: str) -> tuple[str, ...]:
    names = [written] if isinstance(written, str) else written
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in cast("list[JsonValue]", names)):
        raise ValueError(f"needs a list of strings under `{word}`, e.g. {example}")
    return tuple(cast("list[str]", names))


def _read_host(written: str, word: str = "oneOfHosts") -> Host:
    if written == "*":
        return Host("", is_wildcard=True)
    found = re.fullmatch(r"(?P<star>\*(?=\.))?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[1-9][0-9]{0,4}))?", written)
    if found is None:
        hint = "write a name in its ASCII form (xn--…)" if not written.isascii() else "write the host only, without scheme, user or path"
        raise ValueError(f"has {written!r} under `{word}`; {hint}")
    name, port = found["host"].lower(), int(found["port"]) if found["port"] else None
    is_wildcard = found["star"] is not None
    if port is not None and port > 65_535:
        raise ValueError(f"has {written!r} under `{word}`, whose port is above 65535")
    literal = None if is_wildcard else _literal(name)
    if literal != name and not _is_name(name.removeprefix(".") if is_wildcard else name):
        hint = "it is neither a host name nor an address" if literal is None else f"write the address as {literal!r}"
        raise ValueError(f"has {written!r} under `{word}`; {hint}")
    return Host(name, is_wildcard, port)


def _literal(host: str) -> str | None:
    """Return the canonical spelling of the IP address `host` (IPv6 in brackets); `None` if it is not an address, or is IPv4-mapped IPv6."""
    try:
        if not host.startswith("["):
            return str(IPv4Address(host))
        address = IPv6Address(host[1:-1])
    except AddressValueError:
        return None
    return None if address.ipv4_mapped else f"[{address}]"


# -- judging -------------------------------------------------------------------------------------------------------


def judge_url(value: str, rule: HostRule) -> str | None:
    """Return why `value` is rejected, or `None` if every parser reads it as a URL on one of the rule's hosts.

    The reason is the end of a sentence whose subject is the value. It never contains the value.
    """
    if len(value) > MAX_URL_CHARACTERS:
        return f"has more than {MAX_URL_CHARACTERS} characters"
    found = _URL.fullmatch(value)
    if found is None or not (value.isascii() or value.isprintable()):
        return "is not written as scheme://host/path (no user name, backslash, space or control character, and an ASCII host)"
    scheme = found["scheme"].lower()
    if scheme not in rule.schemes:
        return "has another scheme"
    host = found["host"].lower()
    port = int(found["port"]) if found["port"] else SCHEMES[scheme]
    is_name = _is_name(host)
    for allowed in rule.hosts:
        if _matches(host, allowed, is_name=is_name) and port == (SCHEMES[scheme] if allowed.port is None else allowed.port):
            return None
    if not is_name and _literal(host) != host:
        return "has a host that is neither a plain name nor an address in its usual spelling"
    return "is on another host or port"


def judge_recipient(value: str, rule: RecipientRule) -> str | None:
    """Return why `value` is rejected, or `None` if it is certainly a single mail address that the rule allows.

    The reason is the end of a sentence whose subject is the value. It never contains the value.
    """
    found = _ADDRESS.fullmatch(value) if len(value) <= 254 else None
    if found is None or not _is_name(found["host"]):
        return "is not exactly one mail address such as name@example.com"
    host = found["host"].lower()
    if (found["local"], host) in rule.addresses or any(_matches(host, domain, is_name=True) for domain in rule.domains):
        return None
    return "is another recipient"


def _matches(host: str, allowed: Host, *, is_name: bool) -> bool:
    if not allowed.is_wildcard:
        return host == allowed.name
    return is_name and "." in host and host.endswith(allowed.name) and len(host) > len(allowed.name)


def _is_name(host: str) -> bool:
    """Return whether `host` is a host name of ordinary labels, without a trailing dot, that no parser reads as an IP address."""
    if len(host) > 253:
        return False
    labels = host.split(".")
    return all(map(_LABEL.fullmatch, labels)) and not _NUMERIC.fullmatch(labels[-1])
