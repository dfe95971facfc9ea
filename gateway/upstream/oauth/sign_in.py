"""Signs the gateway in to a remote MCP server on behalf of a person, and signs it out.

A sign-in uses the authorization code grant with PKCE (OAuth 2.1, RFC 8252). `moongate auth` uses this module, and `sign_in_page` uses it
for calls of the local user.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
from mcp.client.auth import PKCEParameters
from mcp.client.auth.utils import (
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    issuers_match,
    union_scopes,
)

from gateway.config.policies import AuthorizationCode
from gateway.egress.guarded_fetch import FetchFailed, FetchRefused, GuardedFetch, origin_of
from gateway.errors import NotSent, StorageError, Unauthorized
from gateway.policy.addresses import is_loopback_host
from gateway.upstream.oauth.callback import Callback, Redirected, listening
from gateway.upstream.oauth.discovery import IssuerMetadata, Resource, find_issuer, find_resource
from gateway.upstream.oauth.grants import TokenClient
from gateway.upstream.oauth.tokens import Grant, GrantStore
from gateway.wire.jsonrpc import encode_message
from gateway.wire.rpc_envelope import request

SIGN_IN_SECONDS = 600.0
"""Longest time in seconds that a person may take to sign in in the browser."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """The page that a person must open to sign in, with its authorization server and the scopes that the sign-in requests."""

    issuer: str
    """Issuer of the authorization server on whose page the person signs in."""
    url: str
    """URL of the page to open in the browser."""
    scopes: tuple[str, ...]
    """Scopes that the sign-in requests."""


class SignIn:
    """Signs in to one MCP server with OAuth, and signs out."""

    def __init__(self, server: str, url: str, auth: AuthorizationCode, file: GrantStore) -> None:
        """`url` is the endpoint of the MCP server, and `file` stores the tokens. No side effects."""
        self._server = server
        self._url = url
        self._auth = auth
        self._file = file
        self._fetch = GuardedFetch.for_server(url, auth.issuer)

    async def run(self, show: Callable[[Invitation], None]) -> Grant:
        """Sign in, store the tokens, and return them. `show` is called once, with the page that the person must open.

        Raises:
            Unauthorized: The sign-in was refused or failed; the message says why.
            NotSent: The server or the issuer cannot be reached.
            ConfigError: The port for the redirect cannot be used.
            StorageError: The tokens cannot be stored.
        """
        try:
            resource, challenged = await self._probe()
            metadata = await find_issuer(self._fetch, self._server, self._issuer_of(resource))
            old = await self._known(metadata.issuer)
            remembered = urlsplit(old.redirect_uri).port if old is not None and old.redirect_uri else None
            async with listening(self._auth.redirect_port, prefer=remembered) as callback:
                scope = self._scope(resource, challenged, metadata, old)
                grant = await self._client(metadata, callback.redirect_uri, scope, old)
                return await self._through_the_browser(callback, metadata, replace(grant, resource=resource.identifier), scope, show)
        except FetchFailed as error:
            raise NotSent(str(error), server=self._server) from None
        except FetchRefused as error:
            raise Unauthorized(f"{error} Nothing was sent there.", server=self._server) from None

    async def sign_out(self) -> tuple[bool, bool]:
        """Delete the stored tokens, and revoke them at the authorization server.

        Return whether a token file existed, and whether the authorization server revoked at least one of the tokens.
        """
        async with self._file.locked():
            try:
                grant = await anyio.to_thread.run_sync(self._file.read)
            except StorageError:
                grant = None
            held = await anyio.to_thread.run_sync(self._file.delete)
        if grant is None or (grant.access_token is None and grant.refresh_token is None):
            return held, False
        try:
            metadata = await find_issuer(self._fetch, self._server, grant.issuer)
            return True, await TokenClient(self._fetch, self._server, metadata).revoke(grant, self._auth.client_secret)
        except (Unauthorized, FetchFailed, FetchRefused):
            return True, False

    # -- steps -------------------------------------------------------------------------------------------------

    async def _probe(self) -> tuple[Resource, str | None]:
        """Send a request without a token to the MCP server, to find out how to sign in.

        Return the server's protected resource metadata, and the scopes that its 401 response requires, or `None`.
        """
        headers = {"accept": "text/event-stream, application/json", "content-type": "application/json"}
        ping = encode_message(request(1, "ping", {}))
        response = await self._fetch.send("POST", self._url, content=ping, headers=headers)
        hint = extract_resource_metadata_from_www_auth(response)
        scope = extract_scope_from_www_auth(response) if response.status_code == 401 else None
        return await find_resource(self._fetch, self._server, self._url, hint), scope

    def _issuer_of(self, resource: Resource) -> str:
        pinned = self._auth.issuer
        if pinned is not None:
            if resource.issuers and not any(issuers_match(pinned, named) for named in resource.issuers):
                named = ", ".join(resource.issuers)[:200]
                text = f"Server {self._server!r} accepts tokens of {named} only, but `auth.issuer` is {pinned!r}."
                raise Unauthorized(text, server=self._server)
            return pinned
        if resource.issuers:
            return resource.issuers[0]
        raise Unauthorized(f"Server {self._server!r} names no authorization server; set its `auth.issuer`.", server=self._server)

    async def _known(self, issuer: str) -> Grant | None:
        """Return the stored grant (client registration and tokens) if `issuer` issued it, else `None`."""
        try:
            grant = await anyio.to_thread.run_sync(self._file.read)
        except StorageError:
            return None
        return grant if grant is not None and issuers_match(grant.issuer, issuer) else None

    def _scope(self, resource: Resource, challenged: str | None, metadata: IssuerMetadata, old: Grant | None) -> str | None:
        """Return the scopes to request, separated by spaces: those in the configuration, else in the 401 response, else in the metadata.

        Scopes that the server required for earlier requests are added, and `offline_access` if the authorization server supports it. If
        none of these has a scope, return `None`.
        """
        scope = " ".join(self._auth.scopes) or challenged or " ".join(resource.scopes) or None
        scope = union_scopes(scope, old.wanted_scope if old is not None else None)
        if scope and "offline_access" in (metadata.scopes_supported or ()):
            scope = union_scopes(scope, "offline_access")
        return scope

    async def _client(self, metadata: IssuerMetadata, redirect_uri: str, scope: str | None, old: Grant | None) -> Grant:
        configured = self._auth.client_id
        if configured is not None:
            if configured.startswith("https://") and metadata.client_id_metadata_document_supported is not True:
                text = f"{metadata.issuer!r} takes no address as a client id; register a client there and set `auth.clientId`."
                raise Unauthorized(text, server=self._server)
            return Grant(metadata.issuer, configured)
        if old is not None and old.redirect_uri == redirect_uri:
            return old.without_tokens()
        return await TokenClient(self._fetch, self._server, metadata).register(redirect_uri, scope)

    async def _through_the_browser(
        self, callback: Callback, metadata: IssuerMetadata, grant: Grant, scope: str | None, show: Callable[[Invitation], None]
    ) -> Grant:
        if "S256" not in (metadata.code_challenge_methods_supported or ()):
            text = f"{metadata.issuer!r} does not support PKCE with S256, so a sign-in could be stolen; it is not used."
            raise Unauthorized(text, server=self._server)
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        query = {
            "response_type": "code",
            "client_id": grant.client_id,
            "redirect_uri": callback.redirect_uri,
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": grant.resource or "",
        }
        if scope:
            query["scope"] = scope
            if "offline_access" in scope.split():
                query["prompt"] = "consent"  # otherwise the server issues no refresh token (OpenID Connect Core §11)
        show(Invitation(metadata.issuer, self._authorize_url(metadata, query), tuple((scope or "").split())))
        with anyio.move_on_after(SIGN_IN_SECONDS) as waiting:
            came = await callback.wait(state)
        if waiting.cancelled_caught:
            raise Unauthorized(f"Nobody signed in within {SIGN_IN_SECONDS:g} s; start again.", server=self._server)
        code = self._code(came, metadata)  # pyright: ignore[reportPossiblyUnboundVariable]  # bound unless cancelled
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": callback.redirect_uri,
            "code_verifier": pkce.code_verifier,
            "resource": grant.resource or "",
        }
        given = await TokenClient(self._fetch, self._server, metadata).request(
            replace(grant, scope=scope), self._auth.client_secret, form
        )
        async with self._file.locked():
            await anyio.to_thread.run_sync(self._file.write, given)
        return given

    def _authorize_url(self, metadata: IssuerMetadata, query: dict[str, str]) -> str:
        """Return the URL of the sign-in page with `query` added.

        Raises:
            Unauthorized: The authorization server has no sign-in page.
            FetchRefused: The URL is malformed, or neither https nor (for an MCP server on this machine) http on this machine.
        """
        endpoint = metadata.authorization_endpoint
        if endpoint is None:
            raise Unauthorized(f"{metadata.issuer!r} has no sign-in page; its metadata names none.", server=self._server)
        scheme, host, _ = origin_of(endpoint)
        if scheme != "https" and not (is_loopback_host(host) and self._fetch.loopback_allowed):
            raise FetchRefused(f"The sign-in page of {metadata.issuer!r} is not https.")
        if not endpoint.isascii() or not endpoint.isprintable():
            raise FetchRefused(f"The sign-in page of {metadata.issuer!r} is not a plain URL.")
        parts = urlsplit(endpoint)
        own = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True) if key not in query]
        return urlunsplit(parts._replace(query=urlencode([*own, *query.items()]), fragment=""))

    def _code(self, came: Redirected, metadata: IssuerMetadata) -> str:
        """Return the code in an authorization response.

        Raises `Unauthorized` if the code is missing, or if the response is from another issuer (RFC 9207).
        """
        if came.issuer is not None and came.issuer != metadata.issuer:
            text = f"The authorization response is from {came.issuer[:200]!r} instead of {metadata.issuer!r}; it is not used."
            raise Unauthorized(text, server=self._server)
        if came.issuer is None and metadata.authorization_response_iss_parameter_supported:
            raise Unauthorized(f"The authorization response does not name its issuer {metadata.issuer!r}.", server=self._server)
        if came.code is None:
            reason = "".join(c for c in came.error or "no code" if c.isalnum() or c in "_- ")[:80]
            raise Unauthorized(f"The sign-in at {metadata.issuer!r} was not completed: {reason}.", server=self._server)
        return came.code
