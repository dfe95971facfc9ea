"""Converts messages and tools of AG-UI requests to Moongate's types, and validation errors of such requests to text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ag_ui.core import (
    AssistantMessage,
    AudioPart,
    Context,
    DataSource,
    DeveloperMessage,
    DocumentPart,
    FileSource,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UrlSource,
    UserMessage,
    VideoPart,
)
from ag_ui.core import Message as WireMessage
from ag_ui.core import Tool as WireTool
from pydantic import ValidationError

from gateway.json_types import JsonObject
from gateway.tools.function import FunctionTool
from gateway.types.content import Content
from gateway.types.messages import Message

Part = TextPart | ImagePart | AudioPart | VideoPart | DocumentPart


def to_messages(wire: Sequence[WireMessage], context: Sequence[Context]) -> list[Message]:
    """Convert the messages of an AG-UI request. The application's `context`, if any, becomes a system message before them.

    Messages with activities or reasoning are left out.
    """
    messages: list[Message] = []
    if context:
        notes = "\n".join(f"- {item.description}: {item.value}" for item in context)
        messages.append(Message("system", [f"The application describes its state:\n{notes}"]))
    return [*messages, *(message for item in wire if (message := _to_message(item)) is not None)]


def _to_message(item: WireMessage) -> Message | None:
    if isinstance(item, UserMessage):
        said: list[Content | str] = [item.content] if isinstance(item.content, str) else [_part(part) for part in item.content]
        return Message("user", said, message_id=item.id, author_name=item.name)
    if isinstance(item, DeveloperMessage | SystemMessage):
        return Message("system", [item.content], message_id=item.id)
    if isinstance(item, AssistantMessage):
        contents: list[Content | str] = [item.content] if item.content else []
        contents += [Content.from_function_call(call.id, call.function.name, call.function.arguments) for call in item.tool_calls or ()]
        return Message("assistant", contents, message_id=item.id)
    if isinstance(item, ToolMessage):
        result = item.content if isinstance(item.content, str) else [_part(part) for part in item.content]
        return Message("tool", [Content.from_function_result(item.tool_call_id, result, item.error)], message_id=item.id)
    return None


def _part(part: Part) -> Content:
    if isinstance(part, TextPart):
        return Content.from_text(part.text)
    source = part.source
    match source:
        case DataSource():
            return Content.from_data(source.value, source.mime_type)
        case UrlSource():
            return Content.from_uri(source.value, source.mime_type)
        case FileSource():
            return Content.from_hosted_file(source.value, media_type=source.mime_type)


def to_tools(wire: Sequence[WireTool]) -> list[FunctionTool[..., object]]:
    """Convert the tools of an AG-UI request to declarations. A call of such a tool ends the run, and the application executes the tool."""
    return [
        FunctionTool(None, name=tool.name, description=tool.description, schema=cast("JsonObject", tool.parameters or {"type": "object"}))
        for tool in wire
    ]


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the newest user message that has text, or an empty string."""
    return next((message.text for message in reversed(messages) if message.role == "user" and message.text), "")


def problem_of(error: ValidationError) -> str:
    """Return, as text, why the body of an AG-UI request is not a `RunAgentInput`: the path of the first invalid value, and the reason."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'body'}: {first['msg']}."
