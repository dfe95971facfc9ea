"""Decides which links a server may ask a person to open (elicitation in URL mode).

A link must use https and a public host name. Loopback hosts, IP addresses and names of private networks are refused. The gateway relays the
link with its host in ASCII, lower case and without a final dot, so that the client opens the host that was judged. Names are not resolved:
a public name that resolves to a private address is refused only if it contains the address (`127.0.0.1.nip.io`) or is in a known domain for
such names (`localtest.me`).
The operator can allow more hosts with `elicitation.urlHosts`. The functions are pure; `input_requests` calls `judge_link`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import AddressValueError, IPv4Address
from urllib.parse import SplitResult, urlsplit

from gateway.policy.addresses import is_loopback_host, judge_address
from gateway.policy.lookalikes import looks_latin

_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\\\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_DEVIATIONS = re.compile("[ßς]")
"""Matches visible letters that IDNA 2003 and IDNA 2008 map differently, so that a host has two names (UTS #46).

`_CONTROLS` contains the invisible characters that the two versions treat differently (U+200C and U+200D).
"""

_HOST = re.compile(r"(?=.{1,253}$)(?:[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile(r"(?:\d+|0x[0-9a-f]*)")

_PRIVATE_ENDINGS = frozenset({
    "localhost", "localdomain", "local", "internal", "intranet", "private", "corp", "home", "lan", "arpa", "onion", "test", "invalid",
    "alt", "consul", "intra", "svc", "workgroup", "lxd", "lxc", "docker", "kube", "localnet", "priv", "vpn", "mesh",
})  # fmt: skip
"""Top-level domains of private networks and special uses (RFC 6761, RFC 6762, RFC 9476, ICANN's reserved `.internal`, common use)."""

_PRIVATE_DOMAINS = (
    ".fritz.box", ".easy.box", ".ts.net", ".tailscale.net",
    # Names that resolve to this machine
    ".localtest.me", ".lvh.me", ".vcap.me", ".lacolhost.com", ".localhost.direct", ".lndo.site", ".ddev.site", ".local.gd", ".fuf.me",
    ".localhost.me", ".localhost.tv", ".localhst.co.uk", ".localho.st", ".localdev.me", ".lcl.host", ".smackaho.st", ".ulh.us",
    ".42foo.com", ".colasloth.com", ".l0pb.me", ".l0pb.dev", ".spoofed.burpcollaborator.net",
    # Names that resolve to the address that they contain, in any notation
    ".nip.io", ".sslip.io", ".xip.io", ".xip.name", ".traefik.me", ".plex.direct", ".nip.direct", ".backname.io", ".ip6.name", ".ip.es.io",
    ".0x.no", ".local-ip.co", ".local-ip.sh", ".local-ip.medicmobile.org",
    # Names that resolve to changing addresses (DNS rebinding)
    ".rbndr.us", ".1u.ms", ".rebind.network", ".rebind.it",
)  # fmt: skip
"""Domains of home routers and private networks, and public domains whose names lead to this machine or to any address.

A host below one of these domains is refused. In other domains, only addresses with decimal numbers (`127-0-0-1`) are recognised in names:
eight hexadecimal digits may be an address, but also an ordinary name of a preview deployment.
"""

_ADDRESS_IN_NAME = re.compile(r"(?<![0-9])(?=((?:[0-9]{1,3}[.-]){3}[0-9]{1,3})(?![0-9]))")

MAX_LINK_CHARS = 8_192
"""Maximum number of characters of a link; a longer link is refused."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link that may be shown to a person."""

    url: str
    """The URL to open. Its host is written as in `host`."""
    host: str
    """Host of the URL in ASCII (IDNA), lower case, without a final dot."""


def judge_link(url: object, allowed: Sequence[str] = ()) -> Link | str:
    """Return the link to relay to the client, or a text that says why it is refused. `url` is the URL that the server sent.

    A host that matches a glob in `allowed` need not be a public name. A link may use http only if its host matches a glob in `allowed` and
    is a host of this machine.
    """
    if not isinstance(url, str) or not url or _CONTROLS.search(url) or len(url) > MAX_LINK_CHARS:
        return "The URL is missing, too long, or has characters that are invalid in a URL."
    try:
        parts = urlsplit(url)
        host = _ascii_host(parts)
        port = parts.port
    except (ValueError, UnicodeError):
        return "The URL cannot be parsed."
    if "@" in parts.netloc or not host or "%" in parts.netloc:
        return "The URL must have a plain host, and no user name before it."
    is_allowed = any(fnmatchcase(host, glob.lower()) for glob in allowed)
    if parts.scheme != "https" and not (is_allowed and parts.scheme == "http" and is_loopback_host(host)):
        return "Only https URLs are shown (http only to hosts of this machine that are in `elicitation.urlHosts`)."
    if not is_allowed and (problem := _problem(host)) is not None:
        hint = "The operator can allow the host with `elicitation.urlHosts` under the server's `policies`."
        return f"The host {host[:80]!r} {problem}. {hint}"
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    return Link(parts._replace(netloc=netloc).geturl() if parts.netloc != netloc else url, host)


def _ascii_host(parts: SplitResult) -> str:
    """Return the host of a URL in the ASCII form (IDNA) that a browser looks up.

    Raises:
        ValueError: The host has letters that versions of IDNA map to different names.
        UnicodeError: The host has no ASCII form.
    """
    host = (parts.hostname or "").removesuffix(".")
    if _DEVIATIONS.search(host):
        raise ValueError("two versions of IDNA look this host up under different names")
    return host if host.isascii() else host.encode("idna").decode().lower().removesuffix(".")


def _problem(host: str) -> str | None:
    """Return why a host is not a public name, or `None` if it is. The text is the end of a sentence whose subject is the host."""
    if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return "is an address instead of a name"
    if _HOST.fullmatch(host) is None:
        return "is malformed"
    if "." not in host or host.rpartition(".")[2] in _PRIVATE_ENDINGS:
        return "is not a public name"
    if f".{host}".endswith(_PRIVATE_DOMAINS) or any(map(_is_private, _ADDRESS_IN_NAME.findall(host))):
        return "leads to this machine or a private network"
    try:
        labels = [label[4:].encode().decode("punycode") for label in host.split(".") if label.startswith("xn--")]
    except UnicodeError:
        return "is malformed"
    return "imitates another name with letters that look like Latin ones" if any(map(looks_latin, labels)) else None


def _is_private(written: str) -> bool:
    """Return whether `written`, four numbers in a host name with dots or hyphens (`127-0-0-1`), is an IPv4 address that is not public."""
    try:
        address = IPv4Address(written.replace("-", "."))
    except AddressValueError:
        return False
    return judge_address(str(address), loopback_allowed=False) is not None
