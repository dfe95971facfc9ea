"""Structured output: converts the requested type of a model's answer to a JSON Schema, and the answer to a value of this type.

Pydantic models and JSON Schemas are passed to the chat client unchanged. `TypedFormat` represents any other type (`list[City]`, `int`, a
dataclass). Because providers accept only schemas of objects, `TypedFormat` wraps other types in an object, and unwraps the answer.
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
"""Key under which a model's answer is wrapped in an object, if the requested type is not an object in JSON."""


class TypedFormat:
    """A requested type of a model's answer, with its JSON Schema. Supports any Python type that pydantic can validate."""

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
        """Whether the model must wrap its answer in an object, because the requested type is not an object in JSON."""
        shape = self._own
        if str(shape.get("$ref", "")).startswith("#/$defs/"):
            shape = shape["$defs"][shape["$ref"].rsplit("/", 1)[1]]
        return shape.get("type") != "object"

    @cached_property
    def schema(self) -> JsonObject:
        """JSON Schema of the model's answer, which is sent to the provider. It includes the wrapping object if `is_wrapped`."""
        if not self.is_wrapped:
            return self._own
        inner = dict(self._own)
        definitions = inner.pop("$defs", None)
        made: JsonObject = {"type": "object", "properties": {WRAPPED: inner}, "required": [WRAPPED], "additionalProperties": False}
        return {**made, "$defs": definitions} if definitions else made

    def parse(self, answer: str) -> JsonValue:
        """Parse a model's answer, which is JSON text, and return the value of the requested type.

        If `is_wrapped`, the value is taken from the object in which the model wrapped its answer.

        Raises:
            ValueError: The answer is not JSON, or does not match the type.
        """
        if not self.is_wrapped:
            return self._adapter.validate_json(answer)
        decoded: JsonValue = json.loads(answer)
        if not isinstance(decoded, dict) or WRAPPED not in decoded:
            raise ValueError(f"The answer is not an object with the key {WRAPPED!r}.")
        return self._adapter.validate_python(cast("JsonObject", decoded)[WRAPPED])


ResponseFormat = Union["type[BaseModel]", JsonMapping, TypedFormat]
"""Requested format of a model's answer: a pydantic model, a JSON Schema, or a `TypedFormat` for any other type."""


def response_format(wanted: object) -> ResponseFormat | None:
    """Convert the answer format that a caller requests to a `ResponseFormat`.

    A pydantic model, a JSON Schema, a `TypedFormat` and `None` are returned unchanged; any other type is wrapped in a `TypedFormat`.
    """
    if wanted is None or isinstance(wanted, Mapping | TypedFormat) or hasattr(wanted, "model_validate_json"):
        return cast("ResponseFormat | None", wanted)
    return TypedFormat(wanted)


def parse_answer(answer: str, wanted: ResponseFormat) -> JsonValue:
    """Parse a model's answer, which is JSON text, and return the value in the requested format.

    For a JSON Schema the decoded JSON is returned without validation.

    Raises:
        ValueError: The answer is not JSON, or does not match the type; for a pydantic model it is a `ValidationError`.
    """
    if isinstance(wanted, TypedFormat):
        return wanted.parse(answer)
    if isinstance(wanted, type):
        return wanted.model_validate_json(answer)
    return json.loads(answer)
