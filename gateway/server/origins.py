"""Checks the `Host` and `Origin` headers of requests, so that web pages cannot use a gateway on this machine by DNS rebinding.

The module decides in the same way as the MCP SDK's `TransportSecurityMiddleware` but does not import the SDK; a test compares the two.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

MAX_SHOWN = 200
"""Maximum number of characters of a rejected `Host` or `Origin` header that logs and responses contain."""

WILDCARDS = ("0.0.0.0", "::")
"""Listen addresses that stand for all addresses of the machine. Clients cannot use them as host names."""

PROXY_HOST = "127.0.0.1"
"""IP address of a reverse proxy whose `X-Forwarded-Proto` header is trusted."""

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class AcceptedOrigins:
    """The accepted values of the `Host` and `Origin` headers. A value that ends in `:*` matches every port."""

    hosts: Sequence[str]
    origins: Sequence[str]

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Check the `Host` and `Origin` headers of a request. Return `None` if both are accepted, else HTTP status and text of a rejection.

        If a header is repeated, its first value is checked.
        """
        host, origin = _first(headers, b"host"), _first(headers, b"origin")
        if not _is_in(host, self.hosts):
            logger.warning("request refused status=421 host=%r setting=server.http.allowedHosts", host[:MAX_SHOWN])
            return 421, f"Host {host[:MAX_SHOWN]!r} is not accepted. Add it to server.http.allowedHosts of the gateway."
        if origin and not _is_in(origin, self.origins):
            logger.warning("request refused status=403 origin=%r setting=server.http.allowedOrigins", origin[:MAX_SHOWN])
            return 403, f"Origin {origin[:MAX_SHOWN]!r} is not accepted. Add it to server.http.allowedOrigins of the gateway."
        return None


def accepted_origins(host: str, port: int, more_hosts: Sequence[str], more_origins: Sequence[str]) -> AcceptedOrigins:
    """Return the accepted values of `Host` and `Origin` for a gateway that listens at `host` and `port`.

    They are the loopback names, the listen address, and the hosts and origins of the configuration (`more_hosts`, `more_origins`).
    """
    hosts = [f"{name}:*" for name in _LOOPBACK_NAMES] + list(_LOOPBACK_NAMES)
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in (*_LOOPBACK_NAMES, *(f"{n}:*" for n in _LOOPBACK_NAMES))]
    if not is_loopback(host) and host not in WILDCARDS:
        hosts += [host, host_port(host, port), host_port(host, port).removesuffix(f":{port}")]
    return AcceptedOrigins([*hosts, *more_hosts], [*origins, *more_origins])


def shown_host(host: str, port: int, more_hosts: Sequence[str]) -> str:
    """Return the `HOST:PORT` at which clients reach a gateway that listens at `host` and `port`.

    For a listen address that stands for all addresses, the host is the first name in `more_hosts` (the configured hosts) that is accepted
    with any port (`:*`) or with this port, or else loopback.
    """
    if host in WILDCARDS:
        named = (one.removesuffix(":*") for one in more_hosts if one.endswith((":*", f":{port}")))
        host = next((name.removesuffix(f":{port}") for name in named), "127.0.0.1" if host == "0.0.0.0" else "::1")
    return host_port(host, port)


def host_port(host: str, port: int | str) -> str:
    """Return `HOST:PORT` as in a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def bind_note(host: str, more_hosts: Sequence[str]) -> str | None:
    """Return a note for the operator if the gateway listens at all addresses but would reject clients on other machines; else `None`.

    The note names the setting that lets these clients in. `more_hosts` are the configured hosts.
    """
    if host not in WILDCARDS or more_hosts:
        return None
    names = 'server.http.allowedHosts, e.g. "hub.example.com:*"'
    return f"it listens on every address, but clients on other machines are rejected (421) until the name that they use is in {names}"


def is_loopback(host: str) -> bool:
    """Whether a gateway that listens at the address `host` can be reached from this machine only."""
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
