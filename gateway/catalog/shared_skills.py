"""`SharedSkills`: decides when to list the skills of remote servers: on connection, on resource changes, and when a `ttlMs` has passed.

It imports the packages for skills only when the first server has skills. `catalog.remote_skills` lists the skills, and `local_sources`
serves them together with the gateway's own skills.
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
"""Maximum seconds for which listing the skills of a newly connected server delays the gateway's first list responses to clients."""

MAX_REST_SECONDS = 3600.0
"""Seconds after which the gateway checks all servers for skills again if no server has had any."""


class SharedSkills:
    """Keeps the list of remote servers' skills current.

    `read_server` lists the skills of a new server; `run` lists the skills of all servers again.
    """

    def __init__(self, catalog: Catalog, serve: Callable[[RemoteSkills], Awaitable[None]]) -> None:
        """Store the arguments and subscribe to the catalog's changes.

        `serve` adds the skills to the gateway's skill index. It is called after a listing if servers have skills now, or had skills before
        this listing.
        """
        self._catalog = catalog
        self._serve = serve
        self._remote: RemoteSkills | None = None
        self._wanted = anyio.Event()
        self._lock = anyio.Lock()
        self._reading = 0
        catalog.subscribe(self._note)

    @property
    def remote(self) -> RemoteSkills | None:
        """The backend that holds the skills of remote servers; `None` until a server is found that may have skills."""
        return self._remote

    @property
    def is_reading(self) -> bool:
        """Whether the first listing of the skills of any server is in progress."""
        return self._reading > 0

    async def read_server(self, upstream: UpstreamSource) -> None:
        """Wait until a server has connected or failed to connect, then list its skills, for at most `FIRST_READ_SECONDS`."""
        await upstream.settled()
        self._reading += 1
        try:
            with anyio.move_on_after(FIRST_READ_SECONDS):
                await self._read(upstream.id)
        finally:
            self._reading -= 1

    async def run(self) -> None:
        """Until cancelled, list the skills of all servers again when resources change, when `wake` is called, or after a list's `ttlMs`."""
        while True:
            with anyio.move_on_after(self._remote.refresh_seconds if self._remote is not None else MAX_REST_SECONDS):
                await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._read(None)

    def wake(self) -> None:
        """Let `run` list the skills of all servers again soon. Returns at once."""
        self._wanted.set()

    def _note(self, kind: ChangeKind) -> None:
        if kind == "resources":
            self._wanted.set()

    async def _read(self, only: str | None) -> None:
        async with self._lock:
            await self._catalog.catch_up()
            if self._remote is None:
                remote = (s for s in self._catalog.listings if not s.entry.is_local and only in (None, s.entry.source.id))
                if not any(map(_may_have_skills, remote)):
                    return
                from gateway.catalog.remote_skills import RemoteSkills

                self._remote = RemoteSkills(self._catalog)
            had = bool(self._remote.skills)
            await self._remote.read_servers(only)
            if self._remote.skills or had:
                await self._serve(self._remote)


def _may_have_skills(listing: SourceListing) -> bool:
    """Return whether the source of a listing supports the skills extension, or lists resources with a `skill://` URI."""
    return listing.serves_skills or any(uri.startswith("skill://") for uri in listing.natives.get("resources", {}).values())
