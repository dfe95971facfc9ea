"""`LazyApplication`: serves HTTP requests that the fast path (without the MCP SDK) does not answer. The first of them imports the SDK.

`/health` and `/ready` are answered without this import.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.auth.identity import CHALLENGE_PATTERN
from gateway.config.models import HttpSettings
from gateway.sdk import load
from gateway.server.clients import Clients
from gateway.server.http_responses import KEYS_UNREADABLE, json_response
from gateway.server.origins import AcceptedOrigins
from gateway.server.replicas import Replicas
from gateway.server.session_table import SessionTable
from gateway.server.usage import Usages
from gateway.telemetry.sparse_log import SparseLog

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gateway.server.sdk_path.application import SdkApplication
    from gateway.server.sdk_path.resumable_sessions import SessionManager
    from gateway.server.sdk_path.sdk_server import SdkServer

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"
"""URL path that reports that the process runs. With `?challenge=` it also proves which configuration the gateway serves, so that the user's
`moongate` commands do not send an API key to another program on the port."""

READY_PATH = "/ready"
"""URL path that reports whether the gateway can serve requests: every source of tools is ready or has failed, and keys can be read."""


@dataclass(frozen=True, slots=True)
class Probes:
    """The functions that provide the content of the responses to `/ready` and `/health`."""

    ready: Callable[[], bool]
    """Function that returns whether every source of tools is ready or has failed."""
    prove: Callable[[str], str]
    """Function that returns a proof of which configuration the gateway serves, for a challenge that a command sent to `/health`."""
    is_stopping: Callable[[], bool] = lambda: False
    """Function that returns whether the gateway has received the signal to stop, so that `/ready` answers 503."""
    keys_problem: Callable[[], str] = str
    """Function that returns why the API keys cannot be read, so that `/ready` answers 503 like all requests; empty if they can be read."""


class SdkParts(Protocol):
    """The part of `GatewayServer`'s interface that is needed to serve requests with the MCP SDK."""

    clients: Clients
    usages: Usages
    replicas: Replicas | None

    async def load_sdk(self) -> SdkServer:
        """Import the MCP SDK if needed, and return the server of the SDK path."""
        ...


class LazyApplication:
    """ASGI application that serves requests with the MCP SDK, and imports the SDK at the first request.

    While its ASGI lifespan runs, sessions of the SDK can be open; the end of the lifespan ends them.
    """

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
        """`routes` returns the Starlette routes of other packages; it is called at the first request. `table` limits the 2025 sessions."""
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
        self._log = SparseLog(logger)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. The first request imports the MCP SDK; requests that arrive during the import wait for it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        app: ASGIApp = self._state(scope) or self._site or await self._open()
        await app(scope, receive, send)

    def _state(self, scope: Scope) -> ASGIApp | None:
        """Return an ASGI application that answers `/health` or `/ready` without importing the MCP SDK; `None` for other paths."""
        path = scope["path"]
        if path not in (HEALTH_PATH, READY_PATH):
            return None
        if scope["method"] not in ("GET", "HEAD"):
            return json_response({"error": "Send GET"}, 405, {"Allow": "GET, HEAD"})
        if path == HEALTH_PATH:
            challenge = scope["query_string"].decode("latin-1").removeprefix("challenge=")
            proof = {"proof": self._probes.prove(challenge)} if CHALLENGE_PATTERN.match(challenge) else {}
            return json_response({"status": "ok", **proof})
        if self._probes.is_stopping():
            return json_response({"status": "stopping"}, 503)
        if not self._probes.ready():
            return json_response({"status": "starting"}, 503)
        if problem := self._probes.keys_problem():
            self._log.warning("not ready reason=api-keys-not-readable error=%r", problem)
            return json_response({"status": "refusing", "error": KEYS_UNREADABLE}, 503)
        return json_response({"status": "ready"}, 200)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with anyio.create_task_group() as self._tasks:
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self._leaving.set()
        await send({"type": "lifespan.shutdown.complete"})

    async def sessions(self, scope: Scope) -> SessionManager:
        """Return the SDK's session manager, and set `scope["user"]`, from which the SDK gets the caller of the request."""
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

                replica = self._parts.replicas.id if self._parts.replicas is not None else ""
                keep = Keeping(self._table, self._parts.usages, self._parts.clients, replica)
                site = SdkApplication(sdk, self._settings, self._origins, keep, routes=self._routes())
                await self._tasks.start(self._serve_sessions, site)
                self._site = site
            return self._site

    async def _serve_sessions(self, site: SdkApplication, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with site.manager.run():
            task_status.started()
            await self._leaving.wait()
