"""Signs and verifies the requests that one replica of a gateway forwards to another. Pure functions of the request and the key.

A forwarded request has the header `Moongate-Replica: v1 <receiver> <sender> <time> <nonce> <principal> <digest> <mac>`. `mac` is a keyed
digest of all other fields, of the method, and of every forwarded header; `digest` is the SHA-256 of the body. The receiver trusts the
principal in the header, because only a gateway with the same installation key can sign it. A header is valid for one receiver, for
`MAX_AGE_SECONDS`, and once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

HEADER = b"moongate-replica"
"""Name of the header, in lower case."""

SCHEME = "v1"
"""Version of this protocol. A replica refuses requests of another version."""

MAX_AGE_SECONDS = 30.0
"""Seconds for which a signature is valid. Both replicas read the clock of the database server, so their own clocks may differ."""

FORWARDED = frozenset(
    {b"content-type", b"accept", b"last-event-id", b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name", b"traceparent"}
)
"""Headers that are forwarded. An API key is never forwarded."""

SERVER_SCHEME = "s1"
"""Scheme of the messages that replicas themselves send each other about stdio servers with `single: true`.

A request of a client is always forwarded with `SCHEME`, so no client can have such a message signed.
"""

USER_SCHEME = "u1"
"""Scheme of a user's request. Its principal is not an id but JSON, which a replica that does not know access tokens refuses."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Route:
    """Which replica sends a request to which, and for whom."""

    receiver: str
    """Id of the replica that receives the request."""
    sender: str
    principal: str
    """Id of the principal that the sender has authenticated; for a user, its facts as JSON."""
    scheme: str = SCHEME
    """`SCHEME` or `USER_SCHEME` for a request of a client, or `SERVER_SCHEME` for a message of the replica itself."""

    @classmethod
    def of_client(cls, receiver: str, sender: str, principal: str) -> Route:
        """Return the route of a client's request. `principal` is an id, or the JSON of a user."""
        return cls(receiver, sender, principal, USER_SCHEME if principal.startswith("{") else SCHEME)


@dataclass(frozen=True, slots=True)
class Signed:
    """The content of a valid header."""

    sender: str
    """Id of the replica that forwarded the request."""
    nonce: str
    principal: str
    """Id of the principal that the sender has authenticated; for a user, its facts as JSON."""
    digest: str
    """SHA-256 of the body, in hex digits."""
    expires_at: float
    """Time after which the signature is no longer valid, in seconds since the epoch."""
    scheme: str = SCHEME
    """`SCHEME` or `USER_SCHEME` for a request of a client, or `SERVER_SCHEME` for a message of the replica itself."""


def forwarded_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of a client's request that are forwarded with it: those in `FORWARDED`, and the parameters of a tool."""
    return [(name, value) for name, value in headers if name in FORWARDED or name.startswith(b"mcp-param-")]


def sign(key: bytes, route: Route, *, method: str, headers: Headers, body: bytes, now: float) -> bytes:
    """Return the value of the header for a request with these `headers` (as `forwarded_headers` returns them) and this `body`."""
    principal = base64.urlsafe_b64encode(route.principal.encode()).decode()
    digest = hashlib.sha256(body).hexdigest()
    fields = [route.scheme, route.receiver, route.sender, str(int(now)), secrets.token_hex(16), principal, digest]
    return " ".join([*fields, _mac(key, fields, method, headers)]).encode()


def verify(key: bytes, value: bytes, *, receiver: str, method: str, headers: Headers, now: float) -> Signed | None:
    """Return the content of the header `value` of a request to the replica `receiver`; `None` if the signature is not valid.

    `headers` are all headers of the request. The caller compares the digest with the body, and refuses a nonce that it has seen.
    """
    fields = value.decode("latin-1").split(" ")
    if len(fields) != 8 or fields[0] not in (SCHEME, USER_SCHEME, SERVER_SCHEME):
        return None
    expected = _mac(key, fields[:-1], method, forwarded_headers(headers))
    if not hmac.compare_digest(expected.encode(), fields[-1].encode()) or fields[1] != receiver:
        return None
    made_at = float(fields[3])
    if abs(now - made_at) > MAX_AGE_SECONDS:
        return None
    try:
        principal = base64.urlsafe_b64decode(fields[5]).decode()
    except (binascii.Error, ValueError):
        return None
    return Signed(fields[2], fields[4], principal, fields[6], made_at + MAX_AGE_SECONDS, fields[0])


def _mac(key: bytes, fields: list[str], method: str, headers: Headers) -> str:
    lines = [" ".join(fields).encode(), method.encode(), *(name + b": " + value for name, value in sorted(headers))]
    return hmac.digest(key, b"\n".join(lines), "sha256").hex()
