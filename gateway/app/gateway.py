"""`Gateway`: builds the parts of a running gateway, such as its catalog of tools, connects them, and serves clients.

Packages that the configuration does not need are not imported. One exit stack enters all resources in the order of their dependencies, and
closes them in reverse order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from socket import socket
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from gateway import __version__
from gateway.access.principal_rights import Access
from gateway.app.kept_results import build_result_store
from gateway.app.key_stores import access_tokens, key_file, open_keys
from gateway.app.local_builder import LocalBuilder
from gateway.auth.known_callers import Callers
from gateway.catalog import Catalog
from gateway.catalog.configured_sources import ConfigurationChanges, ConfiguredSources
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.gateway_source import GatewaySource
from gateway.catalog.inspection import Inspection
from gateway.catalog.local_sources import LocalSources
from gateway.catalog.names import NAME_BUDGET
from gateway.catalog.remote_servers import Servers
from gateway.catalog.rule_findings import log_own_faults
from gateway.catalog.source_host import SourceHost
from gateway.catalog.status import GatewayStatus
from gateway.chat.model_access import Models
from gateway.config.load import LoadedConfig
from gateway.config.reload import Reloader
from gateway.config.watch import FileWatch
from gateway.gate.acceptance import Acceptance
from gateway.gate.approvals import Approvals
from gateway.gate.approvers import Approvers
from gateway.gate.audited_events import audit
from gateway.gate.call_journal import CallJournal, open_journal
from gateway.gate.function_rules import FunctionRules
from gateway.gate.own_tools import OwnToolGates, OwnToolGuard
from gateway.gate.pipeline import GateServices
from gateway.json_types import JsonObject
from gateway.server.gateway_server import GatewayServer
from gateway.server.startup_answers import StartupAnswers
from gateway.server.startup_snapshot import keep_answers
from gateway.storage.change_feed import ChangeFeed
from gateway.storage.interrupted_restore import finish_restore
from gateway.storage.records import Records
from gateway.storage.shared_database import SharedDatabase
from gateway.storage.state_folder import StateFolder, state_dir
from gateway.storage.state_use import in_use
from gateway.tasks.engine_choice import choose_engine
from gateway.tasks.task_engine import MakeEngine
from gateway.tasks.task_tools import TaskTools
from gateway.telemetry.gateway_events import EventStream
from gateway.telemetry.gateway_load import Load
from gateway.telemetry.logging import SecretMask
from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext
from gateway.tools.wrappers import RenamedTool
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.gateway_chain import configuration_of
from gateway.upstream.hop_id import STDIO, hop_id
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.large_bodies import LargeBodies
from gateway.upstream.readiness import Readiness
from gateway.upstream.single_servers import SingleServers
from gateway.wire.heap import Heap

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gateway.server.certificate import ServerCertificate
    from gateway.skills.index import SkillIndex

logger = logging.getLogger(__name__)


class Gateway:
    """A gateway for one configuration. Create it with `from_config`, enter it with `async with`, and call `serve_stdio` or `serve_http`."""

    def __init__(
        self, loaded: LoadedConfig, events: EventStream, acceptance: Acceptance | None, endpoint: str | None, *, dispatches: bool = True
    ) -> None:
        self._written = loaded
        self._dispatches = dispatches
        self._endpoint = endpoint
        self._acceptance = acceptance or Acceptance()
        self.events = events
        self.catalog: Catalog
        self._callers: Callers
        self.feed: ChangeFeed
        """Tells this gateway when another gateway on the same database has changed shared data."""
        self.journal: CallJournal
        """Records calls and reads for the audit log and metrics."""
        self.inspection: Inspection
        """Reports the state of the running gateway and its problems, for operators."""
        self._server: GatewayServer
        self._sources: ConfiguredSources
        self._changes: ConfigurationChanges
        self._tasks: TaskGroup
        self._gates: OwnToolGates
        self._stack = AsyncExitStack()
        self._readiness: Readiness
        self._children: ChildProcesses
        self._is_stopping = False

    @classmethod
    def from_config(
        cls,
        loaded: LoadedConfig,
        *,
        events: EventStream | None = None,
        acceptance: Acceptance | None = None,
        endpoint: str | None = None,
        dispatches: bool = True,
    ) -> Gateway:
        """Return a gateway for the configuration `loaded`. The gateway has no side effects before it is entered.

        `acceptance` decides which commands of the configuration may run. At the start every command may run, except commands that a running
        gateway of this configuration refused as new or changed: they wait until a person accepts them (`moongate lock --accept`). The
        default `acceptance` does not record the commands that run at the start; `Acceptance(records_start=True)` records them as accepted
        by a person. `endpoint`, the port or `STDIO` at which the gateway will be served, is a part of the gateway's id (`hop_id`), by which
        chained gateways detect loops. If `dispatches` is false, the gateway takes no tasks from Temporal (`tasks.engine`), because it will
        not run for long.
        """
        return cls(loaded, events or EventStream(), acceptance, endpoint, dispatches=dispatches)

    async def __aenter__(self) -> Gateway:
        """Start the gateway. Remote servers are connected in the background; `ready` waits for them.

        Raises:
            Collision: Two local sources would publish a tool under the same name.
            StorageError: The state folder, the bucket of `storage.results`, or the database of `storage.url` cannot be used, or gateways on
                this database use another installation key.
        """
        try:
            await self._enter()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _enter(self) -> None:
        state_path = state_dir(self._written.config.storage.dir)
        await anyio.to_thread.run_sync(finish_restore, state_path)
        self._stack.enter_context(in_use(state_path))
        loaded = await anyio.to_thread.run_sync(self._acceptance.admit, self._written, None)
        config = loaded.config
        state = StateFolder(state_path, config.storage.root_key)
        own_id = await anyio.to_thread.run_sync(hop_id, state, loaded, self._endpoint)
        state_key = await anyio.to_thread.run_sync(state.key, "request-state")
        make_engine = await self._choose_engine(configuration_of(own_id))
        models = Models(config.defaults.model)
        self._stack.push_async_callback(models.aclose)
        hosts = SourceHost()
        kept = config.storage
        records = Records(state, audit_days=kept.audit_days, url=kept.url, gateway=configuration_of(own_id))
        self._stack.push_async_callback(records.aclose)
        self.feed = ChangeFeed(records.database)
        self._callers = Callers(await open_keys(records, self.feed, key_file(loaded), kept.url), access_tokens(config.server.auth))
        self._stack.callback(audit(self.events, records))  # until the gateway exits
        self.journal = await open_journal(config.audit, records, state)
        standing_days = config.server.standing_approval_days
        approvers = Approvers(lambda: self.loaded.config, self._callers)
        approvals = Approvals(records, self.events, standing_days=standing_days, default_by=approvers.default, chosen_by=approvers.chosen)
        store = build_result_store(kept, state.path)
        await store.check()
        mask = SecretMask()
        gates = GateServices(events=self.events, approvals=approvals, store=store, mask=mask.mask, journal=self.journal)
        builder = LocalBuilder(self, models.resolver, records, state.path, self.events, self._acceptance)
        local = LocalSources(hosts, builder.build)
        self._gates = OwnToolGates(FunctionRules(lambda source: self.loaded.config.policies.get(source), local.names_of), gates)
        children = await self._stack.enter_async_context(ChildProcesses(config.server.max_child_processes, own_id))
        self._children = children
        children.bodies = LargeBodies(config.server.large_result_bytes, used=Heap().used)
        if kept.url is not None:
            children.singles = SingleServers(records, lambda: self._server.replicas)
        client: JsonObject = {"name": config.server.name, "version": __version__}
        await self._stack.enter_async_context(hosts)
        services = InputRequestServices(self.events, records, approvals, models.resolver)
        shared = SharedDatabase(records.database) if kept.url is not None else None
        servers = Servers(hosts, state, services, children, own_id=own_id, client=client, shared=shared)
        status = GatewayStatus(lambda viewer: self.inspection.seen(viewer)) if config.server.status_tool else None
        task_tools, disclosure = TaskTools(), Disclosure()
        own = GatewaySource(store, status, records, disclosure.tools, task_tools.tools, standing_days=standing_days)
        sources = self._sources = ConfiguredSources(loaded, self._acceptance, local, servers, own, mask)
        sources.take(loaded, *await sources.plan(loaded))
        sources.offer_own()
        budget = NAME_BUDGET - len(config.server.client_prefix)
        self.catalog = Catalog(sources.entries(), gates, name_budget=budget, settled=self._wait_for_lists, disclosure=disclosure)
        self.catalog.may_review = approvers.may_review
        await self.catalog.refresh()
        self.inspection = Inspection(sources, self.catalog, models.resolver)
        self._server = GatewayServer(
            self.catalog,
            name=config.server.name,
            version=__version__,
            own_id=own_id,
            page_size=config.server.page_size,
            instructions=self.inspection.instructions,
            ask_timeout_seconds=config.server.ask_timeout_seconds,
            state_key=state_key,
        )
        self._judge_callers()
        if kept.url is not None:
            self._share(records, disclosure, servers)
        self._server.keep_tasks_in(records, config.tasks, task_tools, make_engine)
        tasks = self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        for run in (self.catalog.run, store.sweep_forever, sources.lock.run, records.run, self.feed.run):
            tasks.start_soon(run)
        await anyio.to_thread.run_sync(self._acceptance.settle)
        self._acceptance.emit_events(self.events)
        self._readiness = Readiness(config.server.startup_timeout_seconds)
        changes = self._changes = ConfigurationChanges(sources, self.catalog, self._readiness, self.events, tasks, self._server.describe)
        tasks.start_soon(changes.shared.run)
        await servers.start(list(servers.table.values()))
        tasks.start_soon(servers.follow_acceptance)
        tasks.start_soon(local.files.follow, lambda: self.loaded, changes.apply_files)
        tasks.start_soon(self._log_faults, loaded, local)
        tasks.start_soon(self._readiness.watch, servers.sources, changes.note_ready)
        await self._stack.enter_async_context(self._server)

    def _share(self, records: Records, disclosure: Disclosure, servers: Servers) -> None:
        """Share state with the other gateways that may use the same database server."""
        self._server.share_with_replicas(records, self.feed)
        self._server.relay_of = servers.relay_of
        self._server.report_configuration(lambda: self.loaded.config)
        disclosure.share(records, self.feed)
        servers.share(self.feed)

    def _judge_callers(self) -> None:
        """Let API keys, access tokens and `access` decide which callers may call tools, and log schedules whose key is not valid."""
        self.access.judge(self._callers)
        self._server.judge_callers_by(self._callers.current)
        schedules = self._written.config.tasks.schedules
        if self._dispatches and schedules:
            from gateway.server.scheduled_calls import log_key_problems

            log_key_problems(schedules, self._callers)

    async def _log_faults(self, loaded: LoadedConfig, local: LocalSources) -> None:
        """Log the mistakes in policies of local sources and, when the servers have listed their tools, in the section `access`."""
        await log_own_faults(loaded, local.sources)
        if self.loaded.config.access is None:
            return
        await self._readiness.settled()
        for finding in await self.inspection.access_findings():
            if finding.kind != "note":
                logger.warning("access rule to look at path=%s reason=%s", finding.path, finding.text)

    def _task_queues(self) -> set[str]:
        """Return the task queues at Temporal of the sources that this gateway has now."""
        sources = self._sources
        return sources.loaded.config.task_queues_of([*sources.local.table, *sources.servers.table])

    async def _choose_engine(self, configuration: str) -> MakeEngine:
        """Return the function that creates the task engine of `tasks.engine`. `configuration` is the id of this configuration."""
        return await choose_engine(
            self._written.config.tasks,
            configuration,
            queues=self._task_queues,
            start_scheduled=self._start_scheduled,
            dispatches=self._dispatches,
        )

    async def _start_scheduled(self, schedule: str, run: str) -> str:
        """Start the call of a schedule (`tasks.schedules`), and return the id of its task. See `StartScheduled`."""
        from gateway.server.scheduled_calls import ScheduledCalls

        schedules = self.loaded.config.tasks.schedules
        return await ScheduledCalls(schedules, self._callers, self.catalog, self._server.tasks).start(schedule, run)

    @property
    def callers(self) -> Callers:
        """The API keys and access tokens of the gateway. They can be read only after the gateway was entered (`async with`)."""
        return self._callers

    @property
    def loaded(self) -> LoadedConfig:
        """The configuration in use. It can be read only after the gateway was entered (`async with`)."""
        return self._sources.loaded

    @property
    def access(self) -> Access:
        """Gives callers their rights by the section `access` of the configuration in use."""
        return self._sources.access

    def follow(self, read: Callable[[], LoadedConfig], watch: FileWatch | None) -> None:
        """From now on, reload the configuration at each SIGHUP and when its file changes, until the gateway exits. Returns at once.

        `watch` reports changes of the file; they have no effect if `server.reload` is false. The configuration is also reloaded when a
        person accepts commands, modules or scripts in it that are new or changed and therefore do not run yet (`gate.acceptance`). `read`
        reads the configuration in a worker thread, so it may block. If it raises `ConfigError`, the gateway is not changed.
        """
        reloader = self._sources.reloader = Reloader(read, self.reload, watch, follows=self.loaded.config.server.reload)
        self._tasks.start_soon(reloader.run)
        self._tasks.start_soon(self._acceptance.follow, reloader.read_again)

    async def reload(self, written: LoadedConfig) -> bool:
        """Apply `written`, a new version of the configuration, to the running gateway. See `ConfigurationChanges.apply`.

        Raises:
            ConfigError: The configuration cannot be used. The gateway was not changed, but commands that wait for a person's acceptance may
                have been recorded.
            StorageError: The record of accepted commands is damaged; nothing was changed.
        """
        return await self._changes.apply(written)

    # -- state -------------------------------------------------------------------------------------------------

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match the patterns `<source>/<glob>`, under the names that clients use. Implements `ToolBox`."""
        await self.catalog.ready()
        return [RenamedTool(tool, tool.exposed_name) for tool in await self.catalog.tools(patterns)]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the quarantined tools (hidden until a person accepts their definitions) that match the patterns. Implements `ToolBox`."""
        return [RenamedTool(tool, tool.exposed_name) for tool in self.catalog.quarantined(patterns)]

    def load(self) -> Load:
        """Return numbers that describe what the gateway does now, for metrics."""
        return {
            **self.inspection.load(),
            **self._server.load(),
            **self.journal.load(),
            "moongate.children": [(self._children.running, {})],
        }

    def guard_of(self, source: str) -> OwnToolGuard:
        """Return the object that applies policy to tools which the agent or workflow `source` defines itself. Implements `ToolGuards`."""
        return self._gates.guard_of(source)

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read the resource with this URI for an agent, with the same policies as for a client. Implements `ResourceBox`.

        Raises:
            NotFound: The URI is unknown.
        """
        return await self.catalog.read(uri, ctx)

    async def ready(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` until the servers have connected or failed to connect; then update the catalog of tools.

        This waits only for the servers that the gateway connects at its start, and not for servers that connect at their first call
        (`start: lazy`) or that a reload added.
        """
        with anyio.move_on_after(timeout_seconds):
            await self._readiness.settled()
        await self.catalog.catch_up()

    async def _wait_for_lists(self) -> None:
        shared, servers = self._changes.shared, self._sources.servers
        await self._readiness.listable(lambda: not shared.is_reading and all(s.lists.is_known for s in servers.sources))

    @property
    def skill_index(self) -> SkillIndex | None:
        """The table of all skills that this gateway serves, with look-ups by id, URI and text; `None` if it has no source `skill`."""
        skills = self._sources.local.skills
        return skills.index if skills is not None else None

    # -- serving -----------------------------------------------------------------------------------------------

    async def serve_stdio(self, first: StartupAnswers | None = None) -> None:
        """Serve one client over standard input and output until it closes its end of the pipe, or SIGINT or SIGTERM arrives.

        `first`, if given, has sent stored answers to the client while the gateway was loading, and now hands the connection over.
        """
        from gateway.server.serving import serve_stdio

        self.journal.endpoint = STDIO
        await serve_stdio(self._server, first, partial(self.keep_answers, first))

    async def keep_answers(self, first: StartupAnswers | None) -> None:
        """Wait as in `ready`, without a time limit, then store the results of `initialize` and of listings in a cache file.

        The next gateway over stdio sends these results to its client while loading. `first` names the file; if `None`, nothing is stored.
        """
        if first is not None:
            await self.ready(math.inf)
            await keep_answers(self.loaded, self._server, self._sources.local.files.modules, first)

    async def serve_http(self, host: str, port: int, *, on_ready: Callable[[str], None], listener: socket | None = None) -> None:
        """Serve clients over HTTP until SIGINT or SIGTERM arrives, or the calling task is cancelled.

        `on_ready` is called with the endpoint's URL when requests are accepted. `listener` is a socket that is bound to the address;
        it is closed at the end. After a signal, in-flight calls have `server.http.drainSeconds` to finish; a second signal ends them.

        Raises:
            ConfigError: The address is in use, or other machines can reach it and no API key exists, or the TLS certificate is unusable.
            StorageError: The API keys cannot be read.
        """
        from gateway.auth.identity import Identity
        from gateway.policy.quotas import caller_quotas
        from gateway.server.clients import viewer_of
        from gateway.server.connections import connection_limit, raise_open_files
        from gateway.server.http_app import build_http_app
        from gateway.server.key_gate import check_bind
        from gateway.server.replicas import own_address
        from gateway.server.sdk_path.lazy_application import Probes
        from gateway.server.serving import Endpoint, serve_http

        server = self.loaded.config.server
        self.journal.endpoint = server.http.path
        await self._callers.keys.take_over(key_file(self.loaded))
        check_bind(host, self._callers.keys, server.auth)
        certificate = await self._certificate()
        raise_open_files(server.http)
        self._server.usages.bound_by(caller_quotas(server.limits, connection_limit(server.http), server.http.max_request_bytes))
        endpoint = Endpoint.bind(host, port, server, listener)

        def routes() -> list[BaseRoute]:
            from gateway.console.routes import build_routes

            state = self.inspection
            pages = build_routes(server.name, endpoint.url, state.seen, state.facts, viewer_of)
            return [*pages, *([self._server.agui_route(self._sources.local, server.http.max_request_bytes)] if server.http.agui else [])]

        identity = await anyio.to_thread.run_sync(Identity.of, self.loaded)
        if self._callers.tokens is not None:
            self._callers.tokens.serve_at(endpoint.url)
            self._tasks.start_soon(self._callers.tokens.run)
        app = build_http_app(
            self._server,
            server.http,
            self._callers,
            host=host,
            port=endpoint.port,
            probes=Probes(
                lambda: self._readiness.is_settled,
                lambda challenge: identity.prove(challenge, endpoint.port),
                lambda: self._is_stopping,
                self._callers.keys.problem,
            ),
            routes=routes,
        )
        if self._server.replicas is None:
            await serve_http(endpoint, app, on_ready, self._server.calls.running, certificate, self._begin_stop)
            return
        scheme, url = "http" if certificate is None else "https", self.loaded.config.storage.url or ""
        address = server.http.replica_address or await anyio.to_thread.run_sync(own_address, scheme, host, endpoint.port, url)
        async with self._server.replicas.listening(address, server.http.path):
            await serve_http(endpoint, app, on_ready, self._server.calls.running, certificate, self._begin_stop)

    def _begin_stop(self) -> None:
        """Report from now on that this gateway is not ready, and hand over its servers with `single: true`."""
        self._is_stopping = True
        if self._children.singles is not None:
            self._children.singles.leave()

    async def _certificate(self) -> ServerCertificate | None:
        """Return the certificate of the HTTP endpoint; `None` without TLS. A SIGHUP reads its files again. Raises `ConfigError`."""
        tls = self.loaded.config.server.http.tls
        if tls is None:
            return None
        from gateway.server.certificate import ServerCertificate

        certificate = await anyio.to_thread.run_sync(ServerCertificate, tls)
        self.inspection.endpoint_problems = certificate.problems
        if (reloader := self._sources.reloader) is not None:
            reloader.on_hangup = certificate.read_again
        return certificate
