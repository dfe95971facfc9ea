"""`proxy_for`: finds the HTTP proxy for a URL in the conventional environment variables.

The variables are `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower case. Addresses of this machine are reached
without a proxy.

Use a proxy only for URLs in the operator's configuration. `guarded_fetch` uses no proxy for URLs that a remote party sent, because it
checks the addresses that it has resolved, and a proxy would resolve the name again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from gateway.errors import NotSent
from gateway.policy.addresses import is_loopback_host

if TYPE_CHECKING:
    import httpx2


def proxy_for(server: str, url: str, environ: Mapping[str, str]) -> httpx2.Proxy | None:
    """Return the proxy for requests to `url`, or `None` for a direct connection. `environ` are the environment variables.

    Raises:
        NotSent: The environment variable for `url` has a value that is not an HTTP proxy. The message names the variable, but does not
            show its value, which may contain a password. The error's attribute `server` is `server`.
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
    import httpx2  # imported here, because most processes need no proxy

    address = value if "://" in value else f"http://{value}"
    try:
        if not address.startswith(("http://", "https://")) or not urlsplit(address).hostname:
            raise ValueError("another kind of proxy")
        return httpx2.Proxy(address)
    except (ValueError, httpx2.InvalidURL):
        text = f"{name.upper()} is not an http or https proxy; correct it, or name the host in NO_PROXY."
        raise NotSent(text, server=server) from None


def _value(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def _is_excepted(parts: SplitResult, host: str, exceptions: str) -> bool:
    """Return whether the value of `NO_PROXY` (`exceptions`) excludes a host from the proxy.

    The entries of the value are hosts, domains, networks and `*` (all hosts). An entry excludes the host that it names, and the hosts
    inside its domain or network. If an entry ends with a port, it applies to this port only.
    """
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
