"""`Readiness`: decides when a starting gateway may answer the first listing request (such as `tools/list`).

The first listing waits for servers that are still connecting, up to `server.startupTimeoutSeconds`, so that it is complete. It does not
wait for a server whose lists are cached from an earlier start, or that has not answered within `source.SILENT_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio

from gateway.upstream.source import UpstreamSource


class Readiness:
    """Tracks which servers of a starting gateway have connected or failed for the first time, while `watch` runs.

    The other methods may be called before `watch`.
    """

    def __init__(self, startup_timeout_seconds: float) -> None:
        """Start the timeout (`server.startupTimeoutSeconds`) after which listings no longer wait for servers."""
        self._deadline = anyio.current_time() + startup_timeout_seconds
        self._settled, self._listable = anyio.Event(), anyio.Event()
        self._awaited: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether each server that `watch` received has connected, or failed its first attempt to connect."""
        return self._settled.is_set()

    async def settled(self) -> None:
        """Wait until each server that the gateway connects at its start has connected, or failed its first attempt to connect.

        This does not wait for servers that connect at their first call (`start: lazy`, with lists stored by an earlier run) or that a
        reload of the configuration added.
        """
        await self._settled.wait()

    async def watch(self, servers: Sequence[UpstreamSource], ready: Callable[[UpstreamSource], Coroutine[Any, Any, None]]) -> None:
        """Call `ready` for all servers concurrently, and return when all calls have returned.

        `ready` waits until its server has connected or failed to connect. Meanwhile, listings wait for the servers that respond and have no
        cached lists.
        """
        self._awaited = {server.id for server in servers if not server.lists.is_known}
        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(ready, server)
                tasks.start_soon(self._skip_silent, server)
        self._settled.set()
        self._listable.set()

    async def _skip_silent(self, server: UpstreamSource) -> None:
        if await server.is_silent():
            self.skip(server.id)

    def skip(self, server: str) -> None:
        """Remove a server from those that listings wait for, because it has connected, failed to connect, or does not respond."""
        self._awaited.discard(server)
        if not self._awaited:
            self._listable.set()

    async def listable(self, is_complete: Callable[[], bool]) -> None:
        """Wait until a list request may be answered: each server has connected, failed or been skipped (`skip`), or the timeout has passed.

        Return at once if `is_complete()` is true.
        """
        if self._listable.is_set() or is_complete():
            return
        with anyio.move_on_after(max(0.0, self._deadline - anyio.current_time())):
            await self._listable.wait()
