"""`Content`: one piece of a message, of any kind; provider-neutral.

One class with a `type` instead of a class per kind (requirements C12). Kinds Moongate does not know keep all their
fields through `from_dict` and `to_dict`. Chat clients translate; nothing here knows a provider's wire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue


class Content:
    """A piece of a message. `type` says which attributes mean something; the others are `None`."""

    __slots__ = ("additional_properties", "fields", "raw_representation", "type")

    def __init__(
        self,
        type: str,
        *,
        additional_properties: JsonObject | None = None,
        raw_representation: object = None,
        fields: JsonMapping | None = None,
    ) -> None:
        """`fields` are the kind's own values; the factories below name them."""
        self.type = type
        self.fields: JsonObject = dict(fields or {})
        self.additional_properties: JsonObject = dict(additional_properties or {})
        self.raw_representation = raw_representation
        """The provider's own object, where there is one; never serialised."""

    # -- factories ---------------------------------------------------------------------------------------------

    @classmethod
    def from_text(cls, text: str) -> Content:
        """Plain text."""
        return cls("text", fields={"text": text})

    @classmethod
    def from_text_reasoning(cls, text: str) -> Content:
        """A model's visible reasoning."""
        return cls("text_reasoning", fields={"text": text})

    @classmethod
    def from_uri(cls, uri: str, media_type: str | None = None) -> Content:
        """Data by reference."""
        return cls("uri", fields={"uri": uri, "media_type": media_type})

    @classmethod
    def from_data(cls, data: str, media_type: str) -> Content:
        """Data inline; `data` is base64."""
        return cls("data", fields={"uri": f"data:{media_type};base64,{data}", "media_type": media_type})

    @classmethod
    def from_function_call(cls, call_id: str, name: str, arguments: str | JsonMapping) -> Content:
        """A model's wish to call a tool; `arguments` as the model wrote them, or decoded."""
        return cls("function_call", fields={"call_id": call_id, "name": name, "arguments": arguments})

    @classmethod
    def from_function_result(cls, call_id: str, result: JsonValue, exception: str | None = None) -> Content:
        """What a tool call gave. `exception` is for logs and callers; the model sees `result`."""
        return cls("function_result", fields={"call_id": call_id, "result": result, "exception": exception})

    @classmethod
    def from_usage(cls, details: JsonMapping) -> Content:
        """Token counts arriving in a stream."""
        return cls("usage", fields={"usage_details": dict(details)})

    @classmethod
    def from_error(cls, message: str, code: str | None = None) -> Content:
        """A provider's error inside a response."""
        return cls("error", fields={"message": message, "error_code": code})

    # -- access ------------------------------------------------------------------------------------------------

    @property
    def text(self) -> str | None:
        """Text of `text` and `text_reasoning`."""
        return self.fields.get("text")

    @property
    def uri(self) -> str | None:
        """Address of `uri` and `data`."""
        return self.fields.get("uri")

    @property
    def media_type(self) -> str | None:
        """Media type of `uri` and `data`."""
        return self.fields.get("media_type")

    @property
    def call_id(self) -> str | None:
        """Pairs a `function_call` with its `function_result`."""
        return self.fields.get("call_id")

    @property
    def name(self) -> str | None:
        """Name of the tool in a `function_call`."""
        return self.fields.get("name")

    @property
    def arguments(self) -> str | JsonMapping | None:
        """Arguments of a `function_call`."""
        return self.fields.get("arguments")

    @property
    def result(self) -> JsonValue:
        """Result of a `function_result`."""
        return self.fields.get("result")

    @property
    def exception(self) -> str | None:
        """What went wrong in a `function_result`, in detail."""
        return self.fields.get("exception")

    def parse_arguments(self) -> JsonObject:
        """The arguments of a `function_call` as an object; no text means none.

        Raises:
            ValueError: They are no JSON object.
        """
        arguments = self.arguments
        if isinstance(arguments, Mapping):
            return dict(arguments)
        if arguments is None or not arguments.strip():
            return {}
        decoded: JsonValue = json.loads(arguments)
        if not isinstance(decoded, dict):
            raise ValueError("the arguments are not a JSON object")
        return cast("JsonObject", decoded)

    # -- serialisation -----------------------------------------------------------------------------------------

    def to_dict(self) -> JsonObject:
        """JSON form: `type` beside the kind's own fields."""
        data: JsonObject = {"type": self.type, **{k: v for k, v in self.fields.items() if v is not None}}
        if self.additional_properties:
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Content:
        """The inverse of `to_dict`, for known and unknown kinds."""
        fields = {k: v for k, v in data.items() if k not in ("type", "additional_properties")}
        return cls(str(data["type"]), additional_properties=data.get("additional_properties"), fields=fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"Content({self.to_dict()!r})"
