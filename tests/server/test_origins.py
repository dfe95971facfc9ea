"""Host and Origin are judged as the SDK judges them."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request

from gateway.server.origins import AcceptedOrigins, accepted_origins

NAMES = ["127.0.0.1", "localhost", "[::1]", "gw.example", "evil.example", "0.0.0.0", "127.0.0.1:*", "localhost.evil.example", ""]
PORTS = ["", ":", ":80", ":8765", ":80:80", ":*", "x"]
HOSTS = [name + port for name, port in itertools.product(NAMES, PORTS)]
ORIGINS = [*HOSTS, *(f"{scheme}://{host}" for scheme in ("http", "https", "HTTP", "null") for host in HOSTS), "null"]
PLACES = [
    accepted_origins("127.0.0.1", 8765, [], []),
    accepted_origins("gw.example", 80, [], []),
    accepted_origins("0.0.0.0", 80, ["gw.example:*", "é"], ["https://gw.example", "http://evil.example:*"]),
]

values = st.sampled_from(ORIGINS) | st.text(st.characters(max_codepoint=255), max_size=30)
headers = st.lists(st.tuples(st.sampled_from(["host", "origin", "x"]), values), max_size=4)


@given(st.sampled_from(PLACES), headers)
@example(PLACES[0], [("host", "127.0.0.1:80"), ("origin", "null")])
@example(PLACES[0], [("host", "localhost"), ("host", "evil.example"), ("origin", "http://localhost:1")])
async def test_request_is_rejected_exactly_when_the_sdk_rejects_it(places: AcceptedOrigins, lines: list[tuple[str, str]]) -> None:
    given: list[tuple[bytes, bytes]] = [(name.encode(), value.encode("latin-1")) for name, value in lines]
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": given}
    theirs = TransportSecurityMiddleware(TransportSecuritySettings(allowed_hosts=list(places.hosts), allowed_origins=list(places.origins)))
    refusal = await theirs.validate_request(Request(scope))
    ours = places.refusal(given)
    assert (None if ours is None else ours[0]) == (None if refusal is None else refusal.status_code)


def test_bound_ipv6_address_is_accepted_as_clients_write_it() -> None:
    places = accepted_origins("fd00::1", 8765, [], [])
    assert places.refusal([(b"host", b"[fd00::1]:8765")]) is places.refusal([(b"host", b"[fd00::1]")]) is None
    assert places.refusal([(b"host", b"[fd00::2]:8765")]) is not None
