"""Answers a server's sampling request (`sampling/createMessage`) with a chat client of this program.

The model receives only the request, without tools, skills or history of the gateway. `sampling_admission` has already admitted and limited
the request. `sampling_client` does the opposite: it sends sampling requests to a connected client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.chat.chat_middleware import call_model
from gateway.chat.sampling_client import to_contents
from gateway.errors import ModelError
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.tools.base import ToolDefinition
from gateway.tools.contents import to_block
from gateway.types.call_arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message, Role
from gateway.types.options import ChatOptions

_STOP_REASONS = {"stop": "endTurn", "length": "maxTokens", "tool_calls": "toolUse"}


class _Offered:
    """A tool that a server's sampling request offers to the model. The server runs the tool; this program only passes on its definition."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition


async def answer_sampling(client: SupportsChatGetResponse, params: JsonMapping) -> JsonObject:
    """Call the model with `params` of a sampling request, which is already admitted and limited, and return a `CreateMessageResult`.

    Raises:
        ModelError: The model failed, or its response has neither text nor image nor tool call, or a tool call with malformed arguments.
    """
    response = await call_model(client, _messages(params), _options(params), stream=True).get_final_response()
    contents = [content for message in response.messages for content in message.contents]
    calls = [content for content in contents if content.type == "function_call"]
    shown = next((content for content in contents if _is_shown(content)), None)
    if not calls and shown is None:
        raise ModelError("The model's answer has no text, image or tool call.")
    result: JsonObject = {
        "role": "assistant",
        "content": [_tool_use(call) for call in calls] if calls else to_block(cast("Content", shown)),
        "model": response.model or "unknown",
    }
    reason = "tool_calls" if calls else response.finish_reason
    if reason is not None:
        result["stopReason"] = _STOP_REASONS.get(reason, reason)
    return result


def _messages(params: JsonMapping) -> list[Message]:
    messages: list[Message] = []
    for wire in cast("Sequence[JsonMapping]", params.get("messages") or ()):
        content: JsonValue = wire.get("content")
        blocks = cast("list[JsonObject]", content if isinstance(content, list) else [content])
        results = [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
        if results:
            messages.append(Message("tool", results))
        role: Role = "assistant" if wire.get("role") == "assistant" else "user"
        rest = to_contents([block for block in blocks if block.get("type") != "tool_result"])
        if rest:
            messages.append(Message(role, rest))
    return messages


def _options(params: JsonMapping) -> ChatOptions:
    options: ChatOptions = {"max_tokens": int(params["maxTokens"])} if params.get("maxTokens") is not None else {}
    if isinstance(prompt := params.get("systemPrompt"), str):
        options["instructions"] = prompt
    if params.get("temperature") is not None:
        options["temperature"] = float(params["temperature"])
    if params.get("stopSequences") is not None:
        options["stop"] = [str(text) for text in params["stopSequences"]]
    if params.get("tools"):
        options["tools"] = [_Offered(_definition(tool)) for tool in cast("Sequence[JsonObject]", params["tools"])]
        mode = cast("JsonMapping", params.get("toolChoice") or {}).get("mode")
        if mode in ("auto", "required", "none"):
            options["tool_choice"] = mode
    return options


def _definition(tool: JsonObject) -> ToolDefinition:
    return ToolDefinition(str(tool.get("name")), str(tool.get("description") or ""), cast("JsonObject", tool.get("inputSchema") or {}))


def _tool_result(block: JsonMapping) -> Content:
    texts = [c.text for c in to_contents(block.get("content") or []) if c.text]
    result: JsonValue = "\n".join(texts) if texts else block.get("structuredContent")
    return Content.from_function_result(str(block.get("toolUseId")), result, "failed" if block.get("isError") else None)


def _is_shown(content: Content) -> bool:
    return bool(content.type == "text" and content.text) or (content.type == "data" and str(content.media_type).startswith("image/"))


def _tool_use(call: Content) -> JsonObject:
    try:
        arguments = read_arguments(call.arguments)
    except ValueError:
        raise ModelError(f"The model called {call.name!r} with arguments that are not JSON.") from None
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments}
