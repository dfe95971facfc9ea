"""`{{name}}` templates of workflow files: texts and JSON values with references to the workflow's inputs and the outputs of executors.

A reference is a name, followed by fields or list positions after dots: `{{topic}}`, `{{review.notes}}`, `{{search.hits.0.title}}`.
Expressions, filters and escapes do not exist. Inserted values are never parsed as templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.json_types import JsonMapping, JsonValue, as_text, map_texts

_BRACES = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_REFERENCE = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_-]*)((?:\.[A-Za-z0-9_$-]+)*)\s*$")

_SHOWN = 60
"""Maximum number of characters of a malformed reference that an error message quotes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference of a template, such as `{{name.field.0}}`: the name of an input or executor, and a path inside its value."""

    name: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "{{" + ".".join((self.name, *self.path)) + "}}"

    def resolve(self, scope: JsonMapping) -> JsonValue:
        """Return the value to which the reference leads; `None` if the name or a part of the path has no value.

        `scope` has the values by name.

        Raises:
            ToolFailed: The value of the name does not have the field or list position in the reference.
        """
        value: JsonValue = scope.get(self.name)
        for index, part in enumerate(self.path):
            if value is None:
                return None
            step = _step(value, part)
            if step is _MISSING:
                parent = ".".join((self.name, *self.path[:index]))
                raise ToolFailed(f"{self} has no value: {parent!r} is {_describe(value, part)}.")
            value = step
        return value


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed text with `{{…}}` references: a sequence of strings and references."""

    parts: tuple[str | Reference, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a text that may contain `{{…}}` references.

        Raises:
            WorkflowInvalid: A text between double braces is not a reference.
        """
        parts: list[str | Reference] = []
        end = 0
        for match in _BRACES.finditer(text):
            inner = _REFERENCE.match(match.group(1))
            if inner is None:
                shown = match.group(0) if len(match.group(0)) <= _SHOWN else match.group(0)[:_SHOWN] + "…"
                raise WorkflowInvalid(f"{shown!r} is not a reference: write {{{{name}}}} or {{{{name.field}}}}; there are no expressions.")
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(Reference(inner.group(1), tuple(inner.group(2).split(".")[1:])))
            end = match.end()
        if end < len(text):
            parts.append(text[end:])
        return cls(tuple(parts))

    @property
    def references(self) -> list[Reference]:
        """The references in the template, in the order of the text."""
        return [part for part in self.parts if isinstance(part, Reference)]

    def value(self, scope: JsonMapping) -> JsonValue:
        """Return the text with references replaced by their values from `scope`.

        If the template is a single reference and nothing else, return the referenced value with its JSON type.
        """
        if len(self.parts) == 1 and isinstance(self.parts[0], Reference):
            return self.parts[0].resolve(scope)
        return self.text(scope)

    def text(self, scope: JsonMapping) -> str:
        """Return the text with references replaced by their values from `scope`.

        Strings are inserted unchanged, a missing value as an empty text, other values as JSON.
        """
        return "".join(part if isinstance(part, str) else as_text(part.resolve(scope)) for part in self.parts)


def texts(value: JsonValue) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every string inside a JSON value as a pair: its path (keys and list positions) and the string. Keys are not yielded."""
    if isinstance(value, str):
        yield (), value
    elif isinstance(value, Mapping):
        for key, item in cast("JsonMapping", value).items():
            yield from (((key, *path), text) for path, text in texts(item))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[JsonValue]", value)):
            yield from (((index, *path), text) for path, text in texts(item))


def constants(value: JsonValue) -> frozenset[tuple[str, str]]:
    """Return the constant strings (without `{{…}}` references) inside a JSON value, as pairs of key and string.

    The key is that of the object which directly contains the string. Strings that are items of lists are left out.
    """
    found = ((path[-1], text) for path, text in texts(value) if path and not Template.parse(text).references)
    return frozenset((key, text) for key, text in found if isinstance(key, str))


def fill(value: JsonValue, scope: JsonMapping) -> JsonValue:
    """Return a copy of a JSON value in which the `{{…}}` references in strings are replaced by values from `scope`. Keys do not change."""
    return map_texts(value, lambda text: Template.parse(text).value(scope))


_MISSING = object()


def _step(value: JsonValue, part: str) -> JsonValue:
    if isinstance(value, Mapping):
        return cast("JsonMapping", value).get(part, _MISSING)
    if isinstance(value, list) and part.isdecimal() and len(part) < 10:
        items = cast("list[JsonValue]", value)
        return items[int(part)] if int(part) < len(items) else _MISSING
    return _MISSING


def _describe(value: JsonValue, part: str) -> str:
    if isinstance(value, Mapping):
        keys = ", ".join(list(cast("JsonMapping", value))[:10])
        return f"an object ({keys}) without {part!r}" if keys else "an empty object"
    if isinstance(value, list):
        count = len(cast("list[JsonValue]", value))
        return f"a list of {count} without {part!r}" if count else "an empty list"
    kind = "true or false" if isinstance(value, bool) else "text" if isinstance(value, str) else "a number"
    return f"{kind} and has no {part!r}"
