"""Checks signed access tokens (JWT): the header, the signature by a key of the issuer, and the claims.

Decided: PyJWT. Because: the MCP SDK already depends on it, so no package is added; it takes one key and one algorithm, chosen here, and
reads no key from a token. Measured 2026-11-29 with claims and principal: 120 µs of CPU for RS256, 190 µs for ES256, once per token. Instead
of: joserfc, which offers the same with encrypted tokens, which the gateway does not accept. Revisit when: the SDK drops PyJWT, or encrypted
tokens are wanted.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass

from gateway.auth.signing_keys import SigningKey
from gateway.auth.token_claims import check_claims
from gateway.auth.token_errors import TokenRefused
from gateway.config.auth_settings import TokenIssuer
from gateway.json_types import JsonObject, as_object

MAX_TOKEN_LENGTH = 16_384
"""Maximum number of characters of an access token. A token with hundreds of groups has about 10,000."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The characters of a bearer token (RFC 6750, 2.1)."""

_SIGNED = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class UncheckedToken:
    """The content of a signed token whose signature was not checked yet. Nothing in it may be believed."""

    header: JsonObject
    claims: JsonObject
    text: str


def is_bearer(token: str) -> bool:
    """Return whether `token` can be an access token: it has the length and the characters of one."""
    return len(token) <= MAX_TOKEN_LENGTH and _TOKEN.fullmatch(token) is not None


def read_token(token: str) -> UncheckedToken | None:
    """Return the content of a signed token without checking it; `None` if the token has not the form of a JWT, so that it is opaque."""
    if _SIGNED.fullmatch(token) is None:
        return None
    header, claims, _ = token.split(".")
    read = _decode(header), _decode(claims)
    return None if read[0] is None or read[1] is None or "alg" not in read[0] else UncheckedToken(read[0], read[1], token)


def _decode(part: str) -> JsonObject | None:
    try:
        return as_object(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))
    except (binascii.Error, ValueError, RecursionError):
        return None


def algorithm_of(token: UncheckedToken, issuer: TokenIssuer) -> tuple[str, str | None]:
    """Judge the header of a token. Return its algorithm, which the issuer's settings allow, and its key id.

    Raises:
        TokenRefused: The algorithm or the type is not allowed, the header has extensions, or the key id is not a text.
    """
    header = token.header
    alg, kind, kid = header.get("alg"), header.get("typ"), header.get("kid")
    if not isinstance(alg, str) or alg not in issuer.algorithms:
        raise TokenRefused("The access token is signed with an algorithm that is not accepted, or not signed.")
    accepted = {_media_type(one) for one in issuer.types}
    if not isinstance(kind, str) or _media_type(kind) not in accepted:
        raise TokenRefused("The type of the access token is not accepted; a token for applications has the typ at+jwt.")
    if "crit" in header or "b64" in header:
        raise TokenRefused("The access token needs an extension that the gateway does not support.")
    if kid is not None and not isinstance(kid, str):
        raise TokenRefused("The key id of the access token is not a text.")
    return alg, kid


def _media_type(kind: str) -> str:
    """Return a `typ` in the form in which two of them are compared: `application/` may be left out (RFC 7515, 4.1.9)."""
    return kind.lower().removeprefix("application/")


def check_signed(token: UncheckedToken, issuer: TokenIssuer, key: SigningKey, alg: str, *, audience: str, now: float) -> JsonObject:
    """Return the claims of a token, after its signature and its claims were checked. `now` is in seconds since the epoch.

    Raises:
        TokenRefused: The signature does not match, or a claim is missing or wrong.
    """
    import jwt

    try:
        content = jwt.api_jws.decode(token.text, key.to_jwk(alg), algorithms=[alg])
    except jwt.PyJWTError:
        raise TokenRefused("The signature of the access token is not valid.") from None
    try:
        claims = as_object(json.loads(content))
    except (ValueError, RecursionError):
        claims = None
    if claims is None:
        raise TokenRefused("The content of the access token is not a JSON object.")
    if claims.get("exp") is None:
        raise TokenRefused("The access token never expires; it needs the claim exp.")
    check_claims(claims, issuer, audience, now)
    return claims
