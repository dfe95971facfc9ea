"""Structured output: convert a requested answer type to a JSON Schema, and the model's answer to a value of that type.

A pydantic model and a JSON Schema are sent unchanged. `TypedFormat` describes any other type (`list[City]`, `int`, a dataclass).
Providers accept only objects, so `TypedFormat` wraps other types in an object and unwraps the answer.
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
"""Key of the answer in the object that wraps it, for types whose schema is not an object."""


class TypedFormat:
    """Requested format of an answer, made from any Python type."""

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
        """Whether the answer is wrapped in an object, because the schema of the type is not an object."""
        shape = self._own
        if str(shape.get("$ref", "")).startswith("#/$defs/"):
            shape = shape["$defs"][shape["$ref"].rsplit("/", 1)[1]]
        return shape.get("type") != "object"

    @cached_property
    def schema(self) -> JsonObject:
        """JSON Schema of the answer, to send to the model."""
        if not self.is_wrapped:
            return self._own
        inner = dict(self._own)
        definitions = inner.pop("$defs", None)
        made: JsonObject = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}
        return {**made, "$defs": definitions} if definitions else made

    def parse(self, answer: str) -> JsonValue:
        """Return the value of this type that a model's answer (JSON text) contains.

        Raises:
            ValueError: The answer does not match the type.
        """
        if not self.is_wrapped:
            return self._adapter.validate_json(answer)
        decoded: JsonValue = json.loads(answer)
        if not isinstance(decoded, dict) or WRAPPED not in decoded:
            raise ValueError(f"The answer is not an object with the key {WRAPPED!r}.")
        return self._adapter.validate_python(cast("JsonObject", decoded)[WRAPPED])


ResponseFormat = Union["type[BaseModel]", JsonMapping, TypedFormat]
"""Format of an answer: a pydantic model, a JSON Schema, or any other type."""


def response_format(wanted: object) -> ResponseFormat | None:
    """Convert the `response_format` of a caller to a pydantic model, a JSON Schema or a `TypedFormat`; `None` stays `None`."""
    if wanted is None or isinstance(wanted, Mapping | TypedFormat) or hasattr(wanted, "model_validate_json"):
        return cast("ResponseFormat | None", wanted)
    return TypedFormat(wanted)


def parse_answer(answer: str, wanted: ResponseFormat) -> JsonValue:
    """Return the value that a model's answer contains, in the requested format.

    Raises:
        ValueError: The answer does not match the format. For a pydantic model this is a `ValidationError`.
    """
    if isinstance(wanted, TypedFormat):
        return wanted.parse(answer)
    if isinstance(wanted, type):
        return wanted.model_validate_json(answer)
    return json.loads(answer)
