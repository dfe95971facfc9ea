"""`ProtectedResource`: what the gateway tells OAuth clients as a resource server: its metadata (RFC 9728), and challenges (RFC 6750).

The gateway is never an authorization server: clients learn here which one to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.auth.api_keys import KEY_PREFIX
from gateway.auth.oauth_scopes import offered_scopes, scopes_for
from gateway.json_types import JsonObject
from gateway.policy.decision import Reject
from gateway.policy.scopes import ScopeKind
from gateway.server.http_responses import json_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from gateway.auth.access_tokens import AccessTokens

WELL_KNOWN = "/.well-known/oauth-protected-resource"

RETRY_SECONDS = 5
"""Seconds after which a client may repeat a request whose token could not be checked."""

_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*"}
"""The metadata is public, and applications in a browser read it from another origin."""


def bearer_token(authorization: bytes) -> str:
    """Return the credential in the value of an `Authorization` header; empty if the scheme is not Bearer."""
    scheme, _, token = authorization.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_access_token(token: str) -> bool:
    """Return whether a credential is to be checked as an access token. A credential that begins like an API key never is."""
    return bool(token) and not token.startswith(KEY_PREFIX)


class ProtectedResource:
    """The MCP endpoint as a protected resource of OAuth."""

    def __init__(self, tokens: AccessTokens) -> None:
        self._settings = tokens.settings
        parts = urlsplit(tokens.resource)
        path = parts.path.rstrip("/")
        self._paths = {WELL_KNOWN, f"{WELL_KNOWN}{path}"}
        self._metadata_url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}"
        offered = offered_scopes(self._settings, with_admin=True)
        self._metadata: JsonObject = {
            "resource": tokens.resource,
            "authorization_servers": [issuer.issuer for issuer in self._settings.issuers],
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": offered} if offered else {}),
        }
        challenged = self._settings.challenge_scopes
        self._scopes = offered_scopes(self._settings, with_admin=False) if challenged is None else challenged

    def metadata(self, path: str, method: str) -> ASGIApp | None:
        """Return an ASGI application that answers a request for the metadata; `None` if `path` is another one.

        The metadata is at the root, and at the path of the endpoint below the well-known path (RFC 9728, 3.1).
        """
        if path not in self._paths:
            return None
        if method == "OPTIONS":
            allowed = {"Access-Control-Allow-Methods": "GET", "Access-Control-Allow-Headers": "mcp-protocol-version"}
            return json_response({}, 200, {**_ANY_ORIGIN, **allowed})
        if method not in ("GET", "HEAD"):
            return json_response({"error": "Send GET"}, 405, {"Allow": "GET, HEAD, OPTIONS"})
        return json_response(self._metadata, 200, _ANY_ORIGIN)

    def challenge(self, *, error: str = "", description: str = "", scopes: Sequence[str] | None = None) -> dict[str, str]:
        """Return the header `WWW-Authenticate` of a refusal. `scopes` are those to ask for; `None`: those of a first sign-in.

        `description` is ASCII without quotation marks and backslashes.
        """
        wanted = " ".join(self._scopes if scopes is None else scopes)
        fields = {"error": error, "error_description": description, "resource_metadata": self._metadata_url, "scope": wanted}
        parts = ['Bearer realm="moongate"', *(f'{name}="{value}"' for name, value in fields.items() if value)]
        return {"WWW-Authenticate": ", ".join(parts)}

    def unauthorized(self, problem: str = "") -> ASGIApp:
        """Return an ASGI application that sends a 401 response. `problem` is what is wrong with the credential; empty without one."""
        if not problem:
            text = "Sign in at an authorization server of this endpoint, or send an API key: `Authorization: Bearer <token or key>`."
            return json_response({"error": "unauthorized", "message": text}, 401, self.challenge())
        headers = self.challenge(error="invalid_token", description=problem)
        return json_response({"error": "invalid_token", "message": problem}, 401, headers)

    def forbidden(self, issuer: str, item: tuple[ScopeKind, str, str], verdict: Reject) -> ASGIApp:
        """Return an ASGI application that sends a 403 response to a user of `issuer`, who lacks a scope for `item` (kind, source, name)."""
        wanted = scopes_for(self._settings, issuer, *item)
        headers = self.challenge(error="insufficient_scope", scopes=[] if wanted is None else [wanted])
        return json_response({"error": "insufficient_scope", "message": verdict.reason}, 403, headers)

    def unavailable(self) -> ASGIApp:
        """Return an ASGI application that sends a 503 response, because the token cannot be checked now."""
        text = "The authorization server of the access token does not answer, so the token cannot be checked. Try again."
        return json_response({"error": "temporarily_unavailable", "message": text}, 503, {"Retry-After": str(RETRY_SECONDS)})
