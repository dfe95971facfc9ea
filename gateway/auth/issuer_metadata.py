"""`IssuerMetadata`: the metadata of one authorization server (RFC 8414, OpenID Connect Discovery), fetched on first use and kept."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.auth.token_errors import IssuerUnavailable
from gateway.json_types import JsonMapping, JsonObject, as_object, items_of

if TYPE_CHECKING:
    from gateway.egress.guarded_fetch import GuardedFetch

KEPT_SECONDS = 3600.0
"""Seconds for which metadata is kept. While the issuer is unreachable, older metadata is used."""

_AUTHORIZATION_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return the URLs at which the metadata of an issuer may be, in the order in which they are tried (RFC 8414, 3 and 5)."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = (f"{origin}{_AUTHORIZATION_SERVER}{path}", f"{origin}{_OPENID}{path}", f"{origin}{path}{_OPENID}")
    return tuple(dict.fromkeys(urls))


class IssuerMetadata:
    """The metadata of one issuer. It counts only if it names exactly this issuer."""

    def __init__(self, issuer: str, fetch: GuardedFetch) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._known: JsonObject | None = None
        self._known_at = float("-inf")

    async def jwks_url(self) -> str:
        """Return the URL of the issuer's keys. Raises `IssuerUnavailable`."""
        return await self._url("jwks_uri", "keys; set `jwksUrl`")

    async def introspection_url(self) -> str:
        """Return the URL of the introspection endpoint. Raises `IssuerUnavailable`."""
        return await self._url("introspection_endpoint", "introspection endpoint; set `introspection.endpoint`")

    async def takes_basic(self) -> bool:
        """Return whether the introspection endpoint takes a client secret by HTTP Basic authentication. Raises `IssuerUnavailable`."""
        known = await self._read()
        methods = known.get("introspection_endpoint_auth_methods_supported", known.get("token_endpoint_auth_methods_supported"))
        return methods is None or "client_secret_basic" in items_of(methods)

    async def _url(self, member: str, what: str) -> str:
        url = (await self._read()).get(member)
        if not isinstance(url, str):
            raise IssuerUnavailable(f"The metadata of {self._issuer} names no {what} of the issuer.")
        return url

    async def _read(self) -> JsonMapping:
        if self._known is not None and time.monotonic() - self._known_at < KEPT_SECONDS:
            return self._known
        try:
            self._known = await self._fetched()
            self._known_at = time.monotonic()
        except IssuerUnavailable:
            if self._known is None:
                raise
        return self._known

    async def _fetched(self) -> JsonObject:
        from gateway.egress.guarded_fetch import FetchFailed, FetchRefused

        found = "it has no metadata"
        for url in metadata_urls(self._issuer):
            try:
                response = await self._fetch.get(url)
            except (FetchFailed, FetchRefused) as error:
                raise IssuerUnavailable(f"The metadata of {self._issuer} cannot be read: {error}") from None
            try:
                document = as_object(json.loads(response.content)) if response.status_code == 200 else None
            except (ValueError, RecursionError):
                document = None
            if document is not None and document.get("issuer") == self._issuer:
                return document
            if document is not None:
                found = f"it names the issuer {str(document.get('issuer'))[:200]!r}"
            elif response.status_code >= 500:
                found = f"it was answered with status {response.status_code}"
        raise IssuerUnavailable(f"The metadata of {self._issuer} cannot be used: {found}.")
