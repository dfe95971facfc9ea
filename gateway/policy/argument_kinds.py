"""Guesses which arguments of tools are paths, URLs or mail addresses, from the names and schemas of the arguments.

`policy.lint` and `policy.open_rules` use the guesses to find gaps in the operator's rules. The guesses never decide about a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from gateway.json_types import JsonObject, JsonValue, as_object, items_of, members_of
from gateway.policy.schema_types import declared_schema, element_types, types_of
from gateway.policy.tool_schemas import resolve_local

ArgumentKind = Literal["path", "url", "recipient"]

WORD_OF_KIND: dict[ArgumentKind, str] = {"path": "within", "url": "oneOfHosts", "recipient": "oneOfRecipients"}
"""Kind of argument → the keyword of Moongate (rule word) with which a rule in the configuration restricts arguments of this kind."""

NAME_OF_KIND: dict[ArgumentKind, str] = {"path": "path", "url": "URL", "recipient": "mail address"}

_LAST_WORDS: dict[ArgumentKind, frozenset[str]] = {
    "path": frozenset(
        "path paths file files filename filenames filepath filepaths folder folders dir dirs directory directories cwd".split()
    ),
    "url": frozenset("url urls uri uris href hrefs link links endpoint endpoints webhook webhooks website".split()),
    "recipient": frozenset("email emails recipient recipients cc bcc mailto".split()),
}
"""Kind of argument → words that suggest this kind at the end of an argument's name: `file` in `output_file`, `path` in `repoPath`."""

_WHOLE_NAMES: dict[str, ArgumentKind] = {
    **dict.fromkeys(("source", "destination", "src", "dst", "dest", "root"), "path"),
    "to": "recipient",
}
_FORMATS: dict[str, ArgumentKind] = {
    **dict.fromkeys(("uri", "uri-reference", "iri", "iri-reference"), "url"),
    **dict.fromkeys(("email", "idn-email"), "recipient"),
}
_CLOSED = frozenset({"enum", "const"})
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_MAX_NODES = 500
"""Maximum number of subschemas that are examined to guess the kind of one argument."""


_READING = frozenset("list search read find grep glob get show view open walk tree".split())
_FILES = frozenset("file files folder folders dir dirs directory directories subdirectories".split())


def kinds_of_argument(name: str, schema: JsonObject) -> frozenset[ArgumentKind]:
    """Guess which kinds of text (path, URL, mail address) the argument `name` contains, in its value or in elements and properties of it.

    `schema` is the input schema of the tool.
    """
    found: set[ArgumentKind] = set()
    seen: set[int] = set()
    waiting: list[tuple[str, JsonValue]] = [(name, declared_schema(schema, name))]
    while waiting and len(seen) < _MAX_NODES:
        named, part = waiting.pop()
        node = as_object(part)
        if id(node) in seen or not _CLOSED.isdisjoint(node or ()):
            continue
        kind = _FORMATS.get(str((node or {}).get("format"))) or kind_of_name(named)
        if kind is not None and "string" in types_of(part, schema) | element_types(part, schema):
            found.add(kind)
        if node is not None:
            seen.add(id(node))
            waiting += [(named, child) for child in _same_name(node, schema)]
            waiting += members_of(node.get("properties")).items()
    return frozenset(found)


def is_closed(name: str, schema: JsonObject) -> bool:
    """Return whether a tool's input schema lists all values of the argument `name` with `enum` or `const`."""
    return not _CLOSED.isdisjoint(members_of(declared_schema(schema, name)))


def _same_name(node: JsonObject, root: JsonObject) -> Iterator[JsonValue]:
    """Yield the subschemas of `node`, the schema of an argument, for values that the argument's name describes as well.

    They are the alternatives (`anyOf` and similar), the schema of list elements, and the target of `$ref`. A `$ref` is resolved in `root`,
    the whole schema.
    """
    if "items" in node:
        yield node["items"]
    for key in ("anyOf", "oneOf", "allOf"):
        yield from items_of(node.get(key))
    ref = node.get("$ref")
    if isinstance(ref, str):
        yield resolve_local(root, ref)


def kind_of_name(name: str) -> ArgumentKind | None:
    """Return the kind (path, URL, mail address) that an argument's name suggests, or `None`."""
    if name.lower() in _WHOLE_NAMES:
        return _WHOLE_NAMES[name.lower()]
    words = [word.lower() for word in _WORDS.findall(name)]
    if len(words) > 1 and words[-1] in ("name", "names"):
        words.pop()
    for kind, last_words in _LAST_WORDS.items():
        if words and words[-1] in last_words:
            return kind
    return None


def reads(tool: str) -> bool:
    """Return whether a tool's name suggests that it reads something."""
    return not _READING.isdisjoint(_words_of(tool))


def reads_files(tool: str) -> bool:
    """Return whether a tool's name suggests that it reads files or folders."""
    return reads(tool) and not _FILES.isdisjoint(_words_of(tool))


def _words_of(tool: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(tool)]
