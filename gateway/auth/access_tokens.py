"""`AccessTokens`: checks the access tokens of the authorization servers in `server.auth.issuers`, and remembers valid ones.

A token is checked once, asynchronously (`verify`), and then remembered by its SHA-256 digest until it expires; an introspected token for at
most a minute. `remembered` decides without waiting, so that `KeyGate` can decide about the following requests on the fast path. The tokens
themselves are not stored, logged or passed on.

Long work outlives tokens, which live for minutes. Decided: a call or task that a user has started may continue while some token of the
same user and client is valid, and for `rightsSeconds` after the last one has expired. Groups and tenant are those of the newest token,
scopes those of the token with which the work was started. Because: only the token says what its user may do, and a task stores facts,
never a token. Instead of: asking the issuer again, which only tokens allow; or ending tasks with the token, which would end most of them.
Revisit when: issuers send events about users (Shared Signals).
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import anyio

from gateway.auth.introspection import Introspection
from gateway.auth.issuer_metadata import IssuerMetadata
from gateway.auth.oauth_scopes import check_scopes
from gateway.auth.principal import Principal
from gateway.auth.signed_tokens import UncheckedToken, algorithm_of, check_signed, is_bearer, read_token
from gateway.auth.signing_keys import IssuerKeys, SigningKey
from gateway.auth.token_claims import expiry_of, scopes_of, to_principal
from gateway.auth.token_errors import IssuerUnavailable, TokenRefused
from gateway.config.auth_settings import InboundAuthSettings, TokenIssuer
from gateway.json_types import JsonObject

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 20_000
"""Maximum number of valid tokens that are remembered, and of users whose newest token is known."""

MAX_REFUSED = 10_000
"""Maximum number of opaque tokens that are remembered as invalid, so that a repeated one does not cause a request to the issuer."""

REFUSED_SECONDS = 10.0
"""Seconds for which an opaque token is remembered as invalid."""

VERIFY_SECONDS = 20.0
"""Maximum seconds for the check of one token, with all requests to its issuer."""

LOG_SECONDS = 10.0
"""Minimum seconds between two log lines about an issuer that cannot be asked."""

_NO_KEY = SigningKey(None, {}, math.inf)
"""In place of the key of an introspected token, which has none."""


@dataclass(frozen=True, slots=True)
class KnownToken:
    """What is remembered of a valid access token."""

    principal: Principal
    oauth_scopes: tuple[str, ...]
    """The OAuth scopes of the token, as its issuer wrote them."""
    usable_until: float
    """Time until which the token need not be checked again, in seconds since the epoch."""
    key: SigningKey
    """The key that has signed the token. If its issuer withdraws the key, the token is no longer valid."""

    def is_usable(self, now: float) -> bool:
        """Return whether the token is valid at the time `now` (seconds since the epoch), without asking anybody."""
        return now < self.usable_until and now < self.key.usable_until


class TrustedIssuer:
    """One authorization server whose tokens are accepted, with the parts that check them."""

    audience: str
    """The required audience of tokens."""

    def __init__(self, settings: TokenIssuer, resource: str) -> None:
        """`resource` is the URL of the MCP endpoint, the audience of tokens unless the issuer's settings name another."""
        from gateway.egress.guarded_fetch import GuardedFetch, origin_of
        from gateway.policy.addresses import is_loopback_host

        client = settings.introspection
        written = [settings.issuer, settings.jwks_url, None if client is None else client.endpoint]
        origins = frozenset(origin_of(url) for url in written if url is not None)
        fetch = GuardedFetch(origins, is_loopback_host(origin_of(settings.issuer)[1]))
        self.settings = settings
        self.audience = settings.audience or resource
        self.metadata = IssuerMetadata(settings.issuer, fetch)
        self.keys = IssuerKeys(settings, fetch, self.metadata)
        self.introspection = None if client is None else Introspection(settings, client, fetch, self.metadata)

    async def check_signed(self, token: UncheckedToken) -> KnownToken:
        """Check a signed token that names this issuer. Raises `TokenRefused` and `IssuerUnavailable`."""
        alg, kid = algorithm_of(token, self.settings)
        key = await self.keys.find(kid, alg)
        claims = check_signed(token, self.settings, key, alg, audience=self.audience, now=time.time())
        return self._known(claims, key, expiry_of(claims) + self.settings.clock_skew_seconds)

    async def introspect(self, token: str) -> KnownToken | None:
        """Ask the issuer about an opaque token. Return `None` if it is not valid there. Raises `TokenRefused` and `IssuerUnavailable`."""
        assert self.introspection is not None and self.settings.introspection is not None
        now = time.time()
        claims = await self.introspection.check(token, audience=self.audience, now=now)
        if claims is None:
            return None
        return self._known(claims, _NO_KEY, min(expiry_of(claims), now + self.settings.introspection.cache_seconds))

    def _known(self, claims: JsonObject, key: SigningKey, until: float) -> KnownToken:
        return KnownToken(to_principal(claims, self.settings), scopes_of(claims), until, key)


class AccessTokens:
    """Checks access tokens. One object per gateway; `run` keeps the keys of the issuers current."""

    def __init__(self, settings: InboundAuthSettings) -> None:
        """Raises `ConfigError` if a scope of the gateway in `scopes` is malformed."""
        check_scopes(settings)
        self.resource = settings.resource or ""
        """URL of the MCP endpoint, for which tokens must be issued; empty until it is known (`serve_at`)."""
        self.settings = settings
        self._issuers = {one.issuer: TrustedIssuer(one, self.resource) for one in settings.issuers}
        self._opaque = [issuer for issuer in self._issuers.values() if issuer.introspection is not None]
        self._known: dict[bytes, KnownToken] = {}
        self._refused: dict[bytes, float] = {}
        self._newest: dict[str, KnownToken] = {}
        self._logged_at = float("-inf")

    @property
    def issuers(self) -> Sequence[TrustedIssuer]:
        """The authorization servers, in the order of the configuration."""
        return list(self._issuers.values())

    def serve_at(self, url: str) -> None:
        """Require tokens for the MCP endpoint at `url`, unless `server.auth.resource` names another URL. Call this before a check."""
        self.resource = self.settings.resource or url
        for issuer in self._issuers.values():
            issuer.audience = issuer.settings.audience or self.resource

    async def run(self) -> None:
        """Keep the keys of all issuers current, until cancelled."""
        async with anyio.create_task_group() as tasks:
            for issuer in self._issuers.values():
                tasks.start_soon(issuer.keys.follow)

    def remembered(self, token: str) -> KnownToken | None:
        """Return what is remembered of a valid token; `None` if the token must be checked by `verify`. Never waits."""
        known = self._known.get(_digest(token))
        return known if known is not None and known.is_usable(time.time()) else None

    async def verify(self, token: str) -> KnownToken:
        """Check a token, and remember it if it is valid.

        Raises:
            TokenRefused: The token is malformed, or not valid at this gateway.
            IssuerUnavailable: The token cannot be checked now.
        """
        if not is_bearer(token):
            raise TokenRefused("The credential is neither an API key nor an access token.")
        digest = _digest(token)
        try:
            with anyio.fail_after(VERIFY_SECONDS):
                known = await self._checked(token, digest)
        except TimeoutError:
            raise self._unavailable(IssuerUnavailable(f"The check of a token took more than {VERIFY_SECONDS:g} s.")) from None
        except IssuerUnavailable as error:
            raise self._unavailable(error) from None
        self._remember(digest, known)
        return known

    async def _checked(self, token: str, digest: bytes) -> KnownToken:
        signed = read_token(token)
        named = None if signed is None else signed.claims.get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if signed is not None and issuer is not None:
            return await issuer.check_signed(signed)
        if signed is not None or not self._opaque:
            raise TokenRefused("The access token is not from an issuer that the gateway accepts.")
        if self._refused.get(digest, 0.0) > time.monotonic():
            raise TokenRefused("The access token is unknown, expired or revoked.")
        failure: IssuerUnavailable | None = None
        for one in self._opaque:
            try:
                if (known := await one.introspect(token)) is not None:
                    return known
            except IssuerUnavailable as error:
                failure = error
        if failure is not None:
            raise failure
        _bound(self._refused, MAX_REFUSED)
        self._refused[digest] = time.monotonic() + REFUSED_SECONDS
        raise TokenRefused("The access token is unknown, expired or revoked.")

    def _remember(self, digest: bytes, known: KnownToken) -> None:
        if len(self._known) >= MAX_REMEMBERED:
            now = time.time()
            for old in [old for old, token in self._known.items() if not token.is_usable(now)]:
                del self._known[old]
            _bound(self._known, MAX_REMEMBERED)
        self._known[digest] = known
        self._newest.pop(known.principal.id, None)  # so that the users of old tokens stand first
        _bound(self._newest, MAX_REMEMBERED)
        self._newest[known.principal.id] = known

    def _unavailable(self, error: IssuerUnavailable) -> IssuerUnavailable:
        """Log that a token cannot be checked, at most once in `LOG_SECONDS`, and return the error."""
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("token not checked error=%s", error)
        return error

    def scopes_of(self, principal: Principal) -> tuple[str, ...]:
        """Return the OAuth scopes of the newest token of a user; empty if none is known."""
        newest = self._newest.get(principal.id)
        return () if newest is None else newest.oauth_scopes

    def current(self, principal: Principal) -> Principal | None:
        """Return a user with the current facts, or `None` if the rights of its last token have lapsed. See the module's docstring.

        A principal that was made of an id alone gets the facts of the newest token; if none is known, it has no rights.
        """
        newest = self._newest.get(principal.id)
        if newest is not None and newest.key.usable_until == 0:  # withdrawn; another token of the user may have another key
            newest = next((one for one in self._known.values() if one.principal.id == principal.id and one.is_usable(time.time())), None)
            if newest is None:
                return None
            self._newest[principal.id] = newest
        last = principal if newest is None else newest.principal
        issuer = self._issuers.get(last.issuer)
        if issuer is None or last.expires_at is None:
            return None
        expires_at = max(last.expires_at, principal.expires_at or 0.0)
        if time.time() >= expires_at + issuer.settings.rights_seconds:
            return None
        return last if not principal.issuer else replace(last, scopes=principal.scopes, rights=None, expires_at=expires_at)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _bound(table: dict[bytes, KnownToken] | dict[bytes, float] | dict[str, KnownToken], limit: int) -> None:
    """Remove the oldest entries of a table until it has fewer than `limit`."""
    while len(table) >= limit:
        del table[next(iter(table))]  # pyright: ignore[reportArgumentType]  # a key of the table itself
