"""`ChildProcesses`: the server processes of one gateway. How many there may be, that none outlives the gateway, and none starts it again.

Shared processes and those of single callers count alike; where all places are taken, the one unused longest makes room.
A gateway that is killed cannot clean up, so a small shell of our own watches over it: it holds the end of a pipe that only
the gateway writes to, and when that breaks it ends the process groups it was told of. That covers grandchildren and works on
every POSIX system; what leaves its process group on purpose (a daemon) is out of reach. Windows has job objects of the SDK.

A gateway that starts itself, maybe through others, would do so without end. So the environment of each process names the gateways that
it comes from (`LINEAGE_VARIABLE`), and a gateway that finds its own configuration there starts no process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL
from typing import Protocol

import anyio
import anyio.abc

from gateway.errors import UpstreamUnavailable
from gateway.processes import seal_descriptors
from gateway.upstream.hop import MAX_HOPS, configuration_of
from gateway.upstream.large import LargeBodies

logger = logging.getLogger(__name__)

PLACE_SECONDS = 10.0
"""How long a start waits for a place: an idle process takes up to three grace times to leave."""

LINEAGE_VARIABLE = "MOONGATE_LINEAGE"
"""Environment of a server process: the hop ids of the gateways that started each other down to it, oldest first."""

_WATCH = """
groups=
while read -r op id; do
  case $op in
    +) groups="$groups $id" ;;
    -) kept=; for g in $groups; do [ "$g" = "$id" ] || kept="$kept $g"; done; groups=$kept ;;
  esac
done
[ -n "$groups" ] || exit 0
for g in $groups; do kill -TERM -"$g" 2>/dev/null; done
sleep 1
for g in $groups; do kill -KILL -"$g" 2>/dev/null; done
"""
"""Keeps the list of process groups from `+ID` and `-ID` lines; ends them when its input ends."""


class Holder(Protocol):
    """Whoever holds a place."""

    def idle_since(self) -> float | None:
        """The time of its last use, or `None` while it is in use or starting."""
        ...

    def evict(self) -> None:
        """Stop soon; called only when idle. The place counts as taken until the process is gone."""
        ...


class ChildProcesses:
    """Enter it before the first server starts; leave it after the last one stopped."""

    def __init__(self, limit: int, own_id: str) -> None:
        """At most `limit` processes at once; `own_id` is this gateway's hop id. No side effects."""
        self._limit = limit
        self._own_id = own_id
        self._lineage = os.environ.get(LINEAGE_VARIABLE, "").split()
        self._holders: list[Holder] = []
        self._leaving: list[Holder] = []
        self._changed = anyio.Event()
        self._waiting = 0
        self._groups: set[int] = set()
        self._watch: anyio.abc.Process | None = None
        self._lock = anyio.Lock()
        self.bodies: LargeBodies | None = None
        """What limits the large answers of all servers of this gateway, over HTTP too; set before the first server starts."""

    async def __aenter__(self) -> ChildProcesses:
        return self

    async def __aexit__(self, *exc: object) -> None:
        watch, self._watch = self._watch, None
        if self.bodies is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PLACE_SECONDS):
                await self.bodies.helpers.aclose()
        if watch is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(PLACE_SECONDS):
                await watch.aclose()

    def lineage(self, server: str) -> dict[str, str]:
        """What the environment of a process says of where it comes from.

        Raises:
            UpstreamUnavailable: It would be started in a circle of gateways, or by too many that start each other.
        """
        if configuration_of(self._own_id) in map(configuration_of, self._lineage):
            why = "this gateway was started by a gateway with the same configuration, which would go on without end"
            fix = "remove the server that starts it, or start it with another configuration"
            raise UpstreamUnavailable(f"Server {server!r} is not started: {why}; {fix}.", server=server)
        if len(self._lineage) >= MAX_HOPS:
            why = f"{len(self._lineage)} gateways started each other already; at most {MAX_HOPS} are allowed"
            raise UpstreamUnavailable(f"Server {server!r} is not started: {why}.", server=server)
        return {LINEAGE_VARIABLE: " ".join([*self._lineage, self._own_id])}

    @asynccontextmanager
    async def place(self, server: str, holder: Holder) -> AsyncGenerator[None, None]:
        """Hold one of the places while a process lives.

        Raises:
            UpstreamUnavailable: All are taken by busy processes.
        """
        with anyio.move_on_after(PLACE_SECONDS):
            while len(self._holders) >= self._limit:
                self._make_room()
                self._waiting += 1
                try:
                    await self._changed.wait()
                finally:
                    self._waiting -= 1
        if len(self._holders) >= self._limit:
            fix = "try again later, or raise `server.maxChildProcesses`"
            raise UpstreamUnavailable(f"Server {server!r} cannot start: all {self._limit} server processes are busy; {fix}.", server=server)
        self._holders.append(holder)
        try:
            yield
        finally:
            self._holders.remove(holder)
            if holder in self._leaving:
                self._leaving.remove(holder)
            self._tell()

    def note_idle(self) -> None:
        """A holder came to rest; whoever waits for a place looks again."""
        if self._waiting:
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _make_room(self) -> None:
        """Ask as many idle holders to leave as there are starts waiting, the one unused longest first."""
        if len(self._leaving) > self._waiting:
            return
        idle = [(since, n) for n, h in enumerate(self._holders) if h not in self._leaving and (since := h.idle_since()) is not None]
        if idle:
            holder = self._holders[min(idle)[1]]
            self._leaving.append(holder)
            holder.evict()

    async def watch(self) -> None:
        """Be ready to guard a process as soon as it runs: until then nobody would end it."""
        if sys.platform != "win32" and self._watch is None:
            async with self._lock:
                if self._watch is None:
                    await self._start_watch()

    async def guard(self, group: int) -> None:
        """End process group `group` when the gateway dies without having released it."""
        self._groups.add(group)
        await self._say(f"+ {group}\n")

    async def release(self, group: int) -> None:
        """The process group has ended; its number may be given to others."""
        self._groups.discard(group)
        await self._say(f"- {group}\n")

    async def _say(self, line: str) -> None:
        if sys.platform == "win32":
            return
        async with self._lock:
            if self._watch is not None and self._watch.stdin is not None:
                with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._watch.stdin.send(line.encode())
                    return
            if self._groups:
                await self._start_watch()

    async def _start_watch(self) -> None:
        """Start the watching shell, or another one after it was killed, and tell it of every group."""
        try:
            # In a session of its own, so that what kills the gateway's group does not kill it too.
            env = {"PATH": os.environ.get("PATH", os.defpath)}
            seal_descriptors()
            self._watch = await anyio.open_process(
                ["/bin/sh", "-c", _WATCH], stdout=DEVNULL, stderr=DEVNULL, env=env, start_new_session=True
            )
            assert self._watch.stdin is not None
            await self._watch.stdin.send("".join(f"+ {group}\n" for group in sorted(self._groups)).encode())
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.warning("server processes will not be ended if the gateway is killed: cannot watch over them: %s", type(error).__name__)
