"""`Gateway`: builds the parts of a running gateway, such as its catalog of tools, and applies a changed configuration while it runs.

Packages that the configuration does not need are not imported. One exit stack enters all resources in the order of their dependencies, and
closes them in reverse order.
"""

from __future__ import annotations

import dataclasses
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
from gateway.app.local_builder import LocalBuilder
from gateway.auth.api_keys import KeyStore
from gateway.auth.principal import Principal, is_operator
from gateway.catalog import Catalog, CatalogEntry
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.gateway_source import SOURCE_ID, UNLIMITED_BYTES, GatewaySource
from gateway.catalog.inspection import Inspection
from gateway.catalog.local_sources import LocalSources
from gateway.catalog.names import NAME_BUDGET
from gateway.catalog.remote_servers import Servers
from gateway.catalog.shared_skills import SharedSkills
from gateway.catalog.source_host import SourceHost
from gateway.catalog.source_statuses import local_status, server_status, switched_off_status, unused_status
from gateway.catalog.status import GatewayStatus
from gateway.chat.model_access import Models
from gateway.config.load import LoadedConfig
from gateway.config.policies import ApprovalBy
from gateway.config.reload import Reloader, fixed_changes, with_fixed
from gateway.config.watch import FileWatch
from gateway.gate.acceptance import Acceptance
from gateway.gate.approvals import Approvals
from gateway.gate.audited_events import audit
from gateway.gate.concurrency import ActiveCalls
from gateway.gate.function_rules import FunctionRules
from gateway.gate.own_tools import OwnToolGates, OwnToolGuard
from gateway.gate.pipeline import GateServices
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import approvers_of, may_need_approval, with_script_approval
from gateway.server.gateway_server import GatewayServer
from gateway.server.instructions import build_instructions
from gateway.server.startup_answers import StartupAnswers
from gateway.server.startup_snapshot import keep_answers
from gateway.storage.records import Records
from gateway.storage.result_store import ResultStore
from gateway.storage.state_folder import StateFolder, state_dir
from gateway.tasks.task_tools import TaskTools
from gateway.telemetry.gateway_events import EventStream
from gateway.telemetry.logging import SecretMask
from gateway.tools.base import ReadOutcome, Source, SourceStatus, Tool, ToolSource
from gateway.tools.context import CallContext
from gateway.tools.wrappers import RenamedTool
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.gateway_chain import configuration_of
from gateway.upstream.hop_id import hop_id
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.large_bodies import LargeBodies
from gateway.upstream.lock_file import LockFile
from gateway.upstream.pins import Pins
from gateway.upstream.readiness import Readiness
from gateway.upstream.source import UpstreamSource
from gateway.wire.heap import Heap

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gateway.catalog.remote_skills import RemoteSkills
    from gateway.skills.index import SkillIndex

logger = logging.getLogger(__name__)


class Gateway:
    """A gateway for one configuration. Create it with `from_config`, enter it with `async with`, and call `serve_stdio` or `serve_http`."""

    def __init__(self, loaded: LoadedConfig, events: EventStream, acceptance: Acceptance | None, endpoint: str | None) -> None:
        self.loaded = loaded
        self._endpoint = endpoint
        self._acceptance = acceptance or Acceptance()
        self.events = events
        self.catalog: Catalog
        self.keys: KeyStore
        self._server: GatewayServer
        self._servers: Servers
        self._own: GatewaySource
        self._disclosure = Disclosure()
        self._shared: SharedSkills
        self._arranging = anyio.Lock()
        self._lock = LockFile(self._pin_again)
        self._mask = SecretMask()
        self._models: Models
        self._reloader: Reloader | None = None
        self._tasks: TaskGroup
        self._local: LocalSources
        self._gates: OwnToolGates
        self._stack = AsyncExitStack()
        self._readiness: Readiness

    @classmethod
    def from_config(
        cls,
        loaded: LoadedConfig,
        *,
        events: EventStream | None = None,
        acceptance: Acceptance | None = None,
        endpoint: str | None = None,
    ) -> Gateway:
        """Return a gateway for the configuration `loaded`. The gateway has no side effects before it is entered.

        `acceptance` decides which commands of the configuration may run, and whether it records commands that run at the start as accepted
        by a person; by default it does not. At the start every command may run, except commands that a running gateway of this
        configuration refused as new or changed: they wait until a person accepts them (`moongate lock --accept`). `endpoint`, the port or
        `STDIO` at which the gateway will be served, is a part of the gateway's id (`hop_id`), by which chained gateways detect loops.
        """
        return cls(loaded, events or EventStream(), acceptance, endpoint)

    async def __aenter__(self) -> Gateway:
        """Start the gateway. Remote servers are connected in the background; `ready` waits for them.

        Raises:
            Collision: Two local sources would publish a tool under the same name.
            StorageError: The state folder cannot be used.
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
        self.loaded = await anyio.to_thread.run_sync(self._acceptance.admit, self.loaded, None)
        config = self.loaded.config
        state = StateFolder(state_dir(config.storage.dir))
        own_id = await anyio.to_thread.run_sync(hop_id, state, self.loaded, self._endpoint)
        state_key = await anyio.to_thread.run_sync(state.key, "request-state")
        self.keys = KeyStore(state.path / "keys.json")
        self._models = Models(config.defaults.model)
        self._stack.push_async_callback(self._models.aclose)
        hosts = SourceHost()
        kept = config.storage
        records = Records(state, audit_days=kept.audit_days, url=kept.url, gateway=configuration_of(own_id))
        self._stack.push_async_callback(records.aclose)
        services = self._asking(records)
        store = ResultStore(
            state.path / "results", ttl_seconds=kept.result_ttl_seconds, max_bytes_per_owner=kept.max_result_bytes_per_caller
        )
        gates = GateServices(events=self.events, approvals=services.approvals, store=store, mask=self._mask.mask)
        rules = FunctionRules(lambda source: self.loaded.config.policies.get(source), lambda objects: self._local.names_of(objects))
        self._gates = OwnToolGates(rules, gates)
        builder = LocalBuilder(self, self._models.resolver, records, state.path, self.events, self._acceptance)
        self._local = LocalSources(hosts, builder.build)
        children = await self._stack.enter_async_context(ChildProcesses(config.server.max_child_processes, own_id))
        children.bodies = LargeBodies(config.server.large_result_bytes, used=Heap().used)
        client: JsonObject = {"name": config.server.name, "version": __version__}
        await self._stack.enter_async_context(hosts)
        own_changes = await self._local.prepare(self.loaded)
        self._local.take(own_changes)
        self._servers = Servers(hosts, state, services, children, own_id=own_id, client=client)
        changes = await self._servers.plan(self.loaded, await self._lock.read(self.loaded))
        self._servers.take(changes)
        self._register_secrets()
        status = GatewayStatus(self.sources, self.problems) if config.server.status_tool else None
        task_tools = TaskTools()
        self._own = GatewaySource(store, status, records, task_tools.tools, standing_days=config.server.standing_approval_days)
        self._offer_own()
        budget = NAME_BUDGET - len(config.server.client_prefix)
        self.catalog = Catalog(
            self._entries(),
            gates,
            name_budget=budget,
            settled=self._wait_for_lists,
            disclosure=self._disclosure,
        )
        self.catalog.may_review = self._may_review
        await self.catalog.refresh()
        self._shared = SharedSkills(self.catalog, self._serve_remote)
        self._server = GatewayServer(
            self.catalog,
            name=config.server.name,
            version=__version__,
            own_id=own_id,
            page_size=config.server.page_size,
            instructions=self._instructions,
            ask_timeout_seconds=config.server.ask_timeout_seconds,
            state_key=state_key,
        )
        self._server.judge_callers_by(self.keys.current)
        self._server.keep_tasks_in(services.records, config.tasks, task_tools)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        for run in (self.catalog.run, self._shared.run, store.sweep_forever, self._lock.run, services.records.run):
            tasks.start_soon(run)
        self._tasks = tasks
        await anyio.to_thread.run_sync(self._acceptance.settle)
        self._emit_acceptance_events()
        self._readiness = Readiness(config.server.startup_timeout_seconds)
        await self._servers.start(changes.joining)
        tasks.start_soon(self._servers.follow_acceptance)
        tasks.start_soon(self._local.files.follow, lambda: self.loaded, self._apply_files)
        tasks.start_soon(self.inspection.note_own_rules)
        tasks.start_soon(self._readiness.watch, self._servers.sources, self._note_ready)
        await self._stack.enter_async_context(self._server)

    def _asking(self, records: Records) -> InputRequestServices:
        """Build the services that judge remote servers' requests for input (elicitation, sampling) and calls that need approval.

        Also start the audit log: until the gateway exits, audit events are stored in the gateway's database (`records`).
        """
        config = self.loaded.config
        self._stack.callback(audit(self.events, records))
        days = config.server.standing_approval_days
        approvals = Approvals(
            records,
            self.events,
            standing_days=days,
            default_by=self.approval_by,
            chosen_by=lambda: self.loaded.config.server.approval_by,
        )
        return InputRequestServices(self.events, records, approvals, self._models.for_sampling(config))

    def approval_by(self) -> ApprovalBy:
        """Return who must approve a call (the caller or an operator) if the policy of the tool's source does not set `approval.by`."""
        return self.loaded.config.server.approval_by or ("operator" if self.keys.are_required() else "caller")

    def _may_review(self, principal: Principal) -> bool:
        """Return whether a principal may approve calls: an operator, or any principal if some policy does not require an operator."""
        return is_operator(principal) or bool(approvers_of(self.loaded.config, self.approval_by()) - {"operator"})

    def _entries(self) -> list[CatalogEntry]:
        """Return one catalog entry per source of tools: built-in tools, local sources, then servers in the order of the configuration."""
        unlimited = {"max_result_bytes": UNLIMITED_BYTES, "max_kept_bytes": UNLIMITED_BYTES}
        own = self.loaded.config.policy(SOURCE_ID).model_copy(update=unlimited)
        entries = [CatalogEntry(self._own, own, "", self._own, is_local=True)]
        entries += [self._entry(local.source, local.active, is_local=True) for local in self._local.table.values()]
        entries += [self._entry(server.source, server.active, is_local=False) for server in self._servers.table.values()]
        return entries

    def _entry(self, source: ToolSource, active: ActiveCalls, *, is_local: bool) -> CatalogEntry:
        policy = self.loaded.config.policy(source.id)
        if source.id == "skill":
            policy = with_script_approval(policy, self.loaded.config.skills.scripts)
        full: Source | None = source if hasattr(source, "read") else None  # pyright: ignore[reportAssignmentType]  # `read` makes it a `Source`
        return CatalogEntry(source, policy, self.loaded.config.prefix_of(source.id), full, is_local=is_local, active=active)

    def _offer_own(self) -> None:
        config = self.loaded.config
        is_on_demand = any(config.policy(name).disclosure == "on-demand" for name in (*config.mcp_servers, *self._local.table))
        tools = self._disclosure.tools if is_on_demand else ()
        self._own.offer(tools, with_sessions=self._local.has_sessions, with_reviews=may_need_approval(config))

    def _register_secrets(self) -> None:
        for secret in (*self.loaded.secrets, *self._local.secrets()):
            self._mask.register_secret(secret)

    # -- another configuration ---------------------------------------------------------------------------------

    def follow(self, read: Callable[[], LoadedConfig], watch: FileWatch | None) -> None:
        """Until the gateway exits, read and apply its configuration again at each SIGHUP and when the file that `watch` watches changes.

        `read` reads the configuration. It runs in a worker thread, so it may block. If it raises `ConfigError`, the gateway is not changed.
        """
        self._reloader = Reloader(read, self.reload, watch, follows=self.loaded.config.server.reload)
        self._tasks.start_soon(self._reloader.run)
        self._tasks.start_soon(self._acceptance.follow, self._reloader.read_again)

    async def reload(self, written: LoadedConfig) -> bool:
        """Apply `written`, a new version of the configuration, to the running gateway.

        Servers whose entry and policy did not change keep their connection. Removed and changed servers finish their in-flight calls.
        Returns the setting `server.reload` of `written`: whether the gateway reacts to further changes of the configuration file.

        Raises:
            ConfigError: The configuration cannot be used; nothing was changed.
        """
        async with self._arranging:
            return await self._apply(written)

    async def _apply(self, written: LoadedConfig) -> bool:
        for path in fixed_changes(self.loaded.config, written.config):
            logger.warning("setting changed, restart the gateway to apply it path=%s", path)
        loaded = await anyio.to_thread.run_sync(self._acceptance.admit, with_fixed(self.loaded, written), self.loaded)
        pins = await self._lock.read(loaded)
        self._servers.services = dataclasses.replace(self._servers.services, models=self._models.for_sampling(loaded.config))
        changes = await self._servers.plan(loaded, pins)
        local = await self._local.prepare(loaded, self._shared.remote)
        self._emit_acceptance_events()
        self.loaded = loaded
        self._local.take(local)
        self._register_secrets()
        self._servers.take(changes)
        self._pin(pins)
        await self._servers.start(changes.joining)
        self._offer_own()
        await self.catalog.arrange(self._entries())
        self._servers.release(changes.leaving)
        self._local.release(local.leaving)
        self._shared.wake()
        self._server.describe()
        self._tasks.start_soon(self.inspection.note_own_rules)
        for server in changes.joining:
            self._tasks.start_soon(self._note_ready, server.source)
        for note in (*loaded.problems, *loaded.notes):
            logger.info("configuration note text=%s", note)
        joining, leaving = [*local.joining, *changes.joining], [*local.leaving, *changes.leaving]
        came, went = (",".join(s.source.id for s in sources) or "none" for sources in (joining, leaving))
        logger.info("configuration reloaded started=%s stopped=%s", came, went)
        return loaded.config.server.reload

    async def _apply_files(self) -> None:
        """Reload the agents, workflows and Python functions whose files have changed, and update the catalog of tools."""
        async with self._arranging:
            local = await self._local.prepare(self.loaded, self._shared.remote)
            self._emit_acceptance_events()
            self._local.take(local)
            self._register_secrets()
            self._offer_own()
            await self.catalog.arrange(self._entries())
            self._local.release(local.leaving)
        self._server.describe()
        self._tasks.start_soon(self.inspection.note_own_rules)
        logger.info("changed files loaded sources=%s", ",".join(joined.source.id for joined in local.joining))

    def _emit_acceptance_events(self) -> None:
        for kind, entry in self._acceptance.take_events():
            self.events.emit(kind, name=entry.key, fields={"place": entry.place})

    def _pin(self, pins: Pins) -> None:
        for upstream in self._servers.sources:
            upstream.lists.pin(pins.of(upstream.id))

    def _pin_again(self, pins: Pins) -> None:
        self._pin(pins)
        if self._reloader is not None:
            self._reloader.try_again()

    def problems(self) -> list[str]:
        """Return a text for each problem that keeps the gateway from using its configuration or lock file as written, secrets masked."""
        problems = (self._reloader.problem if self._reloader is not None else None, self._lock.problem, self._local.problem)
        # A server whose command waits for acceptance is left out, because the server's status shows this.
        waiting = [entry for key, entry in self._acceptance.held.items() if key not in self.loaded.config.mcp_servers]
        waiting = [entry for entry in waiting if not any(entry.key == server.name for server in self.loaded.disabled)]
        held = [f"{e.place} is new or changed and waits: `moongate lock --accept {e.key}` shows it and accepts it." for e in waiting]
        return [self._mask.mask(problem) for problem in (*problems, *held) if problem]

    # -- state -------------------------------------------------------------------------------------------------

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match the patterns `<source>/<glob>`, under the names that clients use. Implements `ToolBox`."""
        await self.catalog.ready()
        return [RenamedTool(tool, tool.exposed_name) for tool in await self.catalog.tools(patterns)]

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the quarantined tools (hidden until a person accepts their definitions) that match the patterns. Implements `ToolBox`."""
        return [RenamedTool(tool, tool.exposed_name) for tool in self.catalog.quarantined(patterns)]

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
        """Wait at most `timeout_seconds` until every remote server has connected or failed; then update the catalog of tools."""
        with anyio.move_on_after(timeout_seconds):
            await self._readiness.settled()
        await self.catalog.catch_up()

    async def _serve_remote(self, remote: RemoteSkills) -> None:
        """Publish changed skills of remote servers in the source `skill`, which contains all skills, local and remote.

        Without local skills, the source exists only while a remote server has skills. Adding or removing the source updates the catalog.
        """
        async with self._arranging:
            changes = await self._local.share(self.loaded, remote)
            if changes is not None:
                await self.catalog.arrange(self._entries())
                self._local.release(changes.leaving)
        self._server.describe()

    async def _note_ready(self, upstream: UpstreamSource) -> None:
        await upstream.settled()
        await self._shared.read_server(upstream)
        self.inspection.note_rules_of(upstream)
        self._server.describe()
        self._readiness.skip(upstream.id)

    @property
    def inspection(self) -> Inspection:
        """An object whose methods return facts about the running gateway for operators. Each call reads the current state."""
        return Inspection(self.loaded, self._local, self._servers, self.catalog, self.sources, self._models.resolver)

    async def _wait_for_lists(self) -> None:
        servers = self._servers
        await self._readiness.listable(lambda: not self._shared.is_reading and all(s.lists.is_known for s in servers.sources))

    @property
    def skill_index(self) -> SkillIndex | None:
        """The search index of all skills that this gateway serves; `None` if it serves no skills."""
        return self._local.skills.index if self._local.skills is not None else None

    def sources(self) -> list[SourceStatus]:
        """Return the status of every source of tools, in the order of the catalog, with disabled servers last. Secrets are masked."""
        count = self.catalog.count
        statuses = [local_status(name, local.source, count(name)) for name, local in self._local.table.items()]
        for upstream in self._servers.sources:
            withheld, kept = len(self.catalog.withheld(upstream.id)), self._acceptance.kept.get(upstream.id)
            statuses.append(server_status(upstream.status(), tools=count(upstream.id), withheld=withheld, waits_for=kept))
        servers = self.loaded.config.mcp_servers
        statuses += [switched_off_status(name, entry) for name, entry in servers.items() if entry.disabled]
        statuses += [unused_status(server) for server in self.loaded.disabled]
        mask = self._mask.mask
        return [dataclasses.replace(status, error=mask(status.error)) if status.error else status for status in statuses]

    def _instructions(self, caller: Principal) -> str:
        notes = {u.id: text for u in self._servers.sources if (text := u.instructions)}
        skills = self._local.skills
        count = len(skills.index.for_models) if skills is not None else 0
        return build_instructions(self.loaded.config.server.instructions, self.sources(), notes, count, caller.scopes)

    # -- serving -----------------------------------------------------------------------------------------------

    async def serve_stdio(self, first: StartupAnswers | None = None) -> None:
        """Serve one client over standard input and output until it closes its end of the pipe, or SIGINT or SIGTERM arrives.

        `first`, if given, has sent stored answers to the client while the gateway was loading, and now hands the connection over.
        """
        from gateway.server.serving import serve_stdio

        await serve_stdio(self._server, first, partial(self.keep_answers, first))

    async def keep_answers(self, first: StartupAnswers | None) -> None:
        """Wait until every remote server has connected or failed, then store the results of `initialize` and of listings in a cache file.

        The next gateway over stdio sends these results to its client while loading. `first` names the file; if `None`, nothing is stored.
        """
        if first is not None:
            await self.ready(math.inf)
            await keep_answers(self.loaded, self._server, self._local.files.modules, first)

    async def serve_http(self, host: str, port: int, *, on_ready: Callable[[str], None], listener: socket | None = None) -> None:
        """Serve clients over HTTP until SIGINT or SIGTERM arrives, or the calling task is cancelled.

        `on_ready` is called with the endpoint's URL when requests are accepted. `listener` is a socket that already listens at the address;
        it is closed at the end. After a signal, in-flight calls have `server.http.drainSeconds` to finish; a second signal ends them.

        Raises:
            ConfigError: The address is in use, or other machines can reach it and no API key exists.
        """
        from gateway.auth.identity import Identity
        from gateway.policy.quotas import caller_quotas
        from gateway.server.clients import viewer_of
        from gateway.server.connections import connection_limit, raise_open_files
        from gateway.server.http_app import build_http_app
        from gateway.server.key_gate import check_bind
        from gateway.server.sdk_path.lazy_application import Probes
        from gateway.server.serving import Endpoint, serve_http

        server = self.loaded.config.server
        check_bind(host, self.keys)
        raise_open_files(server.http)
        self._server.usages.bound_by(caller_quotas(server.limits, connection_limit(server.http), server.http.max_request_bytes))
        endpoint = Endpoint.bind(host, port, server, listener)

        def routes() -> list[BaseRoute]:
            from gateway.console.routes import build_routes

            pages = build_routes(server.name, endpoint.url, self.sources, self.problems, lambda: self.inspection.facts(), viewer_of)
            return [*pages, *([self._server.agui_route(self._local, server.http.max_request_bytes)] if server.http.agui else [])]

        identity = await anyio.to_thread.run_sync(Identity.of, self.loaded)
        app = build_http_app(
            self._server,
            server.http,
            self.keys,
            host=host,
            port=endpoint.port,
            probes=Probes(lambda: self._readiness.is_settled, lambda challenge: identity.prove(challenge, endpoint.port)),
            routes=routes,
        )
        await serve_http(endpoint, app, on_ready)
