"""`GatewayServer`: the MCP server of one gateway, for 2025 and 2026 clients over HTTP and stdio.

It owns the objects that all requests share, and the background tasks. The fast path, which answers requests without the MCP SDK, needs only
these objects. The SDK path (`sdk_server`) is created when a request first needs it. `dispatch` connects the server to its transports; the
catalog decides which tools, resources and prompts it serves.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread

from gateway.auth.principal import LOCAL, Principal
from gateway.catalog import Catalog
from gateway.catalog.disclosure import scope_of
from gateway.catalog.skill_catalog import SkillCatalog
from gateway.config.models import GatewayConfig, TaskSettings
from gateway.errors import StorageError
from gateway.json_types import JsonObject
from gateway.protocol import SKILLS_EXTENSION, TASKS_EXTENSION
from gateway.sdk import load
from gateway.server.bodies import Utf8Bodies
from gateway.server.calls import CallHandler
from gateway.server.capabilities import discover_result, initialize_result
from gateway.server.changes import Changes
from gateway.server.clients import Clients, LegacySession
from gateway.server.fast_path.plain_answers import PlainAnswers
from gateway.server.listings import Listings
from gateway.server.parked import ParkedCalls
from gateway.server.replicas import Replicas, ReplicaStore
from gateway.server.sealed_sessions import SealedSessions, SessionStore
from gateway.server.task_calls import CurrentCaller, TaskHandler
from gateway.server.usage import Usages
from gateway.server.watches import Watches
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.records import Records
from gateway.storage.shared_clock import shared_now
from gateway.tasks.local_engine import LocalEngine
from gateway.tasks.runner import TaskRunner
from gateway.tasks.task_engine import MakeEngine
from gateway.tasks.task_tools import TaskTools
from gateway.telemetry.gateway_load import Load
from gateway.tools.context import CallContext

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from gateway.server.agui_runs import AguiRoute, Conversations
    from gateway.server.owned_servers import Relays
    from gateway.server.sdk_path.sdk_server import SdkServer

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
"""Maximum seconds that a stopping server waits for running steps of durable tasks (calls that continue after a restart), if these steps
must not run twice.

If such a step is interrupted, the next start cannot repeat it."""

REVOKED_SECONDS = 2.0
"""Seconds between two checks for revoked and expired API keys. A check ends the running calls and tasks of the callers with such a key.
New requests with such a key are rejected at once."""

AGUI_PATH = "/agui/"
"""URL path below which applications run agents over the AG-UI protocol: `/agui/<agent>`."""


class SharedStore(SessionStore, ReplicaStore, Protocol):
    """Interface of `Records`, as far as it has the state that replicas share."""


class GatewayServer:
    """The MCP server of a gateway. It is an async context manager, which must be entered before clients are served.

    Leaving the context ends all calls that wait for input, and all subscription streams.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        name: str,
        version: str,
        own_id: str,
        page_size: int,
        instructions: Callable[[Principal], str],
        ask_timeout_seconds: float,
        state_key: bytes,
    ) -> None:
        """`instructions` returns the current MCP instructions for a caller. `own_id` identifies this gateway in a chain of gateways.

        A request for input expires after `ask_timeout_seconds`. `state_key` (32 bytes) encrypts the request state in results; gateways with
        the same key accept each other's request state.
        """
        self.ask_timeout_seconds = ask_timeout_seconds
        self._kept_tasks: tuple[Records, TaskSettings, TaskTools, MakeEngine] | None = None
        self.runner: TaskRunner | None = None
        self._current: CurrentCaller | None = None
        self.catalog = catalog
        self.state_key = state_key
        self.own_id = own_id
        self.identity: JsonObject = {"name": name, "version": version}
        """Name and version of the server, which every result for a 2026 client contains."""
        self._instructions = instructions
        self._local_instructions: str | None = None
        """The instructions for local clients; `None` until the first client after a change needs them."""
        self._stack = AsyncExitStack()
        self.usages = Usages()
        """Counts the calls, requests, streams, sessions and bytes that each HTTP caller has in progress, to apply quotas."""
        self.clients = Clients(self._released, ask_timeout_seconds=ask_timeout_seconds)
        self.lists = Listings(catalog, page_size=page_size, own_id=own_id)
        self.changes = Changes(catalog, self.clients)
        self.watches = Watches(catalog)
        self.sealed: SealedSessions | None = None
        """Makes session ids that every replica can continue; `None` if this gateway has no replicas (`share_with_replicas`)."""
        self.replicas: Replicas | None = None
        self.relay_of: Relays = lambda _: None
        """Returns the object that serves messages of other replicas for a stdio server with `single: true`; `None` for other names."""
        self.skills = SkillCatalog(catalog)
        self.plain = PlainAnswers(self)
        """Answers `server/discover` and listing requests without the MCP SDK."""
        self._sdk: SdkServer | None = None
        catalog.subscribe(lambda _: self.describe())

    def keep_tasks_in(self, records: Records, settings: TaskSettings, tools: TaskTools, make_engine: MakeEngine = LocalEngine) -> None:
        """Let the server run calls as durable tasks, which are stored in `records` and continue after a restart.

        `make_engine` creates the engine, which decides in which process a task runs.

        Call this before the server is entered. Without this call, the server runs no tasks of its own, and only relays tasks of remote
        servers. Clients that do not support tasks call the tools in `tools` to follow their tasks.
        """
        self._kept_tasks = (records, settings, tools, make_engine)

    def judge_callers_by(self, current: CurrentCaller) -> None:
        """Set the function by which the server finds callers whose API key is no longer valid, to end their calls and tasks.

        Call this before the server is entered. `current` returns a caller with its current rights, or `None` if its key is no longer valid.
        """
        self._current = current

    def share_with_replicas(self, store: SharedStore, feed: ChangeFeed) -> None:
        """Let this gateway and its replicas continue each other's 2025 sessions, and forward each other requests.

        They share `store`, whose changes `feed` reports. Call this before the server is entered.
        """
        self.sealed = self.clients.sealed = SealedSessions(hmac.digest(self.state_key, b"session-ids", "sha256"), store, feed)
        key, version = hmac.digest(self.state_key, b"replica-channel", "sha256"), str(self.identity["version"])
        self.replicas = Replicas(key, store, version, clock=shared_now)

    def report_configuration(self, config: Callable[[], GatewayConfig]) -> None:
        """Let `moongate doctor` show which configuration this replica uses. `config` returns the one in use."""
        from gateway.server.replica_configuration import configuration_digest

        key = hmac.digest(self.state_key, b"configuration", "sha256")
        known: list[tuple[GatewayConfig, str]] = []

        def digest() -> str:
            current = config()
            if not known or known[0][0] is not current:
                known[:] = [(current, configuration_digest(key, current))]
            return known[0][1]

        if self.replicas is not None:
            self.replicas.configuration = digest

    def load(self) -> Load:
        """Return the numbers of open sessions and streams over HTTP, and of running tasks."""
        totals, tasks = self.usages.totals, self.runner.running if self.runner is not None else 0
        return {
            "moongate.sessions": [(totals.sessions, {})],
            "moongate.streams": [(totals.streams, {})],
            "moongate.tasks.running": [(tasks, {})],
        }

    def context_of(self, session: LegacySession) -> CallContext | None:
        """Return the context in which the gateway itself acts for a 2025 session; `None` if the key of its caller is no longer valid."""
        principal = Principal(session.opened_by)
        current = principal if self._current is None else self._current(principal)
        return None if current is None else self.clients.own_context(session, current)

    async def __aenter__(self) -> GatewayServer:
        self.group = group = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(group.cancel_scope.cancel)
        self.clients.tasks = group
        self.parked = ParkedCalls(group, ttl_seconds=self.ask_timeout_seconds)
        self.tasks = handler = TaskHandler(self.catalog, hmac.digest(self.state_key, b"task-handles", "sha256"), self._current)
        if self._kept_tasks is not None:
            records, settings, tools, make_engine = self._kept_tasks
            seconds = self.ask_timeout_seconds
            self.runner = TaskRunner(
                group, records, handler.call, handler.caller_now, settings=settings, ask_timeout_seconds=seconds, make_engine=make_engine
            )
            handler.run_with(self.runner)
            tools.run_with(self.runner)
            group.start_soon(self.runner.run)
        self.calls = CallHandler(self.parked, handler)
        group.start_soon(self.changes.run)
        if self._current is not None:
            group.start_soon(self._end_revoked, self.runner, self._current)
        return self

    def discovery(self, principal: Principal) -> JsonObject:
        """Return the result of `server/discover` for a caller."""
        # Folders of skills can always be read: for servers that cannot list them, the gateway uses the manifests of their skills.
        skills = {SKILLS_EXTENSION: {"directoryRead": True}} if self.skills.has_skills else {}
        return discover_result(self.instructions_for(principal), {TASKS_EXTENSION: {}, **skills})

    def introduction(self, version: str, principal: Principal) -> JsonObject:
        """Return the result of `initialize` for a caller. `version` is the negotiated protocol version."""
        return initialize_result(version, self.instructions_for(principal), self.identity)

    def instructions_for(self, principal: Principal) -> str:
        """Return the MCP instructions for a caller, which describe only the tools that the caller may use."""
        if principal.rights is not None:
            return self._instructions(principal)
        if self._local_instructions is None:
            self._local_instructions = self._instructions(LOCAL)
        return self._local_instructions

    @property
    def has_sdk(self) -> bool:
        """Whether the MCP SDK's server exists. `load_sdk` creates it when a request first needs the SDK."""
        return self._sdk is not None

    async def load_sdk(self) -> SdkServer:
        """Return the server of the SDK path. The first call imports the MCP SDK in a worker thread, and creates the server."""
        if self._sdk is None:
            await load("gateway.server.sdk_path.sdk_server")
        return self._whole()

    @property
    def mcp(self) -> Server[Any]:
        """The MCP SDK's server object. Reading this property creates the object if it does not exist yet.

        The creation blocks the event loop while the SDK is imported; `load_sdk` does not block.
        """
        return self._whole().mcp

    def _whole(self) -> SdkServer:
        if self._sdk is None:
            from gateway.server.sdk_path.sdk_server import SdkServer

            self._sdk = SdkServer(self)
        return self._sdk

    async def __aexit__(self, *exc: object) -> None:
        if self._sdk is not None:
            self._sdk.close()
        if self.runner is not None and exc[0] is None:
            await self.runner.drain(DRAIN_SECONDS)
        await self._stack.aclose()

    async def _end_revoked(self, runner: TaskRunner | None, current: CurrentCaller) -> None:
        """Check regularly, until cancelled, for callers whose API key is no longer valid, and end their calls and tasks.

        Tasks are also ended if the caller's key is valid but no longer allows the tool of the task. `current` returns a caller with its
        current rights, or `None` if its key is no longer valid.
        """
        while True:
            await anyio.sleep(REVOKED_SECONDS)
            try:
                callers = self.calls.running.callers() | self.parked.callers()
                owners = set[str]() if runner is None else set(runner.callers())
                if not callers and not owners:
                    continue
                callers |= {owner for owner in owners if not owner.startswith("user:")}  # users' tasks have their facts, see below
                gone = await anyio.to_thread.run_sync(lambda: {caller for caller in callers if current(Principal(caller)) is None})  # noqa: B023
                for caller in gone:
                    logger.warning("calls and tasks ended reason=rights-lapsed caller=%s", caller)
                self.parked.end(gone)
                self.calls.running.end(gone)
                if runner is not None:
                    runner.end(gone)
                    await runner.end_unadmitted()
            except StorageError as error:
                logger.warning("API keys not read, revoked keys are unknown error=%s", error)

    def agui_route(self, agents: Conversations, max_request_bytes: int) -> Route:
        """Return the Starlette route on which applications run agents over the AG-UI protocol. `agents` finds the agents."""
        from starlette.routing import Route, request_response

        made: list[AguiRoute] = []

        async def serve(request: Request) -> Response:
            """Run an agent for an AG-UI request. The first request imports the module `agui_runs` and the AG-UI package."""
            if not made:
                agui = await anyio.to_thread.run_sync(import_module, "gateway.server.agui_runs")
                made.append(agui.AguiRoute(self.catalog, agents, self.parked, ask_timeout_seconds=self.ask_timeout_seconds))
            return await made[0].serve(request)

        return Route(AGUI_PATH + "{agent}", Utf8Bodies(request_response(serve), max_request_bytes, is_rpc=False), methods=["POST"])

    async def _released(self, session: LegacySession) -> None:
        await self.watches.release(session)
        if self.catalog.disclosure is not None:
            self.catalog.disclosure.forget(scope_of(session.profile.session_id, ""))

    def describe(self) -> None:
        """Let new clients receive current instructions. Called after changes of listings and of the configuration.

        The next client has the text built: a start with 50 servers has 50 changes, and the text describes all of them.
        """
        self._local_instructions = None
