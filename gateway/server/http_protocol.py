"""`http_protocol`: builds the HTTP/1.1 protocol class that uvicorn runs.

The class is a subclass of `wire.http1_server.ServerConnection` with the gateway's limits and callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.policy.quotas import connection_quotas
from gateway.server.connections import Connections, connection_limit
from gateway.server.head import VARYING, Head
from gateway.server.unread_answers import UnreadAnswers
from gateway.server.usage import Usages
from gateway.wire.heap import Heap
from gateway.wire.http1_interfaces import Admission, StartedRequest
from gateway.wire.http1_messages import WriteBatch
from gateway.wire.http1_server import ServerConnection

if TYPE_CHECKING:
    import ssl

    from starlette.types import ASGIApp

    from gateway.config.models import ServerSettings

StartFast = Callable[[Head, bytes], StartedRequest | None]
"""A function that gets a request's head and body and starts to serve it without the MCP SDK; it returns `None` if the SDK is needed."""

Admit = Callable[[Head], "ASGIApp | Admission"]
"""A function that decides by a request's head whether the gateway reads the body.

If so, it returns an `Admission` (facts about the caller). Otherwise it returns an ASGI application that rejects the request.
"""


def http_protocol(
    settings: ServerSettings,
    fast: StartFast | None = None,
    judge: Admit | None = None,
    usages: Usages | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> type[ServerConnection[Head]]:
    """Return the protocol class for uvicorn's `Config.http`, with the timeouts and limits of `settings`.

    A connection calls `judge` with the head of a request whose body has not arrived completely, and `fast` with a request that has.
    `usages` has the quotas for bytes of responses that clients do not read; without it these bytes are not limited.
    `tls` returns the TLS context of a new connection; without it clients use plain HTTP.
    """
    http = settings.http
    table = Connections(connection_quotas(settings.limits, connection_limit(http), http.max_request_bytes))

    class GatewayConnection(ServerConnection[Head]):
        __slots__ = ()

        make_head = Head
        varies = VARYING.__contains__
        write_batch = WriteBatch()
        heap = Heap()
        connections = table
        unread_responses = UnreadAnswers(usages or Usages())
        start_fast = staticmethod(fast) if fast is not None else None
        admit = staticmethod(judge) if judge is not None else None
        head_seconds = http.head_seconds
        body_seconds = http.body_seconds
        unread_seconds = http.unread_seconds

    if tls is None:
        return GatewayConnection
    from gateway.wire.tls_server import TlsConnection

    class SecureGatewayConnection(TlsConnection[Head], GatewayConnection):
        __slots__ = ()

        tls_context = staticmethod(tls)

    return SecureGatewayConnection
