"""`Replicas`: the other gateways that share the database of this gateway, and the channel over which requests are forwarded to them.

A load balancer sends each request of a client to any replica. Most requests need nothing that one replica has alone. Some do: the answer to
a question that a replica asks a 2025 client, the retry of a call that a replica keeps waiting for input of a 2026 client, and the
continuation of an event stream. Such a request names its replica, and is forwarded there as it is (`replica_routes`). If that replica has
stopped, the request is answered by the replica that received it, with the error that says what to send instead.

Decided: HTTP requests to the ordinary port of the other replica, signed with a key that only replicas have (`replica_signature`). Because:
they need no further port, service or certificate, and the receiver applies its own limits. Instead of: messages through the database, which
would carry whole results. Revisit when: much traffic must be forwarded.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import anyio
from pydantic_core import from_json, to_json

from gateway.auth.principal import LOCAL
from gateway.errors import NotSent, OutcomeUnknown, SessionGone, StorageError, TooLarge
from gateway.protocol import INTERNAL_ERROR, RpcError
from gateway.server.event_ids import LOST
from gateway.server.head import Head
from gateway.server.http_responses import Refusal
from gateway.server.replica_signature import HEADER, SERVER_SCHEME, Route, Signed, forwarded_headers, sign, verify
from gateway.storage.shared_clock import shared_now
from gateway.telemetry.sparse_log import SparseLog
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES, too_large
from gateway.wire.rpc_envelope import error_response
from gateway.wire.sse import SseParser, encode_event

if TYPE_CHECKING:
    import httpx2
    from starlette.types import Send

    from gateway.json_types import JsonObject, JsonValue
    from gateway.storage.replica_rows import ReplicaRow, ReplicaRows

logger = logging.getLogger(__name__)

RENEW_SECONDS = 1.0
"""Seconds between two renewals of this replica's row in the database."""

LOOK_SECONDS = 0.25
"""Minimum seconds between two reads of the replicas from the database, when clients name replicas that are unknown."""

LIVE_SECONDS = 4.0
"""Seconds without a renewal after which a replica is dead: no requests are forwarded to it."""

CONNECT_SECONDS = 2.0
"""Timeout in seconds for connecting to another replica."""

WRITE_SECONDS = 10.0
"""Timeout in seconds for sending a part of a request to another replica."""

MAX_IDLE = 16
"""Maximum number of idle connections to other replicas that are kept for further requests."""

STOP_SECONDS = 2.0
"""Timeout in seconds for the deletion of this replica's row when it stops."""

MAX_NONCES = 100_000
"""Maximum number of signatures that are remembered so that none is used twice. Beyond it, forwarded requests are refused."""

REFUSED = "The gateway that this request belongs to refused it, so it did not run. Try again; `moongate doctor` shows the gateways."

_KEPT_HEADERS = frozenset({"content-type", "mcp-session-id", "cache-control", "x-accel-buffering", "retry-after"})


class ReplicaStore(Protocol):
    """Interface of `Records`, as far as this module needs it."""

    async def replicas(self) -> ReplicaRows:
        """Open the database if necessary, and return the table of running replicas. Raises `StorageError`."""
        ...


class Replicas:
    """Knows the running replicas of this gateway, forwards requests to them, and verifies the requests that they forward."""

    def __init__(self, key: bytes, store: ReplicaStore, version: str, clock: Callable[[], float] = shared_now) -> None:
        """`key` (32 bytes), which all replicas have, signs forwarded requests. `version` is this program's version.

        `clock` returns the time of the database server in seconds since the epoch, because the clocks of machines differ.
        """
        self._clock = clock
        self.id = secrets.token_hex(4)
        """Random id of this process, which is a part of the names that it gives to questions, waiting calls and event streams."""
        self._key = key
        self._store = store
        self._version = version
        self.configuration: Callable[[], str] = lambda: ""
        """Returns a digest of the configuration in use, which `moongate doctor` shows for each replica."""
        self._peers: dict[str, ReplicaRow] = {}
        self._seen_at = self._looked_at = float("-inf")
        """Monotonic times of the last successful read of the peers, and of the last attempt."""
        self._own: ReplicaRow | None = None
        self._client: httpx2.AsyncClient | None = None
        """HTTP client for requests to other replicas; `None` before the first one. `listening` closes it."""
        self._is_wanted, self._is_read = anyio.Event(), anyio.Event()
        """Set to read the peers before the next renewal; set after each read, which then waits for another event."""
        self._nonces: OrderedDict[str, float] = OrderedDict()
        self._log = SparseLog(logger)

    @property
    def is_current(self) -> bool:
        """Whether it is known which replicas run, because the database has answered within `LIVE_SECONDS`."""
        return self._own is None or time.monotonic() - self._seen_at < LIVE_SECONDS

    async def peers(self) -> list[str]:
        """Return the ids of the other running replicas. The database is read, at most once per `LOOK_SECONDS`."""
        await self._look()
        return [peer for peer in self._peers if self.is_running(peer)]

    def is_running(self, replica: str) -> bool:
        """Whether another replica with this id runs. False if the database has not answered for `LIVE_SECONDS`."""
        return replica in self._peers and time.monotonic() - self._seen_at < LIVE_SECONDS

    async def find(self, replica: str) -> bool:
        """Return whether another replica with this id runs. If it is unknown, the database is read, at most once per `LOOK_SECONDS`."""
        if not self.is_running(replica):
            await self._look()
        return self.is_running(replica)

    async def _look(self) -> None:
        """Let the database be read now, unless it was read less than `LOOK_SECONDS` ago, and wait at most `CONNECT_SECONDS` for it."""
        if self._own is not None and time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._is_wanted.set()
            with anyio.move_on_after(CONNECT_SECONDS):
                await self._is_read.wait()

    @asynccontextmanager
    async def listening(self, address: str, path: str) -> AsyncGenerator[None]:
        """Context manager: while it is entered, other replicas can forward requests to `address`, the URL of this gateway without a path.

        `path` is the URL path of the MCP endpoint.
        """
        from gateway.storage.replica_rows import ReplicaRow

        self._own = ReplicaRow(self.id, address, path, self._version, socket.gethostname())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_renewed, self._own)
            yield
            tasks.cancel_scope.cancel()
        if self._client is not None:
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                await self._client.aclose()

    async def _renew(self, own: ReplicaRow) -> None:
        """Renew the row of this replica, and read those of the others. Does not raise."""
        at = self._looked_at = time.monotonic()
        try:
            own = replace(own, configuration=self.configuration())
            rows = await (await self._store.replicas()).renew(own, LIVE_SECONDS)
            self._note({row.id: row for row in rows if row.id != self.id}, at)
        except StorageError as error:
            self._log.warning("replicas not read, no request is forwarded error=%s", error)

    async def _keep_renewed(self, own: ReplicaRow) -> None:
        try:
            while True:
                self._is_wanted = anyio.Event()
                await self._renew(own)
                is_read, self._is_read = self._is_read, anyio.Event()
                is_read.set()
                with anyio.move_on_after(RENEW_SECONDS):
                    await self._is_wanted.wait()
        finally:
            with anyio.move_on_after(STOP_SECONDS, shield=True):
                try:
                    await (await self._store.replicas()).remove(self.id)
                except StorageError as error:
                    logger.debug("replica not removed error=%s", error)

    def _note(self, peers: dict[str, ReplicaRow], at: float) -> None:
        for peer in peers.keys() - self._peers.keys():
            logger.info("replica found replica=%s address=%s version=%s", peer, peers[peer].address, peers[peer].version)
        for peer in self._peers.keys() - peers.keys():
            logger.info("replica gone replica=%s address=%s", peer, self._peers[peer].address)
        self._peers, self._seen_at = peers, at

    # -- requests from other replicas ------------------------------------------------------------------------------

    def verify(self, head: Head) -> Signed | None:
        """Return who forwarded a request, and for which principal; `None` if its signature is not valid."""
        return verify(
            self._key, head.fields.get(HEADER, b""), receiver=self.id, method=head.method, headers=head.headers, now=self._clock()
        )

    def uses(self, signed: Signed) -> bool:
        """Record that a signature was used, and return true. Return false if it was used before, or too many are remembered."""
        now = self._clock()
        while self._nonces and next(iter(self._nonces.values())) < now:
            self._nonces.popitem(last=False)
        if signed.nonce in self._nonces or len(self._nonces) >= MAX_NONCES:
            return False
        self._nonces[signed.nonce] = signed.expires_at
        return True

    # -- requests to other replicas --------------------------------------------------------------------------------

    async def forward(self, replica: str, head: Head, body: bytes, principal: str, number: JsonValue, send: Send) -> bool:
        """Forward a client's request to another replica, and pass its response on with `send`. Return false if nothing was sent there.

        `principal` is what `forwarded_text` returned for the caller.
        `number` is the JSON-RPC id of the request, or of the request whose stream a GET resumes, for an error response if the other replica
        stops before it has answered. The caller cancels this method when the client disconnects.
        """
        peer = self._peers.get(replica)
        if peer is None or not self.is_running(replica):
            return False
        answer = _Answer(number, send, is_stream=head.method == "GET")
        was_sent = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_when_dead, replica, tasks.cancel_scope)
            was_sent = await self._exchange(peer, head, body, principal, answer)
            tasks.cancel_scope.cancel()
        if was_sent:
            await answer.finish()
        return was_sent

    async def _exchange(self, peer: ReplicaRow, head: Head, body: bytes, principal: str, answer: _Answer) -> bool:
        """Send a request to another replica and pass its response on. Return false if the replica could not be reached."""
        import httpx2

        try:
            client = self._client = self._client or _new_client()
            route, headers = Route.of_client(peer.id, self.id, principal), forwarded_headers(head.headers)
            response = await client.send(self._request(client, peer, route, head.method, headers, body), stream=True)
            try:
                await answer.take(response)
            finally:
                await response.aclose()
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            self._log.warning("replica not reached replica=%s error=%s", peer.id, error)
            return False
        except httpx2.TransportError as error:
            self._log.warning("replica failed replica=%s error=%s", peer.id, error)
        return True

    def _request(
        self, client: httpx2.AsyncClient, peer: ReplicaRow, route: Route, method: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> httpx2.Request:
        signature = sign(self._key, route, method=method, headers=headers, body=body, now=self._clock())
        own = [(b"accept-encoding", b"identity"), (HEADER, signature)]
        return client.build_request(method, peer.address + peer.path, content=body, headers=[*headers, *own])

    @property
    def is_listening(self) -> bool:
        """Whether other replicas can reach this one (interface `OwnerChannel`)."""
        return self._own is not None

    @asynccontextmanager
    async def ask_owner(self, replica: str, server: str, body: bytes) -> AsyncGenerator[AsyncIterator[JsonObject]]:
        """Context manager: send a message about a server to another replica, and yield the objects of its response (`OwnerChannel`).

        Raises:
            NotSent: The replica cannot be reached, or refused the message.
            OutcomeUnknown: The connection broke after the message was sent.
            TooLarge: An object is too large.
        """
        import httpx2

        peer = self._peers.get(replica)
        if peer is None or not self.is_running(replica):
            raise SessionGone(f"The gateway that runs server {server!r} has stopped. Try again.", server=server)
        client = self._client = self._client or _new_client()
        headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream")]
        request = self._request(client, peer, Route(peer.id, self.id, LOCAL.id, SERVER_SCHEME), "POST", headers, body)
        try:
            response = await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            text = f"The gateway that runs server {server!r} cannot be reached: {error}. Try again."
            raise SessionGone(text, server=server) from None
        except httpx2.TransportError as error:
            raise OutcomeUnknown(str(error), server=server) from None
        try:
            if response.status_code != 200:
                text = f"The gateway that runs server {server!r} refused the request with HTTP status {response.status_code}. Try again."
                raise NotSent(f"{text} `moongate doctor` shows the gateways.", server=server)
            yield _objects_of(response, server)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _end_when_dead(self, replica: str, scope: anyio.CancelScope) -> None:
        while self.is_running(replica):  # noqa: ASYNC110  # a dead replica sends no event; only its row shows it
            await anyio.sleep(RENEW_SECONDS)
        scope.cancel()


async def _objects_of(response: httpx2.Response, server: str) -> AsyncIterator[JsonObject]:
    """Yield the JSON objects of an event stream. Raises `OutcomeUnknown` if the connection breaks, and `TooLarge`."""
    import httpx2

    parser = SseParser(MAX_MESSAGE_BYTES)
    try:
        async for part in response.aiter_raw():
            for data in parser.feed(part):
                yield from_json(data)
            if parser.is_too_large:
                raise TooLarge(too_large(MAX_MESSAGE_BYTES), server=server)
    except httpx2.TransportError as error:
        raise OutcomeUnknown(str(error), server=server) from None


def _new_client() -> httpx2.AsyncClient:
    import httpx2

    # A response may take as long as the call, so it has no read timeout. `forward` ends with the client, or when the other replica dies.
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=WRITE_SECONDS, pool=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE)
    client = httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=timeout, limits=limits)
    del client.headers["accept"]  # the signature covers the headers of the client's request, which may have no `Accept`
    return client


class _Answer:
    """The response of another replica, which is passed on to the client. If it breaks, its client gets an error response."""

    def __init__(self, number: JsonValue, send: Send, *, is_stream: bool) -> None:
        """`number` is the JSON-RPC id of the client's request. `is_stream` means that its client accepts only an event stream."""
        self._is_stream = is_stream
        self._number = number
        self._send = send
        self._has_begun = self._has_ended = False

    async def take(self, response: httpx2.Response) -> None:
        """Pass on the head and the body of a response. Raises `httpx2.TransportError` if the body breaks."""
        if response.status_code == 401:  # the other replica refuses this one; the client's own key is valid
            self._has_begun = self._has_ended = True
            await Refusal(503, INTERNAL_ERROR, REFUSED, 1).to_response(is_rpc=True, number=self._number)({}, _nothing, self._send)
            return
        headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items() if name in _KEPT_HEADERS]
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = await response.aread()
            headers.append((b"content-length", b"%d" % len(body)))
            self._has_begun = self._has_ended = True
            await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
            return
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for part in response.aiter_raw():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self._has_ended = True
        await self._send({"type": "http.response.body", "body": b""})

    async def finish(self) -> None:
        """Send an error response if the response has not ended: as the last event of an event stream, or as a response of its own."""
        if self._has_ended:
            return
        if not self._has_begun and self._is_stream and self._number is not None:
            self._has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        if not self._has_begun:
            await Refusal(503, INTERNAL_ERROR, LOST, 1).to_response(is_rpc=True, number=self._number)({}, _nothing, self._send)
            return
        if self._number is not None:  # without an id, the stream is the listening GET, which its client opens again
            error = to_json(error_response(self._number, RpcError(INTERNAL_ERROR, LOST)))
            await self._send({"type": "http.response.body", "body": encode_event(error, ""), "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


async def _nothing() -> dict[str, str]:
    return {"type": "http.disconnect"}


def own_address(scheme: str, host: str, port: int, database_url: str) -> str:
    """Return the URL at which other machines reach a gateway that listens at `host` and `port`.

    For a listen address that stands for all addresses, the host is the address of this machine in the network of the database server.
    """
    from gateway.server.origins import WILDCARDS, host_port

    if host in WILDCARDS:
        host = _address_towards(database_url)
    return f"{scheme}://{host_port(host, port)}"


def _address_towards(database_url: str) -> str:
    from urllib.parse import urlsplit

    server = urlsplit(database_url).hostname or "127.0.0.1"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(server, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:  # connecting a UDP socket sends nothing
            probe.connect(place)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
