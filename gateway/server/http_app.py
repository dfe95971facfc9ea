"""`build_http_app`: composes the ASGI application that serves a gateway over HTTP. Used by the package `app`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.auth.known_callers import Callers
from gateway.config.models import HttpSettings
from gateway.server.dispatch import HttpDispatch, ServerParts
from gateway.server.key_gate import KeyGate, check_bind
from gateway.server.origins import accepted_origins
from gateway.server.sdk_path.lazy_application import LazyApplication, Probes
from gateway.server.session_table import SessionTable

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from gateway.server.step_up import StepUp


def build_http_app(
    server: ServerParts,
    settings: HttpSettings,
    callers: Callers,
    *,
    host: str,
    port: int,
    probes: Probes,
    routes: Callable[[], Sequence[BaseRoute]] = tuple,
) -> KeyGate:
    """Compose the ASGI application that serves a gateway over HTTP at `host` and `port`.

    After authentication, a request reaches `HttpDispatch`, which answers requests that do not need the MCP SDK, and passes all others to
    the SDK path. If `server.http.directPath` is `off`, the SDK path answers every request. The application must receive ASGI lifespan
    events, which start and end 2025 sessions. `routes` returns the Starlette routes of other packages; it is called when a request first
    needs the SDK path. `probes` provides the content of the responses to `/ready` and `/health`.

    Raises:
        ConfigError: `host` is not a loopback address, and there is neither an API key nor an issuer of access tokens.
    """
    requires_key = check_bind(host, callers.keys, callers.tokens.settings if callers.tokens is not None else None)
    origins = accepted_origins(host, port, settings.allowed_hosts, settings.allowed_origins)
    table = SessionTable()
    application = LazyApplication(server, settings, origins, table, probes=probes, routes=routes)
    is_fast, max_bytes = settings.direct_path == "auto", settings.max_request_bytes
    step_up: StepUp | None = None
    if callers.tokens is not None:
        from gateway.server.step_up import StepUp

        step_up = StepUp(server.catalog, callers.tokens)
    dispatch = HttpDispatch(
        application, server, table, path=settings.path, max_request_bytes=max_bytes, uses_fast_path=is_fast, step_up=step_up
    )
    replicas = server.replicas
    app: ASGIApp = dispatch
    if replicas is not None:
        from gateway.server.forwarded_requests import ForwardedRequests

        app = ForwardedRequests(dispatch, replicas, server.relay_of, max_bytes)
    usages = server.usages
    return KeyGate(app, callers, origins, settings, usages, requires_key=requires_key, fast_path=dispatch, replicas=replicas)
