"""`ReplicaRoutes`: decides which requests of clients only one replica of the gateway can serve, and forwards them to that replica.

The name that a replica gives to a question, a waiting call or an event stream begins with the id of the replica:

| request | contains |
|---|---|
| answer of a 2025 client to a question | JSON-RPC id `q.<replica>.…` |
| retry of a call that waits for input of a 2026 client | `requestState` `r.<replica>.…` |
| GET that continues an event stream | `Last-Event-ID` `<replica>-…` |
| all requests of a session whose handshake is too long for a session id | `Mcp-Session-Id` `o.….<replica>` |

A cancellation in a 2025 session is sent to all replicas, because any of them may run the call.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

import anyio

from gateway.auth.principal import Principal
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import INTERNAL_ERROR
from gateway.server.bodies import BufferedReceive
from gateway.server.event_ids import replica_of_event, request_of
from gateway.server.forwarded_principal import forwarded_text
from gateway.server.head import Head
from gateway.server.http_responses import Refusal
from gateway.server.replicas import Replicas
from gateway.server.session_table import owner_of

if TYPE_CHECKING:
    from starlette.types import Message, Scope, Send

logger = logging.getLogger(__name__)

FORWARDED_SCOPE_KEY = "moongate.forwarded"
"""ASGI scope key of a request that another replica has forwarded. It is never forwarded again."""

REPLICA_SCOPE_KEY = "moongate.replica"
"""ASGI scope key of the id of this replica, with which the JSON-RPC ids of questions begin. Set for requests in 2025 sessions."""

QUESTION, STATE = "q.", "r."
"""Prefixes of the JSON-RPC ids of questions, and of request states, before the id of the replica."""

UNASKED = (
    "The gateway that asked this question has stopped or cannot be reached, so the call that needs the answer has ended. "
    "It may have had effects: send it again if that does no harm."
)
"""Message of the error for an answer to a question of a gateway that has stopped."""

UNKNOWN = "The database of the gateways does not answer, so the gateway that this request belongs to cannot be found. Try again."
"""Message of the error for a request that belongs to another gateway while it is not known which gateways run."""

CANCEL_SECONDS = 1.0
"""Timeout in seconds for telling another replica that a client has cancelled a request."""


def question_id(replica: str, name: str) -> str:
    """Return the JSON-RPC id of a question that this replica asks a 2025 client. `name` is random."""
    return f"{QUESTION}{replica}.{name}"


def routed_state(replica: str, state: str) -> str:
    """Return the request state `state` with the id of the replica whose call waits for the client's input."""
    return f"{STATE}{replica}.{state}"


def plain_state(state: str) -> str:
    """Return a request state without the id of its replica. A state without such an id is returned unchanged."""
    return state.split(".", 2)[2] if state.startswith(STATE) and state.count(".") >= 2 else state


def replica_of(head: Head, message: JsonMapping | None) -> str:
    """Return the id of the replica that alone can serve a request; empty if any replica can. `message` is the decoded body of a POST."""
    if owner := owner_of(head.session_id):
        return owner
    if head.method == "GET":
        return replica_of_event(head.last_event_id)
    if message is None:
        return ""
    number, params = message.get("id"), message.get("params")
    if "method" not in message:
        return number.split(".")[1] if isinstance(number, str) and number.startswith(QUESTION) else ""
    state = cast("JsonMapping", params).get("requestState") if isinstance(params, dict) else None
    return state.split(".")[1] if isinstance(state, str) and state.startswith(STATE) else ""


def _resumed_request(head: Head) -> int | str | None:
    return request_of(head.last_event_id) if head.method == "GET" else None


class ReplicaRoutes:
    """Forwards requests that only another replica can serve. Without replicas, it forwards nothing."""

    def __init__(self, replicas: Replicas | None) -> None:
        """`replicas` are the other replicas of this gateway, or `None`."""
        self._replicas = replicas

    def reads(self, head: Head) -> bool:
        """Whether `forwards` needs the decoded body of a request."""
        return self._replicas is not None and head.is_json_post

    async def forwards(
        self, head: Head, principal: Principal, message: JsonObject | None, body: bytes, scope: Scope, receive: BufferedReceive, send: Send
    ) -> bool:
        """Forward a request to the replica that alone can serve it, and return true when it was answered.

        Return false if this replica must serve it, also because the other replica has stopped. `message` is the decoded `body`.
        """
        replicas = self._replicas
        if replicas is None or FORWARDED_SCOPE_KEY in scope:
            return False
        replica = replica_of(head, message)
        if not replica and message is not None and message.get("method") == "notifications/cancelled" and "id" not in message:
            if head.session_id:
                await _cancel_elsewhere(replicas, head, body, forwarded_text(principal))
            return False
        if not replica or replica == replicas.id:
            return False
        number: JsonValue = message.get("id") if message is not None and "method" in message else _resumed_request(head)
        if await replicas.find(replica) and await self._is_answered_by(replica, head, body, principal, number, receive, send):
            return True
        if not replicas.is_current:
            await Refusal(503, INTERNAL_ERROR, UNKNOWN, 1).to_response(is_rpc=True, number=number)(scope, receive, send)
            return True
        if message is None or "method" in message:
            return False
        # An answer that is accepted with 202 and reaches nobody would look like one that was delivered.
        await Refusal(410, INTERNAL_ERROR, UNASKED).to_response(is_rpc=True)(scope, receive, send)
        return True

    async def _is_answered_by(
        self, replica: str, head: Head, body: bytes, principal: Principal, number: JsonValue, receive: BufferedReceive, send: Send
    ) -> bool:
        """Forward a request to another replica, and return true when it was answered, or its client has disconnected."""
        assert self._replicas is not None
        is_answered = True
        await receive.read(max(head.length, 0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_with_client, receive, tasks.cancel_scope)
            is_answered = await self._replicas.forward(replica, head, body, forwarded_text(principal), number, send)
            tasks.cancel_scope.cancel()
        return is_answered


async def _cancel_elsewhere(replicas: Replicas, head: Head, body: bytes, principal: str) -> None:
    """Send the cancellation of a request to all other replicas at the same time.

    The client's request waits for this, so the quota of requests in progress bounds how many cancellations a caller can have forwarded.
    """
    with anyio.move_on_after(CANCEL_SECONDS):
        async with anyio.create_task_group() as tasks:
            for peer in await replicas.peers():
                tasks.start_soon(replicas.forward, peer, head, body, principal, None, _ignore)


async def _end_with_client(receive: BufferedReceive, scope: anyio.CancelScope) -> None:
    await receive.ended()
    scope.cancel()


async def _ignore(message: Message) -> None:
    """Drop the response to a forwarded cancellation."""
