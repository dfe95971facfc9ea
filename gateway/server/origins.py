"""Checks of Host and Origin, which prevent web pages from using a gateway on this machine by DNS rebinding.

The decisions are those of the SDK's `TransportSecurityMiddleware`, without importing the SDK; a test compares the two.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

MAX_SHOWN = 200
"""Maximum characters of a rejected Host or Origin that logs and responses show."""

WILDCARDS = ("0.0.0.0", "::")
"""Addresses to listen at that mean every address of the machine. Clients cannot use them as host names."""

PROXY_HOST = "127.0.0.1"
"""Address of a peer whose `X-Forwarded-Proto` is trusted."""

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class AcceptedOrigins:
    """Accepted hosts and origins. A value that ends in `:*` matches every port."""

    hosts: Sequence[str]
    origins: Sequence[str]

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Return the HTTP status and text of a rejection; `None` if Host and Origin are accepted. Of repeated headers the first counts."""
        host, origin = _first(headers, b"host"), _first(headers, b"origin")
        if not _is_in(host, self.hosts):
            logger.warning("request refused status=421 host=%r setting=server.http.allowedHosts", host[:MAX_SHOWN])
            return 421, f"Host {host[:MAX_SHOWN]!r} is not accepted. Add it to server.http.allowedHosts of the gateway."
        if origin and not _is_in(origin, self.origins):
            logger.warning("request refused status=403 origin=%r setting=server.http.allowedOrigins", origin[:MAX_SHOWN])
            return 403, f"Origin {origin[:MAX_SHOWN]!r} is not accepted. Add it to server.http.allowedOrigins of the gateway."
        return None


def accepted_origins(host: str, port: int, more_hosts: Sequence[str], more_origins: Sequence[str]) -> AcceptedOrigins:
    """Return the accepted hosts and origins: loopback, the address at which the gateway listens, and those of the configuration."""
    hosts = [f"{name}:*" for name in _LOOPBACK_NAMES] + list(_LOOPBACK_NAMES)
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in (*_LOOPBACK_NAMES, *(f"{n}:*" for n in _LOOPBACK_NAMES))]
    if not is_loopback(host) and host not in WILDCARDS:
        hosts += [host, host_port(host, port), host_port(host, port).removesuffix(f":{port}")]
    return AcceptedOrigins([*hosts, *more_hosts], [*origins, *more_origins])


def shown_host(host: str, port: int, more_hosts: Sequence[str]) -> str:
    """Return a `HOST:PORT` that clients can use. For a wildcard address, it has the first configured host name, or else loopback."""
    if host in WILDCARDS:
        named = (one.removesuffix(":*") for one in more_hosts if one.endswith((":*", f":{port}")))
        host = next((name.removesuffix(f":{port}") for name in named), "127.0.0.1" if host == "0.0.0.0" else "::1")
    return host_port(host, port)


def host_port(host: str, port: int | str) -> str:
    """Return `HOST:PORT` as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def bind_note(host: str, more_hosts: Sequence[str]) -> str | None:
    """Return a note on the setting that clients on other machines need, if the gateway listens for them but would reject them."""
    if host not in WILDCARDS or more_hosts:
        return None
    names = 'server.http.allowedHosts, e.g. "hub.example.com:*"'
    return f"it listens on every address, but clients on other machines are rejected (421) until the name that they use is in {names}"


def is_loopback(host: str) -> bool:
    """Whether an address to listen at is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def _is_in(value: str, accepted: Sequence[str]) -> bool:
    return bool(value) and (value in accepted or any(one.endswith(":*") and value.startswith(one[:-1]) for one in accepted))
