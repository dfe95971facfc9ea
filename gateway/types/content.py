"""`Content`: one piece of a message, of any kind; provider-neutral.

One class with a `type` instead of a class per kind (requirements C12). Kinds and fields that Moongate does not know
survive `from_dict` and `to_dict`. Chat clients translate; nothing here knows a provider's wire.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from gateway.errors import AdditionItemMismatch, ContentError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.types.annotations import Annotation, UsageDetails, add_usage
from gateway.types.arguments import Arguments, decoded, join_arguments, read_arguments
from gateway.types.copying import joined_raw, sharing_raw

Annotations = Sequence[Annotation] | None


class _TextItems:
    """Compute `items` of a result that was made without items: its text or JSON. A value in the instance's `__dict__` takes precedence."""

    def __get__(self, instance: Content | None, owner: type[Content]) -> list[Content] | None:
        if instance is None or instance.type != "function_result" or instance.result is None:
            return None
        result = instance.result
        return [Content.from_text(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str))]


class Content:
    """A piece of a message. `type` says which attributes mean something; the others are `None`. All may be set."""

    text: str | None = None
    """Of `text` and `text_reasoning`."""
    protected_data: str | None = None
    """Of `text_reasoning`: what the provider wants back unread."""
    uri: str | None = None
    """Of `uri` and `data`; a `data:` URI in the second."""
    media_type: str | None = None
    message: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    usage_details: UsageDetails | None = None
    call_id: str | None = None
    """Pairs a call with its result."""
    name: str | None = None
    arguments: Arguments = None
    """Of a call: as the model wrote them, or decoded."""
    exception: str | None = None
    """Of a `function_result`: what went wrong, in detail; for callers and logs, the model reads `result`."""
    result: JsonValue = None
    items: Sequence[Content] | None = cast("Sequence[Content] | None", _TextItems())
    """Of a `function_result`: its contents, such as texts and images; of a result that is a text, one text content that holds it."""
    file_id: str | None = None
    vector_store_id: str | None = None
    inputs: Sequence[Content] | None = None
    outputs: Any = None
    image_id: str | None = None
    commands: Sequence[str] | None = None
    timeout_ms: int | None = None
    max_output_length: int | None = None
    status: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    timed_out: bool | None = None
    tool_name: str | None = None
    server_name: str | None = None
    output: JsonValue = None
    id: str | None = None
    function_call: Content | None = None
    """Of an approval request or response: the call that it is about."""
    user_input_request: bool | None = None
    """Whether a person must answer before the run can go on."""
    approved: bool | None = None
    consent_link: str | None = None
    annotations: Sequence[Annotation] | None = None
    raw_representation: object = None
    """The provider's own object, where there is one; never serialised."""

    def __init__(
        self,
        type: str,
        *,
        additional_properties: JsonMapping | None = None,
        raw_representation: object = None,
        **fields: JsonValue,
    ) -> None:
        """`fields` are the kind's own values; `None` is as good as absent. The factories below name them."""
        values = self.__dict__
        values["type"] = type
        for key, value in fields.items():
            if value is not None:
                if key not in _FIELDS:
                    values.setdefault("_unknown", {})[key] = value
                else:
                    values[key] = value
        values["additional_properties"] = dict(additional_properties) if additional_properties else {}
        if raw_representation is not None:
            values["raw_representation"] = raw_representation

    type: str
    additional_properties: JsonObject

    # -- factories ---------------------------------------------------------------------------------------------

    @classmethod
    def from_text(
        cls,
        text: str,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """Plain text."""
        return cls(
            "text", text=text, annotations=annotations, additional_properties=additional_properties, raw_representation=raw_representation
        )

    @classmethod
    def from_text_reasoning(
        cls,
        text: str | None = None,
        *,
        id: str | None = None,
        protected_data: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A model's reasoning: what it shows of it, and `protected_data` for the provider to read again."""
        return cls("text_reasoning", text=text, id=id, protected_data=protected_data, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_uri(
        cls,
        uri: str,
        media_type: str | None = None,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """Data by reference; a `data:` URI becomes a `data` content."""
        kind = "uri"
        if uri.startswith("data:") and "," in uri:
            kind, media_type = "data", media_type or uri[5:].partition(",")[0].partition(";")[0] or "text/plain"
        return cls(kind, uri=uri, media_type=media_type, annotations=annotations)._with(additional_properties, raw_representation)

    @classmethod
    def from_data(
        cls,
        data: bytes | str,
        media_type: str,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """Data inline: bytes, or text that is base64 already."""
        encoded = data if isinstance(data, str) else base64.b64encode(data).decode("ascii")
        return cls("data", uri=f"data:{media_type};base64,{encoded}", media_type=media_type, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_error(
        cls,
        message: str | None = None,
        error_code: str | None = None,
        error_details: str | None = None,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A provider's error inside a response."""
        return cls("error", message=message, error_code=error_code, error_details=error_details, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_usage(
        cls,
        usage_details: JsonMapping,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """Token counts arriving in a stream."""
        return cls("usage", usage_details=dict(usage_details), annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_function_call(
        cls,
        call_id: str,
        name: str,
        arguments: str | JsonMapping | None = None,
        *,
        exception: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A model's wish to call a tool; `arguments` as the model wrote them, or decoded."""
        return cls("function_call", call_id=call_id, name=name, arguments=arguments, exception=exception, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_function_result(
        cls,
        call_id: str,
        result: JsonValue = None,
        exception: str | None = None,
        *,
        items: Sequence[Content] | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """What a tool call gave. `exception` is for logs and callers; the model sees `result` and `items`.

        Contents as `result` are taken apart: their texts and the names of the others are the result, and where there
        are others the contents are the items, for models that can see more than text.
        """
        if isinstance(result, Content):
            result = [result]
        if isinstance(result, list) and result and all(isinstance(item, Content) for item in cast("list[JsonValue]", result)):
            contents = cast("list[Content]", result)
            result = "\n".join(item.text or "" if item.type == "text" else item.label for item in contents)
            items = items or (contents if any(item.type != "text" for item in contents) else None)
        return cls("function_result", call_id=call_id, result=result, exception=exception, items=items, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_function_approval_request(
        cls,
        id: str,
        function_call: Content,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A person must say whether `function_call` may run; `to_function_approval_response` answers it."""
        return cls("function_approval_request", id=id, function_call=function_call, user_input_request=True, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_function_approval_response(
        cls,
        approved: bool,
        id: str,
        function_call: Content,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A person's answer to the approval request `id`."""
        return cls("function_approval_response", approved=approved, id=id, function_call=function_call, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_hosted_file(
        cls,
        file_id: str,
        *,
        media_type: str | None = None,
        name: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A file that the provider keeps."""
        return cls("hosted_file", file_id=file_id, media_type=media_type, name=name, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_hosted_vector_store(
        cls,
        vector_store_id: str,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A vector store that the provider keeps."""
        return cls("hosted_vector_store", vector_store_id=vector_store_id, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_code_interpreter_tool_call(
        cls,
        *,
        call_id: str | None = None,
        inputs: Sequence[Content] | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """The provider ran code."""
        return cls("code_interpreter_tool_call", call_id=call_id, inputs=inputs, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_code_interpreter_tool_result(
        cls,
        *,
        call_id: str | None = None,
        outputs: Sequence[Content] | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """What the provider's code gave."""
        return cls("code_interpreter_tool_result", call_id=call_id, outputs=outputs, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_image_generation_tool_call(
        cls,
        *,
        image_id: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """The provider makes an image."""
        return cls("image_generation_tool_call", image_id=image_id, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_image_generation_tool_result(
        cls,
        *,
        image_id: str | None = None,
        outputs: object = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """The image that the provider made."""
        return cls("image_generation_tool_result", image_id=image_id, outputs=outputs, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_mcp_server_tool_call(
        cls,
        call_id: str,
        tool_name: str,
        *,
        server_name: str | None = None,
        arguments: str | JsonMapping | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """The provider called a remote MCP server."""
        made = cls("mcp_server_tool_call", call_id=call_id, tool_name=tool_name, server_name=server_name, arguments=arguments)
        made.annotations = annotations
        return made._with(additional_properties, raw_representation)

    @classmethod
    def from_mcp_server_tool_result(
        cls,
        call_id: str,
        *,
        output: JsonValue = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """What the remote MCP server answered the provider."""
        return cls("mcp_server_tool_result", call_id=call_id, output=output, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_search_tool_call(
        cls,
        call_id: str,
        *,
        tool_name: str,
        arguments: str | JsonMapping | None = None,
        status: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """The provider searched."""
        made = cls("search_tool_call", call_id=call_id, tool_name=tool_name, arguments=arguments, status=status, annotations=annotations)
        return made._with(additional_properties, raw_representation)

    @classmethod
    def from_search_tool_result(
        cls,
        call_id: str,
        *,
        tool_name: str,
        result: JsonValue = None,
        items: Sequence[Content] | None = None,
        status: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """What the provider's search found."""
        made = cls("search_tool_result", call_id=call_id, tool_name=tool_name, result=result, items=items, status=status)
        made.annotations = annotations
        return made._with(additional_properties, raw_representation)

    @classmethod
    def from_shell_tool_call(
        cls,
        *,
        call_id: str | None = None,
        commands: Sequence[str] | None = None,
        timeout_ms: int | None = None,
        max_output_length: int | None = None,
        status: str | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A model's wish to run shell commands."""
        made = cls("shell_tool_call", call_id=call_id, commands=commands, timeout_ms=timeout_ms, max_output_length=max_output_length)
        made.status, made.annotations = status, annotations
        return made._with(additional_properties, raw_representation)

    @classmethod
    def from_shell_tool_result(
        cls,
        *,
        call_id: str | None = None,
        outputs: Sequence[Content] | None = None,
        max_output_length: int | None = None,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """What shell commands gave, one `shell_command_output` each."""
        made = cls("shell_tool_result", call_id=call_id, outputs=outputs, max_output_length=max_output_length, annotations=annotations)
        return made._with(additional_properties, raw_representation)

    @classmethod
    def from_shell_command_output(
        cls,
        *,
        stdout: str | None = None,
        stderr: str | None = None,
        exit_code: int | None = None,
        timed_out: bool | None = None,
        additional_properties: JsonMapping | None = None,
        raw_representation: object = None,
    ) -> Content:
        """What one shell command printed and how it ended."""
        return cls("shell_command_output", stdout=stdout, stderr=stderr, exit_code=exit_code, timed_out=timed_out)._with(
            additional_properties, raw_representation
        )

    @classmethod
    def from_oauth_consent_request(
        cls,
        consent_link: str,
        *,
        annotations: Annotations = None, additional_properties: JsonMapping | None = None, raw_representation: object = None,
    ) -> Content:
        """A person must consent at `consent_link` before the run can go on."""
        return cls("oauth_consent_request", consent_link=consent_link, user_input_request=True, annotations=annotations)._with(
            additional_properties, raw_representation
        )

    def _with(self, additional_properties: JsonMapping | None, raw_representation: object) -> Content:
        if additional_properties:
            self.additional_properties = dict(additional_properties)
        if raw_representation is not None:
            self.raw_representation = raw_representation
        return self

    def has_top_level_media_type(self, top_level_media_type: Literal["application", "audio", "image", "text"]) -> bool:
        """Whether the media type is of that family."""
        return (self.media_type or "").partition("/")[0].lower() == top_level_media_type.lower()

    @property
    def label(self) -> str:
        """What stands for this where only text can be shown."""
        name = self.additional_properties.get("name") or self.name
        what = f"resource {self.uri}" if self.type == "uri" else (self.media_type or "").partition("/")[0] or self.type
        detail = f": {name}" if name else "" if self.type == "uri" or not self.media_type else f" ({self.media_type})"
        return f"[{what}{detail}]"

    def to_function_approval_response(self, approved: bool) -> Content:
        """The answer to this `function_approval_request`.

        Raises:
            ContentError: It is something else.
        """
        if self.type != "function_approval_request" or self.function_call is None:
            raise ContentError(f"Only a function_approval_request can be answered, not a {self.type}.")
        return Content.from_function_approval_response(
            approved, self.id or "", self.function_call, additional_properties=self.additional_properties
        )

    def parse_arguments(self) -> JsonObject:
        """The arguments of a call as an object, to show or to look into; what is no object is there under `raw`."""
        try:
            return read_arguments(self.arguments)
        except ValueError:
            return {"raw": decoded(cast("str", self.arguments))}

    def __add__(self, other: Content) -> Content:
        """Two neighbouring parts of one text, call or usage as one content.

        Raises:
            AdditionItemMismatch: The two are no parts of one thing.
        """
        if not isinstance(cast("object", other), Content):
            return NotImplemented
        own, others = (self.id, other.id) if self.type == "text_reasoning" else (self.call_id, other.call_id)
        if self.type != other.type or (own and others and own != others):
            raise AdditionItemMismatch(f"a {self.type} and a {other.type} cannot be joined")
        joined = Content(self.type, **{**_values(self), **_values(other)})
        joined.additional_properties = {**self.additional_properties, **other.additional_properties}
        joined.raw_representation = joined_raw(self.raw_representation, other.raw_representation)
        match self.type:
            case "text" | "text_reasoning":
                joined.text = (self.text or "") + (other.text or "") if (self.text or other.text) else None
                joined.annotations = [*(self.annotations or ()), *(other.annotations or ())] or None
            case "function_call":
                joined.call_id, joined.name = self.call_id or other.call_id, self.name or other.name
                joined.arguments = join_arguments(self.arguments, other.arguments)
            case "usage":
                joined.usage_details = add_usage(self.usage_details or {}, other.usage_details or {})
            case _:
                raise AdditionItemMismatch(f"two {self.type} contents cannot be joined")
        return joined

    def to_dict(self, *, exclude_none: bool = True, exclude: set[str] | None = None) -> JsonObject:
        """JSON form: `type` beside the kind's own fields; `exclude` names fields to leave out."""
        data: JsonObject = {"type": self.type}
        for key, value in _values(self).items():
            if (value is not None or not exclude_none) and key not in (exclude or ()):
                data[key] = _plain(value)
        if self.additional_properties and "additional_properties" not in (exclude or ()):
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Content:
        """The inverse of `to_dict`, for known and unknown kinds.

        Raises:
            ContentError: It has no `type`.
        """
        if not isinstance(data.get("type"), str):
            raise ContentError("A content needs a `type`.")
        values: JsonObject = {key: value for key, value in data.items() if key not in _OWN}
        for key in ("items", "inputs", "outputs"):
            if isinstance(values.get(key), list) and key in _NESTED.get(str(data["type"]), ()):
                values[key] = [_content(item) for item in values[key]]
        if "function_call" in values:
            values["function_call"] = _content(values["function_call"])
        made = cls(str(data["type"]), additional_properties=data.get("additional_properties"))
        for key, value in values.items():
            if value is not None:
                if key in _FIELDS:
                    made.__dict__[key] = value
                else:
                    made.__dict__.setdefault("_unknown", {})[key] = value
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    __deepcopy__ = sharing_raw

    def __str__(self) -> str:
        if self.type == "error":
            return f"Error {self.error_code}: {self.message or ''}" if self.error_code else self.message or "Unknown error"
        return self.text or "" if self.type == "text" else repr(self)

    def __repr__(self) -> str:
        return f"Content({self.to_dict()!r})"


_OWN = frozenset({"type", "additional_properties", "raw_representation"})
_FIELDS = frozenset(Content.__annotations__) - _OWN
"""Attributes of the kinds that Moongate knows."""

_NESTED: Mapping[str, tuple[str, ...]] = {
    "function_result": ("items",),
    "search_tool_result": ("items",),
    "code_interpreter_tool_call": ("inputs",),
    "code_interpreter_tool_result": ("outputs",),
    "shell_tool_result": ("outputs",),
}
"""Fields that hold contents, by kind; anywhere else a list of objects is somebody's data."""


def _values(content: Content) -> JsonObject:
    """The fields that were set, unknown ones included, in their order."""
    values = {key: value for key, value in content.__dict__.items() if key in _FIELDS}
    return {**values, **content.__dict__.get("_unknown", {})}


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, Content):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[JsonValue]", value)]
    return value


def _content(item: Any) -> Any:  # what is no content is handed through
    return Content.from_dict(cast("JsonObject", item)) if isinstance(item, dict) and "type" in item else cast("object", item)
