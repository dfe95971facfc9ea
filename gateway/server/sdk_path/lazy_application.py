"""`LazyApplication`: serves every HTTP request that the fast path does not answer; its modules are imported at the first such request.

`/health` and `/ready` are answered without an import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.auth.identity import CHALLENGE_PATTERN
from gateway.config.models import HttpSettings
from gateway.sdk import load
from gateway.server.clients import Clients
from gateway.server.http_responses import json_response
from gateway.server.origins import AcceptedOrigins
from gateway.server.session_table import SessionTable
from gateway.server.usage import Usages

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.server.sdk_path.application import SdkApplication
    from gateway.server.sdk_path.resumable_sessions import SessionManager
    from gateway.server.sdk_path.sdk_server import SdkServer


HEALTH_PATH = "/health"
"""Page that shows that the process runs. With `?challenge=` it also proves to the user's commands which configuration it serves."""

READY_PATH = "/ready"
"""Page that shows whether every source is ready or failed."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Functions from which `/ready` and `/health` get their content."""

    ready: Callable[[], bool]
    """Whether every source is ready or failed."""
    prove: Callable[[str], str]
    """Returns the proof for a challenge that `/health` received (`Identity.prove`)."""


class SdkParts(Protocol):
    """The parts of the server that `LazyApplication` needs."""

    clients: Clients
    usages: Usages

    async def load_sdk(self) -> SdkServer:
        """Import the SDK and return the SDK path's server."""
        ...


class LazyApplication:
    """ASGI application of the SDK path. Its lifespan events start and end the sessions of the SDK path."""

    def __init__(
        self,
        parts: SdkParts,
        settings: HttpSettings,
        origins: AcceptedOrigins,
        table: SessionTable,
        *,
        probes: Probes,
        routes: Callable[[], Sequence[BaseRoute]],
    ) -> None:
        """`routes` returns the Starlette routes of other packages, when a request first needs them."""
        self._parts = parts
        self._settings = settings
        self._origins = origins
        self._probes = probes
        self._routes = routes
        self._table = table
        self._site: SdkApplication | None = None
        self._loading = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._leaving = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. The first one imports the SDK; requests during the import wait for it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app: ASGIApp = self._state(scope) or self._site or await self._open()
        await app(scope, receive, send)

    def _state(self, scope: Scope) -> ASGIApp | None:
        """Return the response to `/health` or `/ready`, made without importing anything; `None` for other paths."""
        path = scope["path"]
        if path not in (HEALTH_PATH, READY_PATH):
            return None
        if scope["method"] not in ("GET", "HEAD"):
            return json_response({"error": "Send GET"}, 405, {"Allow": "GET, HEAD"})
        if path == HEALTH_PATH:
            challenge = scope["query_string"].decode("latin-1").removeprefix("challenge=")
            proof = {"proof": self._probes.prove(challenge)} if CHALLENGE_PATTERN.match(challenge) else {}
            return json_response({"status": "ok", **proof})
        is_ready = self._probes.ready()
        return json_response({"status": "ready" if is_ready else "starting"}, 200 if is_ready else 503)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with anyio.create_task_group() as self._tasks:
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._leaving.set()
        await send({"type": "lifespan.shutdown.complete"})

    async def sessions(self, scope: Scope) -> SessionManager:
        """Return the SDK's session manager, after setting `scope["user"]`, from which the SDK knows the caller of a request."""
        site = self._site or await self._open()
        site.introduce(scope)
        return site.manager

    async def _open(self) -> SdkApplication:
        async with self._loading:
            if self._site is None:
                if self._tasks is None:
                    raise RuntimeError("the application is not started")
                sdk = await self._parts.load_sdk()
                await load("gateway.server.sdk_path.application")
                from gateway.server.sdk_path.application import SdkApplication
                from gateway.server.sdk_path.resumable_sessions import Keeping

                keep = Keeping(self._table, self._parts.usages, self._parts.clients)
                site = SdkApplication(sdk, self._settings, self._origins, keep, routes=self._routes())
                await self._tasks.start(self._serve_sessions, site)
                self._site = site
            return self._site

    async def _serve_sessions(self, site: SdkApplication, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with site.manager.run():
            task_status.started()
            await self._leaving.wait()
