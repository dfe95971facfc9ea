"""`SamplingChatClient`: a chat client that uses the connected MCP client's own model, through MCP sampling.

An agent with `model: auto` uses it if no model endpoint is configured. The requests go through `CallContext.ask`, so they work with clients
of MCP 2025 and 2026, within the limits of `policy.input_requests`: tokens per response and requests per run. Tools are offered only to a
client that declared `sampling.tools`. For other clients the prompt says that no tools are available, so that the model does not invent
results.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from gateway.chat.chat_client import BaseChatClient
from gateway.chat.openai_options import tool_definitions
from gateway.config.policies import SamplingPolicy, SourcePolicy
from gateway.errors import InputUnavailable, ModelError, ToolFailed
from gateway.json_types import JsonObject, JsonValue, as_text, objects_in
from gateway.policy.decision import Reject, Rewrite
from gateway.policy.input_requests import judge_input
from gateway.tools.contents import from_block, to_block
from gateway.tools.context import CallContext
from gateway.types.call_arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate

GUARD = SourcePolicy(sampling=SamplingPolicy(mode="relay"))
"""Limits of the sampling requests that an agent may send in one run: the defaults of `SamplingPolicy`."""

DEFAULT_MAX_TOKENS = 2048
"""`maxTokens` of a sampling request if the run sets no limit, because MCP requires a number."""

NO_TOOLS = "No tools are available in this run. Say what you could not look up instead of guessing it."


class SamplingChatClient(BaseChatClient):
    """Chat client that uses the connected MCP client's model. Each run has its own instance, which counts the run's requests."""

    def __init__(self, ctx: CallContext) -> None:
        super().__init__("client")
        self._ctx = ctx
        self._used = 0

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        request = to_request(messages, options, with_tools=self._ctx.facts.client.can("sampling.tools"))
        verdict = judge_input(request, GUARD, self._used)
        self._used += 1
        if isinstance(verdict, Reject):
            raise ModelError(f"The client's model cannot be used any more in this run: {verdict.reason}")
        try:
            result = await self._ctx.ask(verdict.arguments if isinstance(verdict, Rewrite) else request)
        except (InputUnavailable, ToolFailed) as error:
            raise ModelError(f"The connected client's model could not be used: {error}") from None
        contents = to_contents(result.get("content"))
        if not contents:
            raise ModelError("The connected client's model returned an empty answer.")
        model, reason = str(result.get("model") or "unknown"), str(result.get("stopReason") or "stop")
        yield ChatResponseUpdate(contents, "assistant", None, model, reason)


def to_request(messages: Sequence[Message], options: ChatOptions, *, with_tools: bool) -> JsonObject:
    """Convert a conversation to a `sampling/createMessage` request. Without `with_tools`, leave out tools, tool calls and their results."""
    tools = tool_definitions(options)
    system = [options.get("instructions") or "", *(m.text for m in messages if m.role == "system")]
    if tools and not with_tools:
        system.append(NO_TOOLS)
    params: JsonObject = {
        "messages": [wire for m in messages if m.role != "system" for wire in _to_wire(m, with_tools=with_tools)],
        "maxTokens": options.get("max_tokens") or DEFAULT_MAX_TOKENS,
    }
    if text := "\n\n".join(part for part in system if part):
        params["systemPrompt"] = text
    for key, name in (("temperature", "temperature"), ("stop", "stopSequences")):
        if options.get(key) is not None:
            params[name] = options.get(key)
    if tools and with_tools:
        params["tools"] = [{"name": n, "description": d, "inputSchema": s} for n, d, s in tools]
        params["toolChoice"] = {"mode": options.get("tool_choice") or "auto"}
    return {"method": "sampling/createMessage", "params": params}


def _to_wire(message: Message, *, with_tools: bool) -> list[JsonObject]:
    role = "assistant" if message.role == "assistant" else "user"
    blocks: list[JsonObject] = []
    for content in message.contents:
        match content.type:
            case "text":
                blocks.append({"type": "text", "text": content.text or ""})
            case "function_call" if with_tools:
                blocks.append({"type": "tool_use", "id": content.call_id, "name": content.name, "input": read_arguments(content.arguments)})
            case "function_result" if with_tools:
                blocks.append({"type": "tool_result", "toolUseId": content.call_id, "content": _result_blocks(content)})
            case "data" if content.has_top_level_media_type("image") or content.has_top_level_media_type("audio"):
                blocks.append(to_block(content))
            case "data" | "uri":
                blocks.append({"type": "text", "text": content.uri if content.type == "uri" and content.uri else content.label})
            case _:
                continue
    if not blocks:
        return []
    # A single block is not sent as a list, because older clients reject lists, which MCP added together with tool use.
    return [{"role": role, "content": blocks[0] if len(blocks) == 1 else blocks}]


def _result_blocks(content: Content) -> list[JsonObject]:
    """Convert a tool's result to MCP content blocks: the text first, then images and other data."""
    text: JsonObject = {"type": "text", "text": as_text(content.result)}
    return [text, *(to_block(item) for item in content.items or () if item.type in ("data", "uri"))]


def to_contents(content: JsonValue) -> list[Content]:
    """Convert the MCP content blocks of a sampling message to `Content` objects: text, images, audio, tool calls. Drop other blocks."""
    contents: list[Content] = []
    for wire in objects_in(content if isinstance(content, list) else [content]):
        match wire.get("type"):
            case "text" | "image" | "audio":
                contents.append(from_block(wire))
            case "tool_use":
                contents.append(Content.from_function_call(str(wire.get("id")), str(wire.get("name")), wire.get("input") or {}))
            case _:
                continue
    return contents
