"""`Introspection`: asks an authorization server whether an opaque access token is valid (RFC 7662)."""

from __future__ import annotations

import base64
import json
import logging
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, urlencode

import anyio

from gateway.auth.issuer_metadata import IssuerMetadata
from gateway.auth.token_claims import check_claims, expiry_of
from gateway.auth.token_errors import IssuerUnavailable, TokenRefused
from gateway.config.auth_settings import IntrospectionSettings, TokenIssuer
from gateway.json_types import JsonObject, as_object

if TYPE_CHECKING:
    from gateway.egress.guarded_fetch import GuardedFetch

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 16
"""Maximum number of requests to the endpoint at once. Clients without a valid token cause them, so further ones wait."""

MAX_WAITING = 256
"""Maximum number of tokens that wait for such a request. Further ones are refused, and the client told to try again."""

_TOKEN_TYPES = ("bearer", "access_token", "urn:ietf:params:oauth:token-type:access_token")


class Introspection:
    """Checks opaque tokens of one issuer by asking it."""

    def __init__(self, issuer: TokenIssuer, settings: IntrospectionSettings, fetch: GuardedFetch, metadata: IssuerMetadata) -> None:
        """`fetch` sends the requests, and `metadata` names the endpoint if the configuration does not."""
        self._issuer = issuer
        self._settings = settings
        self._fetch = fetch
        self._metadata = metadata
        self._slots = anyio.CapacityLimiter(MAX_AT_ONCE)
        self._waiting = 0

    async def check(self, token: str, *, audience: str, now: float) -> JsonObject | None:
        """Return the claims of a token; `None` if this issuer does not know it, or it is no longer valid. `now` is in epoch seconds.

        Claims without `exp` get one: the end of the time for which the answer counts.

        Raises:
            TokenRefused: The token is valid, but not for this gateway.
            IssuerUnavailable: The issuer does not answer as RFC 7662 says, or too many tokens wait for it.
        """
        claims = await self._ask(token)
        if claims.get("active") is not True:
            return None
        claims = {"iss": self._issuer.issuer, **claims}
        kind = claims.get("token_type")
        if isinstance(kind, str) and kind.lower() not in _TOKEN_TYPES:
            raise TokenRefused("The token is not an access token for bearers.")
        check_claims(claims, self._issuer, audience, now)
        return {**claims, "exp": min(expiry_of(claims), now + self._settings.cache_seconds)} if claims.get("exp") is None else claims

    async def _ask(self, token: str) -> JsonObject:
        if self._waiting >= MAX_WAITING:
            raise IssuerUnavailable(f"More than {MAX_WAITING} tokens wait for {self._issuer.issuer}.")
        self._waiting += 1
        try:
            async with self._slots:
                return await self._answer(token)
        finally:
            self._waiting -= 1

    async def _answer(self, token: str) -> JsonObject:
        from gateway.egress.guarded_fetch import FetchFailed, FetchRefused

        settings, form = self._settings, {"token": token, "token_type_hint": "access_token"}
        headers = {"content-type": "application/x-www-form-urlencoded"}
        url = settings.endpoint or await self._metadata.introspection_url()
        if settings.endpoint is not None or await self._metadata.takes_basic():
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"  # RFC 6749, 2.3.1
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        try:
            response = await self._fetch.send("POST", url, content=urlencode(form).encode(), headers=headers)
        except (FetchFailed, FetchRefused) as error:
            raise IssuerUnavailable(f"{self._issuer.issuer} cannot be asked about tokens: {error}") from None
        if response.status_code != 200:
            hint = "; check `clientId` and `clientSecret`" if response.status_code in (400, 401, 403) else ""
            raise IssuerUnavailable(f"{self._issuer.issuer} answered status {response.status_code} to introspection{hint}.")
        try:
            claims = as_object(json.loads(response.content))
        except (ValueError, RecursionError):
            claims = None
        if claims is None or not isinstance(claims.get("active"), bool):
            raise IssuerUnavailable(f"{self._issuer.issuer} answered introspection with something else than RFC 7662 says.")
        return claims
