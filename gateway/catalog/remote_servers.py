"""`Servers`: holds the remote MCP servers of a running gateway. A new configuration restarts only servers whose entry or policy changed.

`UpstreamSource` is the client of one server; it connects and reconnects. The catalog decides which tools are served.
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
from gateway.storage.shared_database import SharedDatabase
from gateway.storage.state_folder import StateFolder
from gateway.upstream.accepted_definitions import AcceptedDefinitions, DefinitionRecord, accepted_mark
from gateway.upstream.child_processes import ChildProcesses
from gateway.upstream.definition_rows import TOPIC as DEFINITIONS_TOPIC
from gateway.upstream.definition_rows import SharedDefinitions
from gateway.upstream.input_guard import InputRequestServices
from gateway.upstream.listing_cache import ListingCache
from gateway.upstream.pins import Pins
from gateway.upstream.relayed_calls import RelayedCalls
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.storage.change_feed import ChangeFeed
    from gateway.upstream.credential_protocols import OwnedCredentials
    from gateway.upstream.oauth.grant_rows import SharedGrants
    from gateway.upstream.oauth.tokens import GrantStore


Server = HostedSource[UpstreamSource, tuple[ServerEntry, SourcePolicy]]
"""One remote MCP server, with the entry and the policy of the configuration from which its source was built."""


class Servers(HostedTable[Server]):
    """Holds the sources of the remote MCP servers. To apply a configuration, call `plan`, `take`, `start` and `release`, in this order."""

    def __init__(
        self,
        hosts: SourceHost,
        state: StateFolder,
        services: InputRequestServices,
        children: ChildProcesses,
        *,
        own_id: str,
        client: JsonObject,
        shared: SharedDatabase | None = None,
    ) -> None:
        """Store the arguments.

        `hosts` starts and stops the sources. `state` is the folder with credentials and accepted definitions. `services` handle the
        servers' requests for input (elicitation, sampling, roots). `own_id` is the gateway's id, by which it detects that it is connected
        to itself through other gateways. `client` is the MCP `clientInfo` that servers receive. Gateways with a `shared` database share the
        accepted definitions.
        """
        super().__init__(hosts)
        self._services = services
        self._state = state
        self._children = children
        self._own_id = own_id
        self._client = client
        self._shared = shared
        self._grants: SharedGrants | None = None
        if shared is not None:
            from gateway.upstream.oauth.grant_rows import SharedGrants

            self._grants = SharedGrants(shared)
        self._accepted: FileWatch | None = None

    @property
    def sources(self) -> list[UpstreamSource]:
        """The sources of the current servers, in the order of the configuration file."""
        return [server.source for server in self._table.values()]

    def relay_of(self, name: str) -> RelayedCalls | None:
        """Return the object that serves messages of other replicas for a stdio server with `single: true`; `None` for other names."""
        server = self._table.get(name)
        is_single = server is not None and isinstance(server.made_from[0], StdioServer) and server.made_from[0].single
        return server.source.relayed if server is not None and is_single else None

    async def plan(self, loaded: LoadedConfig, pins: Pins) -> Changes[Server]:
        """Build the sources of servers that are new or changed in the configuration `loaded`.

        Return the difference from the current sources, which `take` applies.

        `pins` are the accepted tool definitions. No source is started or stopped.
        """
        table: dict[str, Server] = {}
        # The file watch starts before the records of accepted definitions are read, so that no later acceptance is missed.
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
            self._services,
            own_id=self._own_id,
            client=self._client,
            credentials=build_credentials(name, entry, policy, self._state, self._grants),
            children=self._children,
        )
        source.lists.pin(pins.of(name))
        first_use = definition_record(name, entry, self._state, self._shared)
        await anyio.to_thread.run_sync(source.lists.recall, ListingCache(self._state.path, name, entry), first_use)
        if former is not None:
            source.succeed(former)
        return source

    def pin(self, pins: Pins) -> None:
        """Let each current server serve only the tools whose definitions match the accepted definitions `pins`.

        The key `pins` of a server's policy can turn this off, or only warn about differences.
        """
        for source in self.sources:
            source.lists.pin(pins.of(source.id))

    async def follow_acceptance(self) -> None:
        """Until cancelled, read the accepted tool definitions again each time a person accepts some, so that they are served at once.

        Returns immediately if `plan` was not called before.
        """
        while self._accepted is not None:
            await self._accepted.changed()
            await self.read_accepted()

    async def read_accepted(self) -> None:
        """Read the accepted tool definitions again, because a person accepted some."""
        for source in self.sources:
            await source.lists.read_pins_again()

    def share(self, feed: ChangeFeed) -> None:
        """Apply what other gateways change in the shared database: accepted tool definitions and sign-ins. `feed` reports the changes."""
        from gateway.upstream.oauth.grant_rows import TOPIC as GRANTS_TOPIC

        feed.subscribe(DEFINITIONS_TOPIC, self.read_accepted)
        feed.subscribe(GRANTS_TOPIC, self._read_grants)

    async def _read_grants(self) -> None:
        if self._grants is not None:
            await self._grants.load()
            for source in self.sources:
                await source.read_tokens_again()

    async def start(self, servers: Sequence[Server]) -> None:
        """Start the sources of the given servers. Each source connects to its server in the background."""
        for server in servers:
            await self._hosts.start(server)


def definition_record(server: str, entry: ServerEntry, state: StateFolder, shared: SharedDatabase | None) -> DefinitionRecord:
    """Return the recorded tool definitions of a server, which are in the state folder or, for gateways that share a database, there.

    `entry` is the server's configuration entry as loaded, with absolute `cwd`.
    """
    own = AcceptedDefinitions(state.path, server, entry)
    return own if shared is None else SharedDefinitions(shared, own)


def build_credentials(
    server: str, entry: ServerEntry, policy: SourcePolicy, state: StateFolder, grants: SharedGrants | None
) -> OwnedCredentials | None:
    """Return the OAuth credentials of a server, or `None` if its policy has no `auth` or it is a stdio server."""
    if policy.auth is None or isinstance(entry, StdioServer):
        return None
    from gateway.upstream.oauth.credentials import OAuthCredentials

    return OAuthCredentials(server, entry.url, policy.auth, grant_store(server, entry.url, state, grants))


def grant_store(server: str, url: str, state: StateFolder, grants: SharedGrants | None) -> GrantStore:
    """Return the stored OAuth grant for a server, which is in the state folder or, for gateways that share a database, there."""
    from gateway.upstream.oauth.tokens import TokenFile

    own = TokenFile(state, server, url)
    if grants is None:
        return own
    from gateway.upstream.oauth.grant_rows import SharedGrant

    return SharedGrant(grants, own)
