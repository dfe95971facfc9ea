"""Turns pydantic's validation errors into one-line messages with a JSON path and a suggestion, to report mistakes in files."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.suggest import did_you_mean

MAX_KEYS_NAMED = 12
"""Maximum number of an object's keys that a message lists. For an object with more keys, only the most similar key is suggested."""

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"),
    "less_than": ("less than", "lt"),
}
"""pydantic's error type → words for the message, and the key of the error's context that contains the limit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a validated file: its JSON path, and a text for the user."""

    path: str
    text: str
    """What is wrong and what to write instead, without the path."""

    def line(self) -> str:
        """Return the mistake as one line, `path: text`."""
        return f"{self.path}: {self.text}" if self.path else self.text


def problems_of(error: ValidationError, model: type[BaseModel], *, root: str = "") -> list[Problem]:
    """Return the mistakes that a failed validation by `model` found, at most one for each JSON path.

    `root` is the JSON path of the validated value.
    """
    found: dict[str, Problem] = {}
    shapes: dict[str, Problem] = {}
    for detail in error.errors(include_url=False, include_input=True):
        problem, is_shape = _problem(detail, model, root)
        (shapes if is_shape else found).setdefault(problem.path, problem)
    # pydantic reports errors for each member of a union. A value that matches no member is one mistake; if it has the shape of a member,
    # only the mistakes inside the value count.
    mistaken = {path: problem for path, problem in shapes.items() if not any(other.startswith((f"{path}.", f"{path}[")) for other in found)}
    return list({**mistaken, **found}.values())


def _problem(detail: ErrorDetails, model: type[BaseModel], root: str) -> tuple[Problem, bool]:
    """Turn one of pydantic's errors into a `Problem`.

    Also returns whether the value has none of the types that its key allows, such as a list for a key that needs text.
    """
    path = root
    here: list[Any] = [model]
    rest = list(detail["loc"])
    while rest:
        part = rest.pop(0)
        if len(here) > 1:  # in pydantic's error locations, the member of the union comes before the key
            members, here = here, [_member_of(here, str(part))]
            if not rest and detail["type"].endswith(("_type", "literal_error")):
                return Problem(path, f"must be {_allowed(members, detail['input'])}"), True
            continue
        if isinstance(part, int):
            path, here = f"{path}[{part}]", _item_types(here[0])
            continue
        path += f".{part}" if path else part
        if not rest and detail["type"] == "extra_forbidden":
            return Problem(path, f"unknown key {part!r}. {_known_keys(part, here[0])}".rstrip()), False
        here = _member_types(here[0], part)
    if detail["type"] in ("union_tag_not_found", "union_tag_invalid"):
        key = str((detail.get("ctx") or {})["discriminator"]).strip("'")
        tags = _words([str(word) for member in here for word in get_args(member.model_fields[key].annotation)], "or")
        text = f"must be {tags}" if detail["type"] == "union_tag_invalid" else f"is required: {tags}"
        return Problem(f"{path}.{key}" if path else key, text), False
    return Problem(path, _sentence(detail)), False


def keys_of(model: object) -> list[str]:
    """Return the keys that an object of the pydantic model `model` has in the file; an empty list if `model` is not a pydantic class."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [info.alias or name for name, info in model.model_fields.items()]
    return []


def _known_keys(key: str, model: object) -> str:
    """Return a sentence that suggests the key of `model` most similar to an unknown key, or that lists all keys if they are few.

    An empty string if no key is similar and the keys are many.
    """
    known = keys_of(model)
    if hint := did_you_mean(key, known):
        return hint
    return f"Its keys are {_words(known, 'and')}." if 0 < len(known) <= MAX_KEYS_NAMED else ""


def _member_types(here: object, part: str) -> list[Any]:
    if isinstance(here, type) and issubclass(here, BaseModel):
        return next((_types(info.annotation) for name, info in here.model_fields.items() if part in (info.alias, name)), [None])
    return _types(get_args(here)[1]) if get_origin(here) is dict else [None]


def _item_types(here: object) -> list[Any]:
    return _types(get_args(here)[0]) if get_origin(here) in (list, tuple) else [None]


def _types(annotation: object) -> list[Any]:
    """Return the types that the annotation of a model's field allows, without `None`."""
    return [one for one in _arms(annotation) if one is not types.NoneType] or [None]


def _arms(annotation: object) -> Iterator[object]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _arms(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _arms(one)
    else:
        yield annotation


def _member_of(members: Sequence[Any], label: str) -> object:
    """Return the member of a union to which an error of pydantic belongs, or `None`.

    `label` is the part of the error's location that identifies the member: the value of a discriminator, or a name of the type.
    """
    for member in members:
        origin, name = get_origin(member), getattr(member, "__name__", "")
        if label in _literals(member) or label == name or label.endswith(f" {name}]"):
            return member
        if origin is not None and label.startswith(("literal" if origin is Literal else origin.__name__) + "["):
            return member
    return None


def _literals(member: object) -> set[object]:
    """Return all values that the `Literal` fields of a pydantic model accept. One of these fields may be the discriminator of a union."""
    if not (isinstance(member, type) and issubclass(member, BaseModel)):
        return set()
    fixed = [info.annotation for info in member.model_fields.values() if get_origin(info.annotation) is Literal]
    return {word for annotation in fixed for word in get_args(annotation)}


def _allowed(members: Sequence[Any], given: object) -> str:
    """Return what a value must be, as a phrase such as `a list, or 'all' or 'none', not a number`.

    `members` are the allowed types and `given` is the value. The phrase does not say "not text" if the value is text and fixed texts are
    allowed.
    """
    shapes: list[str] = []
    for member in members:
        keys = keys_of(member)
        if get_origin(member) is Literal:
            shapes.append(_words([str(word) for word in get_args(member)], "or"))
        elif 0 < len(keys) <= MAX_KEYS_NAMED:
            shapes.append(f"an object with the keys {_words(keys, 'and')}")
        elif member in _NAMES:
            shapes.append(_NAMES[member])
        else:
            shapes.append("a list" if get_origin(member) in (list, tuple) else "an object")
    is_word = isinstance(given, str) and any(get_origin(member) is Literal for member in members)
    return ", or ".join(shapes) + ("" if is_word else f", not {_shape(given)}")


def _words(words: Sequence[str], last: str) -> str:
    *others, end = [repr(word) for word in words]
    return f"{', '.join(others)} {last} {end}" if others else end


_NAMES: dict[object, str] = {str: "text in quotes", bool: "true or false", int: "a whole number", float: "a number"}

_KINDS = {
    "string_type": "text in quotes",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}
"""pydantic's error type → words for the kind of value that is expected."""


def _sentence(detail: ErrorDetails) -> str:
    context = detail.get("ctx") or {}
    given = detail["input"]
    match detail["type"]:
        case "missing":
            return "is required"
        case "literal_error":
            return f"must be {context.get('expected')}"
        case kind if kind in _KINDS:
            is_fraction = kind.startswith("int") and isinstance(given, float)
            return f"must be {_KINDS[kind]}, not {given if is_fraction else _shape(given)}{_unquoted(kind, given)}"
        case bound if bound in _BOUNDS:
            words, key = _BOUNDS[bound]
            limit = context.get(key)
            return f"must be {words} {f'{limit:g}' if isinstance(limit, float) else limit}"
        case "string_too_short" | "too_short":
            return "must not be empty" if context.get("min_length") == 1 else f"must have at least {context.get('min_length')} entries"
        case "string_too_long":
            return f"must have at most {context.get('max_length')} characters"
        case "string_pattern_mismatch":
            return f"must match the pattern {context.get('pattern')}"
        case "finite_number":
            return "must be a finite number"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _:
            return detail["msg"][0].lower() + detail["msg"][1:]


_SWITCHES = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def _unquoted(kind: str, given: object) -> str:
    """Return a sentence that tells the user to remove the quotes around a number or boolean; an empty string for other values."""
    if not isinstance(given, str):
        return ""
    meant = _SWITCHES.get(given.lower()) if kind == "bool_type" else given if re.fullmatch(r"-?\d+(\.\d+)?", given) else None
    return f". Write {meant} without quotes" if meant is not None and kind in ("bool_type", "int_type", "float_type") else ""


def _shape(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"
