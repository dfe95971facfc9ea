"""Converts output items of OpenAI's Responses API to contents of messages, for whole and streamed responses.

An item of an unknown type becomes a content with that type and all its fields. It is sent back unchanged, so that items of new types are
not lost.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import cast

from gateway.chat.argument_repair import raw_arguments, to_call
from gateway.chat.openai_connection import usage_contents
from gateway.chat.responses_request import FOREIGN_ITEM
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.types.annotations import Annotation, TextSpanRegion
from gateway.types.content import Content

_IMAGE_STARTS = {"iVBOR": "image/png", "/9j/": "image/jpeg", "UklGR": "image/webp", "R0lGO": "image/gif"}
"""First characters of the base64 data of an image → its media type."""

_USAGE = {"input_tokens": "input_token_count", "output_tokens": "output_token_count", "total_tokens": "total_token_count"}
_USAGE_DETAILS = {
    "input_tokens_details": {"cached_tokens": "cache_read_input_token_count", "cache_write_tokens": "cache_creation_input_token_count"},
    "output_tokens_details": {"reasoning_tokens": "reasoning_output_token_count"},
}


def read_item(item: JsonObject) -> list[Content]:
    """Convert one output item of the Responses API to contents of a message."""
    match item.get("type"):
        case "message":
            return [content for part in objects_in(item.get("content")) for content in _message_part(part)]
        case "reasoning":
            return read_reasoning(item)
        case "function_call":
            properties: JsonObject = {"fc_id": item.get("id"), "status": item.get("status")}
            arguments = item.get("arguments")
            return [to_call(_text(item, "call_id"), _text(item, "name"), raw_arguments(arguments), item, properties)]
        case "web_search_call" | "file_search_call":
            return _search(item)
        case "code_interpreter_call":
            return _code(item)
        case "mcp_call":
            return _mcp_call(item)
        case "mcp_approval_request":
            call = Content.from_function_call(
                _text(item, "id"),
                _text(item, "name"),
                raw_arguments(item.get("arguments")),
                additional_properties={"server_label": item.get("server_label")},
                raw_representation=item,
            )
            return [Content.from_function_approval_request(_text(item, "id"), call, raw_representation=item)]
        case "image_generation_call":
            return _image(item)
        case "shell_call" | "local_shell_call" | "shell_call_output":
            return _shell(item)
        case kind:
            made = Content.from_dict({**item, "type": str(kind), "additional_properties": {FOREIGN_ITEM: item}})
            made.raw_representation = item
            return [made]


def _message_part(part: JsonObject) -> list[Content]:
    if part.get("type") == "refusal":
        return [Content.from_text(_text(part, "refusal"), additional_properties={"refusal": True}, raw_representation=part)]
    if part.get("type") not in ("output_text", "text"):
        return []
    found = [made for a in objects_in(part.get("annotations")) if (made := read_annotation(a)) is not None]
    return [Content.from_text(_text(part, "text"), annotations=found or None, raw_representation=part)]


def read_annotation(annotation: JsonMapping) -> Annotation | None:
    """Convert an annotation of the Responses API to a citation; `None` if the annotation names neither a file nor an address."""
    file_id, url = annotation.get("file_id"), annotation.get("url") or annotation.get("filename")
    if not (file_id or url):
        return None
    found: Annotation = {"type": "citation", "raw_representation": dict(annotation)}
    if file_id:
        found["file_id"] = str(file_id)
    if url:
        found["url"] = str(url)
    if annotation.get("title"):
        found["title"] = str(annotation["title"])
    extra = {key: annotation[key] for key in ("index", "container_id", "get_url") if annotation.get(key) is not None}
    if extra:
        found["additional_properties"] = extra
    start, end = annotation.get("start_index"), annotation.get("end_index")
    if isinstance(start, int) and isinstance(end, int):
        region: TextSpanRegion = {"type": "text_span", "start_index": start, "end_index": end}
        found["annotated_regions"] = [region]
    return found


def read_reasoning(item: JsonObject, *, seen: bool = False) -> list[Content]:
    """Convert an output item with the model's reasoning to contents: its readable texts and its encrypted data.

    If `seen` is true, the texts were already streamed and are left out.
    """
    item_id, encrypted = cast("str | None", item.get("id")), cast("str | None", item.get("encrypted_content"))
    parts = [*objects_in(item.get("content")), *objects_in(item.get("summary"))]
    texts = [] if seen else [text for part in parts if (text := _text(part, "text"))]
    contents = [Content.from_text_reasoning(text, id=item_id, raw_representation=item) for text in texts]
    if encrypted:
        if not contents:
            contents.append(Content.from_text_reasoning("", id=item_id, raw_representation=item))
        contents[-1].additional_properties = {"encrypted_content": encrypted}
    return contents


def _search(item: JsonObject) -> list[Content]:
    call_id, status = _text(item, "id"), cast("str | None", item.get("status"))
    if item["type"] == "web_search_call":
        name, arguments, result = "web_search", members_of(item.get("action")), cast("JsonObject", {"action": item.get("action")})
    else:
        name, result = "file_search", cast("JsonObject", {"results": item.get("results")})
        arguments = cast("JsonObject", {"queries": item.get("queries") or []})
    call = Content.from_search_tool_call(call_id, tool_name=name, arguments=arguments, status=status, raw_representation=item)
    return [call, Content.from_search_tool_result(call_id, tool_name=name, result=result, status=status, raw_representation=item)]


def _code(item: JsonObject) -> list[Content]:
    call_id = _text(item, "id")
    outputs: list[Content] = []
    for output in objects_in(item.get("outputs")):
        if output.get("type") == "logs":
            outputs.append(Content.from_text(_text(output, "logs"), raw_representation=output))
        elif output.get("type") == "image":
            outputs.append(Content.from_uri(_text(output, "url"), media_type="image", raw_representation=output))
    inputs = [Content.from_text(code, raw_representation=item)] if (code := _text(item, "code")) else []
    call = Content.from_code_interpreter_tool_call(call_id=call_id, inputs=inputs, raw_representation=item)
    if item.get("container_id"):
        call.additional_properties = {"container_id": item["container_id"]}
    return [call, Content.from_code_interpreter_tool_result(call_id=call_id, outputs=outputs, raw_representation=item)]


def _mcp_call(item: JsonObject) -> list[Content]:
    call_id, arguments = _text(item, "id"), raw_arguments(item.get("arguments"))
    call = Content.from_mcp_server_tool_call(
        call_id, _text(item, "name"), server_name=_text(item, "server_label"), arguments=arguments, raw_representation=item
    )
    if item.get("output") is None and item.get("error") is None:
        return [call]
    failed = item.get("error") is not None and item.get("output") is None
    output: JsonValue = [Content.from_text(_plain(item["error"] if failed else item["output"]))]
    result = Content.from_mcp_server_tool_result(call_id, output=output, raw_representation=item)
    if failed:
        result.additional_properties = {"error": item["error"]}
    return [call, result]


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else str(cast("JsonMapping", value).get("message") if isinstance(value, dict) else value)


def _image(item: JsonObject) -> list[Content]:
    image_id, data = _text(item, "id"), item.get("result")
    call = Content.from_image_generation_tool_call(image_id=image_id, raw_representation=item)
    image = to_image(data) if isinstance(data, str) and data else None
    return [call, Content.from_image_generation_tool_result(image_id=image_id, outputs=image, raw_representation=item)]


def to_image(data: str) -> Content:
    """Return a content with an image from base64 data. The media type is determined from the first characters; the default is PNG."""
    media_type = next((kind for start, kind in _IMAGE_STARTS.items() if data.startswith(start)), "image/png")
    return Content.from_data(data, media_type)


def _shell(item: JsonObject) -> list[Content]:
    call_id = _text(item, "call_id")
    if item["type"] == "shell_call_output":
        outputs = [_command_output(output) for output in objects_in(item.get("output"))]
        longest = cast("int | None", item.get("max_output_length"))
        return [Content.from_shell_tool_result(call_id=call_id, outputs=outputs, max_output_length=longest, raw_representation=item)]
    action = cast("JsonObject", item.get("action") or {})
    words = cast("Sequence[str]", action.get("command") or ())
    commands = [shlex.join(words)] if words else [str(command) for command in cast("Sequence[str]", action.get("commands") or ())]
    return [
        Content.from_shell_tool_call(
            call_id=call_id,
            commands=commands,
            timeout_ms=cast("int | None", action.get("timeout_ms")),
            max_output_length=cast("int | None", action.get("max_output_length")),
            status=cast("str | None", item.get("status")),
            additional_properties={FOREIGN_ITEM: item},
            raw_representation=item,
        )
    ]


def _command_output(output: JsonObject) -> Content:
    outcome = cast("JsonObject", output.get("outcome") or {})
    return Content.from_shell_command_output(
        stdout=cast("str | None", output.get("stdout")),
        stderr=cast("str | None", output.get("stderr")),
        exit_code=cast("int | None", outcome.get("exit_code")),
        timed_out=outcome.get("type") == "timeout" if outcome else None,
        raw_representation=output,
    )


def read_usage(usage: JsonValue) -> list[Content]:
    """Return the token counts of a response as a list with one content; empty if the server sent none."""
    return usage_contents(usage, _USAGE, _USAGE_DETAILS)


def _text(item: JsonMapping, key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else "" if value is None else str(value)
