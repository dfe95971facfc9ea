"""Structured output: what an answer must look like, as a schema on the way out and a value on the way back.

A pydantic model and a JSON Schema are the caller's own and go out as they are (requirements SO1). Any other type - `list[City]`,
`int`, a dataclass - is ours to describe: what is no JSON object is put into one, because providers only take objects, and
taken out again (requirements SO2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union, cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

WRAPPED = "result"
"""Key under which an answer that is no object is put into one."""


class TypedFormat:
    """A type as a format of answers."""

    def __init__(self, wanted: object) -> None:
        self.wanted = wanted

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        from pydantic import TypeAdapter

        return TypeAdapter(cast("Any", self.wanted))

    @cached_property
    def _own(self) -> JsonObject:
        return self._adapter.json_schema(by_alias=True)

    @property
    def is_wrapped(self) -> bool:
        """Whether the answer is put into an object."""
        shape = self._own
        if str(shape.get("$ref", "")).startswith("#/$defs/"):
            shape = shape["$defs"][shape["$ref"].rsplit("/", 1)[1]]
        return shape.get("type") != "object"

    @cached_property
    def schema(self) -> JsonObject:
        """The schema that the model is given."""
        if not self.is_wrapped:
            return self._own
        inner = dict(self._own)
        definitions = inner.pop("$defs", None)
        made: JsonObject = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}
        return {**made, "$defs": definitions} if definitions else made

    def parse(self, answer: str) -> JsonValue:
        """The value in an answer.

        Raises:
            ValueError: The answer does not have the form.
        """
        if not self.is_wrapped:
            return self._adapter.validate_json(answer)
        decoded: JsonValue = json.loads(answer)
        if not isinstance(decoded, dict) or WRAPPED not in decoded:
            raise ValueError(f"The answer is no object with {WRAPPED!r}.")
        return self._adapter.validate_python(cast("JsonObject", decoded)[WRAPPED])


ResponseFormat = Union["type[BaseModel]", JsonMapping, TypedFormat]
"""What an answer must look like: a pydantic model, JSON Schema, or another type."""


def response_format(wanted: object) -> ResponseFormat | None:
    """What a caller may give as `response_format`, as one of the three."""
    if wanted is None or isinstance(wanted, Mapping | TypedFormat) or hasattr(wanted, "model_validate_json"):
        return cast("ResponseFormat | None", wanted)
    return TypedFormat(wanted)


def parse_answer(answer: str, wanted: ResponseFormat) -> JsonValue:
    """The value in an answer.

    Raises:
        ValueError: The answer does not have the form (a pydantic `ValidationError`, where a model was given).
    """
    if isinstance(wanted, TypedFormat):
        return wanted.parse(answer)
    if isinstance(wanted, type):
        return wanted.model_validate_json(answer)
    return json.loads(answer)
