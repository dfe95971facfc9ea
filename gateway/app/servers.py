"""`Servers`: the remote servers of a running gateway, each entered and left by a task of its own.

So any of them can come and go while the others work. Decides which may stay when the configuration changed; what is served
of them is the catalog's, how one is supervised the source's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup, TaskStatus

from gateway.config.load import LoadedConfig
from gateway.config.models import ServerEntry, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.json_types import JsonObject
from gateway.storage.state import StateFolder
from gateway.tools.slot import Usage
from gateway.upstream.children import ChildProcesses
from gateway.upstream.inputs import AskServices
from gateway.upstream.pins import Pins
from gateway.upstream.remembered import Memory
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.upstream.http import OwnedCredentials

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Server:
    """One server and what it was made from."""

    entry: ServerEntry
    policy: SourcePolicy
    source: UpstreamSource
    usage: Usage = field(default_factory=Usage)
    """Its running calls."""
    stop: anyio.Event = field(default_factory=anyio.Event)
    patience: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Ends when its running calls are waited for no longer."""


@dataclass(frozen=True, slots=True)
class Turnover:
    """What a configuration changes about the servers."""

    table: Mapping[str, Server]
    """All that there are to be, in file order."""
    joining: list[Server]
    leaving: list[Server]


class Servers:
    """Enter it before `start`; leaving stops every server, all at once."""

    def __init__(self, state: StateFolder, services: AskServices, children: ChildProcesses, *, own_id: str, client: JsonObject) -> None:
        """`own_id` is the gateway's hop id, `client` the `clientInfo` it shows. No side effects."""
        self.services = services
        """For the servers made from now on."""
        self._state = state
        self._children = children
        self._own_id = own_id
        self._client = client
        self._table: Mapping[str, Server] = {}
        self._entered: set[Server] = set()
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Servers:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for server in self._entered:
            server.patience.cancel()
        await self._stack.aclose()

    @property
    def table(self) -> Mapping[str, Server]:
        """The servers that serve, by name, in file order."""
        return self._table

    @property
    def sources(self) -> list[UpstreamSource]:
        """Their sources, in file order."""
        return [server.source for server in self._table.values()]

    async def plan(self, loaded: LoadedConfig, pins: Pins) -> Turnover:
        """Make what `loaded` names and is not here alike; nothing is started or stopped."""
        table: dict[str, Server] = {}
        joining: list[Server] = []
        for name, written in loaded.config.mcp_servers.items():
            if written.disabled:
                continue
            entry, policy = _located(written, loaded), loaded.config.policy(name)
            known = self._table.get(name)
            if known is not None and (known.entry, known.policy) == (entry, policy):
                table[name] = known
                continue
            source = await self._build(name, entry, policy, pins, known.source if known is not None else None)
            table[name] = Server(entry, policy, source)
            joining.append(table[name])
        leaving = [server for name, server in self._table.items() if table.get(name) is not server]
        return Turnover(table, joining, leaving)

    async def _build(
        self, name: str, entry: ServerEntry, policy: SourcePolicy, pins: Pins, former: UpstreamSource | None
    ) -> UpstreamSource:
        source = UpstreamSource(
            name,
            entry,
            policy,
            self.services,
            own_id=self._own_id,
            client=self._client,
            credentials=build_credentials(name, entry, policy, self._state),
            children=self._children,
        )
        source.pin(pins.of(name))
        await anyio.to_thread.run_sync(source.recall, Memory(self._state.path, name, entry))
        if former is not None:
            source.succeed(former)
        return source

    def take(self, turnover: Turnover) -> None:
        """From now on these are the servers."""
        self._table = turnover.table

    async def start(self, servers: list[Server]) -> None:
        """Enter them; each connects in the background."""
        for server in servers:
            await self._tasks.start(self._hold, server)

    def release(self, servers: list[Server]) -> None:
        """Let them go as soon as their running calls are over, at the latest after their `timeoutSeconds`."""
        for server in servers:
            server.stop.set()

    async def _hold(self, server: Server, *, task_status: TaskStatus[None]) -> None:
        self._entered.add(server)
        try:
            async with server.source:
                task_status.started()
                with server.patience:
                    await server.stop.wait()
                    server.patience.deadline = anyio.current_time() + server.policy.timeout_seconds
                    await server.usage.over()
        finally:
            self._entered.discard(server)
        if server.stop.is_set():
            logger.info("%s: left", server.source.id)


def _located(entry: ServerEntry, loaded: LoadedConfig) -> ServerEntry:
    """A stdio entry with its working directory made absolute."""
    if isinstance(entry, StdioServer):
        return entry.model_copy(update={"cwd": str(loaded.base_dir / entry.cwd) if entry.cwd else str(loaded.base_dir)})
    return entry


def build_credentials(server: str, entry: ServerEntry, policy: SourcePolicy, state: StateFolder) -> OwnedCredentials | None:
    """The OAuth credentials of a server, where its policy has any; the room is imported only then."""
    if policy.auth is None or isinstance(entry, StdioServer):
        return None
    from gateway.upstream.oauth.credentials import OAuthCredentials
    from gateway.upstream.oauth.tokens import TokenFile

    return OAuthCredentials(server, entry.url, policy.auth, TokenFile(state, server, entry.url))
