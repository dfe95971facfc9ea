"""Finds the authorization server for a remote server: RFC 9728 (the server's metadata) and RFC 8414 (the issuer's).

Everything is fetched through `GuardedFetch`. Metadata counts only for the origin that serves
it. Nothing is stored, and only GET requests are sent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    issuers_match,
)
from mcp.shared.auth import ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import BaseModel, ValidationError

from gateway.egress.guarded_fetch import FetchFailed, FetchRefused, GuardedFetch, origin_of
from gateway.errors import Unauthorized

logger = logging.getLogger(__name__)


class IssuerMetadata(BaseModel):
    """RFC 8414 metadata, as far as it is used. The SDK's model requires an endpoint that client credentials do not need."""

    issuer: str
    """The issuer identifier, which is compared as text."""
    token_endpoint: str
    """URL of the token endpoint."""
    authorization_endpoint: str | None = None
    """URL of the sign-in page."""
    registration_endpoint: str | None = None
    """URL that registers clients (RFC 7591)."""
    revocation_endpoint: str | None = None
    """URL that revokes tokens (RFC 7009)."""
    scopes_supported: list[str] | None = None
    """Supported scopes."""
    token_endpoint_auth_methods_supported: list[str] | None = None
    """Client authentication methods; absent means `client_secret_basic`."""
    code_challenge_methods_supported: list[str] | None = None
    """PKCE methods; absent means none."""
    client_id_metadata_document_supported: bool | None = None
    """Whether a client id may be the URL of the client's metadata."""
    authorization_response_iss_parameter_supported: bool | None = None
    """Whether responses always name the issuer (RFC 9207)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A server's protected resource metadata."""

    identifier: str
    """The `resource` parameter for tokens: the server's value if it covers the endpoint, else the endpoint."""
    issuers: tuple[str, ...] = ()
    """Authorization servers, best first."""
    scopes: tuple[str, ...] = ()
    """Scopes that the server names."""


async def find_resource(fetch: GuardedFetch, server: str, url: str, hint: str | None = None) -> Resource:
    """Return the protected resource metadata of the server at `url`; `hint` is the address from its 401 response.

    Raises:
        Unauthorized: The metadata is for another resource, so no token must be requested for it.
        FetchFailed: The server cannot be reached.
    """
    canonical = resource_url_from_server_url(url)
    own = origin_of(url)
    if hint is not None and not _same_origin(hint, url):
        logger.warning("metadata address on another origin ignored server=%s", server)
        hint = None
    for candidate in build_protected_resource_metadata_discovery_urls(hint, url):
        response = await fetch.get(candidate)
        if response.status_code != 200 or origin_of(candidate) != own:
            continue
        try:
            metadata = ProtectedResourceMetadata.model_validate_json(response.content)
        except ValidationError:
            continue
        if not check_resource_allowed(canonical, str(metadata.resource)):
            said = str(metadata.resource)[:200]
            raise Unauthorized(f"Server {server!r} calls itself {said!r}, which is not {url!r}; its metadata is wrong.", server=server)
        issuers = tuple(str(issuer) for issuer in metadata.authorization_servers)
        return Resource(str(metadata.resource), issuers, tuple(metadata.scopes_supported or ()))
    return Resource(canonical)


def _same_origin(first: str, second: str) -> bool:
    try:
        return origin_of(first) == origin_of(second)
    except FetchRefused:
        return False


async def find_issuer(fetch: GuardedFetch, server: str, issuer: str) -> IssuerMetadata:
    """Return the metadata of `issuer`. The metadata must name the same issuer.

    Raises:
        Unauthorized: The metadata is missing, or it names another issuer.
        FetchRefused: The address is not allowed.
        FetchFailed: The issuer cannot be reached.
    """
    for candidate in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
        response = await fetch.get(candidate)
        if response.status_code >= 500:
            raise FetchFailed(f"The authorization server {issuer!r} answered {response.status_code} for its metadata.")
        if response.status_code != 200:
            continue
        try:
            metadata = IssuerMetadata.model_validate_json(response.content)
        except ValidationError:
            continue
        if not issuers_match(metadata.issuer, issuer):
            text = f"The authorization server {issuer!r} calls itself {metadata.issuer[:200]!r}; nothing is sent to it."
            raise Unauthorized(text, server=server)
        return metadata
    raise Unauthorized(f"{issuer!r} has no authorization server metadata; check `auth.issuer` of {server!r}.", server=server)
