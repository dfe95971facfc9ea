"""`RelayedCalls`: serves the requests that other gateways send to a stdio server with `single: true` whose process runs here.

The other gateway has authorized the call. Requests for input of the server go back to it, and it applies policy to them.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import anyio

from gateway.auth.principal import Principal
from gateway.errors import InputUnavailable, PolicyDenied, Rejected, SessionGone, UpstreamError
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of
from gateway.protocol import CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext, CallPorts
from gateway.tools.ports import ClientProfile, LogLevel
from gateway.upstream.carriers.owner_carrier import failure_to_json
from gateway.upstream.connection import Connection
from gateway.upstream.negotiated import Negotiated
from gateway.upstream.server_session import Envelope

Send = Callable[[JsonObject], Awaitable[None]]
"""Function that sends one JSON object of the response to the other gateway."""

SendRequest = Callable[[str, JsonObject, Envelope], Awaitable[JsonObject]]
"""Function that sends a request (method, parameters, envelope) to the server, and returns the result."""

MAX_QUEUED = 1_000
"""Maximum number of notifications that wait for one other gateway. Beyond it, that gateway is disconnected, and reads all lists again."""


class RelayTarget(Protocol):
    """Interface of the source of a server (`UpstreamSource`), as far as this module needs it."""

    async def watch(self, uri: str) -> None:
        """Count one more client that watches a resource."""
        ...

    async def unwatch(self, uri: str) -> None:
        """Count one client fewer that watches a resource."""
        ...


class RelayedCaller:
    """The `Caller` of a call that another gateway has forwarded. Everything goes to that gateway."""

    def __init__(self, calls: RelayedCalls, send: Send) -> None:
        self._calls = calls
        self._send = send

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress report to the other gateway."""
        await self._send({"progress": {"progress": progress, "total": total, "message": message}})

    async def log(self, level: LogLevel, data: JsonValue, logger: str | None) -> None:
        """Send a log message to the other gateway."""
        params: JsonObject = {"level": level, "data": data, **({} if logger is None else {"logger": logger})}
        await self._send({"notification": {"method": "notifications/message", "params": params}})

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Send a request for input to the other gateway, and wait for the answer. Raises `InputUnavailable` if it is refused."""
        return await self._calls.ask(request, self._send)


class RelayedCalls:
    """Runs the requests of other gateways on the session with one server, and passes the server's own notifications to them."""

    def __init__(self, target: RelayTarget, connection: Connection, send: SendRequest, owns: Callable[[], bool]) -> None:
        """`send` is `Delivery.relay`. `owns` returns whether this gateway runs the process, so that no message is forwarded twice."""
        self._owns = owns
        self._target = target
        self._connection = connection
        self._send = send
        self._open: dict[str, tuple[anyio.Event, JsonObject]] = {}
        self._listeners: set[Any] = set()
        self._watched: dict[str, Counter[str]] = {}
        """Number of watches of each resource, by the id of the gateway that requested them."""
        self._followers: dict[str, object] = {}
        """For each gateway that follows the server's notifications: an object that identifies its latest stream."""

    async def serve(self, message: JsonMapping, send: Send, sender: str) -> None:
        """Serve one message of the gateway `sender`, and send the response. Cancelling this method cancels the request."""
        if message.get("kind") != "answer" and not self._owns():
            gone = SessionGone("The gateway to which this request was sent does not run the server any more.", server="")
            await send({"failure": failure_to_json(gone)})
            return
        match message.get("kind"):
            case "messages":
                await self._follow(send, sender)
            case "answer":
                if (opened := self._open.get(str(message.get("ask")))) is not None:
                    opened[1].update(message)
                    opened[0].set()
            case _:
                try:
                    await send({"result": await self._run(message, send, sender)})
                except (UpstreamError, PolicyDenied) as error:
                    await send({"failure": failure_to_json(error)})

    def notified(self, method: str, params: JsonMapping) -> None:
        """Pass a notification of the server that belongs to no call to all other gateways."""
        for queue in list(self._listeners):
            try:
                queue.send_nowait({"notification": {"method": method, "params": dict(params)}})
            except (anyio.WouldBlock, anyio.BrokenResourceError):
                queue.close()
                self._listeners.discard(queue)

    async def ask(self, request: JsonObject, send: Send) -> JsonObject:
        """Send a request for input to another gateway, and return the answer. Raises `InputUnavailable` if it is refused."""
        name, answered, answer = secrets.token_hex(8), anyio.Event(), cast("JsonObject", {})
        self._open[name] = answered, answer
        try:
            await send({"ask": name, "request": request})
            await answered.wait()
        finally:
            del self._open[name]
        if "result" not in answer:
            raise InputUnavailable(str(members_of(answer.get("error")).get("message")), capability="")
        return cast("JsonObject", answer["result"])

    async def _follow(self, send: Send, sender: str) -> None:
        """Send the server's own notifications until the session with it ends. The connection is not idle meanwhile.

        The watches of a gateway end with its latest stream, because the gateway has stopped, or requests them again on a new stream.
        """
        stream = self._followers[sender] = object()
        await self._release(sender)
        queue, received = anyio.create_memory_object_stream[JsonObject](MAX_QUEUED)
        self._connection.begin_use()
        try:
            session = await self._connection.session()
            self._listeners.add(queue)
            await send({"open": True})
            async with anyio.create_task_group() as tasks:

                async def end() -> None:
                    await session.closed.wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(end)
                async for event in received:
                    await send(event)
                tasks.cancel_scope.cancel()
        except UpstreamError as error:
            await send({"failure": failure_to_json(error)})
        finally:
            self._listeners.discard(queue)
            self._connection.end_use()
            queue.close()
            received.close()
            if self._followers.get(sender) is stream:
                del self._followers[sender]
                with anyio.CancelScope(shield=True):
                    await self._release(sender)

    async def _run(self, message: JsonMapping, send: Send, sender: str) -> JsonObject:
        method, params, meta = str(message["method"]), dict(members_of(message.get("params"))), dict(members_of(message.get("meta")))
        call = message.get("call")
        session = await self._connection.session()
        agreed = session.negotiated
        if method in ("server/discover", "initialize"):
            return _handshake(method, agreed)
        if method == "logging/setLevel":
            await session.want_level(cast("LogLevel", params.get("level")))
            return {}
        if method in ("resources/subscribe", "resources/unsubscribe"):
            return await self._subscribe(method, str(params.get("uri")), sender)
        level = cast("LogLevel | None", meta.pop(LOG_LEVEL_META_KEY, None))
        capabilities = dict(members_of(meta.get(CLIENT_CAPABILITIES_META_KEY)))
        if not isinstance(call, dict):
            return await session.request(method, params, Envelope(None, meta, capabilities, level))
        ctx = _context(members_of(call), RelayedCaller(self, send), wants_progress=message.get("wantsProgress") is True)
        return await self._send(method, params, Envelope(ctx, meta, capabilities, level or ctx.facts.log_level))

    async def _subscribe(self, method: str, uri: str, sender: str) -> JsonObject:
        if method == "resources/subscribe":
            await self._target.watch(uri)
            self._watched.setdefault(sender, Counter())[uri] += 1
        elif (watched := self._watched.get(sender)) is not None and watched[uri]:
            watched[uri] -= 1
            await self._target.unwatch(uri)
        return {}

    async def _release(self, sender: str) -> None:
        """End all watches of another gateway. `unwatch` only notes them, so this does not wait for the server."""
        for uri in self._watched.pop(sender, Counter()).elements():
            await self._target.unwatch(uri)


def _handshake(method: str, agreed: Negotiated) -> JsonObject:
    """Return the server's result of a handshake, as another gateway expects it. Raises `Rejected` for the other era."""
    if (method == "server/discover") != (agreed.era == "modern"):
        raise Rejected("Method not found", server="", code=METHOD_NOT_FOUND)
    result: JsonObject = {"capabilities": dict(agreed.capabilities)}
    if agreed.instructions is not None:
        result["instructions"] = agreed.instructions
    info = dict(agreed.server_info)
    if method == "initialize":
        return {**result, "protocolVersion": agreed.protocol_version, "serverInfo": info}
    return {**result, "supportedVersions": [agreed.protocol_version], "_meta": {"io.modelcontextprotocol/serverInfo": info}}


def _context(call: JsonMapping, caller: RelayedCaller, *, wants_progress: bool) -> CallContext:
    session = call.get("session")
    client = ClientProfile(
        era="legacy" if call.get("era") == "legacy" else "modern",
        name=str(call.get("name")),
        capabilities=members_of(call.get("capabilities")),
        session_id=session if isinstance(session, str) else None,
    )
    facts = CallFacts(
        principal=Principal(str(call.get("principal"))),
        client=client,
        ask_timeout_seconds=float(cast("float", call.get("askSeconds"))),
        wants_progress=wants_progress,
        log_level=cast("LogLevel | None", call.get("logLevel")),
    )
    return CallContext(facts, CallPorts(caller=caller))
