"""`OpenAIChatCompletionClient`: the Chat Completions API, which nearly every local and hosted server speaks."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gateway.chat.openai_base import OpenAIClientBase, as_text, closing, load_openai, tool_definitions
from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate

_PASSED = ("temperature", "top_p", "max_tokens", "stop", "seed", "metadata")


class OpenAIChatCompletionClient(OpenAIClientBase):
    """Chat Completions, streamed or whole."""

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        model = options.get("model") or self.model
        request = to_request(messages, options) | {"model": model}
        await load_openai()
        create: Any = self._openai.chat.completions.create
        async with self._guarded(model):
            if stream:
                request |= {"stream": True, "stream_options": {"include_usage": True}}
                chunks: Any = await create(**request)
                async for update in _streamed(chunks, model):
                    yield update
                return
            whole: Any = await create(**request)
            yield _whole(whole)


def to_request(messages: Sequence[Message], options: ChatOptions) -> dict[str, Any]:
    """The request body but for the model."""
    request: dict[str, Any] = {"messages": to_wire_messages(messages, options.get("instructions"))}
    request |= {key: value for key in _PASSED if (value := options.get(key)) is not None}
    tools = tool_definitions(options)
    if tools:
        request["tools"] = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in tools]
        request["tool_choice"] = options.get("tool_choice") or "auto"
    if (schema := options.get("response_format")) is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return request


def to_wire_messages(messages: Sequence[Message], instructions: str | None) -> list[JsonObject]:
    """Messages in the API's form; each tool result becomes a message of its own."""
    wire: list[JsonObject] = [{"role": "system", "content": instructions}] if instructions else []
    for message in messages:
        results = [c for c in message.contents if c.type == "function_result"]
        wire += [{"role": "tool", "tool_call_id": c.call_id, "content": as_text(c.result)} for c in results]
        if results:
            continue
        entry: JsonObject = {"role": message.role, "content": _wire_content(message)}
        calls = [c for c in message.contents if c.type == "function_call"]
        if calls:
            entry["tool_calls"] = [_wire_call(c) for c in calls]
        wire.append(entry)
    return wire


def _wire_content(message: Message) -> str | list[JsonObject] | None:
    images = [c for c in message.contents if c.type in ("data", "uri") and (c.media_type or "").startswith("image/")]
    if not images:
        return message.text or (None if message.role == "assistant" else "")
    return [{"type": "text", "text": message.text}, *({"type": "image_url", "image_url": {"url": c.uri}} for c in images)]


def _wire_call(call: Content) -> JsonObject:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments or {})
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _usage(usage: Any) -> list[Content]:
    if usage is None:
        return []
    counts: dict[str, Any] = {"input_token_count": usage.prompt_tokens, "output_token_count": usage.completion_tokens}
    counts["total_token_count"] = usage.total_tokens
    return [Content.from_usage({k: v for k, v in counts.items() if v is not None})]


async def _streamed(chunks: Any, model: str) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Text as it comes; tool calls whole, at the end, because their arguments arrive in pieces."""
    calls: dict[int, dict[str, str]] = {}
    last: ChatResponseUpdate | None = None
    async for chunk in closing(chunks, model):
        contents = _usage(chunk.usage)
        choice = chunk.choices[0] if chunk.choices else None
        if choice is not None:
            if choice.delta.content:
                contents.insert(0, Content.from_text(choice.delta.content))
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                call["id"] = part.id or call["id"]
                if part.function is not None:
                    call["name"] += part.function.name or ""
                    call["arguments"] += part.function.arguments or ""
        last = ChatResponseUpdate(contents, "assistant", chunk.id, chunk.model, choice.finish_reason if choice else None)
        if contents or last.finish_reason:
            yield last
    if calls and last is not None:
        done = [Content.from_function_call(c["id"] or f"call-{uuid.uuid4()}", c["name"], c["arguments"]) for _, c in sorted(calls.items())]
        yield ChatResponseUpdate(done, "assistant", last.response_id, last.model)


def _whole(response: Any) -> ChatResponseUpdate:
    choice = response.choices[0]
    contents = [Content.from_text(choice.message.content)] if choice.message.content else []
    for call in choice.message.tool_calls or ():
        contents.append(Content.from_function_call(call.id, call.function.name, call.function.arguments))  # noqa: PERF401  # two kinds in one list
    return ChatResponseUpdate([*contents, *_usage(response.usage)], "assistant", response.id, response.model, choice.finish_reason)
