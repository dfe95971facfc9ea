"""Finds the authorization server for a remote MCP server, from the server's metadata (RFC 9728) and the issuer's metadata (RFC 8414).

All requests are GET requests through `GuardedFetch`, which checks addresses. The MCP server's metadata is accepted only from the server's
own origin, and the issuer's metadata only if it contains the same issuer. The module stores nothing.
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
    """The members of an authorization server's metadata (RFC 8414) that the gateway uses.

    This class replaces the SDK's model, which requires an endpoint that the client credentials grant does not need.
    """

    issuer: str
    """The issuer identifier of the authorization server. It is compared with other issuers as text, except for a `/` as its whole path."""
    token_endpoint: str
    """URL of the token endpoint."""
    authorization_endpoint: str | None = None
    """URL of the page at which a person signs in."""
    registration_endpoint: str | None = None
    """URL at which clients are registered (RFC 7591)."""
    revocation_endpoint: str | None = None
    """URL at which tokens are revoked (RFC 7009)."""
    scopes_supported: list[str] | None = None
    """Scopes that the authorization server supports."""
    token_endpoint_auth_methods_supported: list[str] | None = None
    """Supported methods of client authentication; absent means `client_secret_basic`."""
    code_challenge_methods_supported: list[str] | None = None
    """Supported PKCE methods; absent means that PKCE is not supported."""
    client_id_metadata_document_supported: bool | None = None
    """Whether a client id may be the URL of the client's metadata document."""
    authorization_response_iss_parameter_supported: bool | None = None
    """Whether authorization responses always contain the issuer as `iss` (RFC 9207)."""


@dataclass(frozen=True, slots=True)
class Resource:
    """The protected resource metadata of an MCP server (RFC 9728)."""

    identifier: str
    """Value of the parameter `resource` in token requests: the resource identifier in the metadata, else the URL of the MCP endpoint."""
    issuers: tuple[str, ...] = ()
    """Issuers of the server's authorization servers, in the server's order."""
    scopes: tuple[str, ...] = ()
    """Scopes that the metadata lists."""


async def find_resource(fetch: GuardedFetch, server: str, url: str, hint: str | None = None) -> Resource:
    """Fetch the protected resource metadata of the server at `url`. Without metadata, return a `Resource` for the endpoint itself.

    `hint` is the metadata URL in the server's 401 response. It is ignored if it has another origin than `url`.

    Raises:
        Unauthorized: The metadata is for another resource, so no token must be requested with it.
        FetchRefused: A response is too large or compressed.
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
            raise Unauthorized(f"Server {server!r} has metadata for {said!r} instead of {url!r}; its metadata is wrong.", server=server)
        issuers = tuple(str(issuer) for issuer in metadata.authorization_servers)
        return Resource(str(metadata.resource), issuers, tuple(metadata.scopes_supported or ()))
    return Resource(canonical)


def _same_origin(first: str, second: str) -> bool:
    try:
        return origin_of(first) == origin_of(second)
    except FetchRefused:
        return False


async def find_issuer(fetch: GuardedFetch, server: str, issuer: str) -> IssuerMetadata:
    """Fetch the metadata of the authorization server `issuer`. The issuer in the metadata must be the same.

    Raises:
        Unauthorized: The metadata is missing, or contains another issuer.
        FetchRefused: The address of the issuer is not allowed, or a response is too large or compressed.
        FetchFailed: The issuer cannot be reached, or has an internal error.
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
            named = metadata.issuer[:200]
            text = f"The authorization server {issuer!r} has metadata that names the issuer {named!r}; nothing is sent to it."
            raise Unauthorized(text, server=server)
        return metadata
    raise Unauthorized(f"{issuer!r} has no authorization server metadata; check `auth.issuer` of {server!r}.", server=server)
