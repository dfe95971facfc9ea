"""`OAuthCredentials`: provides the `Authorization` header for requests to one server, from the OAuth token in the state folder.

A valid token is returned from memory, without a lock. One task of one process at a time renews a token: a lock of this object excludes
other tasks, and the lock of the token file excludes other processes. If a request uses a token shortly before it expires, `run` renews the
token in the background, so that calls do not wait for the authorization server. `carriers.sdk_http_transport.AuthorizedTransport` adds the
header to requests.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import anyio
import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, issuers_match, union_scopes

from gateway.config.policies import AuthorizationCode, ClientCredentials, OutboundAuth
from gateway.egress.guarded_fetch import FetchFailed, FetchRefused, GuardedFetch
from gateway.errors import NotSent, StorageError, Unauthorized, UpstreamError
from gateway.upstream.oauth.discovery import IssuerMetadata, find_issuer, find_resource
from gateway.upstream.oauth.grants import GrantRefused, TokenClient, with_wanted
from gateway.upstream.oauth.sign_in import SignIn
from gateway.upstream.oauth.sign_in_page import SignInPage
from gateway.upstream.oauth.tokens import Grant, GrantStore

logger = logging.getLogger(__name__)

SKEW_SECONDS = 10.0
"""Shortest remaining lifetime in seconds of a token that is used for a request; for a short-lived token, a fifth of its lifetime.

The margin is needed because clocks differ and the request takes time.
"""

AHEAD_SECONDS = 60.0
"""Seconds before the expiry of a token in which a request that uses the token also starts its renewal in the background.

The renewal does not begin before half of the token's lifetime has passed.
"""

CHECK_SECONDS = 1.0
"""Shortest time in seconds between two checks whether the token file has changed because of a sign-in or sign-out in another process."""

REJECTED_TWICE_SECONDS = 30.0
"""Seconds after the renewal of a rejected token (401) in which a second rejection does not lead to another renewal."""

RETRY_SECONDS = 5.0
"""Seconds before a failed renewal in the background is retried."""

FETCH_ALL_SECONDS = 14.0
"""Timeout for discovery and the token request together. It is shorter than the default `connectTimeoutSeconds`."""


class ScopeMissing(UpstreamError):
    """Raised if the token lacks a scope that the server requires for a request. Other requests may succeed."""


class OAuthCredentials:
    """The OAuth tokens of the gateway for one server, which all callers share.

    While `run` is running, a token that a request uses shortly before its expiry is renewed in the background. A request that needs an
    expired token renews it first.
    """

    def __init__(self, server: str, url: str, auth: OutboundAuth, file: GrantStore) -> None:
        """`url` is the endpoint of the MCP server, and `file` stores the tokens. No side effects."""
        self.server = server
        self._url = url
        self._auth = auth
        self._file = file
        self._fetch = GuardedFetch.for_server(url, auth.issuer)
        self._grant: Grant | None = None
        self._stamp: tuple[int, int] | None = None
        self._checked_at = float("-inf")
        self._lock = anyio.Lock()
        self._due = anyio.Event()
        self._metadata: IssuerMetadata | None = None
        self._renewed_header = ""
        self.sign_in = SignInPage(server, SignIn(server, url, auth, file)) if isinstance(auth, AuthorizationCode) else None
        """The sign-in that a call can offer to a person; `None` for the client credentials grant, which needs no sign-in."""

    async def header(self) -> str:
        """Return the value of the `Authorization` header, after renewing the token if it has expired.

        Raises:
            Unauthorized: A person must sign in, or the configured client was rejected.
            NotSent: The authorization server cannot be reached now.
            StorageError: The token file cannot be read, written or locked.
        """
        if anyio.current_time() - self._checked_at > CHECK_SECONDS:
            await self.reload_tokens()
        grant = self._grant
        if grant is None or not _is_usable(grant):
            grant = await self._renewed(None)
        elif _is_due(grant):
            self._due.set()
        return f"Bearer {grant.access_token}"

    async def after(self, status: int, challenge: str, used: str) -> str | None:
        """Return a new value of the `Authorization` header after the server rejected `used`; `None` if a new value cannot help.

        `status` (401 or 403) and `challenge` (`WWW-Authenticate`) are those of the server's response.

        Raises:
            ScopeMissing: The server requires a scope that the gateway cannot get without a person, or rejects tokens that have the scope.
            Unauthorized, NotSent, StorageError: As for `header`.
        """
        fields = httpx2.Response(status, headers={"www-authenticate": challenge})
        if status == 401:
            return await self._after_rejection(used)
        if extract_field_from_www_auth(fields, "error") == "insufficient_scope":
            return await self._after_missing_scope(extract_scope_from_www_auth(fields) or "", used)
        return None

    def accepted(self) -> None:
        """Record that the server accepted the renewed token, so that a later 401 leads to another renewal."""
        self._renewed_header = ""

    async def _after_rejection(self, used: str) -> str | None:
        grant = self._grant
        if grant is not None and used == self._renewed_header and time.time() - grant.obtained_at < REJECTED_TWICE_SECONDS:
            return None
        self._renewed_header = f"Bearer {(await self._renewed(used)).access_token}"
        return self._renewed_header if self._renewed_header != used else None

    async def _after_missing_scope(self, scope: str, used: str) -> str | None:
        """Request a token with the missing `scope`, and return the header value for it.

        This is possible only for client credentials without configured scopes. If a person signs in, store the scope for the next sign-in.

        Raises:
            ScopeMissing: A person must add the scope to the configuration or sign in again, or the token already has the scope.
        """
        grant = self._grant
        if isinstance(self._auth, ClientCredentials):
            if self._auth.scopes:
                fix = f"add it to `policies.{self.server}.auth.scopes`"
                raise ScopeMissing(f"Server {self.server!r} requires the scope {scope!r} for this request; {fix}.", server=self.server)
            is_current = grant is not None and f"Bearer {grant.access_token}" == used
            if not scope or (is_current and _covers(grant, scope)):
                raise ScopeMissing(f"Server {self.server!r} requires the scope {scope!r}, but rejects tokens with it.", server=self.server)
            return f"Bearer {(await self._renewed(used, more=scope)).access_token}"
        async with self._lock, self._file.locked():
            held = await anyio.to_thread.run_sync(self._file.read)
            if held is not None and scope:
                await self._keep(with_wanted(held, scope))
        fix = f"sign in again to grant it: moongate auth login {self.server}"
        raise ScopeMissing(f"Server {self.server!r} requires the scope {scope!r} for this request; {fix}", server=self.server)

    def explain(self) -> str:
        """Return a text that says what a person can do if the server rejects the token."""
        if isinstance(self._auth, AuthorizationCode):
            return f"sign in: moongate auth login {self.server}"
        return f"check `policies.{self.server}.auth`"

    async def run(self) -> None:
        """Renew tokens that requests use shortly before their expiry, and run the sign-ins that calls request, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self.sign_in is not None:
                tasks.start_soon(self.sign_in.run)
            tasks.start_soon(self._refresh_ahead)

    async def _refresh_ahead(self) -> None:
        while True:
            await self._due.wait()
            try:
                await self._renewed(None, ahead=True)
            except (NotSent, StorageError) as error:
                logger.warning("token not renewed early server=%s reason=%s", self.server, error)
                await anyio.sleep(RETRY_SECONDS)
            self._due = anyio.Event()

    # -- the file ----------------------------------------------------------------------------------------------

    async def reload_tokens(self) -> None:
        """Read the token file again if it has changed, for example because a person signed in with `moongate auth login`."""
        self._checked_at = anyio.current_time()
        stamp = await anyio.to_thread.run_sync(self._file.stamp)
        if stamp != self._stamp:
            self._adopt(await anyio.to_thread.run_sync(self._file.read), stamp)

    def _adopt(self, grant: Grant | None, stamp: tuple[int, int] | None) -> None:
        """Use `grant` (registration and tokens) from now on. Use no grant if its issuer or client differs from the configured one.

        `stamp` identifies the version of the token file from which the grant was read.
        """
        self._stamp = stamp
        issuer, client = self._auth.issuer, self._auth.client_id
        if grant is not None and ((issuer and not issuers_match(issuer, grant.issuer)) or (client and client != grant.client_id)):
            grant = None
        self._grant = grant

    async def _keep(self, grant: Grant) -> None:
        await anyio.to_thread.run_sync(self._file.write, grant)
        self._adopt(grant, await anyio.to_thread.run_sync(self._file.stamp))

    # -- the authorization server ------------------------------------------------------------------------------

    async def _renewed(self, rejected: str | None, *, more: str | None = None, ahead: bool = False) -> Grant:
        """Return a `Grant` with a valid access token: a token that another task or process has obtained meanwhile, or else a new token.

        `rejected` is a header value that the server rejected, and `more` a scope that the token must have. With `ahead`, the token must
        be valid for another `AHEAD_SECONDS`.
        """
        async with self._lock:
            if (known := self._acceptable(rejected, more, ahead=ahead)) is not None:
                return known
            async with self._file.locked():
                self._adopt(await anyio.to_thread.run_sync(self._file.read), await anyio.to_thread.run_sync(self._file.stamp))
                if (known := self._acceptable(rejected, more, ahead=ahead)) is not None:
                    return known
                try:
                    # Shielded, because the response may contain a new refresh token: without it, a person would have to sign in again.
                    with anyio.fail_after(FETCH_ALL_SECONDS, shield=isinstance(self._auth, AuthorizationCode)):
                        return await self._fetched(more)
                except TimeoutError:
                    raise NotSent(f"no token for {self.server!r} within {FETCH_ALL_SECONDS:g} s", server=self.server) from None
                except FetchFailed as error:
                    raise NotSent(str(error), server=self.server) from None
                except FetchRefused as error:
                    raise Unauthorized(f"{error} Check `policies.{self.server}.auth`.", server=self.server) from None

    def _acceptable(self, rejected: str | None, more: str | None, *, ahead: bool) -> Grant | None:
        grant = self._grant
        if grant is None or not _is_usable(grant) or f"Bearer {grant.access_token}" == rejected or (ahead and _is_due(grant)):
            return None
        return grant if more is None or _covers(grant, more) else None

    async def _fetched(self, more: str | None) -> Grant:
        if isinstance(self._auth, ClientCredentials):
            return await self._as_client(self._auth, more)
        return await self._refreshed(self._auth)

    async def _as_client(self, auth: ClientCredentials, more: str | None) -> Grant:
        old = self._grant
        resource = old.resource if old is not None else None
        if resource is None:
            resource = (await find_resource(self._fetch, self.server, self._url)).identifier
        form = {"grant_type": "client_credentials", "resource": resource}
        scope = " ".join(auth.scopes) or union_scopes(old.scope if old is not None else None, more)
        if scope:
            form["scope"] = scope
        client = TokenClient(self._fetch, self.server, await self._issuer(auth.issuer))
        try:
            given = await client.request(Grant(auth.issuer, auth.client_id, resource=resource), auth.client_secret, form)
        except GrantRefused as error:
            raise GrantRefused(f"{error} Check `policies.{self.server}.auth`.", server=self.server, code=error.code) from None
        await self._keep(replace(given, refresh_token=None))
        return given

    async def _refreshed(self, auth: AuthorizationCode) -> Grant:
        old = self._grant
        if old is None or old.refresh_token is None:
            if old is not None and old.access_token is not None:
                await self._keep(old.without_tokens())
            raise Unauthorized(f"Server {self.server!r} needs a person to sign in: moongate auth login {self.server}", server=self.server)
        form = {"grant_type": "refresh_token", "refresh_token": old.refresh_token}
        if old.resource:
            form["resource"] = old.resource
        client = TokenClient(self._fetch, self.server, await self._issuer(old.issuer))
        try:
            given = await client.request(old, auth.client_secret, form)
        except GrantRefused as error:
            if error.code in ("invalid_grant", "invalid_client", "unauthorized_client"):
                await self._keep(old.without_tokens())
            text = f"The sign-in to server {self.server!r} has ended ({error.code}); sign in again: moongate auth login {self.server}"
            raise GrantRefused(text, server=self.server, code=error.code) from None
        await self._keep(given)
        return given

    async def _issuer(self, issuer: str) -> IssuerMetadata:
        if self._metadata is None or not issuers_match(self._metadata.issuer, issuer):
            self._metadata = await find_issuer(self._fetch, self.server, issuer)
        return self._metadata


def _is_usable(grant: Grant) -> bool:
    return grant.access_token is not None and not _ends_within(grant, SKEW_SECONDS, 0.2)


def _is_due(grant: Grant) -> bool:
    return _ends_within(grant, AHEAD_SECONDS, 0.5)


def _ends_within(grant: Grant, seconds: float, share: float) -> bool:
    """Return whether the access token expires within `seconds`, or `share` of its lifetime if shorter; false without an expiry time."""
    if grant.expires_at is None:
        return False
    return grant.expires_at - time.time() < min(seconds, (grant.expires_at - grant.obtained_at) * share)


def _covers(grant: Grant | None, scope: str) -> bool:
    return grant is not None and set(scope.split()) <= set((grant.scope or "").split())
