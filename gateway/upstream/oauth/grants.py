"""Sends requests to an OAuth authorization server: token requests, client registration and revocation of tokens.

Each request goes through `GuardedFetch`, which checks addresses. Errors name the issuer and the OAuth error code, and never contain the
body of a response. The module stores nothing.
"""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

import httpx2
from mcp.client.auth.utils import union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import ValidationError

from gateway.egress.guarded_fetch import FetchFailed, GuardedFetch
from gateway.errors import Unauthorized
from gateway.json_types import JsonObject
from gateway.upstream.oauth.discovery import IssuerMetadata
from gateway.upstream.oauth.tokens import Grant

_ERROR_CODE = re.compile(r'"error"\s*:\s*"([a-z_]{1,60})"')

DEFAULT_AUTH_METHOD = "client_secret_basic"
"""Authentication method of a client with a secret if the issuer's metadata does not list methods (RFC 8414 §2)."""


class GrantRefused(Unauthorized):
    """Raised if the authorization server refuses a request, or does not support what the gateway needs to send it.

    `code` is the OAuth error code in the response, such as `invalid_grant`, or the HTTP status. If no request was sent, it is
    `registration` or `client-authentication`, which the server does not support.
    """

    def __init__(self, message: str, *, server: str, code: str) -> None:
        super().__init__(message, server=server)
        self.code = code


@dataclass(frozen=True, slots=True)
class TokenClient:
    """Sends requests of the gateway to one authorization server. The gateway is the OAuth client of one MCP server."""

    fetch: GuardedFetch
    server: str
    metadata: IssuerMetadata

    async def request(self, grant: Grant, secret: str | None, form: Mapping[str, str]) -> Grant:
        """Send a token request with the parameters `form`, and return a copy of `grant` with the tokens of the response.

        If the response has no refresh token, the copy keeps the refresh token of `grant`. `secret` is the client secret in the
        configuration, if there is one.

        Raises:
            GrantRefused: The issuer refused the request.
            FetchRefused: The issuer's address is not allowed, or the response is too large or compressed.
            FetchFailed: The issuer cannot be reached, is overloaded, has an internal error, or did not send a valid token.
        """
        asked_at = time.time()
        response = await self._post(self.metadata.token_endpoint, grant, secret, form)
        if response.status_code != 200:
            raise self._refusal(response, "gives no token")
        try:
            token = OAuthToken.model_validate_json(response.content)
        except ValidationError:
            raise FetchFailed(f"The authorization server {self.metadata.issuer!r} answered without an `access_token`.") from None
        if not token.access_token.isascii() or any(c.isspace() or not c.isprintable() for c in token.access_token):
            raise FetchFailed(f"The authorization server {self.metadata.issuer!r} returned a token that cannot be a header value.")
        return replace(
            grant,
            issuer=self.metadata.issuer,
            access_token=token.access_token,
            refresh_token=token.refresh_token or grant.refresh_token,
            expires_at=None if token.expires_in is None else asked_at + max(0, token.expires_in),
            obtained_at=asked_at,
            scope=token.scope if token.scope is not None else form.get("scope", grant.scope),
            wanted_scope=None if token.scope is None else _missing(grant.wanted_scope, token.scope),
        )

    async def register(self, redirect_uri: str, scope: str | None) -> Grant:
        """Register the gateway as a client of the authorization server (RFC 7591). Return a `Grant` with the registration, but no tokens.

        Raises:
            GrantRefused: The issuer does not register clients, or refused the request.
            FetchRefused, FetchFailed: As for `request`.
        """
        endpoint = self.metadata.registration_endpoint
        if endpoint is None:
            text = f"The authorization server {self.metadata.issuer!r} registers no clients; set `auth.clientId` of {self.server!r}."
            raise GrantRefused(text, server=self.server, code="registration")
        supported = self.metadata.token_endpoint_auth_methods_supported
        method = "none" if supported is None or "none" in supported else self._secret_method()
        body: JsonObject = {
            "client_name": "Moongate",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            "application_type": "native",
        }
        if scope:
            body["scope"] = scope
        response = await self.fetch.send("POST", endpoint, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
        if response.status_code not in (200, 201):
            raise self._refusal(response, "registers no client")
        try:
            made = OAuthClientInformationFull.model_validate_json(response.content)
        except ValidationError:
            raise FetchFailed(f"The authorization server {self.metadata.issuer!r} answered without a registration.") from None
        auth = made.token_endpoint_auth_method or (DEFAULT_AUTH_METHOD if made.client_secret else "none")
        return Grant(
            issuer=self.metadata.issuer,
            client_id=made.client_id,
            client_secret=made.client_secret,
            client_auth=auth,
            redirect_uri=redirect_uri,
        )

    async def revoke(self, grant: Grant, secret: str | None) -> bool:
        """Revoke the tokens in `grant`, and return whether the issuer revoked at least one of them.

        Return false if the issuer has no revocation endpoint. `secret` is the client secret in the configuration, if there is one.
        """
        endpoint = self.metadata.revocation_endpoint
        if endpoint is None:
            return False
        taken = False
        for kind, token in (("refresh_token", grant.refresh_token), ("access_token", grant.access_token)):
            if token is not None:
                response = await self._post(endpoint, grant, secret, {"token": token, "token_type_hint": kind})
                taken = taken or response.status_code == 200
        return taken

    async def _post(self, endpoint: str, grant: Grant, secret: str | None, form: Mapping[str, str]) -> httpx2.Response:
        fields = dict(form)
        headers = {"content-type": "application/x-www-form-urlencoded"}
        secret = secret if secret is not None else grant.client_secret
        method = "none" if secret is None else grant.client_auth or self._secret_method()
        if method == "client_secret_basic" and secret is not None:
            pair = f"{quote(grant.client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            fields["client_id"] = grant.client_id
            if method == "client_secret_post" and secret is not None:
                fields["client_secret"] = secret
        return await self.fetch.send("POST", endpoint, content=urlencode(fields).encode(), headers=headers)

    def _secret_method(self) -> str:
        supported = self.metadata.token_endpoint_auth_methods_supported or [DEFAULT_AUTH_METHOD]
        known = [m for m in (DEFAULT_AUTH_METHOD, "client_secret_post") if m in supported]
        if not known:
            text = f"The authorization server {self.metadata.issuer!r} takes no client secret ({', '.join(supported)[:200]})."
            raise GrantRefused(text, server=self.server, code="client-authentication")
        return known[0]

    def _refusal(self, response: httpx2.Response, what: str) -> GrantRefused | FetchFailed:
        status = response.status_code
        if status >= 500 or status == 429:
            return FetchFailed(f"The authorization server {self.metadata.issuer!r} {what} now: it answered {status}.")
        found = _ERROR_CODE.search(response.text[:4096])
        code = found.group(1) if found else str(status)
        return GrantRefused(f"The authorization server {self.metadata.issuer!r} {what}: {code}.", server=self.server, code=code)


def _missing(wanted: str | None, given: str) -> str | None:
    """Return the scopes in `wanted` that are not in `given`, separated by spaces; `None` if `given` contains all of them."""
    left = [scope for scope in (wanted or "").split() if scope not in given.split()]
    return " ".join(left) or None


def with_wanted(grant: Grant, scope: str) -> Grant:
    """Return a copy of `grant` (registration and tokens) with `scope` added to the scopes that the next sign-in requests."""
    return replace(grant, wanted_scope=union_scopes(grant.wanted_scope, scope))
