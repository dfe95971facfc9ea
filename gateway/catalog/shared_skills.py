"""`SharedSkills`: decides when to read the skills of remote servers: on connection, on resource changes, and when their cache expires.

The packages for skills are imported when the first server has skills. `catalog.remote_skills` reads the skills, and `local_sources` serves
them with the gateway's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from gateway.catalog import Catalog
from gateway.catalog.source_listing import SourceListing
from gateway.tools.base import ChangeKind
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.catalog.remote_skills import RemoteSkills

FIRST_READ_SECONDS = 10.0
"""Maximum seconds for which reading a new server's skills delays the first listing."""

MAX_REST_SECONDS = 3600.0
"""Seconds after which the servers are asked again for skills if no server has any."""


class SharedSkills:
    """The skills of all remote servers: `read_server` reads those of a new server, and `run` reads all of them again when needed."""

    def __init__(self, catalog: Catalog, serve: Callable[[RemoteSkills], Awaitable[None]]) -> None:
        """`serve` puts the skills into the gateway's index. It is called after each read, as long as a server has or had skills."""
        self._catalog = catalog
        self._serve = serve
        self._remote: RemoteSkills | None = None
        self._wanted = anyio.Event()
        self._lock = anyio.Lock()
        self._reading = 0
        catalog.subscribe(self._note)

    @property
    def remote(self) -> RemoteSkills | None:
        """The skills of remote servers; `None` until a server has skills."""
        return self._remote

    @property
    def is_reading(self) -> bool:
        """Whether the skills of any server are being read for the first time."""
        return self._reading > 0

    async def read_server(self, upstream: UpstreamSource) -> None:
        """Read a server's skills when it has connected or failed to connect; give up waiting after `FIRST_READ_SECONDS`."""
        await upstream.settled()
        self._reading += 1
        try:
            with anyio.move_on_after(FIRST_READ_SECONDS):
                await self._read(upstream.id)
        finally:
            self._reading -= 1

    async def run(self) -> None:
        """Until cancelled, read the skills again when resources change or the cache expires."""
        while True:
            with anyio.move_on_after(self._remote.refresh_seconds if self._remote is not None else MAX_REST_SECONDS):
                await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._read(None)

    def wake(self) -> None:
        """Read the skills of all servers again soon."""
        self._wanted.set()

    def _note(self, kind: ChangeKind) -> None:
        if kind == "resources":
            self._wanted.set()

    async def _read(self, only: str | None) -> None:
        async with self._lock:
            await self._catalog.catch_up()
            if self._remote is None:
                if not any(_may_have_skills(listing) for listing in self._catalog.listings if not listing.entry.is_local):
                    return
                from gateway.catalog.remote_skills import RemoteSkills

                self._remote = RemoteSkills(self._catalog)
            had = bool(self._remote.skills)
            await self._remote.read_servers(only)
            if self._remote.skills or had:
                await self._serve(self._remote)


def _may_have_skills(listing: SourceListing) -> bool:
    """Return whether the source of a listing has the skills extension or lists resources that look like skills."""
    return listing.serves_skills or any(uri.startswith("skill://") for uri in listing.natives.get("resources", {}).values())
