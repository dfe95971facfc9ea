"""Builds JSON-RPC 2.0 messages, and names their members. Used by every module that sends messages or checks their members.

Unlike `wire.jsonrpc`, this module does not import pydantic_core, because `server.startup_answers` uses it while the gateway still loads.
"""

from __future__ import annotations

from typing import Final, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import RpcError

VERSION_KEY: Final = "jsonrpc"
VERSION: Final = "2.0"

MEMBERS: Final = frozenset({VERSION_KEY, "id", "method", "params"})
"""Names of the members of a JSON-RPC request. A notification has no `id`."""

REQUEST_START: Final = b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":'
"""Template of the beginning of a JSON-RPC request; its arguments are the id and the method as JSON. The parameters and `}` follow."""

RESULT: Final = b'{"jsonrpc":"2.0","id":%b,"result":%b}'
"""Template of a JSON-RPC response; its arguments are the id and the result as JSON."""


def request(number: int | str, method: str, params: JsonMapping | None) -> JsonObject:
    """Return a JSON-RPC request with the id `number`. It has no `params` member if `params` is `None`."""
    return {VERSION_KEY: VERSION, "id": number, "method": method, **({} if params is None else {"params": dict(params)})}


def notification(method: str, params: JsonMapping | None) -> JsonObject:
    """Return a JSON-RPC notification. It has no `params` member if `params` is `None`."""
    return {VERSION_KEY: VERSION, "method": method, **({} if params is None else {"params": dict(params)})}


def response(number: JsonValue, result: JsonObject) -> JsonObject:
    """Return the JSON-RPC response to the request with the id `number`."""
    return {VERSION_KEY: VERSION, "id": number, "result": result}


def error_response(number: JsonValue, error: RpcError) -> JsonObject:
    """Return the JSON-RPC error response to the request with the id `number`, which is `None` if the id could not be read."""
    data = {} if error.data is None else {"data": error.data}
    return {VERSION_KEY: VERSION, "id": number, "error": {"code": error.code, "message": error.message, **data}}


def plain_members(message: JsonMapping) -> tuple[int | str, str, JsonMapping] | None:
    """Return id, method and parameters of a valid JSON-RPC request without unknown members; `None` for any other message.

    Missing parameters count as an empty object.
    """
    number, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if not message.keys() <= MEMBERS or message.get(VERSION_KEY) != VERSION or not isinstance(method, str):
        return None
    if isinstance(number, bool) or not isinstance(number, int | str) or not isinstance(params, dict):
        return None
    return number, method, cast("JsonMapping", params)
