r"""Detects and removes hidden text: characters that people do not see but a model reads, or that control a terminal.

Hidden text is control characters (except tab, form feed and line breaks), ANSI sequences, direction overrides and isolates, zero-width
characters, tag characters, and variation selectors without effect. Characters that writing needs are kept: joiners in scripts that use them
and in emoji, direction *marks* of right-to-left text, the flags of England, Scotland and Wales. A value without hidden text is returned
without a copy. Encoded binary data (`blob`, image and audio `data`) is not searched.

Sources: Unicode TR36/TR39, "Trojan Source" (CVE-2021-42574), RGI tag sequences of UTS 51, ECMA-48 for ANSI sequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, cast

from gateway.json_types import JsonObject, JsonValue, items_of, mapped, members_of
from gateway.policy.decision import PASS, Pass, Reject, Rewrite

RULE = "hiddenText"
"""Rule id in the rejection of a text with hidden characters."""

CLEANED_META_KEY = "dev.moongate/hiddenText"
"""Key that the gateway adds to a result's `_meta`, with the value `stripped`, if it removed hidden text from the result."""

HiddenText = Literal["strip", "refuse", "allow"]
"""Values of the setting `hiddenText`: remove hidden characters, reject texts that have any, or accept them."""

MAX_TEXT_DEPTH = 200
"""Maximum nesting of JSON that is searched for hidden text. Deeper text is rejected or dropped, because it is not searched."""

_JOINING = "\u0600-\u08ff\u0900-\u0dff\u0f00-\u109f\u1780-\u18af\ua840-\ua87f\ua8e0-\ua8ff\uaa60-\uaa7f\U00010a00-\U0001193f"
"""Character ranges of scripts in which U+200C and U+200D join or separate letters (Arabic to Mongolian, Brahmic scripts)."""

_EMOJI = "\u00a9\u00ae\u203c-\u3299\ufe0f\U0001f000-\U0001faff"
"""Character ranges of the characters that may precede U+200D (zero width joiner) in an emoji."""

_UNSPACED = "\u0e00-\u0eff\u0f00-\u109f\u1780-\u17ff\u1950-\u1aaf"
"""Character ranges of South-east Asian scripts, which mark word boundaries with U+200B (zero width space)."""

_FLAGS = "|".join("\U0001f3f4" + "".join(chr(0xE0000 + ord(c)) for c in code) + "\U000e007f" for code in ("gbeng", "gbsct", "gbwls"))

_ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|[ -/]+[0-~]|[0-Z\\^-~])?|\x9b[0-?]*[ -/]*[@-~]"

_CONTROLS = bytes([*range(9), 0x0B, *range(0x0E, 0x20), 0x7F])
_FREE_OF = _CONTROLS + b"\xc2\xe1\xe2\xef\xf0\xf3"
"""Bytes of which every UTF-8 text with hidden characters contains at least one.

Deleting these bytes and comparing the lengths is 15 times faster than a regular expression.
"""

_CONTROL_CHARACTERS = _CONTROLS.decode()

_DELETE, _BACKSLASH = b"\x7f\\"

_LONG = 16_384
"""Length of data, in bytes, above which one search for each byte of a set is faster than one pass over the data for the whole set."""

_SLICE = 262_144
"""Number of characters of a long text that are searched at once. Takes about a millisecond, during which no other thread runs."""

_SUSPECT = re.compile(
    r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u180e\u200b-\u200d\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Matches each character that may be or begin hidden text: a fast first test, three times faster than the exact pattern `_ANY`."""

_ASCII = re.compile(_ANSI.partition(r"|\x9b")[0] + r"|[\x00-\x08\x0b\x0e-\x1f\x7f]")
_ANY = re.compile(
    rf"({_FLAGS})"
    rf"|{_ANSI}|[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # direction embeddings, overrides and isolates; the marks 200E, 200F, 061C stay
    rf"|(?<![{_JOINING}])\u200c|(?<![{_JOINING}{_EMOJI}])\u200d|(?<![{_UNSPACED}])\u200b|(?<![\u1800-\u18af])\u180e"
    r"|[\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff]"
    r"|(?<=[\ufe00-\ufe0f\U000e0100-\U000e01ef])[\ufe00-\ufe0f]"
    r"|(?<![\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]"  # ideographic variants stay
)
"""Matches all hidden text in a text with characters beyond ASCII. Group 1 matches the flags of UK countries, which are kept."""

_BINARY_KINDS = ("image", "audio")


def strip_text(text: str) -> str:
    """Return `text` without hidden characters; the same object if it contains no hidden characters."""
    if len(text) > _SLICE and not any(_hides_in_slice(text, start) for start in range(0, len(text), _SLICE)):
        return text  # the search in slices lets other threads run in between
    if text.isascii():
        is_free = _is_free_of(_CONTROLS, text.encode()) if len(text) <= _LONG else not any(map(text.__contains__, _CONTROL_CHARACTERS))
        return text if is_free else _ASCII.sub("", text)
    data = text.encode("utf-8", "surrogatepass")
    if _is_free_of(_FREE_OF, data) or _SUSPECT.search(text) is None:
        return text
    kept = _ANY.sub(r"\1", text)
    return text if kept == text else kept


def _hides_in_slice(text: str, start: int) -> bool:
    """Return whether the slice of `text` from `start` has a character that may be or begin hidden text.

    Whether such a character is really hidden depends on the characters around it, which are not examined here.
    """
    part = text[start : start + _SLICE]
    if part.isascii():
        return not _is_free_of(_CONTROLS, part.encode())
    return not _is_free_of(_FREE_OF, part.encode("utf-8", "surrogatepass")) and _SUSPECT.search(part) is not None


def _is_free_of(some: bytes, data: bytes) -> bool:
    """Return whether `data` contains no byte of `some`.

    If `data` is short, a copy without these bytes is made, and the lengths are compared. Long data is searched for each of the bytes.
    """
    if len(data) > _LONG:
        return not any(map(data.__contains__, some))
    return len(data.translate(None, some)) == len(data)


def is_hidden_free(text: str) -> bool:
    """Return whether `text` contains no hidden characters."""
    return strip_text(text) is text


def may_hide(encoded: bytes) -> bool:
    """Return whether the value of the JSON text `encoded` may contain hidden characters. `False` is certain, `True` is not."""
    # `int in bytes` is fast, while `bytes in bytes` raises and catches an exception each time.
    is_escaping = _BACKSLASH in encoded
    if (is_escaping and len(encoded) > _LONG) or not encoded.isascii() or _DELETE in encoded:
        return True
    # In JSON text, a control character is always an escape such as `\u001b` or `\b`.
    return is_escaping and (encoded.find(b"\\u") >= 0 or encoded.find(b"\\b") >= 0)


def strip_value(value: JsonValue, *, keys: bool = False, depth: int = 0) -> JsonValue:
    """Return decoded JSON without hidden characters in its strings; the same object if it contains no hidden characters.

    Member names of objects are cleaned only if `keys` is true, because they are often data. Encoded binary data of content blocks is not
    changed. `depth` is the nesting of `value`; lists and objects nested deeper than `MAX_TEXT_DEPTH` become `None`.
    """
    if isinstance(value, str):
        return strip_text(value)
    if isinstance(value, dict):
        return _strip_object(cast("JsonObject", value), keys, depth)
    if isinstance(value, list):
        if depth > MAX_TEXT_DEPTH:
            return None
        items = cast("list[JsonValue]", value)
        changed: list[JsonValue] | None = None
        for index, item in enumerate(items):
            clean = strip_value(item, keys=keys, depth=depth + 1)
            if clean is not item:
                changed = changed or list(items)
                changed[index] = clean
        return items if changed is None else changed
    return value


def _strip_object(node: JsonObject, keys: bool, depth: int) -> JsonObject | None:
    if depth > MAX_TEXT_DEPTH:
        return None
    changed: JsonObject | None = None
    for key, item in node.items():
        if (isinstance(item, str) and is_binary(key, node)) or item is None:
            continue
        clean = strip_value(item, keys=keys, depth=depth + 1)
        if clean is not item:
            changed = changed if changed is not None else dict(node)
            changed[key] = clean
    kept = node if changed is None else changed
    if keys and not all(map(is_hidden_free, kept)):
        return {strip_text(key): item for key, item in kept.items()}
    return kept


def is_binary(key: str, node: JsonObject) -> bool:
    """Return whether the member `key` of the content block `node` contains encoded binary data, which is not searched for hidden text."""
    return key == "blob" or (key == "data" and node.get("type") in _BINARY_KINDS)


def strip_schema(schema: JsonObject) -> JsonObject:
    """Return a tool's schema without hidden characters in its texts; the same object if it contains no hidden characters.

    In patterns, hidden characters are written as escapes, so that each pattern matches the same texts as before. A member whose name,
    such as an argument's, contains hidden characters is removed, because a changed name would be another argument.
    """
    return cast("JsonObject", _schema_node(schema, 0))


def _schema_node(value: JsonValue, depth: int) -> JsonValue:
    if isinstance(value, str):
        return strip_text(value)
    if depth > MAX_TEXT_DEPTH:
        return True
    if isinstance(value, list):
        return mapped(items_of(value), lambda item: _schema_node(item, depth + 1))
    if not isinstance(value, dict):
        return value
    node = cast("JsonObject", value)
    after: JsonObject = {}
    for key, item in node.items():
        if not is_hidden_free(key):
            continue
        if key == "pattern" and isinstance(item, str):
            after[key] = _escaped(item)
        elif key == "required" and isinstance(item, list) and not all(map(_is_free_name, cast("list[JsonValue]", item))):
            after[key] = [name for name in cast("list[JsonValue]", item) if _is_free_name(name)]
        else:
            after[key] = _schema_node(item, depth + 1)
    if len(after) == len(node) and all(after[key] is node[key] for key in node):
        return node
    return after


def _is_free_name(name: JsonValue) -> bool:
    return not isinstance(name, str) or is_hidden_free(name)


def _escaped(pattern: str) -> str:
    """Return an equivalent regular expression; if it has hidden characters, all but printable ASCII characters are written as escapes."""
    if is_hidden_free(pattern):
        return pattern
    return "".join(
        c if c.isascii() and c.isprintable() else f"\\u{{{ord(c):x}}}" if ord(c) > 0xFFFF else f"\\u{ord(c):04x}" for c in pattern
    )


# -- judging -------------------------------------------------------------------------------------------------------


def judge_result_text(result: JsonObject, mode: HiddenText) -> Pass | Rewrite | Reject:
    """Judge hidden text in the result of a tool call or of `resources/read`. `mode` is the setting `hiddenText` of the source's policy.

    Returns `Pass` to accept the result unchanged, `Rewrite` with a copy without hidden text, or `Reject`.
    """
    if mode == "allow":
        return PASS
    clean = strip_value(result)
    if clean is result:
        return PASS
    if mode == "strip":
        noted: JsonObject = {**members_of(result.get("_meta")), CLEANED_META_KEY: "stripped"}
        return Rewrite({**cast("JsonObject", clean), "_meta": cast("JsonObject", strip_value(noted))})
    return judge_hidden_text(result, "The result")


def judge_hidden_text(value: JsonValue, subject: str) -> Pass | Reject:
    """Reject `value` if it contains hidden characters or is nested deeper than `MAX_TEXT_DEPTH`.

    The reason names the place; it begins with `subject` ("The result").
    """
    for path, text in _texts(value, "", 0):
        if text is None:
            return Reject(RULE, f"{subject} is nested too deeply to be searched for hidden characters{_at(path)}.")
        if not is_hidden_free(text):
            return Reject(RULE, f"{subject} contains {name_hidden(text)}{_at(path)}, which people do not see.")
    return PASS


def name_hidden(text: str) -> str:
    """Return the kind and code point of the first hidden character in `text`, as words for people; `nothing hidden` if there is none."""
    pattern = _ASCII if text.isascii() else _ANY
    for found in pattern.finditer(text):
        if pattern is _ANY and found.group(1):
            continue
        first = found.group()[0]
        return f"{_kind(first)} (U+{ord(first):04X})"
    return "nothing hidden"


def _kind(character: str) -> str:
    point = ord(character)
    if point == 0x1B or point == 0x9B:
        return "a terminal control sequence"
    if point < 0xA0:
        return "a control character"
    if 0x202A <= point <= 0x202E or 0x2066 <= point <= 0x2069:
        return "a text direction control"
    if 0xE0000 <= point <= 0xE007F:
        return "an invisible tag character"
    return "an invisible character"


def _at(path: str) -> str:
    return f" at {path[:120]}" if path else ""


def _texts(value: JsonValue, path: str, depth: int) -> Iterator[tuple[str, str | None]]:
    """Yield path and text of every string and member name in `value`, except binary data; the text is `None` where nested too deeply."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list) and depth > MAX_TEXT_DEPTH:
        yield path, None
    elif isinstance(value, dict):
        node = cast("JsonObject", value)
        for key, item in node.items():
            yield path, key
            if not (isinstance(item, str) and is_binary(key, node)):
                yield from _texts(item, f"{path}.{strip_text(key)}" if path else strip_text(key), depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[JsonValue]", value)):
            yield from _texts(item, f"{path}[{index}]", depth + 1)
