"""Serves the gateway over streamable HTTP: one URL for 2025 sessions and 2026 stateless requests.

Security is not optional here: Host and Origin are always checked, a gateway with API keys lets nobody in without
one, and a bind beyond loopback is refused without keys. `/health` says that the process lives, `/ready` whether
every source has settled. Other rooms may add routes (`console`).
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gateway.auth.keys import KeyStore
from gateway.auth.principal import LOCAL, Principal
from gateway.catalog.status import STATUS_URI
from gateway.config.models import HttpSettings
from gateway.errors import ConfigError, StorageError
from gateway.policy.decision import Reject
from gateway.policy.scopes import OWN_SOURCE, judge_scope
from gateway.server.build import AGUI_PATH, GatewayServer
from gateway.server.clients import PRINCIPAL_SCOPE_KEY
from gateway.server.direct import Begun, DirectPath, Takes
from gateway.server.homeward import Homeward
from gateway.server.replay import RETRY_MILLISECONDS, SessionManager

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered without a key: they say nothing but up or down."""

_ALIVE = frozenset({"/health"})
"""Says that this very process lives."""

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Away:
    """What a worker that is not home has to know of home."""

    home_path: str
    """The socket where it takes requests."""
    home_serves: Callable[[], bool]
    takes: Takes
    """Which calls need not go there."""


def is_loopback(host: str) -> bool:
    """Whether a bind address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, keys: KeyStore) -> None:
    """Refuse to listen beyond loopback without API keys.

    Raises:
        ConfigError: With the command that makes one.
    """
    if not is_loopback(host) and not keys.list():
        raise ConfigError(
            f"Refusing to listen on {host!r} without API keys: anybody who reaches it could use every tool. "
            f"Make one with `moongate keys add NAME`, or bind 127.0.0.1.",
            path="server.http.host",
        )


def security_settings(settings: HttpSettings, host: str, port: int) -> TransportSecuritySettings:
    """Accepted Host and Origin values: loopback, the bound address and what the configuration adds."""
    hosts = [f"{name}:*" for name in _LOOPBACK_NAMES] + list(_LOOPBACK_NAMES)
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in (*_LOOPBACK_NAMES, *(f"{n}:*" for n in _LOOPBACK_NAMES))]
    if not is_loopback(host) and host not in ("0.0.0.0", "::"):  # compared, not bound
        hosts += [host, f"{host}:{port}"]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*hosts, *settings.allowed_hosts],
        allowed_origins=[*origins, *settings.allowed_origins],
    )


MAX_KNOWN_ORIGINS = 256
"""Pairs of accepted Host and Origin values remembered."""

MAX_KNOWN_USERS = 1024
"""Callers whose form for the SDK is remembered."""


def insufficient_scope(wanted: str, verdict: Reject) -> Response:
    """The refusal of a page to a caller whose key has no scope `wanted` (RFC 6750, 3.1)."""
    challenge = f'Bearer realm="moongate", error="insufficient_scope", scope="{wanted}"'
    return JSONResponse({"error": "insufficient_scope", "message": verdict.reason}, 403, headers={"WWW-Authenticate": challenge})


class KeyGate:
    """Outermost ASGI middleware: checks Host and Origin, verifies the API key, leaves the principal in the scope."""

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyStore,
        security: TransportSecuritySettings,
        *,
        requires_key: bool,
        judged: Sequence[str] = (),
        direct: DirectPath | None = None,
    ) -> None:
        """`requires_key` holds even when the last key is revoked while the gateway runs: then nobody gets in.

        At the paths `judged`, and below those that end in a slash, a caller's scopes are judged by what is asked for there; all other
        pages show the whole gateway. `direct` is the direct path that `app` begins with, if it does.
        """
        self._app = app
        self._judged = tuple(judged)
        self._direct = direct
        self._users: dict[str, AuthenticatedUser] = {}
        self._keys = keys
        self._requires_key = requires_key
        self._rebinding = TransportSecurityMiddleware(security)
        self._known: set[tuple[bytes | None, bytes | None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or answer 401."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy before us may have cut it elsewhere (RFC 9112, 6.3).
            ambiguous = JSONResponse({"error": "Send Content-Length or Transfer-Encoding, not both"}, 400, headers={"Connection": "close"})
            await ambiguous(scope, receive, send)
            return
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        refusal = await self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            principal = self._principal(scope)
        except StorageError:
            logger.exception("API keys cannot be read; refusing every request")
            await JSONResponse({"error": "the gateway cannot read its API keys"}, 503)(scope, receive, send)
            return
        if principal is None:
            body = {"error": "unauthorized", "message": "Send `Authorization: Bearer <API key>`; make one with `moongate keys add NAME`."}
            await JSONResponse(body, 401, headers={"WWW-Authenticate": 'Bearer realm="moongate"'})(scope, receive, send)
            return
        if principal.scopes is not None and not self._is_judged(scope["path"]):
            verdict = judge_scope(principal.scopes, "resources", OWN_SOURCE, STATUS_URI)
            if isinstance(verdict, Reject):
                await insufficient_scope(f"resources:{OWN_SOURCE}/{STATUS_URI}", verdict)(scope, receive, send)
                return
        self._admit(scope, principal)
        await self._app(scope, receive, send)

    def take(self, scope: Scope, headers: Mapping[bytes, bytes], body: bytes) -> Begun | None:
        """As `DirectPath.take`, for what this gate lets through; all else is left to the application, which says why."""
        if self._direct is None or scope["path"] in OPEN_PATHS:
            return None
        place = headers.get(b"host"), headers.get(b"origin")
        if place not in self._known or len(headers) != len(scope["headers"]) or b"transfer-encoding" in headers:
            return None
        try:
            principal = self._principal(scope)
        except StorageError:
            return None
        if principal is None or (principal.scopes is not None and not self._is_judged(scope["path"])):
            return None
        self._admit(scope, principal)
        return self._direct.take(scope, headers, body)

    def _admit(self, scope: Scope, principal: Principal) -> None:
        scope[PRINCIPAL_SCOPE_KEY] = principal
        if principal is not LOCAL:
            user = self._users.get(principal.id)
            if user is None:
                if len(self._users) >= MAX_KNOWN_USERS:
                    self._users.clear()
                user = self._users[principal.id] = AuthenticatedUser(AccessToken(token="", client_id=principal.id, scopes=[]))
            scope["user"] = user

    def _is_judged(self, path: str) -> bool:
        return any(path == judged or (judged != "/" and judged.endswith("/") and path.startswith(judged)) for judged in self._judged)

    async def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        """What the SDK says of Host and Origin; what it accepted once is not shown to it again."""
        place = headers.get(b"host"), headers.get(b"origin")
        if place in self._known and len(headers) == len(scope["headers"]):
            return None
        refusal = await self._rebinding.validate_request(Request(scope))
        if refusal is None and len(headers) == len(scope["headers"]) and len(self._known) < MAX_KNOWN_ORIGINS:
            self._known.add(place)
        return refusal

    def _principal(self, scope: Scope) -> Principal | None:
        if not self._requires_key and not self._keys.list():
            return LOCAL
        scheme, _, token = HTTPConnection(scope).headers.get("authorization", "").partition(" ")
        return self._keys.verify(token.strip()) if scheme.lower() == "bearer" and token else None


def build_http_app(
    server: GatewayServer,
    settings: HttpSettings,
    keys: KeyStore,
    *,
    host: str,
    port: int,
    ready: Callable[[], bool],
    routes: Sequence[BaseRoute] = (),
    away: Away | None = None,
) -> KeyGate:
    """The ASGI application; its lifespan runs the legacy session manager. Gate and direct path are outermost: they are of every call.

    A worker that is not home hands on what is not for it (`away`).

    Raises:
        ConfigError: The bind is not safe.
    """
    check_bind(host, keys)
    security = security_settings(settings, host, port)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(request: Request) -> Response:
        is_ready = ready()
        return JSONResponse({"status": "ready" if is_ready else "starting"}, 200 if is_ready else 503)

    manager = SessionManager(
        server.mcp, security_settings=security, retry_interval=RETRY_MILLISECONDS, max_request_body_size=settings.max_request_bytes
    )
    endpoint = Route(settings.path, StreamableHTTPASGIApp(manager))
    site = Starlette(
        routes=[endpoint, Route("/health", health), Route("/ready", readiness), *routes], lifespan=lambda _: manager.run()
    )
    app: ASGIApp = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", site)))  # only redirects ask how the client came
    if away is not None:
        app = Homeward(app, path=away.home_path, home_serves=away.home_serves, own_paths=_ALIVE)
    direct = None
    if settings.direct_path == "auto":
        takes = away.takes if away is not None else None
        app = direct = DirectPath(app, server, path=settings.path, max_request_bytes=settings.max_request_bytes, takes=takes)
    must = not is_loopback(host) or bool(keys.list())
    return KeyGate(app, keys, security, requires_key=must, judged=(settings.path, AGUI_PATH), direct=direct)
