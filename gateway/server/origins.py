"""Which values of Host and Origin are taken: what keeps a page of somebody else's from using a gateway on this machine (DNS rebinding).

The same decisions as the SDK's `TransportSecurityMiddleware`, which needs the SDK; a test compares the two.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)

PROXY_HOST = "127.0.0.1"
"""The address of a peer that is believed how a client came to it (`X-Forwarded-Proto`)."""

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Places:
    """Accepted values; one that ends in `:*` is for every port."""

    hosts: Sequence[str]
    origins: Sequence[str]

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Status and text for a request that is not taken. Of a header that came twice the first counts."""
        host, origin = _first(headers, b"host"), _first(headers, b"origin")
        if not _is_in(host, self.hosts):
            logger.warning("A request for Host %r was refused", host)
            return 421, "Invalid Host header"
        if origin and not _is_in(origin, self.origins):
            logger.warning("A request of Origin %r was refused", origin)
            return 403, "Invalid Origin header"
        return None


def places_of(host: str, port: int, more_hosts: Sequence[str], more_origins: Sequence[str]) -> Places:
    """Loopback, the bound address, and what the configuration adds."""
    hosts = [f"{name}:*" for name in _LOOPBACK_NAMES] + list(_LOOPBACK_NAMES)
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in (*_LOOPBACK_NAMES, *(f"{n}:*" for n in _LOOPBACK_NAMES))]
    if not is_loopback(host) and host not in ("0.0.0.0", "::"):  # compared, not bound
        hosts += [host, f"{host}:{port}"]
    return Places([*hosts, *more_hosts], [*origins, *more_origins])


def is_loopback(host: str) -> bool:
    """Whether a bind address is reachable from this machine only."""
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
