"""Handles notifications, `ping` and `logging/setLevel` of 2025 sessions without the SDK; used by `fast_sessions` and `dispatch`.

An unusual message is left to the SDK path, which handles or rejects it.
"""

from __future__ import annotations

from typing import cast

from pydantic_core import to_json

from gateway.json_types import JsonMapping, JsonObject
from gateway.server.clients import LegacySession
from gateway.tools.ports import LogLevel
from gateway.wire.rpc_envelope import MEMBERS, VERSION, VERSION_KEY, notification, plain_members

INITIALIZED = to_json(notification("notifications/initialized", None))

_IGNORED = frozenset({"notifications/cancelled", "notifications/roots/list_changed"})
"""Notifications that need nothing done here. Cancellations of requests on the fast path are applied before this module is called."""
_LEVELS = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})


def apply_notification(session: LegacySession, message: JsonMapping) -> bool:
    """Apply a client's notification to its session; return false if the SDK path must handle the notification."""
    method, params = message.get("method"), message.get("params", {})
    if "id" in message or not message.keys() <= MEMBERS or message.get(VERSION_KEY) != VERSION or not isinstance(params, dict):
        return False
    if method == "notifications/initialized" and not params:
        session.is_initialized = session.is_here = True
        return True
    return method in _IGNORED


def session_result(session: LegacySession, message: JsonMapping) -> JsonObject | None:
    """Return the result of a valid `ping` or `logging/setLevel`, and apply the level to `session`; `None` for all other requests."""
    members = plain_members(message)
    if members is None:
        return None
    _, method, params = members
    if method == "ping" and not params:
        return {}
    if method == "logging/setLevel" and set(params) == {"level"} and params["level"] in _LEVELS:
        session.log_level = cast("LogLevel", params["level"])
        session.is_here = True
        return {}
    return None
