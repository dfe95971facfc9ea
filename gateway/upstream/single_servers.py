"""`SingleServers`: lets exactly one of several gateways run the process of each stdio server with `single: true`.

The right to run the process is a lease in the database that the gateways share. Its owner renews it. All other gateways forward the
requests of their sessions to the owner (`carriers.owner_carrier`). If the owner does not renew its lease in time, another gateway begins
the next lease and starts the process.

Two processes never serve at the same time. The owner counts the time of its lease from before the renewal, so that the lease ends earlier
for the owner than for the database. At its end, a process beside the owner kills the child (`child_deadline`), also if the owner is
suspended, and the owner sends the child no further request.

Decided: requests are forwarded per session with the server. Because: agents, workflows and tasks call servers too, and not only requests
of clients. Instead of: forwarding the HTTP request of a client to the owner. Revisit when: only clients call servers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc

from gateway.errors import NotSent, SessionGone, StorageError
from gateway.json_types import JsonMapping, JsonObject
from gateway.upstream.carriers.carrier import Carrier, Headers, OutgoingRequest, Receiver
from gateway.upstream.carriers.owner_carrier import OwnerCarrier, OwnerChannel
from gateway.upstream.child_deadline import ChildDeadline

if TYPE_CHECKING:
    from gateway.storage.server_leases import ServerLease, ServerLeases

logger = logging.getLogger(__name__)

LEASE_SECONDS = 4.0
"""Seconds for which a lease is valid after its renewal."""

RENEW_SECONDS = 1.0
"""Seconds between two renewals of a lease."""

MARGIN_SECONDS = 0.5
"""Seconds by which the child is killed before the lease ends."""

LOOK_SECONDS = 0.3
"""Seconds between two reads of the lease while the gateway that owns it cannot be reached."""

LISTEN_SECONDS = 10.0
"""Seconds for which the first connection waits until this gateway serves HTTP, so that the other gateways can reach it."""

ANSWER_SECONDS = 3.0
"""Timeout in seconds of one renewal. A lease that cannot be renewed ends."""

OpenChild = Callable[["OnChild"], AbstractAsyncContextManager[Carrier]]
"""Function that starts the child process. It calls `OnChild` with the process group of the child after the start."""

OnChild = Callable[[int], AbstractAsyncContextManager[None]]


class LeaseStore(Protocol):
    """Interface of `Records`, as far as this module needs it."""

    async def server_leases(self) -> ServerLeases:
        """Open the database if necessary, and return the leases. Raises `StorageError`."""
        ...


class SingleServers:
    """Opens the transport to stdio servers with `single: true`: to the process, if this gateway owns the lease, else to its owner."""

    def __init__(self, store: LeaseStore, channel: Callable[[], OwnerChannel | None]) -> None:
        """`channel` returns the connection to the other gateways; `None` while it does not exist."""
        self._store = store
        self._channel = channel
        self._held: list[FencedCarrier] = []
        self._owned_servers: set[str] = set()
        self._is_leaving = False

    def owns(self, server: str) -> bool:
        """Return whether this gateway holds the lease of `server` and does not hand it over."""
        return server in self._owned_servers and not self._is_leaving

    def leave(self) -> None:
        """Hand over all leases, each when no request of its server is pending, and begin no further ones, because this gateway stops."""
        self._is_leaving = True
        for carrier in self._held:
            carrier.leave()

    @asynccontextmanager
    async def open(self, server: str, open_child: OpenChild) -> AsyncGenerator[Carrier, None]:
        """Yield the carrier of `server`. It closes when this gateway loses its lease, or the other gateway loses it.

        Raises:
            NotSent: This gateway does not serve HTTP, so it can take no part; or the child cannot be started.
            StorageError: The leases cannot be read.
        """
        channel = await self._listening(server)
        while True:
            lease, is_mine, deadline = await self._take(server, channel.id)
            if is_mine:
                async with self._owned(server, lease, deadline, open_child) as carrier:
                    yield carrier
                return
            if lease.owner and lease.owner != channel.id and await channel.find(lease.owner):
                carrier = OwnerCarrier(server, lease.owner, channel)
                if await carrier.connect():
                    try:
                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(self._close_with_lease, server, lease, carrier)
                            yield carrier
                            tasks.cancel_scope.cancel()
                    finally:
                        await carrier.aclose()
                    return
            await anyio.sleep(LOOK_SECONDS)

    async def _listening(self, server: str) -> OwnerChannel:
        with anyio.move_on_after(LISTEN_SECONDS):
            while (channel := self._channel()) is None or not channel.is_listening:  # noqa: ASYNC110  # uvicorn has no event
                await anyio.sleep(0.05)
            return channel
        text = f"Server {server!r} has `single: true`, and only gateways that serve HTTP can use it. Connect to such a gateway."
        raise NotSent(text, server=server)

    async def _take(self, server: str, own: str) -> tuple[ServerLease, bool, float]:
        started = time.monotonic()
        leases = await self._store.server_leases()
        lease, is_mine = await leases.take(server, own, LEASE_SECONDS, may_own=not self._is_leaving)
        return lease, is_mine, started + LEASE_SECONDS - MARGIN_SECONDS

    @asynccontextmanager
    async def _owned(self, server: str, lease: ServerLease, deadline: float, open_child: OpenChild) -> AsyncGenerator[Carrier, None]:
        """Start the child, renew the lease while its carrier is used, and release the lease after the end of the child."""
        logger.info("server lease begun server=%s epoch=%d", server, lease.epoch)
        held = Held(server, deadline)
        self._owned_servers.add(server)
        try:
            async with AsyncExitStack() as stack:
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                tasks.start_soon(self._renew, server, lease, held)
                carrier = FencedCarrier(await stack.enter_async_context(open_child(held.guard)), held)
                self._held.append(carrier)
                stack.callback(self._held.remove, carrier)
                if self._is_leaving:
                    carrier.leave()
                tasks.start_soon(carrier.end_with_lease)
                yield carrier
        finally:
            self._owned_servers.discard(server)
            with anyio.move_on_after(ANSWER_SECONDS, shield=True):
                try:
                    await (await self._store.server_leases()).release(server, lease)
                except StorageError as error:
                    logger.warning("server lease not released server=%s error=%s", server, error)
            logger.info("server lease ended server=%s epoch=%d", server, lease.epoch)

    async def _renew(self, server: str, lease: ServerLease, held: Held) -> None:
        while held.is_valid:
            await anyio.sleep(RENEW_SECONDS)
            started = time.monotonic()
            if not held.is_valid:
                break
            try:
                with anyio.fail_after(ANSWER_SECONDS):
                    if not await (await self._store.server_leases()).renew(server, lease, LEASE_SECONDS):
                        break
                await held.move(started + LEASE_SECONDS - MARGIN_SECONDS)
            except (StorageError, TimeoutError) as error:
                logger.warning("server lease not renewed server=%s error=%r", server, str(error))
            except NotSent as error:
                logger.warning("server lease given up server=%s error=%r", server, str(error))
                break
        held.lose()

    async def _close_with_lease(self, server: str, lease: ServerLease, carrier: OwnerCarrier) -> None:
        """Close the connection to an owner when its lease has ended."""
        while True:
            await anyio.sleep(RENEW_SECONDS)
            try:
                found, _ = await (await self._store.server_leases()).take(server, "", 0, may_own=False)
            except StorageError:
                continue
            if found != lease or not await carrier.channel.find(lease.owner):
                carrier.close()
                return


class Held:
    """A lease of this gateway, with its deadline by this machine's clock."""

    def __init__(self, server: str, deadline: float) -> None:
        self.server = server
        self.lost = anyio.Event()
        self._deadline = deadline
        self._child: ChildDeadline | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the deadline has not passed, and the lease is not lost."""
        return time.monotonic() < self._deadline and not self.lost.is_set()

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - time.monotonic()

    @asynccontextmanager
    async def guard(self, group: int) -> AsyncGenerator[None]:
        """Context manager: kill the process group `group` at the deadline."""
        async with ChildDeadline.held(self.server, group, self._deadline) as self._child:
            yield

    async def move(self, deadline: float) -> None:
        """Set a later deadline, because the lease was renewed. Raises `NotSent` if the child would not be killed then."""
        if self._child is not None:
            await self._child.move(deadline)
        self._deadline = deadline

    def lose(self) -> None:
        """Record that this gateway no longer owns the lease."""
        self.lost.set()


class FencedCarrier:
    """The carrier of a child process, which sends requests only while this gateway owns the lease of the server."""

    has_headers = False

    def __init__(self, carrier: Carrier, held: Held) -> None:
        self._carrier = carrier
        self._held = held
        self._running = 0
        self._is_leaving = False
        self.is_single_stream = carrier.is_single_stream

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._carrier.is_open and self._held.is_valid and not self._is_leaving

    def leave(self) -> None:
        """Close the carrier when no request is pending. Until then, refuse further requests."""
        self._is_leaving = True
        if not self._running:
            self._held.lose()

    @property
    def has_lost_lease(self) -> bool:
        """Whether this gateway has lost its lease or handed it over, so that another gateway runs the server now."""
        return self._held.lost.is_set()

    async def end_with_lease(self) -> None:
        """Close the carrier when the lease has ended."""
        while self._held.is_valid:
            with anyio.move_on_after(max(self._held.seconds_left, 0.01)):
                await self._held.lost.wait()
        self._held.lose()
        self.close()

    async def request(self, request: OutgoingRequest) -> JsonObject:
        """Send one request and return its result (`Carrier.request`). Without a valid lease, raise `SessionGone`."""
        if not self._held.is_valid or self._is_leaving:
            raise SessionGone(f"This gateway no longer runs server {self._held.server!r}; another one does.", server=self._held.server)
        is_call = request.ctx is not None
        self._running += is_call
        try:
            return await self._carrier.request(request)
        finally:
            self._running -= is_call
            if self._is_leaving and not self._running:
                self._held.lose()

    async def notify(self, method: str, params: JsonMapping | None, headers: Headers) -> None:
        """Send a notification to the child, while the lease is valid (`Carrier.notify`)."""
        if self._held.is_valid:
            await self._carrier.notify(method, params, headers)

    async def serve(self, receiver: Receiver, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Pass the child's messages to `receiver` until the connection ends, or the lease does (`Carrier.serve`)."""
        async with anyio.create_task_group() as tasks:

            async def end() -> None:
                await self._held.lost.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end)
            await self._carrier.serve(receiver, task_status=task_status)
            tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Fail all pending requests (`Carrier.close`)."""
        self._carrier.close()


def is_handed_over(carrier: Carrier) -> bool:
    """Whether a closed carrier has ended because another gateway runs, or will run, the process of the server."""
    return isinstance(carrier, OwnerCarrier) or (isinstance(carrier, FencedCarrier) and carrier.has_lost_lease)
