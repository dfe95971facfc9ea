"""Which proxy a remote server is reached through, by the conventional environment variables.

`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in either case; never for this machine. Only for addresses that the
operator wrote: what a peer wrote is resolved and judged here (`guarded`), and a proxy would resolve it once more.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gateway.errors import UpstreamUnavailable
from gateway.policy.addresses import is_loopback_host

if TYPE_CHECKING:
    import httpx2


def proxy_for(server: str, url: str, environ: Mapping[str, str]) -> httpx2.Proxy | None:
    """The proxy for `url`, or `None` where it is reached directly.

    Raises:
        UpstreamUnavailable: The variable names something that is no HTTP proxy; its value is not shown, it may hold a password.
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if not host or is_loopback_host(host) or _is_excepted(parts, host, _value(environ, "no_proxy")):
        return None
    name = f"{parts.scheme}_proxy"
    value = _value(environ, name)
    if not value:
        name, value = "all_proxy", _value(environ, "all_proxy")
    if not value:
        return None
    import httpx2  # what needs no proxy does without

    address = value if "://" in value else f"http://{value}"
    try:
        if not address.startswith(("http://", "https://")) or not urlsplit(address).hostname:
            raise ValueError("another kind of proxy")
        return httpx2.Proxy(address)
    except (ValueError, httpx2.InvalidURL):
        text = f"{name.upper()} is no http or https proxy; correct it, or name the host in NO_PROXY."
        raise UpstreamUnavailable(text, server=server) from None


def _value(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_excepted(parts: SplitResult, host: str, exceptions: str) -> bool:
    """Whether `NO_PROXY` names the host: itself, a domain above it, a network it is in, each with a port or without."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return any(_matches(entry.strip().lower(), host, port) for entry in exceptions.split(",") if entry.strip())


def _matches(entry: str, host: str, port: int) -> bool:
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdecimal():
        if int(wanted) != port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").lstrip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))
