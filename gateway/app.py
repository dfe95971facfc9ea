"""`Gateway`: the composition root, and the only file that knows every room.

Builds the sources a configuration names, merges them in the catalog and serves it. Rooms that nothing configured
needs are not imported. Everything is entered in one exit stack, in dependency order, and left in reverse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from gateway import __version__
from gateway.auth.keys import KeyStore
from gateway.catalog import Catalog, CatalogEntry
from gateway.catalog.disclosure import Disclosure
from gateway.catalog.names import NAME_BUDGET
from gateway.catalog.own import SOURCE_ID, UNLIMITED_BYTES, OwnSource
from gateway.catalog.status import GatewayStatus
from gateway.config.load import LoadedConfig
from gateway.config.models import HttpServer, ServerEntry, StdioServer
from gateway.config.watch import FileWatch
from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.lint import Finding, lint_policy, policy_remarks
from gateway.policy.shadowing import Named, shadowing_remarks
from gateway.server.build import GatewayServer
from gateway.server.instructions import build_instructions
from gateway.storage.entries import AuditEntry
from gateway.storage.records import Records
from gateway.storage.results import ResultStore
from gateway.storage.state import StateFolder, default_state_dir
from gateway.telemetry.events import Event, EventStream
from gateway.telemetry.logging import SecretMask
from gateway.tools.approvals import Approvals
from gateway.tools.base import Source, SourceStatus, Tool, ToolSource
from gateway.tools.results import ResultKeeper
from gateway.tools.wrappers import RenamedTool
from gateway.upstream.children import ChildProcesses
from gateway.upstream.inputs import AskServices
from gateway.upstream.pins import lock_path, read_pins
from gateway.upstream.remembered import Memory
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    import uvicorn

    from gateway.chat.resolve import ModelResolver
    from gateway.config.policies import SourcePolicy
    from gateway.skills.source import SkillSource
    from gateway.upstream.http import OwnedCredentials

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2
"""How long open HTTP streams may finish after a stop was asked for."""

SIGNAL_BURST_SECONDS = 0.5
"""Signals closer together count once: a terminal and a supervisor may both send one."""

AUDITED = frozenset({"ask.judged", "approval.waiting", "approval.decided", "call.refused"})
"""Events that go into the audit log: decisions, not traffic."""

_DEFAULT_PREFIX = {"skill": "", "function": "function", "agent": "agent", "workflow": "workflow"}


class Gateway:
    """One running gateway. `from_config`, enter, then `serve_stdio` or `serve_http`."""

    def __init__(self, loaded: LoadedConfig, events: EventStream) -> None:
        self.loaded = loaded
        self.events = events
        self.catalog: Catalog
        self.keys: KeyStore
        self._server: GatewayServer
        self._upstreams: list[UpstreamSource] = []
        self._local: dict[str, ToolSource] = {}
        self._skills: SkillSource | None = None
        self._stack = AsyncExitStack()
        self._settled = anyio.Event()
        self._list_deadline = 0.0

    @classmethod
    def from_config(cls, loaded: LoadedConfig, *, events: EventStream | None = None) -> Gateway:
        """A gateway for a loaded configuration. No side effects before it is entered."""
        return cls(loaded, events or EventStream())

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
        config = self.loaded.config
        state = StateFolder(Path(config.storage.dir) if config.storage.dir else default_state_dir())
        own_id = await anyio.to_thread.run_sync(state.installation_id)
        state_key = await anyio.to_thread.run_sync(state.key, "request-state")
        self.keys = KeyStore(state.path / "keys.json")
        await self._enter_local()
        services = self._asking(state)
        children = await self._stack.enter_async_context(ChildProcesses(config.server.max_child_processes))
        lock_watch = await self._build_upstreams(state, own_id, services, children)
        kept = config.storage
        store = ResultStore(
            state.path / "results", ttl_seconds=kept.result_ttl_seconds, max_bytes_per_owner=kept.max_result_bytes_per_caller
        )
        on_demand = any(config.policy(name).disclosure == "on-demand" for name in (*config.mcp_servers, *self._local))
        disclosure = Disclosure() if on_demand else None
        entries = [self._own_entry(store, disclosure)]
        entries += [self._entry(source, is_local=True) for source in self._local.values()]
        entries += [self._entry(source, is_local=False) for source in self._upstreams]
        budget = NAME_BUDGET - len(config.server.client_prefix)
        self.catalog = Catalog(
            entries,
            self.events,
            name_budget=budget,
            settled=self._wait_for_lists,
            approvals=services.approvals,
            keeper=ResultKeeper(store, ttl_seconds=kept.result_ttl_seconds),
            disclosure=disclosure,
        )
        await self.catalog.refresh()
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
        if self._skills is not None:
            from gateway.server.skills import bind_skills

            bind_skills(self._server.mcp, self._skills.extension, self._server.gate_of("skill"))
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self.catalog.run)
        tasks.start_soon(store.sweep_forever)
        if lock_watch is not None:
            tasks.start_soon(self._follow_lock, lock_watch)
        tasks.start_soon(services.records.run)
        self._list_deadline = anyio.current_time() + config.server.startup_timeout_seconds
        for upstream in self._upstreams:
            await self._stack.enter_async_context(upstream)
        tasks.start_soon(self._note_settled)
        await self._stack.enter_async_context(self._server)

    async def _build_upstreams(
        self, state: StateFolder, own_id: str, services: AskServices, children: ChildProcesses
    ) -> FileWatch | None:
        """Make a pinned source of each configured server; returns the watch of the lock file, begun before it was read."""
        config = self.loaded.config
        client: JsonObject = {"name": config.server.name, "version": __version__}
        lock = lock_path(self.loaded) if any(config.policy(name).pins != "off" for name in config.mcp_servers) else None
        lock_watch = await anyio.to_thread.run_sync(FileWatch, lock) if lock is not None else None
        pins = await anyio.to_thread.run_sync(read_pins, lock)
        for name, entry in config.mcp_servers.items():
            if entry.disabled:
                continue
            policy = config.policy(name)
            credentials = build_credentials(name, entry, policy, state)
            located = self._located(entry)
            source = UpstreamSource(
                name, located, policy, services, own_id=own_id, client=client, credentials=credentials, children=children
            )
            source.pin(pins.of(name))
            await anyio.to_thread.run_sync(source.recall, Memory(state.path, name, located))
            self._upstreams.append(source)
        return lock_watch

    def _asking(self, state: StateFolder) -> AskServices:
        """What judging asks needs: the records, opened on first use, and a model of ours where policy lets one answer."""
        config = self.loaded.config
        records = Records(state, audit_days=config.storage.audit_days)
        self._stack.push_async_callback(records.aclose)
        self._stack.callback(self.events.subscribe(lambda event: records.note(_to_audit(event)), kinds=AUDITED))
        models: ModelResolver | None = None
        wanting = {name: config.policy(name).sampling for name in config.mcp_servers}
        wanting = {name: sampling for name, sampling in wanting.items() if sampling.mode in ("ask", "answer")}
        if wanting:
            from gateway.chat.resolve import ModelResolver

            models = ModelResolver(os.environ, config.defaults.model)
            self._stack.push_async_callback(models.aclose)
            for name, sampling in wanting.items():
                if sampling.mode == "answer" and not models.can_answer(sampling.model or "auto"):
                    logger.warning("policies.%s.sampling.mode is `answer`, but no model is configured, so sampling is not announced", name)
        return AskServices(self.events, records, Approvals(records, self.events), models)

    async def _enter_local(self) -> None:
        """Build and enter our own sources; each room is imported only when something is configured for it."""
        config, base = self.loaded.config, self.loaded.base_dir
        expose = config.expose
        skill_paths = [base / path for path in expose.skills]
        agent_paths = [base / path for path in expose.agents]
        if skill_paths:
            from gateway.skills.source import SkillSource

            self._skills = await self._stack.enter_async_context(SkillSource(skill_paths))
            self._local["skill"] = self._skills
        if expose.functions:
            from gateway.tools.functions_source import FunctionSource

            self._local["function"] = await self._stack.enter_async_context(FunctionSource(expose.functions, base_dir=base))
        if agent_paths:
            from gateway.agents.source import AgentSource
            from gateway.workflows.source import WorkflowSource

            self._local["agent"] = await self._stack.enter_async_context(
                AgentSource(
                    agent_paths,
                    toolbox=self,
                    defaults_model=config.defaults.model,
                    environ=os.environ,
                    skill_instructions=self._skills.instructions if self._skills is not None else None,
                )
            )
            self._local["workflow"] = await self._stack.enter_async_context(WorkflowSource(agent_paths, toolbox=self, base_dir=base))

    def _entry(self, source: ToolSource, *, is_local: bool) -> CatalogEntry:
        policy = self.loaded.config.policy(source.id)
        prefix = policy.prefix if policy.prefix is not None else _DEFAULT_PREFIX.get(source.id, source.id)
        full: Source | None = source if hasattr(source, "read") else None  # pyright: ignore[reportAssignmentType]  # the Protocol's own mark
        return CatalogEntry(source, policy, prefix, full, is_local)

    def _own_entry(self, store: ResultStore, disclosure: Disclosure | None) -> CatalogEntry:
        """The gateway's own tools, under the names they are known by."""
        mask = SecretMask()
        for secret in self.loaded.secrets:
            mask.register_secret(secret)
        status = GatewayStatus(self.sources, mask.mask) if self.loaded.config.server.status_tool else None
        unlimited = {"max_result_bytes": UNLIMITED_BYTES, "max_kept_bytes": UNLIMITED_BYTES}
        source = OwnSource(store, status, disclosure.tools if disclosure is not None else ())
        return CatalogEntry(source, self.loaded.config.policy(SOURCE_ID).model_copy(update=unlimited), "", source, is_local=True)

    def _located(self, entry: ServerEntry) -> ServerEntry:
        """A stdio entry with its working directory made absolute."""
        if isinstance(entry, StdioServer):
            return entry.model_copy(update={"cwd": str(self.loaded.base_dir / entry.cwd) if entry.cwd else str(self.loaded.base_dir)})
        return entry

    # -- state -------------------------------------------------------------------------------------------------

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """The guarded tools matching `<source>/<glob>` patterns, under exposed names (`ToolBox` of agents and workflows)."""
        await self.catalog.ready()
        return [RenamedTool(tool, tool.exposed_name) for tool in await self.catalog.tools(patterns)]

    async def ready(self, timeout_seconds: float) -> None:
        """Wait until every source is ready or has failed once, at most this long."""
        with anyio.move_on_after(timeout_seconds):
            await self._settled.wait()
        await self.catalog.catch_up()

    async def _follow_lock(self, watch: FileWatch) -> None:
        """Apply the lock file again whenever it is written; one that cannot be read changes nothing."""
        while True:
            await watch.changed()
            try:
                pins = await anyio.to_thread.run_sync(read_pins, watch.path)
            except ConfigError as error:
                logger.error("The lock file is not applied, the earlier pins stay: %s", error)
                continue
            for upstream in self._upstreams:
                upstream.pin(pins.of(upstream.id))
            logger.info("lock file applied again: %s", watch.path)

    async def _note_settled(self) -> None:
        for upstream in self._upstreams:
            await upstream.settled()
            for remark in await self._remarks(upstream):
                logger.warning("%s", remark)
        self._server.describe()
        self._settled.set()

    async def remarks(self) -> list[str]:
        """Rules that do nothing or cannot be applied, with their JSON paths, and tools that look like another's; of what is ready."""
        found = [remark for upstream in self._upstreams for remark in await self._remarks(upstream)]
        patterns = [f"{upstream.id}/*" for upstream in self._upstreams]
        tools = await self.catalog.tools(patterns) if patterns else ()
        named = [Named(t.source, t.definition.name, t.exposed_name, t.definition.description or "") for t in tools]
        return [*found, *shadowing_remarks(named)]

    def definitions(self) -> dict[str, Sequence[JsonObject]]:
        """The tools of every server that is ready, as it lists them: before policy, quarantined ones too."""
        return {u.id: u.definitions() for u in self._upstreams if u.status().state == "ready"}

    async def findings(self) -> dict[str, tuple[Finding, ...]]:
        """Everything there is to say about the rules of every source that is ready."""
        found: dict[str, tuple[Finding, ...]] = {}
        for name, source in self._local.items():
            schemas = {tool.definition.name: tool.definition.input_schema for tool in await source.tools()}
            found[name] = lint_policy(self.loaded.config.policy(name), schemas, is_local=True)
        for name, definitions in self.definitions().items():
            found[name] = lint_policy(self.loaded.config.policy(name), _schemas(definitions))
        return found

    async def _remarks(self, upstream: UpstreamSource) -> list[str]:
        if upstream.status().state != "ready":
            return []
        schemas = _schemas(upstream.definitions())
        remarks = [f"policies.{upstream.id}.{text}" for text in policy_remarks(self.loaded.config.policy(upstream.id), schemas)]
        return remarks + upstream.pin_remarks()

    async def _wait_for_lists(self) -> None:
        if self._settled.is_set() or all(upstream.is_known for upstream in self._upstreams):
            return
        with anyio.move_on_after(max(0.0, self._list_deadline - anyio.current_time())):
            await self._settled.wait()

    def sources(self) -> list[SourceStatus]:
        """How every source is doing, in catalog order; disabled servers last."""
        statuses = [self._local_status(name) for name in self._local]
        statuses += [self._upstream_status(upstream) for upstream in self._upstreams]
        for name, entry in self.loaded.config.mcp_servers.items():
            if entry.disabled:
                statuses.append(_disabled(name, "disabled in the configuration", _transport_of(entry)))
        statuses += [_disabled(s.name, f"{s.json_path}: {s.reason} {s.hint or ''}".rstrip(), s.transport) for s in self.loaded.disabled]
        return statuses

    def _upstream_status(self, upstream: UpstreamSource) -> SourceStatus:
        status = upstream.status()
        count = len(self.catalog.withheld(upstream.id))
        note = f"{count} definition{'' if count == 1 else 's'} withheld; see `moongate doctor`" if count else None
        return dataclasses.replace(status, tools=self.catalog.count(upstream.id), error=status.error or note)

    def _local_status(self, name: str) -> SourceStatus:
        count = self.catalog.count(name)
        problems = getattr(self._local[name], "problems", None)
        return SourceStatus(
            name=name,
            kind=name,  # pyright: ignore[reportArgumentType]  # keys of `_local` are the local kinds
            transport="local",
            protocol_version="",
            state="ready",
            tools=count,
            error=f"{len(problems)} problem(s); see `moongate doctor`" if problems else None,
        )

    def _instructions(self) -> str:
        notes = {u.id: text for u in self._upstreams if (text := u.instructions)}
        count = len(self._skills.index.for_models) if self._skills is not None else 0
        return build_instructions(self.loaded.config.server.instructions, self.sources(), notes, count)

    # -- serving -----------------------------------------------------------------------------------------------

    async def serve_stdio(self) -> None:
        """Serve one client over standard input and output until it closes them, or SIGINT or SIGTERM comes."""
        from gateway.server.stdio import serve_stdio

        async with anyio.create_task_group() as tasks:

            def stop(count: int) -> None:
                tasks.cancel_scope.cancel()

            tasks.start_soon(_on_signals, stop)
            await serve_stdio(self._server)
            tasks.cancel_scope.cancel()

    async def serve_http(self, host: str, port: int, *, on_ready: Callable[[str], None]) -> None:
        """Serve over HTTP until SIGINT or SIGTERM comes or it is cancelled; `on_ready` gets the endpoint URL once it listens.

        At the first signal open streams may finish for `SHUTDOWN_SECONDS`; the second ends them.

        Raises:
            ConfigError: The address is taken or may not be used.
        """
        import uvicorn

        from gateway.console.routes import build_routes
        from gateway.server.http import build_http_app, check_bind

        settings = self.loaded.config.server.http
        check_bind(host, self.keys)
        listener = _bind(host, port)
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        endpoint = f"http://{shown}:{bound}{settings.path}"
        app = build_http_app(
            self._server,
            settings,
            self.keys,
            host=host,
            port=bound,
            ready=self._settled.is_set,
            routes=build_routes(self.loaded.config.server.name, endpoint, self.sources),
        )
        server = _quiet_server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                timeout_keep_alive=75,
            )
        )
        async with anyio.create_task_group() as tasks:

            async def announce() -> None:
                while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
                    await anyio.sleep(0.005)
                on_ready(endpoint)

            def stop(count: int) -> None:
                server.should_exit = True
                server.force_exit = count > 1

            tasks.start_soon(announce)
            tasks.start_soon(_on_signals, stop)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def build_credentials(server: str, entry: ServerEntry, policy: SourcePolicy, state: StateFolder) -> OwnedCredentials | None:
    """The OAuth credentials of a server, where its policy has any; the room is imported only then."""
    if policy.auth is None or isinstance(entry, StdioServer):
        return None
    from gateway.upstream.oauth.credentials import OAuthCredentials
    from gateway.upstream.oauth.tokens import TokenFile

    return OAuthCredentials(server, entry.url, policy.auth, TokenFile(state, server, entry.url))


async def _on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop` with 1, 2, … for each SIGINT or SIGTERM, until cancelled; one stop often comes as a burst."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        count, last = 0, float("-inf")
        async for _ in signals:
            if anyio.current_time() - last > SIGNAL_BURST_SECONDS:
                count, last = count + 1, anyio.current_time()
                stop(count)


def _schemas(definitions: Sequence[JsonObject]) -> dict[str, JsonValue]:
    """Input schemas of listed tools by native name."""
    return {str(wire["name"]): wire.get("inputSchema") for wire in definitions}


def _quiet_server(config: uvicorn.Config) -> uvicorn.Server:
    """A uvicorn server that leaves signals to us: its own handling ends the process by re-raising them."""
    import uvicorn

    class Quiet(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    return Quiet(config)


def _to_audit(event: Event) -> AuditEntry:
    return AuditEntry(event.time, event.kind, event.source, event.name, event.principal, event.fields)


def _transport_of(entry: ServerEntry) -> Literal["stdio", "http", "sse"]:
    return "stdio" if isinstance(entry, StdioServer) else "http" if isinstance(entry, HttpServer) else "sse"


def _disabled(name: str, reason: str, transport: Literal["stdio", "http", "sse"]) -> SourceStatus:
    return SourceStatus(name=name, kind="server", transport=transport, protocol_version="", state="disabled", tools=0, error=reason)


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: With what to do about it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns off delays (TCP_NODELAY) only for sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {reason}. Another gateway may be running; choose another port with `--http {host}:PORT`.",
            path="server.http.port",
        ) from None
    listener.set_inheritable(False)
    return listener
