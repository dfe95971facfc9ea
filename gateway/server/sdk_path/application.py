"""`SdkApplication`: the Starlette application for MCP requests that need the MCP SDK, and for the routes of other packages.

`lazy_application` imports this module at the first request that needs it. `KeyGate` authenticates every request first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gateway.auth.principal import LOCAL, Principal
from gateway.config.models import HttpSettings
from gateway.server.bodies import Utf8Bodies
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.origins import PROXY_HOST, AcceptedOrigins
from gateway.server.sdk_path.resumable_sessions import Keeping, SessionManager, SessionRefused
from gateway.server.sdk_path.sdk_server import SdkServer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MAX_KNOWN_USERS = 1024
"""Maximum number of callers for whom the SDK's user object (`AuthenticatedUser`) is cached. At the limit the whole cache is cleared."""


async def _refuse(request: Request, error: SessionRefused) -> ASGIApp:
    return error.refusal.to_response(is_rpc=True)


class SdkApplication:
    """ASGI application for HTTP requests that need the MCP SDK. It serves only while the SDK's session manager runs (`manager.run()`)."""

    def __init__(
        self, sdk: SdkServer, settings: HttpSettings, origins: AcceptedOrigins, keep: Keeping, *, routes: Sequence[BaseRoute]
    ) -> None:
        """`routes` are the Starlette routes of other packages. `keep` counts and limits the sessions."""
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=True, allowed_hosts=list(origins.hosts), allowed_origins=list(origins.origins)
        )
        self.manager = SessionManager(sdk.mcp, keep, security_settings=security, max_request_bytes=settings.max_request_bytes)
        self._users: dict[str, AuthenticatedUser] = {}
        endpoint = Utf8Bodies(StreamableHTTPASGIApp(self.manager), settings.max_request_bytes, is_rpc=True)
        handlers: dict[Any, Any] = {SessionRefused: _refuse}
        site = Starlette(routes=[Route(settings.path, endpoint), *routes], exception_handlers=handlers)
        self._app = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", site), PROXY_HOST))  # only redirects use the client's URL scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Set `scope["user"]`, from which the SDK gets the caller, and serve the authenticated request."""
        self.introduce(scope)
        await self._app(scope, receive, send)

    def introduce(self, scope: Scope) -> None:
        """Set `scope["user"]`, from which the SDK gets the caller of a request, for the principal that `KeyGate` put into the scope.

        Do nothing if the caller is the local user.
        """
        principal: Principal = scope.get(PRINCIPAL_SCOPE_KEY, LOCAL)
        if principal is not LOCAL:
            user = self._users.get(principal.id)
            if user is None:
                if len(self._users) >= MAX_KNOWN_USERS:
                    self._users.clear()
                user = self._users[principal.id] = AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))
            scope["user"] = user
