"""Pydantic models of `server.auth`: the OAuth authorization servers whose access tokens the gateway accepts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.base_models import Model

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
"""Host names and addresses of this machine, for which http without TLS is allowed."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signature algorithms of access tokens. Algorithms with a shared secret (`HS256`) and `none` cannot be configured."""


def _is_quotable(text: str) -> bool:
    """Return whether a text is printable ASCII without spaces, quotation marks and backslashes, so that a challenge can contain it."""
    return bool(text) and all("!" <= mark <= "~" and mark not in '"\\' for mark in text)


def _checked_url(url: str, what: str) -> str:
    """Return `url`, or raise `ValueError` if it is not an https URL, or an http URL of this machine, without credentials and fragment."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError(f"{what} {url[:200]!r} is not a URL") from None
    if not _is_quotable(url):
        raise ValueError(f"{what} {url[:200]!r} has characters that a URL must encode")
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)
    if not is_safe or not parts.hostname or parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError(f"{what} {url[:200]!r} must be https:// without user and fragment; http:// is allowed for this machine only")
    return url


def _check_scopes(scopes: Iterable[str]) -> None:
    """Raise `ValueError` if a text is not an OAuth scope (RFC 6749, 3.3)."""
    for scope in scopes:
        if not _is_quotable(scope):
            raise ValueError(f"{scope[:100]!r} is not an OAuth scope: write printable ASCII without spaces, quotes and backslashes")


class ClaimNames(Model):
    """Names of the claims of an access token. A name with dots, such as `realm_access.roles`, also leads into nested claims."""

    client: str = Field(default="client_id", min_length=1)
    """Claim with the OAuth client. If a token does not have it, `azp` counts."""
    name: str = Field(default="name", min_length=1)
    """Claim with the name of the user, for people. Never used for decisions."""
    groups: str = Field(default="groups", min_length=1)
    """Claim with the groups or roles of the user: a text or a list of texts."""
    tenant: str | None = Field(default=None, min_length=1)
    """Claim with the tenant of the user, such as `tid`. Left out: users have no tenant."""


class IntrospectionSettings(Model):
    """Client with which the gateway asks the authorization server whether an opaque token is valid (RFC 7662)."""

    endpoint: str | None = None
    """URL of the introspection endpoint. Left out: the issuer's metadata names it."""
    client_id: str = Field(min_length=1)
    """OAuth client of the gateway at the authorization server."""
    client_secret: str = Field(min_length=1)
    """Secret of this client, as a reference such as `${INTROSPECTION_SECRET}`."""
    cache_seconds: float = Field(default=60, ge=0, le=60)
    """Seconds for which an answer counts. A revoked token is refused after this time at the latest."""

    @field_validator("endpoint")
    @classmethod
    def _endpoint_is_url(cls, endpoint: str | None) -> str | None:
        return endpoint if endpoint is None else _checked_url(endpoint, "the endpoint")


class TokenIssuer(Model):
    """An OAuth authorization server whose access tokens the gateway accepts."""

    issuer: str
    """Issuer identifier: an https URL, written exactly as the claim `iss` of tokens has it."""
    audience: str | None = Field(default=None, min_length=1)
    """Required value of the claim `aud`. Left out: `server.auth.resource`."""
    algorithms: list[Algorithm] = Field(default_factory=lambda: ["RS256", "ES256", "EdDSA"], min_length=1)
    """Accepted signature algorithms."""
    types: list[str] = Field(default_factory=lambda: ["at+jwt"], min_length=1)
    """Accepted values of the header `typ` of tokens. Add `JWT` for a server that does not follow RFC 9068."""
    jwks_url: str | None = None
    """URL of the keys that sign tokens (JWKS). Left out: the issuer's metadata names it."""
    introspection: IntrospectionSettings | None = None
    """How opaque tokens are checked. Left out: only signed tokens (JWT) of this issuer are accepted."""
    claims: ClaimNames = Field(default_factory=ClaimNames)
    """Names of the claims from which the gateway reads the caller."""
    scopes: dict[str, list[str]] | None = None
    """OAuth scope → scopes of the gateway, written as for API keys (`docs/search_*`). A token grants what its scopes name, and nothing
    else. Left out: a token grants every tool, resource and prompt.
    """
    clock_skew_seconds: float = Field(default=30, ge=0, le=60)
    """Seconds by which the clock of the authorization server may differ."""
    keys_kept_seconds: float = Field(default=86_400, ge=60, le=604_800)
    """Seconds for which known keys count while the authorization server is unreachable. After this time its tokens are refused."""
    rights_seconds: float = Field(default=3600, ge=0, le=2_592_000)
    """Seconds for which calls and tasks of a caller may continue after its last token has expired."""

    @field_validator("issuer")
    @classmethod
    def _issuer_is_url(cls, issuer: str) -> str:
        if urlsplit(_checked_url(issuer, "the issuer")).query:
            raise ValueError(f"the issuer {issuer[:200]!r} must not have a query")
        return issuer

    @field_validator("jwks_url")
    @classmethod
    def _keys_have_url(cls, url: str | None) -> str | None:
        return url if url is None else _checked_url(url, "the address of the keys")

    @field_validator("scopes")
    @classmethod
    def _scopes_are_tokens(cls, scopes: dict[str, list[str]] | None) -> dict[str, list[str]] | None:
        _check_scopes(scopes or ())
        return scopes


class InboundAuthSettings(Model):
    """Access tokens with which clients may use the HTTP endpoint. API keys stay valid beside them."""

    issuers: list[TokenIssuer] = Field(default_factory=list[TokenIssuer])
    """Authorization servers whose tokens are accepted. With one, every request needs a token or an API key."""
    resource: str | None = None
    """URL of the MCP endpoint as clients write it, such as `https://hub.example.com/mcp`. Tokens must be issued for it. Left out: the URL
    that `moongate run` prints.
    """
    challenge_scopes: list[str] | None = None
    """OAuth scopes that a client without a token is told to ask for. Left out: every scope that an issuer's `scopes` name, except those
    that grant `admin`.
    """

    @field_validator("resource")
    @classmethod
    def _resource_is_url(cls, url: str | None) -> str | None:
        return url if url is None else _checked_url(url, "the resource")

    @field_validator("challenge_scopes")
    @classmethod
    def _challenge_has_scopes(cls, scopes: list[str] | None) -> list[str] | None:
        _check_scopes(scopes or ())
        return scopes

    @model_validator(mode="after")
    def _issuers_differ(self) -> InboundAuthSettings:
        names = [one.issuer for one in self.issuers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"issuers: {twice!r} is there twice; write one entry per issuer")
        return self
