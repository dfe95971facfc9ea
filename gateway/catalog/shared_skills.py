"""`SharedSkills`: decides when to read the skills of remote servers: on connection, on resource changes, and when their cache expires.

The packages for skills are imported when the first server has skills. `catalog.remote_skills` reads the skills, and `local_sources` serves
them with the gateway's own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from gateway.catalog import Catalog
from gateway.catalog.shelf import Shelf
from gateway.tools.base import ChangeKind
from gateway.upstream.source import UpstreamSource

if TYPE_CHECKING:
    from gateway.catalog.remote_skills import RemoteSkills

logger = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 10.0
"""Maximum seconds for which reading a new server's skills delays the first listing."""

MAX_REST_SECONDS = 3600.0
"""Seconds after which the servers are asked again for skills if no server has any."""


class SharedSkills:
    """The skills of all remote servers: `meet` reads those of a new server, and `run` reads all of them again when needed."""

    def __init__(self, catalog: Catalog, serve: Callable[[RemoteSkills], Awaitable[None]]) -> None:
        """`serve` puts the skills into the gateway's index. It is called after each read, as long as a server has or had skills."""
        self._catalog = catalog
        self._serve = serve
        self._remote: RemoteSkills | None = None
        self._wanted = anyio.Event()
        self._lock = anyio.Lock()
        self._meeting = 0
        catalog.subscribe(self._note)

    @property
    def remote(self) -> RemoteSkills | None:
        """The skills of remote servers; `None` until a server has skills."""
        return self._remote

    @property
    def is_looking(self) -> bool:
        """Whether the skills of any server are being read for the first time."""
        return self._meeting > 0

    async def meet(self, upstream: UpstreamSource) -> None:
        """Read a server's skills when it has connected or failed to connect; give up waiting after `FIRST_LOOK_SECONDS`."""
        await upstream.settled()
        self._meeting += 1
        try:
            with anyio.move_on_after(FIRST_LOOK_SECONDS):
                await self._look(upstream.id)
        finally:
            self._meeting -= 1

    async def run(self) -> None:
        """Until cancelled, read the skills again when resources change or the cache expires."""
        while True:
            with anyio.move_on_after(self._remote.rest_seconds if self._remote is not None else MAX_REST_SECONDS):
                await self._wanted.wait()
            self._wanted = anyio.Event()
            await self._look(None)

    def wake(self) -> None:
        """Read the skills of all servers again soon."""
        self._wanted.set()

    def _note(self, kind: ChangeKind) -> None:
        if kind == "resources":
            self._wanted.set()

    async def _look(self, only: str | None) -> None:
        async with self._lock:
            await self._catalog.catch_up()
            if self._remote is None:
                if not any(_may_have_skills(shelf) for shelf in self._catalog.shelves if not shelf.entry.is_local):
                    return
                from gateway.catalog.remote_skills import RemoteSkills

                self._remote = RemoteSkills(self._catalog)
            had = bool(self._remote.skills)
            await self._remote.look(only)
            if self._remote.skills or had:
                await self._serve(self._remote)


def _may_have_skills(shelf: Shelf) -> bool:
    """Return whether the source of a shelf has the skills extension or lists resources that look like skills."""
    return shelf.serves_skills or any(uri.startswith("skill://") for uri in shelf.natives.get("resources", {}).values())
