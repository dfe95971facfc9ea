"""`Content`: one part of a message (text, tool call, image, …), independent of the model provider.

One class with the attribute `type` represents all kinds of contents. `from_dict` and `to_dict` preserve kinds and fields that Moongate does
not define. Chat clients convert contents to and from the wire format of a provider; this module does not depend on any of these formats.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, cast

from gateway.errors import AdditionItemMismatch, ContentError
from gateway.json_types import JsonMapping, JsonObject, JsonValue, as_text
from gateway.types.annotations import Annotation, UsageDetails, add_usage
from gateway.types.call_arguments import Arguments, decoded, join_arguments, read_arguments
from gateway.types.copying import joined_raw, sharing_raw


class CommonFields(TypedDict, total=False):
    """Keyword arguments that every method `Content.from_…` accepts in addition to its parameters."""

    annotations: Sequence[Annotation] | None
    additional_properties: JsonMapping | None
    raw_representation: object


class _TextItems:
    """Descriptor that computes the default of `Content.items` for a `function_result`: a text content with the text or JSON of `result`.

    Without a `result`, and for other types, the default is `None`. Items that were set on the instance take precedence, because they are in
    its `__dict__`.
    """

    def __get__(self, instance: Content | None, owner: type[Content]) -> list[Content] | None:
        if instance is None or instance.type != "function_result" or instance.result is None:
            return None
        return [Content.from_text(as_text(instance.result))]


class Content:
    """A part of a message. `type` determines the attributes that are used; all others are `None`. Every attribute may be assigned."""

    text: str | None = None
    """For contents of type `text` and `text_reasoning`: the readable text."""
    protected_data: str | None = None
    """For contents of type `text_reasoning`: opaque data that must be sent back to the provider unchanged."""
    uri: str | None = None
    """For contents of type `uri`: the address of the data. For type `data`: the data itself, as a `data:` URI."""
    media_type: str | None = None
    message: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    usage_details: UsageDetails | None = None
    call_id: str | None = None
    """For tool calls and tool results: the id of the call, which its result also has."""
    name: str | None = None
    arguments: Arguments = None
    """For tool calls: the arguments, as JSON text as the model wrote it, or as a decoded object."""
    exception: str | None = None
    """For tool calls and tool results that failed: text of the error, for callers and logs. The model gets `result` of the tool result."""
    result: JsonValue = None
    items: Sequence[Content] | None = cast("Sequence[Content] | None", _TextItems())
    """Parts of a tool or search result, such as texts and images; by default one text with `result` for the type `function_result`."""
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
    """For approval requests and approval responses: the tool call that a person approves."""
    user_input_request: bool | None = None
    """Whether the run can continue only after an answer: a person's to a request, or the caller's to a call of the caller's own tool."""
    approved: bool | None = None
    consent_link: str | None = None
    annotations: Sequence[Annotation] | None = None
    raw_representation: object = None
    """The object of the provider's SDK from which this content was made, if any. It is never serialized."""

    def __init__(
        self,
        type: str,
        *,
        additional_properties: JsonMapping | None = None,
        raw_representation: object = None,
        **fields: JsonValue,
    ) -> None:
        """Create a content of any type. `fields` are its attributes. The methods `from_…` have a parameter for each attribute of a type."""
        self.__dict__["type"] = type
        self._set(fields)
        self.__dict__["additional_properties"] = dict(additional_properties) if additional_properties else {}
        if raw_representation is not None:
            self.__dict__["raw_representation"] = raw_representation

    def _set(self, fields: JsonMapping) -> None:
        values = self.__dict__
        for key, value in fields.items():
            if value is not None:
                if key not in _FIELDS:
                    values.setdefault("_unknown", {})[key] = value
                else:
                    values[key] = value


    type: str
    additional_properties: JsonObject

    @classmethod
    def from_text(cls, text: str, **common: Unpack[CommonFields]) -> Content:
        """Create a content of type `text`."""
        return cls._make("text", common, text=text)

    @classmethod
    def from_text_reasoning(
        cls,
        text: str | None = None,
        *,
        id: str | None = None,
        protected_data: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with a model's reasoning. `protected_data` is opaque data that must be sent back to the provider unchanged."""
        return cls._make("text_reasoning", common, text=text, id=id, protected_data=protected_data)

    @classmethod
    def from_uri(cls, uri: str, media_type: str | None = None, **common: Unpack[CommonFields]) -> Content:
        """Create a content that refers to data at a URI. From a `data:` URI, create a content of type `data`, which contains the data."""
        kind = "uri"
        if uri.startswith("data:") and "," in uri:
            kind, media_type = "data", media_type or uri[5:].partition(",")[0].partition(";")[0] or "text/plain"
        return cls._make(kind, common, uri=uri, media_type=media_type)

    @classmethod
    def from_data(cls, data: bytes | str, media_type: str, **common: Unpack[CommonFields]) -> Content:
        """Create a content that contains data, such as an image. `data` is given as bytes, or as base64 text."""
        encoded = data if isinstance(data, str) else base64.b64encode(data).decode("ascii")
        return cls._make("data", common, uri=f"data:{media_type};base64,{encoded}", media_type=media_type)

    @classmethod
    def from_error(
        cls,
        message: str | None = None,
        error_code: str | None = None,
        error_details: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for an error that a provider reported as part of a response."""
        return cls._make("error", common, message=message, error_code=error_code, error_details=error_details)

    @classmethod
    def from_usage(cls, usage_details: JsonMapping, **common: Unpack[CommonFields]) -> Content:
        """Create a content with token counts, which are a part of a streamed response."""
        return cls._make("usage", common, usage_details=dict(usage_details))

    @classmethod
    def from_function_call(
        cls,
        call_id: str,
        name: str,
        arguments: str | JsonMapping | None = None,
        *,
        exception: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for a tool call that a model requests. `arguments` are JSON text, or a decoded object."""
        return cls._make("function_call", common, call_id=call_id, name=name, arguments=arguments, exception=exception)

    @classmethod
    def from_function_result(
        cls,
        call_id: str,
        result: JsonValue = None,
        exception: str | None = None,
        *,
        items: Sequence[Content] | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with the result of a tool call. The model gets `result` and `items`; `exception` is for callers and logs.

        If `result` consists of contents, it is converted to text, in which a content that is not text is represented by its `label`. If any
        content is not text, all contents are also stored as `items`, for models that accept images or files.
        """
        if isinstance(result, Content):
            result = [result]
        if isinstance(result, list) and result and all(isinstance(item, Content) for item in cast("list[JsonValue]", result)):
            contents = cast("list[Content]", result)
            result = "\n".join(item.text or "" if item.type == "text" else item.label for item in contents)
            items = items or (contents if any(item.type != "text" for item in contents) else None)
        return cls._make("function_result", common, call_id=call_id, result=result, exception=exception, items=items)

    @classmethod
    def from_function_approval_request(cls, id: str, function_call: Content, **common: Unpack[CommonFields]) -> Content:
        """Create a request for a person's approval of the tool call. `to_function_approval_response` creates the response."""
        return cls._make("function_approval_request", common, id=id, function_call=function_call, user_input_request=True)

    @classmethod
    def from_function_approval_response(cls, approved: bool, id: str, function_call: Content, **common: Unpack[CommonFields]) -> Content:
        """Create a person's response to the approval request with this id. `function_call` is the tool call of the request."""
        return cls._make("function_approval_response", common, approved=approved, id=id, function_call=function_call)

    @classmethod
    def from_hosted_file(
        cls,
        file_id: str,
        *,
        media_type: str | None = None,
        name: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content that refers to a file which the provider stores."""
        return cls._make("hosted_file", common, file_id=file_id, media_type=media_type, name=name)

    @classmethod
    def from_hosted_vector_store(cls, vector_store_id: str, **common: Unpack[CommonFields]) -> Content:
        """Create a content that refers to a vector store of the provider."""
        return cls._make("hosted_vector_store", common, vector_store_id=vector_store_id)

    @classmethod
    def from_code_interpreter_tool_call(
        cls,
        *,
        call_id: str | None = None,
        inputs: Sequence[Content] | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for a call of the provider's code interpreter. `inputs` contain the code that the provider runs."""
        return cls._make("code_interpreter_tool_call", common, call_id=call_id, inputs=inputs)

    @classmethod
    def from_code_interpreter_tool_result(
        cls,
        *,
        call_id: str | None = None,
        outputs: Sequence[Content] | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with the result of the provider's code interpreter. `outputs` are the outputs of the code."""
        return cls._make("code_interpreter_tool_result", common, call_id=call_id, outputs=outputs)

    @classmethod
    def from_image_generation_tool_call(cls, *, image_id: str | None = None, **common: Unpack[CommonFields]) -> Content:
        """Create a content for an image generation that the provider has started."""
        return cls._make("image_generation_tool_call", common, image_id=image_id)

    @classmethod
    def from_image_generation_tool_result(
        cls,
        *,
        image_id: str | None = None,
        outputs: object = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with an image that the provider has generated."""
        return cls._make("image_generation_tool_result", common, image_id=image_id, outputs=outputs)

    @classmethod
    def from_mcp_server_tool_call(
        cls,
        call_id: str,
        tool_name: str,
        *,
        server_name: str | None = None,
        arguments: str | JsonMapping | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for a tool call that the provider sent to a remote MCP server."""
        return cls._make("mcp_server_tool_call", common, call_id=call_id, tool_name=tool_name, server_name=server_name, arguments=arguments)

    @classmethod
    def from_mcp_server_tool_result(cls, call_id: str, *, output: JsonValue = None, **common: Unpack[CommonFields]) -> Content:
        """Create a content with the result of a tool call that a remote MCP server sent to the provider."""
        return cls._make("mcp_server_tool_result", common, call_id=call_id, output=output)

    @classmethod
    def from_search_tool_call(
        cls,
        call_id: str,
        *,
        tool_name: str,
        arguments: str | JsonMapping | None = None,
        status: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for a search that the provider performs, such as a web search."""
        return cls._make("search_tool_call", common, call_id=call_id, tool_name=tool_name, arguments=arguments, status=status)

    @classmethod
    def from_search_tool_result(
        cls,
        call_id: str,
        *,
        tool_name: str,
        result: JsonValue = None,
        items: Sequence[Content] | None = None,
        status: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with the results of a search that the provider has performed."""
        return cls._make("search_tool_result", common, call_id=call_id, tool_name=tool_name, result=result, items=items, status=status)

    @classmethod
    def from_shell_tool_call(
        cls,
        *,
        call_id: str | None = None,
        commands: Sequence[str] | None = None,
        timeout_ms: int | None = None,
        max_output_length: int | None = None,
        status: str | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content for shell commands that a model requests to run. `timeout_ms` and `max_output_length` limit the commands."""
        limits: JsonObject = {"timeout_ms": timeout_ms, "max_output_length": max_output_length}
        return cls._make("shell_tool_call", common, call_id=call_id, commands=commands, status=status, **limits)

    @classmethod
    def from_shell_tool_result(
        cls,
        *,
        call_id: str | None = None,
        outputs: Sequence[Content] | None = None,
        max_output_length: int | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with the results of shell commands. `outputs` has one content of type `shell_command_output` per command."""
        return cls._make("shell_tool_result", common, call_id=call_id, outputs=outputs, max_output_length=max_output_length)

    @classmethod
    def from_shell_command_output(
        cls,
        *,
        stdout: str | None = None,
        stderr: str | None = None,
        exit_code: int | None = None,
        timed_out: bool | None = None,
        **common: Unpack[CommonFields],
    ) -> Content:
        """Create a content with the output and exit code of one shell command."""
        return cls._make("shell_command_output", common, stdout=stdout, stderr=stderr, exit_code=exit_code, timed_out=timed_out)

    @classmethod
    def from_oauth_consent_request(cls, consent_link: str, **common: Unpack[CommonFields]) -> Content:
        """Create a request for a person's OAuth consent at the URL `consent_link`. The run cannot continue without the consent."""
        return cls._make("oauth_consent_request", common, consent_link=consent_link, user_input_request=True)

    @classmethod
    def _make(cls, type: str, common: CommonFields, **fields: JsonValue) -> Content:
        if unknown := common.keys() - CommonFields.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r} for a {type} content")
        return cls(type, **fields, **common)

    def has_top_level_media_type(self, top_level_media_type: Literal["application", "audio", "image", "text"]) -> bool:
        """Return whether the `media_type` of this content has the given top-level type, such as `image` for `image/png`."""
        return (self.media_type or "").partition("/")[0].lower() == top_level_media_type.lower()

    @property
    def label(self) -> str:
        """Text that represents this content in a plain text, such as `[image: cat.png]`."""
        name = self.additional_properties.get("name") or self.name
        what = f"resource {self.uri}" if self.type == "uri" else (self.media_type or "").partition("/")[0] or self.type
        detail = f": {name}" if name else "" if self.type == "uri" or not self.media_type else f" ({self.media_type})"
        return f"[{what}{detail}]"

    def to_function_approval_response(self, approved: bool) -> Content:
        """Create a person's response to this approval request. The response has the id and the tool call of the request.

        Raises:
            ContentError: This content is not a `function_approval_request`.
        """
        if self.type != "function_approval_request" or self.function_call is None:
            raise ContentError(f"Only a function_approval_request can be answered, not a {self.type}.")
        return Content.from_function_approval_response(
            approved, self.id or "", self.function_call, additional_properties=self.additional_properties
        )

    def parse_arguments(self) -> JsonObject:
        """Return this tool call's arguments as an object, for display. Arguments that are not an object are put under the key `raw`."""
        try:
            return read_arguments(self.arguments)
        except ValueError:
            return {"raw": decoded(cast("str", self.arguments))}

    def __add__(self, other: Content) -> Content:
        """Return a new content that joins two parts of one text or of one tool call, or adds two token counts.

        Raises:
            AdditionItemMismatch: The parts have different types or ids, contents of this type cannot be joined, or the arguments of one
                part are text and those of the other an object.
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
        """Return the content as JSON-compatible data: `type` and all attributes that are set, except those in `exclude`.

        `raw_representation` of the content is never included. With `exclude_none=False`, attributes that were assigned `None` are included.
        """
        data: JsonObject = {"type": self.type}
        for key, value in _values(self).items():
            if (value is not None or not exclude_none) and key not in (exclude or ()):
                data[key] = _plain(value)
        if self.additional_properties and "additional_properties" not in (exclude or ()):
            data["additional_properties"] = self.additional_properties
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> Content:
        """Create a content from the result of `to_dict`. Types and fields that this class does not define are preserved.

        Raises:
            ContentError: `data` has no `type`.
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
        made._set(values)
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
"""Names of the attributes of `Content` that `to_dict` includes if they are set, apart from `type` and `additional_properties`."""

_NESTED: Mapping[str, tuple[str, ...]] = {
    "function_result": ("items",),
    "search_tool_result": ("items",),
    "code_interpreter_tool_call": ("inputs",),
    "code_interpreter_tool_result": ("outputs",),
    "shell_tool_result": ("outputs",),
}
"""Type of a content → names of its attributes that contain lists of contents. Lists in all other attributes are JSON data."""


def _values(content: Content) -> JsonObject:
    values = {key: value for key, value in content.__dict__.items() if key in _FIELDS}
    return {**values, **content.__dict__.get("_unknown", {})}


def _plain(value: JsonValue) -> JsonValue:
    if isinstance(value, Content):
        return value.to_dict()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[JsonValue]", value)]
    return value


def _content(item: Any) -> Any:  # values other than JSON objects with a `type` are returned unchanged
    return Content.from_dict(cast("JsonObject", item)) if isinstance(item, dict) and "type" in item else cast("object", item)
