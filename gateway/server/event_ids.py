"""Ids of server-sent events in 2025 sessions: `[<replica>-]<random><kind>.<number>`. `kind` says what the stream of the event is for.

`~g` is the GET on which a client listens for notifications. `~r` is the response to a request, followed by the JSON-RPC id of the request.
So if the gateway that ran a request has stopped, any other gateway can send the error for this request to a client that resumes its stream.
An event id is not secret and is not signed: a client that forges an id gets an error for a request of its own session.
"""

from __future__ import annotations

import base64
import binascii
import secrets

from pydantic_core import from_json, to_json

from gateway.json_types import JsonValue

LISTENING, REQUEST = "~g", "~r"
"""Marks after the random part of an event id: the stream is a listening GET, or the response to a request."""

MAX_REQUEST_ID = 300
"""Maximum encoded characters of a JSON-RPC id in an event id, because proxies and clients limit the size of headers."""

REQUEST_ID_SCOPE_KEY = "moongate.request-id"
"""ASGI scope key of the JSON-RPC id of a request in a 2025 session. The MCP SDK names streams after this id as text, without its type."""

LOST = "The gateway that ran this request has stopped or cannot be reached. The request may have run: send it again if that does no harm."
"""Message of the error for a request whose gateway has stopped."""

FORGOTTEN = "The gateway no longer stores the response to this request. The request may have run: send it again if that does no harm."
"""Message of the error for a request whose stream can no longer be resumed, although its gateway runs."""


def listening_token(replica: str) -> str:
    """Return a new random name of a listening GET. With replicas, it begins with the id of this replica."""
    return _new(replica) + LISTENING


def request_token(replica: str, request: JsonValue) -> str:
    """Return a new random name of the stream that answers the request with the JSON-RPC id `request`.

    The name contains the id unless `request` is too long, or is neither an integer nor a string.
    """
    is_id = isinstance(request, int | str) and not isinstance(request, bool)
    encoded = base64.urlsafe_b64encode(to_json(request)).rstrip(b"=").decode() if is_id else ""
    return _new(replica) + REQUEST + (encoded if len(encoded) <= MAX_REQUEST_ID else "")


def _new(replica: str) -> str:
    return f"{replica}-{secrets.token_urlsafe(9)}" if replica else secrets.token_urlsafe(9)


def token_of(event_id: str) -> str:
    """Return the name of the stream of an event."""
    return event_id.partition(".")[0]


def replica_of_event(event_id: str) -> str:
    """Return the id of the replica that made an event id; of an id that was made without replicas, a text that is the id of no replica."""
    return event_id.partition("-")[0]


def is_listening(event_id: str) -> bool:
    """Whether an event belongs to a listening GET."""
    return token_of(event_id).endswith(LISTENING)


def is_of_request(event_id: str) -> bool:
    """Whether an event belongs to the response to a request."""
    return REQUEST in token_of(event_id)


def request_of(event_id: str) -> int | str | None:
    """Return the JSON-RPC id of the request whose response is the stream of an event; `None` if the event id does not contain it."""
    _, mark, encoded = token_of(event_id).partition(REQUEST)
    if not mark or len(encoded) > MAX_REQUEST_ID:
        return None
    try:
        request = from_json(base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None
    return request if isinstance(request, int | str) and not isinstance(request, bool) else None
