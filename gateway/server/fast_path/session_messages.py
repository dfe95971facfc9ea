"""Handles simple messages of 2025 sessions (`ping`, `logging/setLevel`, listings, notifications) without the MCP SDK.

Any other message is left to the SDK path, which handles or rejects it. Used by `fast_sessions` and `dispatch`.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

from pydantic_core import to_json

from gateway.json_types import JsonMapping, JsonObject
from gateway.server.clients import LegacySession
from gateway.server.fast_path.plain_answers import PlainRequest, session_request
from gateway.tools.ports import LogLevel
from gateway.wire.rpc_envelope import MEMBERS, VERSION, VERSION_KEY, notification, plain_members, response

INITIALIZED = to_json(notification("notifications/initialized", None))

_IGNORED = ("notifications/cancelled", "notifications/roots/list_changed")  # no sets: a hostile value may be unhashable
"""Notifications of a 2025 client that this module accepts and ignores.

`dispatch` applies a cancellation of a running request before it calls this module."""
_LEVELS = get_args(LogLevel)


def handle_message(session: LegacySession, message: JsonMapping) -> JsonObject | PlainRequest | Literal["applied"] | None:
    """Handle a message of a 2025 session that is not a tool call.

    Return the response for `ping` and `logging/setLevel`; the parsed request for a listing, which the calling code must answer; `applied`
    for a notification; and `None` if the MCP SDK must handle the message.
    """
    if message.get("id") is None:
        return "applied" if _apply_notification(session, message) else None
    listing = session_request(message)
    if listing is not None:
        session.is_here = True
        return listing
    members = plain_members(message)
    if members is None:
        return None
    number, method, params = members
    if method == "logging/setLevel" and set(params) == {"level"} and params["level"] in _LEVELS:
        session.log_level = cast("LogLevel", params["level"])
        session.is_here = True
    elif method != "ping" or params:
        return None
    return response(number, {})


def _apply_notification(session: LegacySession, message: JsonMapping) -> bool:
    """Apply a client's notification to its 2025 session, and return true. Return false if the MCP SDK must handle the notification."""
    method, params = message.get("method"), message.get("params", {})
    if "id" in message or not message.keys() <= MEMBERS or message.get(VERSION_KEY) != VERSION or not isinstance(params, dict):
        return False
    if method == "notifications/initialized" and not params:
        session.is_initialized = session.is_here = True
        return True
    return method in _IGNORED
