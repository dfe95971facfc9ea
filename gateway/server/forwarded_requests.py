"""`ForwardedRequests`: checks the body of each request that another replica has forwarded, and that its signature is used once."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gateway.server.bodies import BufferedReceive
from gateway.server.head import Head
from gateway.server.http_responses import json_response
from gateway.server.owned_servers import OwnedServers, Relays
from gateway.server.replica_routes import FORWARDED_SCOPE_KEY
from gateway.server.replica_signature import HEADER, SERVER_SCHEME
from gateway.server.replicas import Replicas
from gateway.wire.message_sizes import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class ForwardedRequests:
    """ASGI application between `KeyGate`, which has verified the signature in the head, and the next application."""

    def __init__(self, app: ASGIApp, replicas: Replicas, servers: Relays, max_bytes: int) -> None:
        """`app` is the next application. `servers` finds stdio servers with `single: true`.

        The body of a client's request may have at most `max_bytes`, and a message of a replica itself `MAX_MESSAGE_BYTES`.
        """
        self._servers = OwnedServers(servers)
        self._app = app
        self._replicas = replicas
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a forwarded request and mark it in its scope; pass every other request on unchanged."""
        if scope["type"] != "http" or all(name != HEADER for name, _ in scope["headers"]):
            await self._app(scope, receive, send)
            return
        head, replay = Head(scope), BufferedReceive(receive)
        signed = self._replicas.verify(head)
        is_own = signed is not None and signed.scheme == SERVER_SCHEME
        body = await replay.read(min(max(head.length, 0), MAX_MESSAGE_BYTES if is_own else self._max_bytes))
        if signed is None or body is None or hashlib.sha256(body).hexdigest() != signed.digest or not self._replicas.uses(signed):
            message = "The body of this forwarded request does not match its signature, or the signature was used before."
            await json_response({"error": "invalid_replica", "message": message}, 401)(scope, receive, send)
            return
        if is_own:
            await self._servers(body, replay, send, signed.sender)
            return
        # The client's `Host` was checked by the other replica, and the address of this replica need not be an accepted one.
        headers = [(name, b"localhost" if name == b"host" else value) for name, value in scope["headers"] if name != HEADER]
        await self._app({**scope, "headers": headers, FORWARDED_SCOPE_KEY: True}, replay, send)
