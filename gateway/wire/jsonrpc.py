"""Decodes and encodes JSON-RPC 2.0 messages, checks them, and matches responses to requests. Used by `upstream` and `server`.

The module `rpc_envelope` builds messages as Python dicts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import cast

from pydantic_core import from_json, to_json

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import RpcError
from gateway.wire.json_limits import MAX_PARTS, has_too_many_parts
from gateway.wire.long_text import LONG_BYTES, Decoded, LongText, decode_parts, encode_around
from gateway.wire.rpc_envelope import REQUEST_START, VERSION, VERSION_KEY

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*,(?!\s*"method")')
_TAIL_ID = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
"""`_HEAD_ID` matches an id at the start of a response, `_TAIL_ID` an id at the end. JSON-RPC libraries write the id in these places."""

_FIRST_ID = re.compile(rb'\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?\d+)[,}]')
_METHOD = re.compile(rb'"method":"([^"\\]*)"')

_N, _I = b"NI"
"""First letters of `NaN` and `Infinity`. Python's encoders write these as numbers, although JSON does not have them."""


def decode_object(data: bytes, *, is_counted: bool = False) -> JsonObject | None:
    """Parse JSON text that contains an object, and return the object.

    Return `None` if the text is malformed, contains another value, or exceeds the limits on its structure (`MAX_PARTS`, `MAX_VALUES`). If
    `is_counted` is true, the caller has already checked these limits.
    """
    if len(data) > MAX_PARTS and not is_counted and has_too_many_parts(data):
        return None
    try:
        value: JsonValue = from_json(data)
    except ValueError:
        return None
    return cast("JsonObject", value) if isinstance(value, dict) else None


def decode_message(parts: list[bytes]) -> Decoded:
    """Decode a response whose JSON arrived in consecutive `parts`. The caller must not use `parts` afterwards.

    Return the message, its JSON in consecutive parts, and the long text in its result: a long string that occurs once or twice in the
    result (see `LONG_BYTES`). The third value is `None` if the result has no long text.

    Raises:
        ValueError: The message is not JSON.
    """
    if len(parts) == 1 and len(parts[0]) < LONG_BYTES:
        return from_json(parts[0]), (parts[0],), None
    return decode_parts(parts)


def outcome_of(message: JsonValue, number: int | str) -> JsonObject | RpcError | None:
    """Return the JSON-RPC result or error that answers the request with the id `number`; `None` if the message does not answer it.

    A message with a result and a valid error counts as an error. The id of an error is not compared, because servers that could not read
    the request send another id or `null`; the caller passes only messages that arrived in response to this request.
    """
    fields: JsonMapping | None = message  # the annotation is only assumed: the next line checks the type
    if not isinstance(fields, dict):
        return None
    if "error" in fields and (error := error_of(fields)) is not None:
        return error
    said: JsonValue = fields.get("id")
    result: JsonObject | None = fields.get("result")  # the annotation is only assumed: the next line checks the type
    if fields.get(VERSION_KEY) != VERSION or said is True or not (said == number or said == str(number)) or not isinstance(result, dict):
        return None
    return result


def id_of(message: bytes) -> int | str | None:
    """Search the start and the end of a malformed or truncated response for its id. Return the id, or `None` if none is found."""
    found = _HEAD_ID.match(message) or _TAIL_ID.search(message)
    if found is None:
        return None
    try:
        return json.loads(found[1])
    except ValueError:  # a number with a leading zero, or text with an invalid escape
        return None


def first_id(head: bytes) -> int | str | None:
    """Return the id of a message that begins with `{"jsonrpc":"2.0","id":` (no spaces), without parsing the rest; else `None`.

    Return `None` for an id with a backslash, too.
    """
    found = _FIRST_ID.match(head)
    return None if found is None else json.loads(found[1])


def method_in(head: bytes) -> str:
    """Return the method name in a message without parsing the message, which must have no spaces between tokens; "" for a response."""
    found = _METHOD.search(head)
    return "" if found is None else found[1].decode(errors="replace")


def looks_like_response(line: bytes) -> bool:
    """Return whether a line that is not a valid JSON-RPC message seems to be a damaged response, rather than a line of a log."""
    return b'"method"' not in line and any(member in line for member in (b'"jsonrpc"', b'"result"', b'"error"'))


def to_message(value: JsonValue) -> JsonObject | None:
    """Return a decoded JSON value if it is a valid JSON-RPC request, notification or response, else `None`."""
    if not isinstance(value, dict):
        return None
    fields = cast("JsonObject", value)
    if fields.get(VERSION_KEY) != VERSION:
        return None
    if isinstance(fields.get("method"), str):
        is_one = isinstance(fields.get("params"), dict | None)
    else:
        number = fields.get("id")
        is_named = isinstance(number, int | str) and not isinstance(number, bool)
        is_one = (is_named and isinstance(fields.get("result"), dict)) or ((is_named or number is None) and error_of(fields) is not None)
    return fields if is_one else None


def number_of(value: JsonValue) -> int:
    """Return a response's id as the integer that the gateway sent, also if the server returned it as text; -1 for any other value."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 20 else -1
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def error_of(message: JsonValue) -> RpcError | None:
    """Return the `error` member of a JSON-RPC message, or `None` if it is missing or malformed."""
    found = cast("JsonMapping", message).get("error") if isinstance(message, dict) else None
    if not isinstance(found, dict):
        return None
    error = cast("JsonMapping", found)
    code, text = error.get("code"), error.get("message")
    if not isinstance(code, int) or isinstance(code, bool) or not isinstance(text, str):
        return None
    return RpcError(code, text, error.get("data"))


def has_nan(encoded: bytes, value: JsonMapping) -> bool:
    """Return whether `encoded`, which `to_json` made from `value`, contains NaN or Infinity as a number, not only inside a string."""
    # Searching for one byte is twenty times faster than searching for a word.
    if not (_N in encoded and encoded.find(b"NaN") >= 0) and not (_I in encoded and encoded.find(b"Infinity") >= 0):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    return False


def encode_message(message: JsonMapping) -> bytes:
    """Return a JSON-RPC message, or a part of a message, as JSON. Raises `ToolFailed` if it contains NaN or Infinity."""
    try:
        body = to_json(message)
    except ValueError:  # a lone surrogate: UTF-8 cannot encode it, and `json.dumps` writes it as an escape
        body = b"NaN"
    if not has_nan(body, message):
        return body if body != b"NaN" else json.dumps(message, separators=(",", ":")).encode()
    raise ToolFailed("The arguments hold a number that JSON does not have (NaN or infinity).")


def encode_response(number: JsonValue, result: JsonObject, long_text: LongText | None) -> Sequence[bytes | memoryview] | None:
    """Return a JSON-RPC response as JSON in consecutive parts; `None` if the encoder cannot write `result` (NaN, a lone surrogate)."""
    message: JsonObject = {VERSION_KEY: VERSION, "id": number, "result": result}  # not `response(...)`: saves a function call per tool call
    try:
        body = (to_json(message),) if long_text is None else encode_around(message, long_text)
    except (ValueError, TypeError, RecursionError):
        return None
    for part in body:
        if isinstance(part, bytes) and has_nan(part, result):
            return None
    return body


class RequestWriter:
    """Encodes the JSON-RPC requests of one connection. It encodes each method name once, and does not copy the parameters."""

    def __init__(self, repeated: str) -> None:
        """`repeated` is the name of a parameter, such as `_meta`. Its JSON is reused while requests pass the same object as its value."""
        self._repeated = to_json(repeated)
        self._methods: dict[str, bytes] = {}
        """JSON of each method name."""
        self._last: JsonMapping | None = None
        self._encoded = b""
        """The last bytes of a request whose repeated parameter is the object `_last`: this parameter as JSON, and closing braces."""

    def parts(self, number: int, method: str, params: JsonMapping, repeated: JsonMapping | None) -> tuple[bytes, bytes | memoryview, bytes]:
        """Return the JSON of a request in consecutive parts. Raises `ToolFailed` for NaN or Infinity.

        `number` is the id. `repeated` is the value of the parameter that is the same in most requests; `params` has the other parameters.
        """
        name = self._methods.get(method)
        if name is None:
            name = self._methods[method] = to_json(method)
        start = REQUEST_START % (number, name)
        body = encode_message(params)
        if not repeated:
            return start, body, b"}"
        if repeated is not self._last:
            self._encoded = b"%b:%b}}" % (self._repeated, encode_message(repeated))
            self._last = repeated
        return start, memoryview(body)[:-1], b"," + self._encoded if params else self._encoded
