"""Pydantic types of fields in workflow files: names, references to tools and functions, and lists that may be written as one value.

The models of workflow files (`definition`, `team_definition`) use them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema

from gateway.config.base_models import FileModel
from gateway.json_types import JsonObject


def _matching(pattern: str, words: str) -> tuple[AfterValidator, Any]:
    """Return the pydantic annotations of a string type whose values must match `pattern`: a validator, and the pattern for JSON Schemas.

    `words` describes the allowed values; the validator's error says that the value is not `words`.
    """
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.match(value):
            raise ValueError(f"{value!r} is not {words}")
        return value

    return AfterValidator(check), Field(json_schema_extra={"pattern": pattern})


_NAME = _matching(r"^[A-Za-z0-9_-]{1,50}$", "a name: use up to 50 letters, digits, '_' and '-'")
_TOOL = _matching(r"^[A-Za-z0-9_-]+/[^\s*?\[\]]+$", "one tool: write source/tool, e.g. docs/search")
_FUNCTION = _matching(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", "a function: write package.module:function")
_PARTICIPANT = _matching(
    r"^[A-Za-z0-9_-]{1,50}$|^[A-Za-z0-9_-]+/[^\s*?\[\]]+$", "a participant: write an agent's name, or source/tool, e.g. workflow/brief"
)
_CHOOSER = _matching(
    r"^round-robin$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", "a way to choose: write round-robin, or a function as package.module:function"
)

Name = Annotated[str, *_NAME]
ToolName = Annotated[str, *_TOOL]
FunctionName = Annotated[str, *_FUNCTION]
Participant = Annotated[str, *_PARTICIPANT]
Chooser = Annotated[str, *_CHOOSER]


class Closed(FileModel):
    """Base of the pydantic models of objects in a workflow file. Unknown keys are errors, and objects are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def _listed(value: Any) -> tuple[str, ...]:
    items = cast("list[Any]", value if isinstance(value, list) else [value])
    if not items or not all(isinstance(item, str) for item in items):
        raise ValueError("must be a name, or a list of names")
    repeated = next((item for item in items if items.count(item) > 1), None)
    if repeated is not None:
        raise ValueError(f"names {repeated!r} twice")
    return tuple(items)


_LIST: JsonObject = {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}

OneOrMore = Annotated[tuple[str, ...], BeforeValidator(_listed), WithJsonSchema({"anyOf": [{"type": "string"}, _LIST]})]
"""Type of a field of workflow files that contains one name or a list of different names. The value becomes a tuple."""

WORDS = ("all", "all_other")


def _chosen(value: Any) -> Literal["all", "all_other"] | tuple[str, ...]:
    if value == "all" or value == "all_other":
        return value
    if not isinstance(value, list):
        raise ValueError("must be a list of names, `all` or `all_other`")
    return _listed(cast("list[Any]", value)) if value else ()


Names = Annotated[
    Literal["all", "all_other"] | tuple[str, ...],
    BeforeValidator(_chosen),
    WithJsonSchema({"anyOf": [{"enum": list(WORDS)}, {**_LIST, "minItems": 0}]}),
]
"""Type of a field of workflow files that selects executors or participants: a list of names, `all`, or `all_other`.

`all_other` selects the executors or participants that the field `output-from` does not select."""


def as_selection(names: str | tuple[str, ...] | None) -> Any:
    """Convert the selection of executors in a file to an argument of a workflow builder: a list of ids, `all`, `all_other` or `None`."""
    return list(names) if isinstance(names, tuple) else names


def _reviewed(value: Any) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if not isinstance(value, list):
        raise ValueError("must be true, false, or a list of participants")
    return _listed(cast("list[Any]", value))


Review = Annotated[bool | tuple[str, ...], BeforeValidator(_reviewed), WithJsonSchema({"anyOf": [{"type": "boolean"}, _LIST]})]
"""Type of a field of workflow files that selects participants whose answers a person reviews: true (all), false, or a list of names."""
