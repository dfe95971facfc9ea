"""`Readiness`: decides when the first listing of a starting gateway may be answered, and when every server has settled.

`Gateway` owns one. A listing waits for servers that still connect, up to `server.startupTimeoutSeconds`, so that the first answer to a
client is complete. A server that is known from an earlier start, or that does not answer at all, is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio

from gateway.upstream.source import UpstreamSource


class Readiness:
    """State of the servers' first connections. `watch` must run; the other methods may be called before it."""

    def __init__(self, startup_timeout_seconds: float) -> None:
        """The timeout counts from here."""
        self._deadline = anyio.current_time() + startup_timeout_seconds
        self._settled, self._listable = anyio.Event(), anyio.Event()
        self._awaited: set[str] = set()

    @property
    def is_settled(self) -> bool:
        """Whether every server that the gateway started with is ready or has failed once."""
        return self._settled.is_set()

    async def settled(self) -> None:
        """Wait until `is_settled`."""
        await self._settled.wait()

    async def watch(self, servers: Sequence[UpstreamSource], ready: Callable[[UpstreamSource], Coroutine[Any, Any, None]]) -> None:
        """Call `ready` for each server, which waits for it and takes it up; return when all of them have returned."""
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
        """Do not let a listing wait for this server, or not any longer."""
        self._awaited.discard(server)
        if not self._awaited:
            self._listable.set()

    async def listable(self, is_complete: Callable[[], bool]) -> None:
        """Wait until a listing may be answered: no server is waited for, `is_complete` returns true, or the timeout is over."""
        if self._listable.is_set() or is_complete():
            return
        with anyio.move_on_after(max(0.0, self._deadline - anyio.current_time())):
            await self._listable.wait()
