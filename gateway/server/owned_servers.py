"""`OwnedServers`: serves the messages that other replicas send about stdio servers with `single: true` whose process runs here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from pydantic_core import from_json, to_json

from gateway.errors import NotSent
from gateway.json_types import JsonObject, members_of
from gateway.server.bodies import BufferedReceive
from gateway.upstream.carriers.owner_carrier import failure_to_json
from gateway.upstream.relayed_calls import RelayedCalls
from gateway.wire.sse import encode_event

if TYPE_CHECKING:
    from starlette.types import Send

Relays = Callable[[str], RelayedCalls | None]
"""Function that returns the object which serves messages for the stdio server of this name; `None` if it is not `single: true`."""


class OwnedServers:
    """Responds to each message with an event stream of JSON objects. `ForwardedRequests` has verified the signature of the message."""

    def __init__(self, relay_of: Relays) -> None:
        self._relay_of = relay_of

    async def __call__(self, body: bytes, receive: BufferedReceive, send: Send, sender: str) -> None:
        """Serve one message of the replica `sender`. If the other replica closes the connection, the request is cancelled at the server."""
        message = members_of(from_json(body))
        lock = anyio.Lock()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})

        async def reply(event: JsonObject) -> None:
            async with lock:
                await send({"type": "http.response.body", "body": encode_event(to_json(event), ""), "more_body": True})

        name = str(message.get("server"))
        relay = self._relay_of(name)
        if relay is None:
            text = f"Server {name!r} is not in the configuration of the gateway that runs it, or not with `single: true`."
            await reply({"failure": failure_to_json(NotSent(text, server=name))})
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_with_sender, receive, tasks.cancel_scope)
                await relay.serve(message, reply, sender)
                tasks.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b""})


async def _end_with_sender(receive: BufferedReceive, scope: anyio.CancelScope) -> None:
    await receive.ended()
    scope.cancel()
