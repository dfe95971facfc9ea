"""Decodes JSON with comments and trailing commas (JSONC), and edits such a text in place.

Comments are replaced by spaces of the same length before the standard decoder reads the text, so that errors have the line and column in
the file. An edit changes only the characters of one entry; comments and layout of the rest stay. Used by `load`, and by the commands
`moongate add` and `moongate remove`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, cast

from gateway.errors import ConfigError
from gateway.json_types import JsonObject, JsonValue, members_of

_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/|/\*|[^\s]|\s+', re.DOTALL)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_SCALAR = re.compile(r"[^\s,\]}]+")
_NOT_NEWLINE = re.compile(r"[^\r\n]")

MAX_LINE = 100
"""Maximum number of characters of a line that an edit writes; a longer entry is written on several lines.

An entry that is added to an object on a single line stays on this line, whatever its length.
"""


class EntryExists(ConfigError):
    """Error: the text already has an entry at the path of the new entry, and replacing it was not requested."""


class JsoncError(ConfigError):
    """Error: the text is not JSON with comments. `line` and `column` are 1-based positions in the text."""

    def __init__(self, message: str, *, line: int, column: int, path: str = "") -> None:
        super().__init__(message, path=path)
        self.line = line
        self.column = column


def parse(text: str, *, name: str = "") -> JsonValue:
    """Decode JSON with comments and trailing commas. Duplicate keys and `NaN` are errors.

    `name` is the name of the file, which error messages contain before the position.

    Raises:
        JsoncError: The text is not valid; the error has the line and column.
    """
    blanked = blank(text, name=name)
    duplicated = False

    def pairs(items: list[tuple[str, JsonValue]]) -> JsonObject:
        nonlocal duplicated
        result = dict(items)
        duplicated = duplicated or len(result) != len(items)
        return result

    def constant(word: str) -> NoReturn:
        raise _error(text, blanked.index(word), f"{word} is not JSON.", name)

    try:
        value = json.loads(blanked, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _error(text, error.pos, f"{error.msg}.", name) from None
    except RecursionError:
        raise _error(text, 0, "Nested too deeply.", name) from None
    if duplicated:
        found = sorted(_duplicates(_scan(blanked), text, (), name), key=lambda error: (error.line, error.column))
        raise JsoncError("\n".join(map(str, found)), line=found[0].line, column=found[0].column, path=found[0].path)
    return value


def blank(text: str, *, name: str = "") -> str:
    """Return the text with comments, trailing commas and a byte-order mark replaced by spaces, so that all offsets stay the same.

    `name` is the name of the file, for error messages.

    Raises:
        JsoncError: A comment is not closed.
    """
    parts: list[str] = []
    before = ""
    comma = -1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith("//") or (token.startswith("/*") and len(token) > 2):
            parts.append(_NOT_NEWLINE.sub(" ", token))
            continue
        if token == "/*":
            raise _error(text, match.start(), "This comment is never closed: `*/` is missing.", name)
        if token == "\ufeff" and match.start() == 0:
            token = " "
        parts.append(token)
        if token.isspace():
            continue
        if token in "]}" and comma >= 0:
            parts[comma] = " "
        comma = len(parts) - 1 if token == "," and before not in ("", ",", "[", "{", ":") else -1
        before = token
    return "".join(parts)


def insert_entry(text: str, path: Sequence[str], value: JsonValue, *, replace: bool = False) -> str:
    """Return a JSON text with `value` inserted at the path of keys `path`. Comments and layout are kept; missing parents are created.

    With `replace`, the value of an existing entry is replaced.

    Raises:
        EntryExists: The entry exists, and `replace` is false.
        ConfigError: A parent is not an object, or the text cannot be edited safely.
    """
    document = parse(text)
    root = _scan(blank(text))
    expected = _with(document, path, value)
    node, depth = root, 0
    while depth < len(path) and node.is_object and path[depth] in node.members:
        node = node.members[path[depth]].value
        depth += 1
    if depth == len(path):
        if not replace:
            raise EntryExists(f"{dotted(path)} exists already.", path=dotted(path))
        line_indent = _indent_of(text, node.start)
        edited = text[: node.start] + _render(value, text, line_indent, taken=0) + text[node.end :]
    elif not node.is_object:
        where = dotted(path[:depth]) or "the document"
        raise ConfigError(f"{where} is not an object, so nothing can be put into it.", path=dotted(path[:depth]))
    else:
        for key in reversed(path[depth + 1 :]):
            value = {key: value}
        edited = _insert_member(text, node, path[depth], value)
    return _checked(edited, expected)


def remove_entry(text: str, path: Sequence[str]) -> str:
    """Return a JSON text without the entry at the path of keys `path`, and without the comment after the entry on its last line.

    The comment stays if the entry is the last of its object and shares a line with other text.

    Raises:
        ConfigError: The entry does not exist, or the text cannot be edited safely.
    """
    document = parse(text)
    blanked = blank(text)
    node = _scan(blanked)
    for key in path[:-1]:
        member = node.members.get(key)
        if member is None:
            raise ConfigError(f"There is no {dotted(path)}.", path=dotted(path))
        node = member.value
    if path[-1] not in node.members:
        raise ConfigError(f"There is no {dotted(path)}.", path=dotted(path))
    return _checked(_remove_member(text, node, path[-1]), _without(document, path))


def dotted(path: Sequence[str]) -> str:
    """Return a path of keys as text for messages, such as `mcpServers.docs.url`."""
    return ".".join(path)


@dataclass(slots=True)
class _Node:
    start: int
    end: int = 0
    is_object: bool = False
    members: dict[str, _Member] = field(default_factory=lambda: cast("dict[str, _Member]", {}))
    items: list[_Node] = field(default_factory=lambda: cast("list[_Node]", []))
    duplicates: list[tuple[str, int, int]] = field(default_factory=lambda: cast("list[tuple[str, int, int]]", []))
    """Each key that this JSON object contains twice: key, offset of its first occurrence, offset of its second occurrence."""


@dataclass(frozen=True, slots=True)
class _Member:
    start: int
    """Offset, in the JSON text, of the opening quote of this member's key."""
    value: _Node


def _scan(blanked: str) -> _Node:
    """Return the offsets of all values in a valid JSON text, as a tree. `blank` has replaced the text's comments by spaces."""
    return _scan_value(blanked, _skip(blanked, 0))


def _scan_value(text: str, at: int) -> _Node:
    opening = text[at]
    if opening == "{":
        return _scan_object(text, at)
    if opening == "[":
        return _scan_array(text, at)
    match = (_STRING if opening == '"' else _SCALAR).match(text, at)
    return _Node(at, match.end() if match else at + 1)


def _scan_object(text: str, at: int) -> _Node:
    node = _Node(at, is_object=True)
    at = _skip(text, at + 1)
    while text[at] != "}":
        match = _STRING.match(text, at)
        key = cast("str", json.loads(match.group())) if match else ""
        value = _scan_value(text, _skip(text, _skip(text, match.end() if match else at) + 1))
        if key in node.members:
            node.duplicates.append((key, node.members[key].start, at))
        node.members[key] = _Member(at, value)
        at = _skip_comma(text, value.end)
    node.end = at + 1
    return node


def _scan_array(text: str, at: int) -> _Node:
    node = _Node(at)
    at = _skip(text, at + 1)
    while text[at] != "]":
        item = _scan_value(text, at)
        node.items.append(item)
        at = _skip_comma(text, item.end)
    node.end = at + 1
    return node


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _skip_comma(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if at < len(text) and text[at] == "," else at


def _duplicates(node: _Node, text: str, path: tuple[str, ...], name: str) -> Iterator[JsoncError]:
    for key, first, second in node.duplicates:
        where = dotted((*path, key))
        line = _position(text, first)[0]
        yield _error(text, second, f"{where} is written twice (first on line {line}); rename or remove one.", name, path=where)
    for key, member in node.members.items():
        yield from _duplicates(member.value, text, (*path, key), name)
    for index, item in enumerate(node.items):
        yield from _duplicates(item, text, (*path, str(index)), name)


def _position(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def _error(text: str, offset: int, message: str, name: str, *, path: str = "") -> JsoncError:
    line, column = _position(text, offset)
    place = f"{name}:{line}:{column}" if name else f"Line {line}, column {column}"
    return JsoncError(f"{place}: {message}", line=line, column=column, path=path)


def _insert_member(text: str, parent: _Node, key: str, value: JsonValue) -> str:
    newline = "\r\n" if "\r\n" in text else "\n"
    name = json.dumps(key, ensure_ascii=False)
    outer = _indent_of(text, parent.start)
    if not parent.members:
        indent = outer + _indent_unit(text)
        inner = text[parent.start + 1 : parent.end - 1].rstrip()
        entry = f"{newline}{indent}{name}: {_render(value, text, indent, taken=len(name) + 2)}{newline}{outer}"
        return text[: parent.start + 1] + inner + entry + text[parent.end - 1 :]
    members = list(parent.members.values())
    last = members[-1].value.end
    comma = _comma_after(text, last, parent.end)
    if "\n" not in text[parent.start : members[-1].start]:
        at = last if comma is None else comma
        return f"{text[:at]}, {name}: {json.dumps(value, ensure_ascii=False)}{text[at:]}"
    indent = _indent_of(text, members[-1].start)
    entry = f"{newline}{indent}{name}: {_render(value, text, indent, taken=len(name) + 2)}"
    after = _end_of_line(text, last if comma is None else comma + 1, parent.end - 1)
    if comma is None:
        return text[:last] + "," + text[last:after] + entry + text[after:]
    return text[:after] + entry + "," + text[after:]


def _remove_member(text: str, parent: _Node, key: str) -> str:
    keys = list(parent.members)
    index = keys.index(key)
    member = parent.members[key]
    comma = _comma_after(text, member.value.end, parent.end)
    end = member.value.end if comma is None else comma + 1
    start = member.start
    line_end = _end_of_line(text, end, parent.end - 1)
    line_start = text.rfind("\n", 0, start) + 1
    if text[line_start:start].strip() == "" and text[line_end : line_end + 2].startswith(("\n", "\r\n")):
        start, end = max(line_start - 1, 0), line_end
        if start and text[start - 1] == "\r":
            start -= 1
    elif index + 1 < len(keys):
        end = parent.members[keys[index + 1]].start if comma is not None else end
    if index + 1 == len(keys) and index > 0 and comma is None:
        previous = parent.members[keys[index - 1]].value.end
        loose = _comma_after(text, previous, member.start)
        assert loose is not None
        gap = text[loose + 1 : start]
        return text[:loose] + (gap if gap.strip() else gap.rstrip(" ")) + text[end:]
    return text[:start] + text[end:]


def _comma_after(text: str, at: int, limit: int) -> int | None:
    """Return the offset of the comma that follows a value, or `None` if no comma follows. Whitespace and comments are skipped.

    `at` is the offset of the value's end; the search ends at `limit`.
    """
    for match in _TOKEN.finditer(text, at, limit):
        token = match.group()
        if token == ",":
            return match.start()
        if not token.isspace() and not token.startswith(("//", "/*")):
            return None
    return None


def _end_of_line(text: str, at: int, limit: int) -> int:
    """Return the offset after the blanks and comments between the offset `at` and the end of its line, or `limit` if it comes first.

    Returns `at` itself if the text up to this end contains anything else.
    """
    end = at
    for match in _TOKEN.finditer(text, at, limit):
        token = match.group()
        if "\n" in token:
            blanks = len(token) - len(token.lstrip(" \t"))
            return match.start() + blanks if token.isspace() else end
        if token.startswith(("//", "/*")):
            end = match.end()
        elif not token.isspace():
            return at
    return end


def _indent_of(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indent_unit(text: str) -> str:
    match = re.search(r"\n([ \t]+)[\"}]", text)
    return match.group(1) if match else "  "


def _render(value: JsonValue, text: str, indent: str, *, taken: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + taken + len(flat) <= MAX_LINE:
        return flat
    newline = "\r\n" if "\r\n" in text else "\n"
    return json.dumps(value, ensure_ascii=False, indent=_indent_unit(text)).replace("\n", newline + indent)


def _with(document: JsonValue, path: Sequence[str], value: JsonValue) -> JsonValue:
    if not path:
        return value
    base = members_of(document)
    return {**base, path[0]: _with(base.get(path[0]), path[1:], value)}


def _without(document: JsonObject, path: Sequence[str]) -> JsonObject:
    if len(path) == 1:
        return {key: value for key, value in document.items() if key != path[0]}
    return {**document, path[0]: _without(document[path[0]], path[1:])}


def _checked(edited: str, expected: JsonValue) -> str:
    """Return an edited text after checking that it decodes to the intended value, so that an edit never damages the rest of a file.

    Raises:
        ConfigError: The text decodes to another value.
    """
    try:
        actual = parse(edited)
    except JsoncError:
        actual = None
    if actual != expected:
        raise ConfigError("The file is laid out in a way that cannot be edited safely; make the change by hand.")
    return edited
