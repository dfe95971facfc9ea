"""`Servers`: the remote MCP servers of a running gateway. A changed configuration restarts only the servers whose entries changed.

The catalog decides what is served; each `UpstreamSource` connects to its server and reconnects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from gateway.catalog.source_host import Changes, HostedSource, HostedTable, SourceHost
from gateway.config.load import LoadedConfig
from gateway.config.models import ServerEntry, StdioServer
from gateway.config.policies import SourcePolicy
from gateway.config.watch import FileWatch
from gateway.json_types import JsonObject
from gateway.storage.state_folder import StateFolder
from gateway.upstream.accepted_definitions import AcceptedDefinitions, accepted_mark
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.listing_cache import ListingCache
from gateway.upstream.pins import Pins
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.upstream.credential_protocols import OwnedCredentials


Server = HostedSource[UpstreamSource, tuple[ServerEntry, SourcePolicy]]
"""One server, built from its entry and its policy."""


class Servers(HostedTable[Server]):
    """The remote servers. Apply a configuration with `plan`, `take`, `start` and `release`, in this order."""

    def __init__(
        self,
        hosts: SourceHost,
        state: StateFolder,
        services: InputRequestServices,
        children: ChildProcesses,
        *,
        own_id: str,
        client: JsonObject,
    ) -> None:
        """`hosts` runs the sources; `own_id` is the gateway's id for loop detection (`hop_id`); `client` is its MCP `clientInfo`."""
        super().__init__(hosts)
        self.services = services
        """Passed to the sources that `plan` builds; may be replaced between two calls."""
        self._state = state
        self._children = children
        self._own_id = own_id
        self._client = client
        self._accepted: FileWatch | None = None

    @property
    def sources(self) -> list[UpstreamSource]:
        """The sources of the current servers, in file order."""
        return [server.source for server in self._table.values()]

    async def plan(self, loaded: LoadedConfig, pins: Pins) -> Changes[Server]:
        """Build sources for the servers of `loaded` that are new or changed, and return all changes. Nothing is started or stopped."""
        table: dict[str, Server] = {}
        # The watch is made before the records are read, so that no acceptance is missed.
        if self._accepted is None:
            self._accepted = await anyio.to_thread.run_sync(FileWatch, accepted_mark(self._state.path))
        for name, written in loaded.config.mcp_servers.items():
            if written.disabled:
                continue
            entry, policy = loaded.located(written), loaded.config.policy(name)
            known = self._table.get(name)
            if known is not None and known.made_from == (entry, policy):
                table[name] = known
                continue
            source = await self._build(name, entry, policy, pins, known.source if known is not None else None)
            table[name] = HostedSource(source, policy.timeout_seconds, (entry, policy))
        return self.changes(table)

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
        source.lists.pin(pins.of(name))
        first_use = AcceptedDefinitions(self._state.path, name, entry)
        await anyio.to_thread.run_sync(source.lists.recall, ListingCache(self._state.path, name, entry), first_use)
        if former is not None:
            source.succeed(former)
        return source

    async def follow_acceptance(self) -> None:
        """Until cancelled, serve changed tool definitions as soon as a person accepts them. Call `plan` first."""
        while self._accepted is not None:
            await self._accepted.changed()
            for source in self.sources:
                await source.lists.read_pins_again()

    async def start(self, servers: Sequence[Server]) -> None:
        """Start the sources of new servers; each connects in the background."""
        for server in servers:
            await self._hosts.start(server)


def build_credentials(server: str, entry: ServerEntry, policy: SourcePolicy, state: StateFolder) -> OwnedCredentials | None:
    """Return the OAuth credentials of a server, or `None` if its policy has no `auth`."""
    if policy.auth is None or isinstance(entry, StdioServer):
        return None
    from gateway.upstream.oauth.credentials import OAuthCredentials
    from gateway.upstream.oauth.tokens import TokenFile

    return OAuthCredentials(server, entry.url, policy.auth, TokenFile(state, server, entry.url))
