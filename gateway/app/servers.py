"""`Servers`: the remote servers of a running gateway, any of which can come and go while the others work.

Decides which may stay when the configuration changed; what is served
of them is the catalog's, how one is supervised the source's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from gateway.app.held import Held, Hosts
from gateway.config.load import LoadedConfig
from gateway.config.models import ServerEntry, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.config.watch import FileWatch
from gateway.json_types import JsonObject
from gateway.storage.state import StateFolder
from gateway.upstream.children import ChildProcesses
from gateway.upstream.first_use import FirstUse, accepted_mark
from gateway.upstream.inputs import AskServices
from gateway.upstream.pins import Pins
from gateway.upstream.remembered import Memory
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.upstream.credentials import OwnedCredentials

@dataclass(frozen=True, slots=True)
class Server:
    """One server and what it was made from."""

    entry: ServerEntry
    policy: SourcePolicy
    source: UpstreamSource
    held: Held


@dataclass(frozen=True, slots=True)
class Turnover:
    """What a configuration changes about the servers."""

    table: Mapping[str, Server]
    """All that there are to be, in file order."""
    joining: list[Server]
    leaving: list[Server]


class Servers:
    """Remote servers, which `hosts` enters and leaves."""

    def __init__(
        self, hosts: Hosts, state: StateFolder, services: AskServices, children: ChildProcesses, *, own_id: str, client: JsonObject
    ) -> None:
        """`own_id` is the gateway's hop id, `client` the `clientInfo` it shows. No side effects."""
        self.services = services
        """For the servers made from now on."""
        self._state = state
        self._children = children
        self._own_id = own_id
        self._client = client
        self._hosts = hosts
        self._table: Mapping[str, Server] = {}
        self._accepted: FileWatch | None = None

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
        # Looked at before the records are read, so that nothing accepted in between is missed.
        if self._accepted is None:
            self._accepted = await anyio.to_thread.run_sync(FileWatch, accepted_mark(self._state.path))
        for name, written in loaded.config.mcp_servers.items():
            if written.disabled:
                continue
            entry, policy = located(written, loaded), loaded.config.policy(name)
            known = self._table.get(name)
            if known is not None and (known.entry, known.policy) == (entry, policy):
                table[name] = known
                continue
            source = await self._build(name, entry, policy, pins, known.source if known is not None else None)
            table[name] = Server(entry, policy, source, Held(source, policy.timeout_seconds))
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
        first_use = FirstUse(self._state.path, name, entry)
        await anyio.to_thread.run_sync(source.recall, Memory(self._state.path, name, entry), first_use)
        if former is not None:
            source.succeed(former)
        return source

    async def follow_acceptance(self) -> None:
        """Take up, until cancelled, what a person accepts of changed tools; `plan` comes first."""
        while self._accepted is not None:
            await self._accepted.changed()
            for source in self.sources:
                await source.read_pins_again()

    def take(self, turnover: Turnover) -> None:
        """From now on these are the servers."""
        self._table = turnover.table

    async def start(self, servers: Sequence[Server]) -> None:
        """Enter them; each connects in the background."""
        for server in servers:
            await self._hosts.start(server.held)

    def release(self, servers: Sequence[Server]) -> None:
        """Let them go as soon as their running calls are over, at the latest after their `timeoutSeconds`."""
        for server in servers:
            self._hosts.release(server.held)


def located(entry: ServerEntry, loaded: LoadedConfig) -> ServerEntry:
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
