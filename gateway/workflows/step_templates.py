"""`{{name}}` templates of workflow files: text and JSON values with references to inputs and executors' outputs.

A reference is a name, then fields or list positions separated by dots: `{{topic}}`, `{{review.notes}}`, `{{search.hits.0.title}}`. There
are no expressions, filters or escapes. Inserted values are never parsed as templates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from gateway.errors import ToolFailed, WorkflowInvalid
from gateway.json_types import JsonMapping, JsonValue, as_text

_BRACES = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_REFERENCE = re.compile(r"^\s*([A-Za-z_][A-Za-z0-9_-]*)((?:\.[A-Za-z0-9_$-]+)*)\s*$")

_SHOWN = 60
"""Characters of a malformed reference that an error quotes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference, such as `{{name.field.0}}`."""

    name: str
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "{{" + ".".join((self.name, *self.path)) + "}}"

    def resolve(self, scope: JsonMapping) -> JsonValue:
        """Return the value to which the reference leads; `None` if the name has no value yet.

        Raises:
            ToolFailed: The value has no such field or position.
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
    """A parsed text with `{{…}}` references."""

    parts: tuple[str | Reference, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a text with `{{…}}` references.

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
        """The references, in order."""
        return [part for part in self.parts if isinstance(part, Reference)]

    def value(self, scope: JsonMapping) -> JsonValue:
        """Return the filled-in text. A template that is a single reference returns its value, with its JSON type."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Reference):
            return self.parts[0].resolve(scope)
        return self.text(scope)

    def text(self, scope: JsonMapping) -> str:
        """Return the filled-in text: strings unchanged, an empty text for a missing value, other values as JSON."""
        return "".join(part if isinstance(part, str) else as_text(part.resolve(scope)) for part in self.parts)


def texts(value: JsonValue) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every string in a JSON value with its path. Keys are not templates."""
    if isinstance(value, str):
        yield (), value
    elif isinstance(value, Mapping):
        for key, item in cast("JsonMapping", value).items():
            yield from (((key, *path), text) for path, text in texts(item))
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[JsonValue]", value)):
            yield from (((index, *path), text) for path, text in texts(item))


def constants(value: JsonValue) -> frozenset[tuple[str, str]]:
    """Return the strings in a JSON value that contain no `{{…}}` reference, each with its key. Strings in lists are left out."""
    found = ((path[-1], text) for path, text in texts(value) if path and not Template.parse(text).references)
    return frozenset((key, text) for key, text in found if isinstance(key, str))


def fill(value: JsonValue, scope: JsonMapping) -> JsonValue:
    """Return a JSON value with the templates in its strings filled in. Keys do not change."""
    if isinstance(value, str):
        return Template.parse(value).value(scope)
    if isinstance(value, Mapping):
        return {key: fill(item, scope) for key, item in cast("JsonMapping", value).items()}
    if isinstance(value, list):
        return [fill(item, scope) for item in cast("list[JsonValue]", value)]
    return value


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
