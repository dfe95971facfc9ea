"""Long texts in the results of servers: a long string is kept as the JSON in which it arrived, and is sent to the client unchanged.

Encoding a long string again would cost more than the rest of the call. Therefore the string is cut out of the message, and both are parsed
separately. A random marker replaces the string in the message. After parsing, the marker must be a value in the result; this ensures that
the client gets the JSON of exactly the string that the gateway has checked. Many servers repeat the text of a content block in the
structured content: the text is decoded once if both strings have the same JSON.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from pydantic_core import from_json, to_json

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.wire.message_sizes import LARGE_BYTES

LONG_BYTES = 65_536
"""Minimum bytes, as JSON, of a string in a server's result that is sent to the client as it arrived, instead of being encoded again. A
string that occurs in a content block and in the structured content has this minimum for both together.

Encoding a shorter string takes less time than finding its JSON in the received message.
"""

ENDS_BYTES = 4096
"""A long string is found only if it begins within this many bytes of the message's start, and ends within this many bytes of its end."""

SLICE_BYTES = 262_144
"""Maximum bytes that are decoded or copied at once from a JSON string of at least `LARGE_BYTES`. In between, other threads can run.

Shorter strings are decoded at once: for an image of 1 MB, the copies of the slices take a sixth of the call's processor time.
"""

ESCAPES_BYTES = 12
"""Length in bytes of a surrogate pair in JSON: two escapes of six bytes for one character."""

WINDOW_BYTES = 64
"""Bytes examined before a possible end of a slice of a JSON string, to find out whether the end is inside an escape."""

MAX_STEPS = 4096
"""Maximum number of bytes that are searched backwards for a position at which a slice of a JSON string can end."""

_ENDS_IN_ESCAPE = re.compile(rb"(?<!\\)(?:\\\\)*\\u(?![dD][89abAB])[0-9a-fA-F]{4}\Z")
"""Matches bytes that end in a complete `u` escape that is not the first half of a surrogate pair."""

_MARK = secrets.token_hex(16)
"""Random marker that replaces a long string while the rest of a message is parsed. It cannot occur in a server's response."""

_MARKED = to_json(_MARK)

_Part = TypeVar("_Part")

_BACKSLASH = ord("\\")  # a number, because `in` searches bytes for a number faster


@dataclass(frozen=True, slots=True)
class LongText:
    """A long string (see `LONG_BYTES`) in the result of a request: decoded, and as the JSON in which it arrived."""

    text: str
    encoded: memoryview
    """The JSON of the text, with its quotes."""
    holders: Sequence[tuple[JsonObject, str]]
    """The objects in the result that contain the text as a value, each with the key of this value."""


Decoded = tuple[JsonValue, tuple[bytes, ...], LongText | None]
"""A decoded message, its JSON in consecutive parts, and the long text in its result or `None`.

If there is a long text, the JSON parts with odd indexes are the JSON of this text.
"""


def decode_parts(parts: list[bytes]) -> Decoded:
    """Decode a message whose JSON arrived in consecutive `parts`.

    The caller must not use the list `parts` afterwards: it is changed to save a copy.

    Raises:
        ValueError: The message is not JSON.
    """
    size = sum(map(len, parts))
    place = _place(parts, size) if size >= LONG_BYTES else None
    if place is not None:
        with contextlib.suppress(ValueError):
            found = _apart(parts, size, *place)
            if found is not None:
                return found
    data = b"".join(parts)
    return from_json(data), (data,), None


def decode_with_raw_text(parts: list[bytes]) -> JsonValue:
    """Decode a message without keeping its JSON, which takes less memory than `decode_parts`. Empties the list `parts`.

    Raises:
        ValueError: The message is not JSON.
    """
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    apart = _with_raw_text(data)
    if apart is None:
        return from_json(data)
    del data  # the decoded text may take four times its bytes
    message, node, name, text = apart
    node[name] = text.decode()
    return message


def _with_raw_text(data: bytes) -> tuple[JsonValue, JsonObject, str, bytearray] | None:
    """Decode a message and its long text separately. Return `None` if the message does not have exactly one.

    Otherwise return the message with a marker in place of the text, the object in the message that contains the marker, the key of the
    marker in this object, and the text in UTF-8.
    """
    place = _place([data], len(data)) if len(data) >= LONG_BYTES else None
    if place is None:
        return None
    start, stop = place
    try:
        message: JsonValue = from_json(data[:start] + _MARKED + data[stop:])
        marked = _marked(message)
        return (message, *marked[0], _utf8(memoryview(data)[start:stop])) if len(marked) == 1 else None
    except ValueError:
        return None


def _apart(parts: list[bytes], size: int, start: int, stop: int) -> Decoded | None:
    """Decode the JSON message in `parts` and its long text separately, and return the whole message, its parts and the text.

    The text is the string between the byte offsets `start` and `stop`. If `content` and `structuredContent` both have the string, the
    offsets enclose both. Return `None` if the string is not a value of a content block or of the structured content, or if the two strings
    differ; the caller then decodes the message as a whole. Changes the list `parts`, unless it returns `None`.
    """
    gap = _gap(parts, start, stop)
    between = [] if gap is None else [_cut(parts, *gap)]
    around = [_cut(parts, 0, start), *between, _cut(parts, stop, size)]
    message: JsonValue = from_json(_MARKED.join(around))
    marked = _marked(message)
    if len(marked) != len(around) - 1:
        return None
    encoded = _cut(parts, start, stop if gap is None else gap[0])
    if gap is not None and encoded != _cut(parts, gap[1], stop):
        return None
    parts[:] = _joined(around, encoded)  # else the text would be in memory twice, and a third time when it is decoded
    text = _text(encoded)
    for node, name in marked:
        node[name] = text
    return message, tuple(parts), LongText(text, memoryview(encoded), marked)


def _text(encoded: bytes) -> str:
    """Decode a JSON string. A string of `LARGE_BYTES` is decoded in slices, so that other threads can run between two slices.

    Raises:
        ValueError: `encoded` is not a JSON string.
    """
    if len(encoded) < LARGE_BYTES:
        return cast("str", from_json(encoded))
    return "".join(_slices(encoded))


def _utf8(encoded: memoryview) -> bytearray:
    """Decode a long JSON string in slices, and return it in UTF-8."""
    found = bytearray()
    for part in _slices(encoded):
        found += part.encode()
    return found


def _slices(encoded: bytes | memoryview) -> Iterator[str]:
    start, end = 1, len(encoded) - 1
    while start < end:
        stop = _boundary(encoded, start, start + SLICE_BYTES) if end - start > SLICE_BYTES else end
        yield cast("str", from_json(b'"%b"' % encoded[start:stop]))
        start = stop


def _boundary(encoded: bytes | memoryview, start: int, near: int) -> int:
    """Return the last position up to `near` at which a slice of a JSON string may end: not inside a character, escape or surrogate pair.

    The slice begins at `start`.

    Raises:
        ValueError: The last `MAX_STEPS` bytes have no such position.
    """
    for stop in range(near, near - MAX_STEPS, -1):
        before = bytes(encoded[max(start, stop - WINDOW_BYTES) : stop])
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if encoded[stop] & 0xC0 == 0x80 or backslashes % 2 or backslashes == WINDOW_BYTES:
            continue
        if before.find(b"\\u", -ESCAPES_BYTES) < 0 or _ENDS_IN_ESCAPE.search(before):
            return stop
    raise ValueError("no boundary")


def _place(parts: Sequence[bytes], size: int) -> tuple[int, int] | None:
    """Return the positions at which a long text of a message probably starts and ends (quotes included); `None` if it has no long text.

    The start is the first quote in the first `ENDS_BYTES` whose string does not end within `ENDS_BYTES`. The end is the first quote in
    about the last `ENDS_BYTES`. The text between these positions may be one string or several; the caller checks this.
    """
    head = _unescaped(_cut(parts, 0, 2 * ENDS_BYTES))
    start = head.find(b'"', 0, ENDS_BYTES)
    while start >= 0 and (end := head.find(b'"', start + 1, start + ENDS_BYTES)) >= 0:
        start = head.find(b'"', end + 1, ENDS_BYTES)
    if start < 0:
        return None
    tail = _cut(parts, size - 2 * ENDS_BYTES, size)
    edge = len(tail[:ENDS_BYTES].rstrip(b"\\"))  # do not start within an escape
    end = _unescaped(tail[edge:]).find(b'"')
    stop = size - 2 * ENDS_BYTES + edge + end + 1
    return (start, stop) if end >= 0 and stop - start >= LONG_BYTES else None


def _unescaped(data: bytes) -> bytes:
    """Return JSON text with escaped quotes and backslashes replaced by `__`, so that the remaining quotes start or end strings.

    This is ten times faster than a regular expression.
    """
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__") if _BACKSLASH in data else data


def _cut(parts: Sequence[bytes], start: int, stop: int) -> bytes:
    """Return the bytes from `start` to `stop` of the message that consists of `parts`, without joining the whole message."""
    found: list[bytes | memoryview] = []
    at = 0
    for part in parts:
        end = at + len(part)
        if start <= at and end <= stop:
            found.append(part)
        elif at < stop and start < end:
            found.append(memoryview(part)[max(start - at, 0) : stop - at])
        at = end
    if stop - start < LARGE_BYTES:
        return b"".join(found)
    whole = bytearray(sum(map(len, found)))
    at = 0
    for part in found:  # `join` would copy all parts at once, and no other thread could run meanwhile
        whole[at : at + len(part)] = part
        at += len(part)
    return cast("bytes", whole)  # a bytearray that is not modified from here on


def _gap(parts: Sequence[bytes], start: int, stop: int) -> tuple[int, int] | None:
    """Return the end of the first of two long texts with equal length, and the start of the second; `None` if there are not two texts.

    A server may repeat the text of a content block in the structured content. `start` is the start of the first text, `stop` the end of the
    second.
    """
    middle = (start + stop) // 2
    near = _cut(parts, middle - ENDS_BYTES, middle + ENDS_BYTES)
    end = near.rfind(b'"', 0, max(near.find(b'"structuredContent"'), 0)) + 1
    first_stop = middle - ENDS_BYTES + end
    last_start = stop - (first_stop - start)
    return (first_stop, last_start) if end and first_stop < last_start else None


def _marked(message: JsonValue) -> list[tuple[JsonObject, str]]:
    """Return the content blocks, and the structured content, that contain the marker as a value, each with the key of this value."""
    result: JsonValue = cast("JsonMapping", message).get("result") if isinstance(message, dict) else None
    if not isinstance(result, dict):
        return []
    content: JsonValue = cast("JsonMapping", result).get("content")
    nodes = [*(cast("list[JsonValue]", content) if isinstance(content, list) else ()), cast("JsonMapping", result).get("structuredContent")]
    return [(node, name) for node in nodes if isinstance(node, dict) for name, item in cast("JsonObject", node).items() if item == _MARK]


def encode_around(value: JsonObject, long_text: LongText) -> Sequence[bytes | memoryview]:
    """Encode a response in consecutive parts. The string `long_text.text` in it is not encoded: its stored JSON is one of the parts.

    Raises:
        ValueError: A string has a lone surrogate.
    """
    result = cast("JsonObject", value["result"])
    content, structured = cast("Sequence[JsonMapping]", result["content"]), result.get("structuredContent")
    marked: JsonObject = {**result, "content": [_with_mark(block, long_text.text) for block in content]}
    if isinstance(structured, dict):
        marked["structuredContent"] = _with_mark(cast("JsonMapping", structured), long_text.text)
    return _joined(to_json({**value, "result": marked}).split(_MARKED), long_text.encoded)


def _with_mark(node: JsonMapping, text: str) -> JsonMapping:
    for item in node.values():
        if item is text:
            return {name: _MARK if item is text else item for name, item in node.items()}
    return node


def _joined(around: Sequence[_Part], between: _Part) -> list[_Part]:
    """Return the items of `around` as a list, with `between` inserted between adjacent items."""
    found = [around[0]]
    for part in around[1:]:
        found += (between, part)
    return found
