"""`ChildProcesses`: limits the child processes (stdio servers) of one gateway, ends them with the gateway, and prevents endless starts.

A process that all callers share and a process of a single caller each count as one. If the limit is reached, the process that was idle
longest is stopped.

A killed gateway cannot clean up, so a small shell process watches the gateway. The shell reads a pipe that only the gateway writes to. When
the pipe breaks, the shell kills the registered process groups. That includes grandchildren and works on every POSIX system; a process that
leaves its group (a daemon) is not covered. On Windows the SDK uses job objects.

A gateway whose configuration starts the same gateway again, directly or through other gateways, would never stop starting processes.
Therefore the environment of each child process lists the gateways through which the process was started (`LINEAGE_VARIABLE`). A gateway
that finds its own configuration in the list starts no process.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from subprocess import DEVNULL
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc

from gateway.errors import NotSent
from gateway.processes import seal_descriptors
from gateway.upstream.gateway_chain import MAX_HOPS, configuration_of
from gateway.upstream.large_bodies import LargeBodies

if TYPE_CHECKING:
    from gateway.upstream.single_servers import SingleServers

logger = logging.getLogger(__name__)

PLACE_SECONDS = 10.0
"""Seconds that the start of a process waits for another process to end, if the limit of processes is reached.

Stopping an idle process, which makes room, takes up to three grace periods (`stdio.GRACE_SECONDS`).
"""

LINEAGE_VARIABLE = "MOONGATE_LINEAGE"
"""Environment variable of a child process: the ids of the gateways through which it was started, outermost first, separated by spaces."""

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
"""Shell script that kills the gateway's process groups after the gateway has died.

It reads lines from the gateway: `+ ID` adds a process group, `- ID` removes one. When its input ends, it kills the groups that remain.
"""


class Holder(Protocol):
    """The owner of one running child process. The owner can stop the process to make room for another process."""

    def idle_since(self) -> float | None:
        """Return the event loop time at which the last use of the process ended, or at which it became ready if it was not used yet.

        Return `None` while the process cannot be stopped, because it is starting or in use.
        """
        ...

    def evict(self) -> None:
        """Begin to stop the process, which is idle, and return at once. The process counts towards the limit until it has ended."""
        ...


class ChildProcesses:
    """Limits and watches the child processes of one gateway that are stdio servers.

    Enter this context manager before the first process starts, and leave it after the last process has ended.
    """

    def __init__(self, limit: int, own_id: str) -> None:
        """Allow at most `limit` running processes. `own_id` is this gateway's id, which `lineage` adds for each process."""
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
        self.singles: SingleServers | None = None
        """Opens servers with `single: true`; `None` if this gateway shares no database. Set before the first server starts."""
        self.bodies: LargeBodies | None = None
        """Limits the memory for large responses of all servers of this gateway, also over HTTP. Set before the first server starts."""

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

    @property
    def running(self) -> int:
        """Number of child processes that run now."""
        return len(self._holders)

    def lineage(self, server: str) -> dict[str, str]:
        """Return the environment variable `LINEAGE_VARIABLE` for a child process of `server`, as a dict with one entry.

        Its value lists the ids of the gateways that started this gateway, then this gateway's id.

        Raises:
            NotSent: One of the gateways that started this gateway has the same configuration, or there are `MAX_HOPS` of them.
        """
        if configuration_of(self._own_id) in map(configuration_of, self._lineage):
            why = "this gateway was started by a gateway with the same configuration, so gateways would start each other endlessly"
            fix = "remove the server that starts it, or start it with another configuration"
            raise NotSent(f"Server {server!r} is not started: {why}; {fix}.", server=server)
        if len(self._lineage) >= MAX_HOPS:
            why = f"{len(self._lineage)} gateways started each other already; at most {MAX_HOPS} are allowed"
            raise NotSent(f"Server {server!r} is not started: {why}.", server=server)
        return {LINEAGE_VARIABLE: " ".join([*self._lineage, self._own_id])}

    @asynccontextmanager
    async def place(self, server: str, holder: Holder) -> AsyncGenerator[None, None]:
        """Count one process of `server` towards the limit while this context is entered. At the limit, stop an idle process first.

        Raises:
            NotSent: The limit is reached, and no process ended within `PLACE_SECONDS`.
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
            raise NotSent(f"Server {server!r} cannot start: all {self._limit} server processes are busy; {fix}.", server=server)
        self._holders.append(holder)
        try:
            yield
        finally:
            self._holders.remove(holder)
            if holder in self._leaving:
                self._leaving.remove(holder)
            self._wake_waiting()

    def note_idle(self) -> None:
        """Wake the process starts that wait at the limit. Called when a process became idle, because it can now be stopped for them."""
        if self._waiting:
            self._wake_waiting()

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _make_room(self) -> None:
        """Stop the process that was idle longest. Do nothing if a process is being stopped already for each start that waits for room."""
        if len(self._leaving) > self._waiting:
            return
        idle = [(since, n) for n, h in enumerate(self._holders) if h not in self._leaving and (since := h.idle_since()) is not None]
        if idle:
            holder = self._holders[min(idle)[1]]
            self._leaving.append(holder)
            holder.evict()

    async def watch(self) -> None:
        """Start the shell process that kills child processes after the gateway has died. Call it before a child process starts."""
        if sys.platform != "win32" and self._watch is None:
            async with self._lock:
                if self._watch is None:
                    await self._start_watch()

    async def guard(self, group: int) -> None:
        """Register process group `group` with the watching shell, which kills it if the gateway dies before `release`."""
        self._groups.add(group)
        await self._send_line(f"+ {group}\n")

    async def release(self, group: int) -> None:
        """Unregister a process group that has ended, because the system may reuse its number."""
        self._groups.discard(group)
        await self._send_line(f"- {group}\n")

    async def _send_line(self, line: str) -> None:
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
        """Start the shell process that watches the gateway, and register every process group with it.

        Called again if an earlier shell process was killed.
        """
        try:
            # In a session of its own, the shell survives a signal to the gateway's process group.
            env = {"PATH": os.environ.get("PATH", os.defpath)}
            seal_descriptors()
            self._watch = await anyio.open_process(
                ["/bin/sh", "-c", _WATCH], stdout=DEVNULL, stderr=DEVNULL, env=env, start_new_session=True
            )
            assert self._watch.stdin is not None
            await self._watch.stdin.send("".join(f"+ {group}\n" for group in sorted(self._groups)).encode())
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            logger.warning("watching shell not started, server processes would outlive a killed gateway error=%s", type(error).__name__)
