"""`IssuerKeys`: the public keys with which one authorization server signs access tokens. Fetched, kept and renewed here.

The keys come from the URL that the configuration or the issuer's metadata names, and from nowhere else: a token only names one of them by
its `kid`. They are fetched at the start, every `REFRESH_SECONDS`, and once for a token with an unknown `kid`, at most once in
`REFETCH_SECONDS`, however many tokens wait. A key that the issuer no longer publishes stops to count, also for tokens that were accepted
with it. While the issuer is unreachable, known keys count for `keysKeptSeconds`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio

from gateway.auth.issuer_metadata import IssuerMetadata
from gateway.auth.token_errors import IssuerUnavailable, TokenRefused
from gateway.config.auth_settings import TokenIssuer
from gateway.json_types import JsonMapping, JsonObject, as_object, items_of

if TYPE_CHECKING:
    from jwt import PyJWK

    from gateway.egress.guarded_fetch import GuardedFetch

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 300.0
"""Seconds after which the keys are fetched again."""

RETRY_SECONDS = 15.0
"""Seconds after which a failed fetch in the background is repeated."""

REFETCH_SECONDS = 10.0
"""Minimum seconds between two fetches because of tokens, so that tokens with invented key ids do not burden the issuer."""

MAX_KEYS = 100
"""Maximum number of an issuer's keys that are read."""

MIN_RSA_BITS = 2048
"""Minimum length of an RSA key (RFC 7518, 3.3). A shorter key is ignored."""

_KINDS: Mapping[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Algorithm → type (`kty`) and curve (`crv`) of its keys."""

_PUBLIC = ("kty", "crv", "n", "e", "x", "y", "alg")
"""Members of a key that are read. Members of private keys are not among them."""


@dataclass(slots=True, eq=False)
class SigningKey:
    """One public key of an issuer."""

    kid: str | None
    members: JsonObject
    """The public members of the key, as the issuer published them."""
    usable_until: float
    """Time until which tokens with this key are accepted, in seconds since the epoch. 0 if the issuer has withdrawn the key."""
    _made: dict[str, PyJWK] = field(default_factory=lambda: cast("dict[str, PyJWK]", {}))

    def fits(self, alg: str) -> bool:
        """Return whether the key can verify signatures of the algorithm `alg`."""
        kty, crv = _KINDS[alg]
        if self.members.get("kty") != kty or (crv is not None and self.members.get("crv") != crv):
            return False
        declared = self.members.get("alg")
        return declared is None or declared == alg or (declared == "Ed25519" and alg == "EdDSA")

    def to_jwk(self, alg: str) -> PyJWK:
        """Return the key as PyJWT needs it, bound to the algorithm `alg`. Raises `TokenRefused` if the key is malformed or too short."""
        if (known := self._made.get(alg)) is not None:
            return known
        from jwt import PyJWK, PyJWTError

        try:
            made = PyJWK(self.members, alg)
        except (PyJWTError, ValueError, TypeError):
            raise TokenRefused("The key of the access token is malformed.") from None
        bits: Any = getattr(made.key, "key_size", MIN_RSA_BITS)
        if self.members["kty"] == "RSA" and bits < MIN_RSA_BITS:
            raise TokenRefused(f"The key of the access token has fewer than {MIN_RSA_BITS} bits.")
        self._made[alg] = made
        return made


class IssuerKeys:
    """The signing keys of one issuer, in memory."""

    def __init__(self, issuer: TokenIssuer, fetch: GuardedFetch, metadata: IssuerMetadata) -> None:
        """`fetch` sends the requests, and `metadata` names the address of the keys if the configuration does not."""
        self._issuer = issuer
        self._fetch = fetch
        self._metadata = metadata
        self._keys: list[SigningKey] = []
        self._lock = anyio.Lock()
        self._fetched_at = float("-inf")
        """Time at which the last fetch ended, also without success, by the monotonic clock."""
        self._rounds = 0
        """Number of ended fetches."""
        self._is_known = False
        """Whether a fetch has succeeded."""
        self.problem: str | None = None
        """Why the last fetch failed; `None` after a success."""

    def __len__(self) -> int:
        return len(self._keys)

    async def find(self, kid: str | None, alg: str) -> SigningKey:
        """Return the key with the id `kid` for the algorithm `alg`. If it is unknown, fetch the keys again, once for all waiting checks.

        Raises:
            TokenRefused: The issuer has no such key, or `kid` is `None` and several keys could be meant.
            IssuerUnavailable: No keys are known, or the known ones are too old, and they cannot be fetched.
        """
        now = time.time()
        found = self._lookup(kid, alg, now)
        if found is None and time.monotonic() - self._fetched_at >= REFETCH_SECONDS:
            await self._fetch_once()
            found = self._lookup(kid, alg, now)
        if found is not None:
            return found
        if not self._is_known or (self._keys and all(key.usable_until <= now for key in self._keys)):
            raise IssuerUnavailable(self.problem or f"The keys of {self._issuer.issuer} are not known yet.")
        raise TokenRefused("The issuer of the access token has no key with the id that the token names.")

    def _lookup(self, kid: str | None, alg: str, now: float) -> SigningKey | None:
        fitting = [key for key in self._keys if key.usable_until > now and (kid is None or key.kid == kid) and key.fits(alg)]
        return fitting[0] if len(fitting) == 1 else None

    async def _fetch_once(self) -> None:
        """Fetch the keys, or wait for the fetch that another token has begun."""
        rounds = self._rounds
        async with self._lock:
            if self._rounds == rounds:
                await self._refresh()

    async def refresh(self) -> bool:
        """Fetch the keys. Return whether it succeeded; if not, `problem` says why, and the known keys stay."""
        async with self._lock:
            return await self._refresh()

    async def follow(self) -> None:
        """Fetch the keys now and then every `REFRESH_SECONDS`, until cancelled."""
        while True:
            seconds = REFRESH_SECONDS if await self.refresh() else RETRY_SECONDS
            await anyio.sleep(seconds)

    async def _refresh(self) -> bool:
        from gateway.egress.guarded_fetch import FetchFailed, FetchRefused

        problem: str | None = None
        try:
            response = await self._fetch.get(self._issuer.jwks_url or await self._metadata.jwks_url())
            if response.status_code != 200:
                problem = f"the keys were answered with status {response.status_code}"
            elif (keys := _read_keys(response.content)) is None:
                problem = "the answer is not a set of keys (JWKS)"
            else:
                self._take(keys)
        except (FetchFailed, FetchRefused, IssuerUnavailable) as error:
            problem = str(error)
        self._fetched_at = time.monotonic()
        self._rounds += 1
        if problem is not None and self.problem is None:
            logger.warning("issuer keys not fetched issuer=%s error=%s", self._issuer.issuer, problem)
        elif problem is None and (self.problem is not None or not self._keys):
            level = logging.INFO if self._keys else logging.WARNING
            logger.log(level, "issuer keys fetched issuer=%s keys=%d", self._issuer.issuer, len(self))
        self.problem = problem
        return problem is None

    def _take(self, fetched: list[SigningKey]) -> None:
        """Replace the known keys by the fetched ones. An unchanged key stays the same object, because accepted tokens refer to it."""
        until = time.time() + self._issuer.keys_kept_seconds
        known, self._keys, self._is_known = self._keys, [], True
        for key in fetched:
            same = next((old for old in known if old.kid == key.kid and old.members == key.members), key)
            same.usable_until = until
            self._keys.append(same)
        for old in known:
            if old not in self._keys:
                old.usable_until = 0
                logger.info("issuer key withdrawn issuer=%s kid=%r", self._issuer.issuer, old.kid)


def _read_keys(content: bytes) -> list[SigningKey] | None:
    """Return the keys in a JWKS that sign tokens, or `None` if the content is not a JWKS."""
    try:
        document = as_object(json.loads(content))
    except (ValueError, RecursionError):
        return None
    if document is None or not isinstance(document.get("keys"), list):
        return None
    entries = [key for one in items_of(document["keys"])[:MAX_KEYS] if (key := as_object(one)) is not None]
    return [_to_key(entry) for entry in entries if _signs(entry)]


def _signs(entry: JsonMapping) -> bool:
    """Return whether a key is a public key for signatures. A published private or shared key proves nothing, and is ignored."""
    operations = entry.get("key_ops")
    is_for_signatures = entry.get("use") in (None, "sig") and (operations is None or "verify" in items_of(operations))
    return is_for_signatures and entry.get("kty") in ("RSA", "EC", "OKP") and "d" not in entry


def _to_key(entry: JsonMapping) -> SigningKey:
    kid = entry.get("kid")
    return SigningKey(kid if isinstance(kid, str) else None, {name: entry[name] for name in _PUBLIC if name in entry}, 0)
