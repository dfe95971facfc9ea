"""pydantic's findings as one line each, with a JSON path and a suggestion. Used by `load` and `entries`."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.suggest import did_you_mean

_SPECIAL = {"additionalArguments": "expected a list of argument names, or an object of such lists by tool"}
"""Keys with two shapes: one sentence for both instead of one finding per shape."""


_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("more than", "gt"),
    "less_than": ("less than", "lt"),
}
"""pydantic's kind of finding → how it is worded, and where the limit stands in its context."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a document."""

    path: str
    text: str
    """The mistake, without its path."""

    def line(self) -> str:
        """`path: text`."""
        return f"{self.path}: {self.text}" if self.path else self.text


def problems_of(error: ValidationError, model: type[BaseModel], *, root: str = "") -> list[Problem]:
    """Every mistake once, in the order of the document; `root` is the path of what was validated."""
    found: dict[str, Problem] = {}
    for detail in error.errors(include_url=False, include_input=True):
        problem = _problem(detail, model, root)
        found.setdefault(problem.path, problem)
    return list(found.values())


def _problem(detail: ErrorDetails, model: type[BaseModel], root: str) -> Problem:
    path = root
    here: Any = model
    for index, part in enumerate(detail["loc"]):
        if isinstance(part, int):
            path += f"[{part}]"
            here = _item_type(here)
            continue
        path += f".{part}" if path else part
        if part in _SPECIAL:
            return Problem(path, _SPECIAL[part])
        if index + 1 == len(detail["loc"]) and detail["type"] == "extra_forbidden":
            hint = did_you_mean(part, keys_of(here))
            return Problem(path, f"unknown key {part!r}. {hint}".rstrip())
        here = _member_type(here, part)
    return Problem(path, _sentence(detail))


def keys_of(model: object) -> list[str]:
    """The keys a model has in the file."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return [info.alias or name for name, info in model.model_fields.items()]
    return []


def _member_type(here: Any, part: str) -> Any:
    if isinstance(here, type) and issubclass(here, BaseModel):
        for name, info in here.model_fields.items():
            if part in (info.alias, name):
                return _without_none(info.annotation)
        return None
    if get_origin(here) is dict:
        return _without_none(get_args(here)[1])
    return None


def _item_type(here: Any) -> Any:
    return _without_none(get_args(here)[0]) if get_origin(here) is list else None


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        return members[0] if len(members) == 1 else None
    return annotation


def _sentence(detail: ErrorDetails) -> str:
    context = detail.get("ctx") or {}
    match detail["type"]:
        case "missing":
            return "is required"
        case "literal_error":
            return f"must be {context.get('expected')}"
        case "string_type":
            return f"must be text in quotes, not {_shape(detail['input'])}"
        case "list_type":
            return f"must be a list, not {_shape(detail['input'])}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be an object, not {_shape(detail['input'])}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"must be a whole number, not {_shape(detail['input'])}"
        case "float_type" | "float_parsing":
            return f"must be a number, not {_shape(detail['input'])}"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {_shape(detail['input'])}"
        case bound if bound in _BOUNDS:
            words, key = _BOUNDS[bound]
            return f"must be {words} {context.get(key)}"
        case "value_error":
            return str(context.get("error", detail["msg"]))
        case _:
            return detail["msg"][0].lower() + detail["msg"][1:]


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
