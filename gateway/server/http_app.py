"""`build_http_app`: composes the ASGI application of the gateway; used by `app`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.auth.api_keys import KeyStore
from gateway.config.models import HttpSettings
from gateway.server.dispatch import HttpDispatch, ServerParts
from gateway.server.fast_path.fast_sessions import FastSessions
from gateway.server.key_gate import KeyGate, check_bind
from gateway.server.origins import accepted_origins
from gateway.server.sdk_path.lazy_application import LazyApplication, Probes
from gateway.server.session_table import SessionTable

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp


def build_http_app(
    server: ServerParts,
    settings: HttpSettings,
    keys: KeyStore,
    *,
    host: str,
    port: int,
    probes: Probes,
    routes: Callable[[], Sequence[BaseRoute]] = tuple,
) -> KeyGate:
    """Compose the ASGI application: authentication, then the fast path, then 2025 sessions without the SDK, then the SDK path.

    The application must receive ASGI lifespan events, which start and end 2025 sessions. `routes` returns the Starlette routes of other
    packages, when a request first needs the SDK path.

    Raises:
        ConfigError: `check_bind` refuses the address.
    """
    requires_key = check_bind(host, keys)
    origins = accepted_origins(host, port, settings.allowed_hosts, settings.allowed_origins)
    table = SessionTable()
    application = LazyApplication(server, settings, origins, table, probes=probes, routes=routes)
    is_fast, path, max_bytes = settings.direct_path == "auto", settings.path, settings.max_request_bytes
    app: ASGIApp = FastSessions(application, server, server.plain, table, path=path) if is_fast else application
    dispatch = HttpDispatch(app, server, path=path, max_request_bytes=max_bytes, uses_fast_path=is_fast)
    return KeyGate(dispatch, keys, origins, settings, server.usages, requires_key=requires_key, fast_path=dispatch)
