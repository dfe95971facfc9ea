"""What an answer of a server says, decided in one place for every way that it comes.

Used by `exchange`, `pipe` and `http`, and by `tool` and `tasks` for results.
"""

from __future__ import annotations

import json
import re
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import RpcError

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*,(?!\s*"method")')
_TAIL_ID = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
"""The id of an answer, where writers of JSON-RPC put it: at the start of the message or at its end."""


def outcome_of(message: JsonValue, number: int | str) -> JsonObject | RpcError | None:
    """The result or the error that answers request `number`; one that has both is an error. `None` where it answers no such request.

    Servers that could not read a request give their error no id, or another: whoever asks knows by the connection which one it is for.
    """
    fields: JsonMapping | None = message  # at best
    if not isinstance(fields, dict):
        return None
    if "error" in fields and (error := error_of(fields)) is not None:
        return error
    said: JsonValue = fields.get("id")
    result: JsonObject | None = fields.get("result")  # at best
    if fields.get("jsonrpc") != "2.0" or said is True or not (said == number or said == str(number)) or not isinstance(result, dict):
        return None
    return result


def id_of(message: bytes) -> int | str | None:
    """Which request a message answers that cannot be read, or not whole, as far as can be seen."""
    found = _HEAD_ID.match(message) or _TAIL_ID.search(message)
    if found is None:
        return None
    try:
        return json.loads(found[1])
    except ValueError:  # a number that begins with a zero, a text with what is no character
        return None


def failed(number: int | str | None, error: RpcError) -> JsonObject:
    """The message that answers request `number` with an error."""
    data = {} if error.data is None else {"data": error.data}
    return {"jsonrpc": "2.0", "id": number, "error": {"code": error.code, "message": error.message, **data}}


def error_of(message: JsonValue) -> RpcError | None:
    """The error in an answer."""
    found = cast("JsonMapping", message).get("error") if isinstance(message, dict) else None
    if not isinstance(found, dict):
        return None
    error = cast("JsonMapping", found)
    code, text = error.get("code"), error.get("message")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(text, str):
        return None
    return RpcError(code, text, error.get("data"))


def is_readable(result: JsonMapping) -> bool:
    """Whether there is something in a call's result, and its blocks are objects; what kinds there are is for who sends it on to know."""
    content: list[JsonValue] | None = result.get("content")  # at best
    if not isinstance(content, list):
        return "structuredContent" in result
    for block in content:
        if not isinstance(block, dict):
            return False
    return True
