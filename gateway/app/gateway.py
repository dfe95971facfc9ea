"""`Gateway`: the composition root, and the only file that knows every room.

Builds the sources a configuration names and merges them in the catalog; takes up another configuration while it runs.
Rooms that nothing configured needs are not imported. Everything is entered in one exit stack, in dependency order, and
left in reverse.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from gateway import __version__
from gateway.app.about import about, prover_of
from gateway.app.acceptance import Acceptance
from gateway.app.first_answers import keep_answers
from gateway.app.heap import Heap
from gateway.app.held import Hosts
from gateway.app.hop_id import hop_id
from gateway.app.inspection import Inspection
from gateway.app.local import LocalSources
from gateway.app.lock import LockFile
from gateway.app.reload import Reloader, fixed_changes, with_fixed
from gateway.app.servers import Servers
from gateway.app.shared_skills import SharedSkills
from gateway.app.spread import Spread
from gateway.app.statuses import local_status, server_status, switched_off_status, unused_status
from gateway.app.workers import Place
from gateway.auth.keys import KeyStore
from gateway.auth.principal import Principal, is_operator
from gateway.catalog import Catalog, CatalogEntry
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.names import NAME_BUDGET
from gateway.catalog.own import SOURCE_ID, UNLIMITED_BYTES, OwnSource
from gateway.catalog.status import GatewayStatus
from gateway.config.load import LoadedConfig
from gateway.config.models import GatewayConfig
from gateway.config.policies import ApprovalBy
from gateway.config.watch import FileWatch
from gateway.json_types import JsonObject
from gateway.policy.approvals import approvers_of, may_need_approval, with_script_approval
from gateway.server.build import GatewayServer
from gateway.server.first_answers import FirstAnswers
from gateway.server.instructions import build_instructions
from gateway.storage.entries import AuditEntry
from gateway.storage.records import Records
from gateway.storage.results import ResultStore
from gateway.storage.state import StateFolder, state_dir
from gateway.tasks.tools import TaskTools
from gateway.telemetry.events import Event, EventStream
from gateway.telemetry.logging import SecretMask
from gateway.tools.approvals import Approvals
from gateway.tools.base import ReadOutcome, Source, SourceStatus, Tool, ToolSource
from gateway.tools.context import CallContext
from gateway.tools.function_rules import FunctionRules
from gateway.tools.own_tools import GateServices, OwnToolGates
from gateway.tools.results import ResultKeeper
from gateway.tools.slot import Usage
from gateway.tools.toolbox import ToolGuard
from gateway.tools.wrappers import RenamedTool
from gateway.upstream.children import ChildProcesses
from gateway.upstream.hop import configuration_of
from gateway.upstream.inputs import AskServices
from gateway.upstream.large import LargeBodies
from gateway.upstream.pins import Pins
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from gateway.catalog.remote_skills import RemoteSkills
    from gateway.chat.resolve import ModelResolver
    from gateway.skills.index import SkillIndex
    from gateway.skills.models import SkillReport
    from gateway.tools.functions_source import SourceProblem

logger = logging.getLogger(__name__)

AUDITED = frozenset(
    {
        "ask.judged",
        "approval.waiting",
        "approval.decided",
        "approval.rule",
        "call.audited",
        "call.refused",
        "command.accepted",
        "command.held",
        "script.refused",
        "script.finished",
    }
)
"""Events that go into the audit log: decisions, and side effects of what agents and workflows bring along themselves; not traffic."""

_DEFAULT_PREFIX = {"skill": "", "function": "function", "agent": "agent", "workflow": "workflow"}


class Gateway:
    """One running gateway. `from_config`, enter, then `serve_stdio` or `serve_http`."""

    def __init__(
        self, loaded: LoadedConfig, events: EventStream, place: Place | None, acceptance: Acceptance | None, endpoint: str | None
    ) -> None:
        self.loaded = loaded
        self._endpoint = endpoint
        self._acceptance = acceptance or Acceptance()
        self._place = place
        self._spread: Spread | None = None
        self.events = events
        self.catalog: Catalog
        self.keys: KeyStore
        self._server: GatewayServer
        self._servers: Servers
        self._own: OwnSource
        self._disclosure = Disclosure()
        self._shared: SharedSkills
        self._arranging = anyio.Lock()
        self._lock = LockFile(self._pin_again)
        self._mask = SecretMask()
        self._models: ModelResolver | None = None
        self._reloader: Reloader | None = None
        self._tasks: TaskGroup
        self._local: LocalSources
        self._gates: OwnToolGates
        self._stack = AsyncExitStack()
        self._settled, self._listable = anyio.Event(), anyio.Event()
        self._awaited: set[str] = set()
        self._list_deadline = 0.0

    @classmethod
    def from_config(
        cls,
        loaded: LoadedConfig,
        *,
        events: EventStream | None = None,
        place: Place | None = None,
        acceptance: Acceptance | None = None,
        endpoint: str | None = None,
    ) -> Gateway:
        """A gateway for a loaded configuration, or one worker's part of it (`spread.view_of`).

        Without `acceptance` it takes up what `loaded` says, but for what a running gateway held back, and keeps no record of that.
        `endpoint` is where it will be served, for the gateways around it (`hop_id`).
        No side effects before it is entered.
        """
        return cls(loaded, events or EventStream(), place, acceptance, endpoint)

    async def __aenter__(self) -> Gateway:
        """Enter every resource; sources start in the background.

        Raises:
            Collision: Two of our own sources claim one tool name.
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
        own_id = await anyio.to_thread.run_sync(hop_id, state, self.loaded, self._endpoint, self._place)
        state_key = await anyio.to_thread.run_sync(state.key, "request-state")
        self.keys = KeyStore(state.path / "keys.json")
        self._stack.push_async_callback(self._close_models)
        hosts = Hosts()
        kept = config.storage
        records = Records(state, audit_days=kept.audit_days, url=kept.url, gateway=configuration_of(own_id))
        self._stack.push_async_callback(records.aclose)
        services = self._asking(records)
        store = ResultStore(
            state.path / "results", ttl_seconds=kept.result_ttl_seconds, max_bytes_per_owner=kept.max_result_bytes_per_caller
        )
        keeper = ResultKeeper(store, ttl_seconds=kept.result_ttl_seconds)
        gates = GateServices(events=self.events, approvals=services.approvals, keeper=keeper, mask=self._mask.mask)
        rules = FunctionRules(lambda source: self.loaded.config.policies.get(source), lambda objects: self._local.names_of(objects))
        self._gates = OwnToolGates(rules, gates)
        self._local = LocalSources(hosts, self, self._all_models, records, state.path, self.events, self._acceptance)
        children = await self._stack.enter_async_context(ChildProcesses(config.server.max_child_processes, own_id))
        children.bodies = LargeBodies(config.server.large_result_bytes, used=Heap().used)
        client: JsonObject = {"name": config.server.name, "version": __version__}
        await self._stack.enter_async_context(hosts)
        own_turnover = await self._local.prepare(self.loaded)
        self._local.take(own_turnover)
        self._servers = Servers(hosts, state, services, children, own_id=own_id, client=client)
        turnover = await self._servers.plan(self.loaded, await self._lock.read(self.loaded))
        self._servers.take(turnover)
        self._learn_secrets()
        status = GatewayStatus(self.sources, self.problems) if config.server.status_tool else None
        task_tools = TaskTools()
        self._own = OwnSource(store, status, records, task_tools.tools, standing_days=config.server.standing_approval_days)
        self._offer_own()
        budget = NAME_BUDGET - len(config.server.client_prefix)
        self.catalog = Catalog(
            self._entries(),
            self.events,
            name_budget=budget,
            settled=self._wait_for_lists,
            approvals=services.approvals,
            mask=self._mask.mask,
            keeper=keeper,
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
        if self._place is None or self._place.is_home:
            self._server.keep_tasks_in(services.records, config.tasks, task_tools)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        for run in (self.catalog.run, self._shared.run, store.sweep_forever, self._lock.run, services.records.run):
            tasks.start_soon(run)
        self._tasks = tasks
        if self._place is not None:
            self._spread = Spread(self._place, self.catalog, lambda: self._servers.table)
            tasks.start_soon(self._spread.run)
        await anyio.to_thread.run_sync(self._acceptance.settle)
        self._tell_held()
        self._list_deadline = anyio.current_time() + config.server.startup_timeout_seconds
        await self._servers.start(turnover.joining)
        tasks.start_soon(self._servers.follow_acceptance)
        tasks.start_soon(self._local.follow, lambda: self.loaded, self._take_up_files)
        tasks.start_soon(self._note_settled)
        await self._stack.enter_async_context(self._server)

    def _asking(self, records: Records) -> AskServices:
        """What judging asks needs: the records, opened on first use, and a model of ours where policy lets one answer."""
        config = self.loaded.config
        self._stack.callback(self.events.subscribe(lambda event: records.note(_to_audit(event)), kinds=AUDITED))
        days = config.server.standing_approval_days
        approvals = Approvals(
            records,
            self.events,
            standing_days=days,
            default_by=self.approval_by,
            chosen_by=lambda: self.loaded.config.server.approval_by,
        )
        return AskServices(self.events, records, approvals, self._wanted_models(config))

    def approval_by(self) -> ApprovalBy:
        """Who may approve calls where the rules of their source do not say."""
        return self.loaded.config.server.approval_by or ("operator" if self.keys.are_required() else "caller")

    def _may_review(self, principal: Principal) -> bool:
        """Whether a caller may decide about any call: operators, and others if some rule lets callers or other principals decide."""
        return is_operator(principal) or bool(approvers_of(self.loaded.config, self.approval_by()) - {"operator"})

    def _wanted_models(self, config: GatewayConfig) -> ModelResolver | None:
        """Our models, where a policy lets one answer."""
        wanting = {name: config.policy(name).sampling for name in config.mcp_servers}
        wanting = {name: sampling for name, sampling in wanting.items() if sampling.mode in ("ask", "answer")}
        if not wanting:
            return None
        models = self._all_models()
        for name, sampling in wanting.items():
            if sampling.mode == "answer" and not models.can_answer(sampling.model or "auto"):
                logger.warning("policies.%s.sampling.mode is `answer`, but no model is configured, so sampling is not announced", name)
        return models

    def _all_models(self) -> ModelResolver:
        """Our models, made when an agent or a policy first needs one: agents and servers share their clients."""
        if self._models is None:
            from gateway.chat.resolve import ModelResolver

            self._models = ModelResolver(os.environ, self.loaded.config.defaults.model)
        return self._models

    async def _close_models(self) -> None:
        if self._models is not None:
            await self._models.aclose()

    def _entries(self) -> list[CatalogEntry]:
        """What the catalog is to serve, in order: our own tools, our own sources, the servers as in the file."""
        unlimited = {"max_result_bytes": UNLIMITED_BYTES, "max_kept_bytes": UNLIMITED_BYTES}
        own = self.loaded.config.policy(SOURCE_ID).model_copy(update=unlimited)
        entries = [CatalogEntry(self._own, own, "", self._own, is_local=True)]
        entries += [self._entry(local.source, local.held.usage, is_local=True) for local in self._local.table.values()]
        entries += [self._entry(server.source, server.held.usage, is_local=False) for server in self._servers.table.values()]
        return entries

    def _entry(self, source: ToolSource, usage: Usage, *, is_local: bool) -> CatalogEntry:
        policy = self.loaded.config.policy(source.id)
        if source.id == "skill":
            policy = with_script_approval(policy, self.loaded.config.skills.scripts)
        prefix = policy.prefix if policy.prefix is not None else _DEFAULT_PREFIX.get(source.id, source.id)
        full: Source | None = source if hasattr(source, "read") else None  # pyright: ignore[reportAssignmentType]  # the Protocol's own mark
        return CatalogEntry(source, policy, prefix, full, is_local=is_local, usage=usage)

    def _is_on_demand(self) -> bool:
        config = self.loaded.config
        return any(config.policy(name).disclosure == "on-demand" for name in (*config.mcp_servers, *self._local.table))

    def _offer_own(self) -> None:
        tools = self._disclosure.tools if self._is_on_demand() else ()
        self._own.offer(tools, with_sessions=self._local.has_sessions, with_reviews=may_need_approval(self.loaded.config))

    def _learn_secrets(self) -> None:
        for secret in (*self.loaded.secrets, *self._local.secrets()):
            self._mask.register_secret(secret)

    # -- another configuration ---------------------------------------------------------------------------------

    def follow(self, read: Callable[[], LoadedConfig], watch: FileWatch | None) -> None:
        """From now on take up what `read` gives: at SIGHUP, and when `watch` says that the file changed.

        `read` may block and raise `ConfigError`; it is called in a worker thread.
        """
        self._reloader = Reloader(read, self.reload, watch, follows=self.loaded.config.server.reload)
        self._tasks.start_soon(self._reloader.run)
        if self._acceptance.watched is not None:
            self._tasks.start_soon(self._follow_acceptance, self._reloader, self._acceptance.watched)

    async def _follow_acceptance(self, reloader: Reloader, path: Path) -> None:
        """Read the configuration again when a person accepted something that waits."""
        watch = await anyio.to_thread.run_sync(FileWatch, path)
        while True:
            await watch.changed()
            if self._acceptance.held:
                reloader.read_again()

    async def reload(self, written: LoadedConfig) -> bool:
        """Take up another configuration; returns whether its file is to be followed. Not to be called twice at once.

        Servers that it has alike keep their connection; running calls on the others end in peace.

        Raises:
            ConfigError: It cannot be used; nothing was changed.
        """
        async with self._arranging:
            return await self._take_up(written)

    async def _take_up(self, written: LoadedConfig) -> bool:
        for path in fixed_changes(self.loaded.config, written.config):
            logger.warning("%s changed; a restart of the gateway takes it up", path)
        loaded = await anyio.to_thread.run_sync(self._acceptance.admit, with_fixed(self.loaded, written), self.loaded)
        pins = await self._lock.read(loaded)
        self._servers.services = dataclasses.replace(self._servers.services, models=self._wanted_models(loaded.config))
        turnover = await self._servers.plan(loaded, pins)
        local = await self._local.prepare(loaded, self._shared.remote)
        self._tell_held()
        self.loaded = loaded
        self._local.take(local)
        self._learn_secrets()
        self._servers.take(turnover)
        self._pin(pins)
        await self._servers.start(turnover.joining)
        self._offer_own()
        await self.catalog.arrange(self._entries())
        self._servers.release(turnover.leaving)
        self._local.release(local.leaving)
        self._shared.wake()
        self._server.describe()
        if self._spread is not None:
            self._spread.look_again()
        self._tasks.start_soon(self.inspection.note_own_rules)
        for server in turnover.joining:
            self._tasks.start_soon(self._note_ready, server.source)
        for note in loaded.notes:
            logger.info("configuration: %s", note)
        joining, leaving = [*local.joining, *turnover.joining], [*local.leaving, *turnover.leaving]
        came, went = (",".join(s.source.id for s in sources) or "none" for sources in (joining, leaving))
        logger.info("configuration applied again started=%s stopped=%s", came, went)
        return loaded.config.server.reload

    async def _take_up_files(self) -> None:
        """Take up changed files of agents, workflows and functions."""
        async with self._arranging:
            local = await self._local.prepare(self.loaded, self._shared.remote)
            self._tell_held()
            self._local.take(local)
            self._learn_secrets()
            self._offer_own()
            await self.catalog.arrange(self._entries())
            self._local.release(local.leaving)
        self._server.describe()
        self._tasks.start_soon(self.inspection.note_own_rules)
        logger.info("changed files taken up sources=%s", ",".join(joined.source.id for joined in local.joining))

    def _tell_held(self) -> None:
        for kind, entry in self._acceptance.take_news():
            if self._place is None or self._place.is_home:
                self.events.emit(kind, name=entry.key, fields={"place": entry.place})

    def _pin(self, pins: Pins) -> None:
        for upstream in self._servers.sources:
            upstream.pin(pins.of(upstream.id))

    def _pin_again(self, pins: Pins) -> None:
        self._pin(pins)
        if self._reloader is not None:
            self._reloader.try_again()

    def problems(self) -> list[str]:
        """What is wrong with the gateway as a whole: a configuration, lock file or setting that is not in use as it is written."""
        problems = (self._reloader.problem if self._reloader is not None else None, self._lock.problem, self._local.problem)
        # Servers say it in their own status.
        waiting = [entry for key, entry in self._acceptance.held.items() if key not in self.loaded.config.mcp_servers]
        waiting = [entry for entry in waiting if not any(entry.key == server.name for server in self.loaded.disabled)]
        held = [f"{e.place} is new or changed and waits: `moongate lock --accept {e.key}` shows it and accepts it." for e in waiting]
        return [self._mask.mask(problem) for problem in (*problems, *held) if problem]

    def local_problems(self) -> list[tuple[str, SourceProblem]]:
        """What did not load of functions, agents and workflows, each with its source."""
        return self._local.noted("problems")

    def skill_problems(self) -> list[SkillReport]:
        """What is refused of skills, or served with a warning."""
        return self._local.skills.problems if self._local.skills is not None else []

    def local_remarks(self) -> list[tuple[str, SourceProblem]]:
        """What an operator should know of what did load."""
        return self._local.noted("remarks")

    # -- state -------------------------------------------------------------------------------------------------

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """The guarded tools matching `<source>/<glob>` patterns, under exposed names (`ToolBox` of agents and workflows)."""
        await self.catalog.ready()
        return [RenamedTool(tool, tool.exposed_name) for tool in await self.catalog.tools(patterns)]

    def guard_of(self, source: str) -> ToolGuard:
        """The gate for what one agent or workflow brings along itself (`ToolGuards` of agents and workflows)."""
        return self._gates.guard_of(source)

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """As a client reads it (`ResourceBox` of agents). Raises `NotFound`."""
        return await self.catalog.read(uri, ctx)

    async def ready(self, timeout_seconds: float) -> None:
        """Wait until every source is ready or has failed once, at most this long."""
        with anyio.move_on_after(timeout_seconds):
            await self._settled.wait()
        await self.catalog.catch_up()

    async def _note_settled(self) -> None:
        self._awaited = {upstream.id for upstream in self._servers.sources if not upstream.is_known}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.inspection.note_own_rules)
            for upstream in self._servers.sources:
                tasks.start_soon(self._note_ready, upstream)
                tasks.start_soon(self._note_silent, upstream)
        self._settled.set()
        self._listable.set()

    async def _note_silent(self, upstream: UpstreamSource) -> None:
        if await upstream.is_silent():
            self._expect_no_more(upstream)

    def _expect_no_more(self, upstream: UpstreamSource) -> None:
        """A first listing does not wait for it, or not any more."""
        self._awaited.discard(upstream.id)
        if not self._awaited:
            self._listable.set()

    async def _serve_remote(self, remote: RemoteSkills) -> None:
        """Serve the skills of servers among our own; the source for skills comes and goes with them where we have none."""
        async with self._arranging:
            turnover = await self._local.share(self.loaded, remote)
            if turnover is not None:
                await self.catalog.arrange(self._entries())
                self._local.release(turnover.leaving)
        self._server.describe()

    async def _note_ready(self, upstream: UpstreamSource) -> None:
        await upstream.settled()
        await self._shared.meet(upstream)
        self.inspection.note_rules_of(upstream)
        self._server.describe()
        self._expect_no_more(upstream)

    @property
    def inspection(self) -> Inspection:
        """What an operator should repair."""
        return Inspection(self.loaded, self._local, self._servers, self.catalog, self.sources, self._all_models)

    def definitions(self) -> dict[str, Sequence[JsonObject]]:
        """The tools of every server that is ready, as it lists them: before policy, quarantined ones too."""
        return {u.id: u.definitions() for u in self._servers.sources if u.status().state == "ready"}

    async def judge_definitions(self) -> None:
        """Have read for orders to a model what every server lists now; a running gateway does it in the background."""
        for upstream in self._servers.sources:
            await upstream.suspicions.judge()

    async def _wait_for_lists(self) -> None:
        if self._listable.is_set() or (not self._shared.is_looking and all(upstream.is_known for upstream in self._servers.sources)):
            return
        with anyio.move_on_after(max(0.0, self._list_deadline - anyio.current_time())):
            await self._listable.wait()

    @property
    def skill_index(self) -> SkillIndex | None:
        """The one index of all skills; `None` while there are none."""
        return self._local.skills.index if self._local.skills is not None else None

    def sources(self) -> list[SourceStatus]:
        """How every source is doing, in catalog order; disabled servers last. A server's last words may hold what it was given."""
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

    async def serve_stdio(self, first: FirstAnswers | None = None) -> None:
        """Go on after `first` and serve one client until it closes standard input, or SIGINT or SIGTERM comes."""
        from gateway.app.serving import serve_stdio

        await serve_stdio(self._server, first, partial(self.keep_answers, first))

    async def keep_answers(self, first: FirstAnswers | None) -> None:
        """Keep what a client over stdio is answered first for the next start, once every source is ready or has failed."""
        await keep_answers(self, self._server, self._local.module_files, first)

    async def serve_http(self, host: str, port: int, *, on_ready: Callable[[str], None], listener: socket | None = None) -> None:
        """Serve over HTTP until SIGINT or SIGTERM comes or it is cancelled; `on_ready` gets the endpoint URL once it listens.

        A `listener` of that address is used, and closed at the end. A worker serves where its place listens, whatever `port` is.
        After the first signal calls may finish for `server.http.drain_seconds`; the second ends them.

        Raises:
            ConfigError: The address is taken or may not be used.
        """
        from gateway.app.connections import connection_limit, raise_open_files
        from gateway.app.serving import Endpoint, serve_http
        from gateway.policy.quotas import caller_quotas
        from gateway.server.http import AsWorker, Away, build_http_app, check_bind
        from gateway.server.late_site import Probes

        server, place = self.loaded.config.server, self._place
        if place is None:
            check_bind(host, self.keys)
        raise_open_files(server.http)
        self._server.usages.bound_by(caller_quotas(server.limits, connection_limit(server.http), server.http.max_request_bytes))
        endpoint = Endpoint.bind(host, port, server, listener) if place is None else Endpoint.at_place(host, place, server)
        away = None
        if place is not None and self._spread is not None and not place.is_home:
            away = Away(place.home_path, place.board, self._spread.takes)

        def routes() -> list[BaseRoute]:
            from gateway.app.about import viewer_of
            from gateway.console.routes import build_routes

            pages = build_routes(server.name, endpoint.url, self.sources, self.problems, lambda: about(self, place), viewer_of)
            return [*pages, *([self._server.agui_route(self._local, server.http.max_request_bytes)] if server.http.agui else [])]

        app = build_http_app(
            self._server,
            server.http,
            self.keys,
            host=host, port=endpoint.port,
            probes=Probes(self._settled.is_set, await anyio.to_thread.run_sync(prover_of, self.loaded, endpoint.port)),
            routes=routes,
            worker=AsWorker(place.requires_key, away) if place is not None else None,
        )
        await serve_http(endpoint, app, on_ready, place.note_stopping if place is not None else lambda: None)


def _to_audit(event: Event) -> AuditEntry:
    return AuditEntry(event.time, event.kind, event.source, event.name, event.principal, event.fields)
