"""Turns the claims of a checked access token into a `Principal`, and judges claims of which no cryptography is needed.

All functions are pure: the claims are plain data, and the time is a parameter. `signed_tokens` and `introspection` deliver the claims.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence

from gateway.auth.principal import Principal
from gateway.auth.token_errors import TokenRefused
from gateway.config.auth_settings import ClaimNames, TokenIssuer
from gateway.json_types import JsonMapping, JsonValue, items_of, members_of

MAX_TEXT = 1000
"""Maximum number of characters of a subject, a client, a tenant or a group."""

MAX_GROUPS = 1000
"""Maximum number of groups of a user. A token with more is refused, because a rule about a group that is left out would not hold."""

MAX_GROUP_TEXT = 20_000
"""Maximum number of characters of all groups of a user together, so that replicas can forward them in a header."""

MAX_NAME = 100
"""Number of characters of a user's name that are kept."""


def claim_of(claims: JsonMapping, name: str) -> JsonValue:
    """Return the claim `name`, or `None`. If no claim has the name, its parts between dots name nested members."""
    if name in claims:
        return claims[name]
    value: JsonValue = dict(claims)
    for part in name.split("."):
        value = members_of(value).get(part)
    return value


def audiences_of(claims: JsonMapping) -> tuple[str, ...]:
    """Return the values of the claim `aud`, which is a text or a list of texts."""
    aud = claims.get("aud")
    return tuple(one for one in ([aud] if isinstance(aud, str) else items_of(aud)) if isinstance(one, str))


def scopes_of(claims: JsonMapping) -> tuple[str, ...]:
    """Return the OAuth scopes of a token: the claim `scope` (RFC 9068), or `scp`, which some servers write, as a text or a list."""
    given = claims.get("scope", claims.get("scp"))
    texts = given.split(" ") if isinstance(given, str) else [one for one in items_of(given) if isinstance(one, str)]
    return tuple(dict.fromkeys(text for text in texts if text))


def granted_scopes(mapping: Mapping[str, Sequence[str]] | None, scopes: Sequence[str]) -> tuple[str, ...] | None:
    """Return the scopes of the gateway that a token with the OAuth scopes `scopes` has; `None` without `mapping`: it has all rights."""
    if mapping is None:
        return None
    return tuple(dict.fromkeys(granted for scope in scopes for granted in mapping.get(scope, ())))


def expiry_of(claims: JsonMapping) -> float:
    """Return the time of the claim `exp`, in seconds since the epoch; infinity without it. Raises `TokenRefused` if it is not a number."""
    given = claims.get("exp")
    if given is None:
        return math.inf
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise TokenRefused("The claim exp of the access token is not a time.")
    return float(given)


def check_claims(claims: JsonMapping, issuer: TokenIssuer, audience: str, now: float) -> None:
    """Check the issuer, the audience and the times of a token, and that its bearer may use it. `audience` is the one that is required.

    `now` is in seconds since the epoch; the times may differ by the issuer's clock skew.

    Raises:
        TokenRefused: A claim is missing or wrong.
    """
    if claims.get("iss") != issuer.issuer:
        raise TokenRefused("The access token is from another issuer.")
    if audience.rstrip("/") not in {one.rstrip("/") for one in audiences_of(claims)}:
        raise TokenRefused(f"The access token is for another audience than {_ascii(audience)}.")
    skew = issuer.clock_skew_seconds
    if now >= expiry_of(claims) + skew:
        raise TokenRefused("The access token has expired.")
    for name in ("nbf", "iat"):
        begin = claims.get(name)
        if begin is not None and (isinstance(begin, bool) or not isinstance(begin, int | float) or not begin <= now + skew):
            raise TokenRefused("The access token is not valid yet.")
    if "cnf" in claims:
        raise TokenRefused("The access token is bound to a key of its client, and the gateway accepts bearer tokens only.")


def to_principal(claims: JsonMapping, issuer: TokenIssuer) -> Principal:
    """Return the caller that a valid token identifies. A token without `sub` belongs to its client.

    Raises:
        TokenRefused: The claims identify nobody, or have groups that cannot be read.
    """
    names = issuer.claims
    client = _text(claim_of(claims, names.client)) or _text(claims.get("azp")) or _text(claims.get("client_id"))
    subject = _text(claims.get("sub")) or client
    if not subject:
        raise TokenRefused("The access token names neither a user nor a client.")
    name = claim_of(claims, names.name)
    shown = "".join(mark for mark in name if mark.isprintable())[:MAX_NAME] if isinstance(name, str) else ""
    expires_at = expiry_of(claims)
    return Principal(
        f"user:{_digest(issuer.issuer, subject, client)}",
        shown or subject[:MAX_NAME],
        granted_scopes(issuer.scopes, scopes_of(claims)),
        kind="user",
        issuer=issuer.issuer,
        subject=subject,
        client=client,
        groups=_groups(claims, names),
        tenant="" if names.tenant is None else _text(claim_of(claims, names.tenant)),
        expires_at=expires_at,
        owner=f"user:{_digest(issuer.issuer, subject)}",
    )


def _groups(claims: JsonMapping, names: ClaimNames) -> tuple[str, ...]:
    """Return the groups, sorted. If the issuer left them out because they are too many, the token is refused: a rule could not hold."""
    given = claim_of(claims, names.groups)
    if given is None and names.groups in members_of(claims.get("_claim_names")):
        raise TokenRefused("The access token leaves out the groups of the user. Let the issuer name fewer groups.")
    found = [given] if isinstance(given, str) else items_of(given)
    groups = {_text(one) for one in found} - {""}
    if len(groups) > MAX_GROUPS or sum(map(len, groups)) > MAX_GROUP_TEXT:
        raise TokenRefused(f"The access token has more than {MAX_GROUPS} groups, or longer ones than {MAX_GROUP_TEXT} characters together.")
    return tuple(sorted(groups))


def _text(value: JsonValue) -> str:
    """Return `value` if it is a text, else an empty text. Raises `TokenRefused` if it is too long."""
    if not isinstance(value, str):
        return ""
    if len(value) > MAX_TEXT:
        raise TokenRefused(f"A claim of the access token has more than {MAX_TEXT} characters.")
    return value


def _digest(*parts: str) -> str:
    """Return 128 bits of the SHA-256 of the parts, in hex. JSON keeps the borders of the parts apart."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _ascii(text: str) -> str:
    return "".join(mark for mark in text if " " <= mark <= "~" and mark not in '"\\')
