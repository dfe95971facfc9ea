"""Encodes JSON-RPC messages that go to servers, and reads progress notifications. Used by the carriers."""

from __future__ import annotations

import contextlib
import json

from pydantic_core import to_json

from gateway.errors import ToolFailed
from gateway.json_types import JsonMapping
from gateway.upstream.carriers.carrier import Progress
from gateway.wire.jsonrpc import REQUEST_START, notification

CANCELLATION = "notifications/cancelled"

_N, _I = b"NI"
"""First letters of the numbers that JSON does not have."""


def report(params: JsonMapping, progress: Progress) -> None:
    """Pass a progress notification to `progress`, or drop it if it has no usable value."""
    value, total, message = params.get("progress"), params.get("total"), params.get("message")
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer that no float holds
            of = float(total) if isinstance(total, int | float) else None
            progress(float(value), of, message if isinstance(message, str) else None)


def has_odd_number(encoded: bytes, value: JsonMapping) -> bool:
    """Return whether `encoded`, which `to_json` made of `value`, holds NaN or Infinity as a number. A text may hold the same letters."""
    # Searching for one byte is twenty times faster than searching for a word.
    if not (_N in encoded and encoded.find(b"NaN") >= 0) and not (_I in encoded and encoded.find(b"Infinity") >= 0):
        return False
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return True
    return False


def encode_message(message: JsonMapping) -> bytes:
    """Return a message, or a part of one, as JSON. Raises `ToolFailed` if it holds NaN or Infinity."""
    try:
        body = to_json(message)
    except ValueError:  # a lone surrogate, which only an escape can write
        body = b"NaN"
    if not has_odd_number(body, message):
        return body if body != b"NaN" else json.dumps(message, separators=(",", ":")).encode()
    raise ToolFailed("The arguments hold a number that JSON does not have (NaN or infinity).")


class RequestWriter:
    """Encodes the requests of one connection. Methods and equal `_meta` are encoded once, and the parameters are not copied."""

    def __init__(self) -> None:
        self._methods: dict[str, bytes] = {}
        """Method → its JSON."""
        self._meta: JsonMapping | None = None
        self._encoded = b""
        """The end of a request with the last `_meta`."""

    def parts(self, number: int, method: str, params: JsonMapping, meta: JsonMapping | None) -> tuple[bytes, bytes | memoryview, bytes]:
        """Return a request as consecutive parts. Raises as `encode_message`."""
        name = self._methods.get(method)
        if name is None:
            name = self._methods[method] = to_json(method)
        start = REQUEST_START % (number, name)
        body = encode_message(params)
        if not meta:
            return start, body, b"}"
        if meta is not self._meta:
            self._encoded = b'"_meta":%s}}' % encode_message(meta)
            self._meta = meta
        return start, memoryview(body)[:-1], b"," + self._encoded if params else self._encoded


def cancellation(number: int) -> bytes:
    """Return the notification that cancels a request."""
    params = {"requestId": number, "reason": "caller cancelled"}
    return to_json(notification(CANCELLATION, params))
