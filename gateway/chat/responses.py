"""`OpenAIChatClient`: OpenAI's Responses API, without server-side state (`store` is off: the conversation is ours)."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gateway.chat.openai_base import OpenAIClientBase, as_text, closing, load_openai, tool_definitions
from gateway.errors import ModelError
from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import ChatResponseUpdate

_PASSED = {"temperature": "temperature", "top_p": "top_p", "max_tokens": "max_output_tokens", "metadata": "metadata"}


class OpenAIChatClient(OpenAIClientBase):
    """The Responses API, streamed or whole."""

    async def _updates(
        self, messages: Sequence[Message], *, stream: bool, options: ChatOptions
    ) -> AsyncGenerator[ChatResponseUpdate, None]:
        model = options.get("model") or self.model
        request = to_request(messages, options) | {"model": model}
        await load_openai()
        create: Any = self._openai.responses.create
        async with self._guarded(model):
            if stream:
                events: Any = await create(stream=True, **request)
                async for update in _streamed(events, model):
                    yield update
                return
            whole: Any = await create(**request)
            contents = [*_outputs(whole.output), *_usage(whole.usage)]
            yield ChatResponseUpdate(contents, "assistant", whole.id, whole.model, _finish_reason(whole, model))


def to_request(messages: Sequence[Message], options: ChatOptions) -> dict[str, Any]:
    """The request body but for the model."""
    request: dict[str, Any] = {"input": to_items(messages), "store": False}
    request |= {name: value for key, name in _PASSED.items() if (value := options.get(key)) is not None}
    if options.get("instructions"):
        request["instructions"] = options.get("instructions")
    tools = tool_definitions(options)
    if tools:
        request["tools"] = [{"type": "function", "name": n, "description": d, "parameters": p, "strict": False} for n, d, p in tools]
        request["tool_choice"] = options.get("tool_choice") or "auto"
    if (schema := options.get("response_format")) is not None:
        request["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema}}
    return request


def to_items(messages: Sequence[Message]) -> list[JsonObject]:
    """Messages as input items; calls and their results are items of their own."""
    items: list[JsonObject] = []
    for message in messages:
        kind = "output_text" if message.role == "assistant" else "input_text"
        parts: list[JsonObject] = []
        for content in message.contents:
            match content.type:
                case "text":
                    parts.append({"type": kind, "text": content.text or ""})
                case "data" | "uri" if (content.media_type or "").startswith("image/"):
                    parts.append({"type": "input_image", "image_url": content.uri})
                case "function_call":
                    arguments = content.arguments if isinstance(content.arguments, str) else json.dumps(content.arguments or {})
                    items.append({"type": "function_call", "call_id": content.call_id, "name": content.name, "arguments": arguments})
                case "function_result":
                    items.append({"type": "function_call_output", "call_id": content.call_id, "output": as_text(content.result)})
                case _:
                    continue
        if parts:
            items.append({"role": message.role, "content": parts})
    return items


def _outputs(output: Sequence[Any]) -> list[Content]:
    contents: list[Content] = []
    for item in output:
        if item.type == "function_call":
            contents.append(Content.from_function_call(item.call_id, item.name, item.arguments))
        elif item.type == "message":
            contents += [Content.from_text(part.text if part.type == "output_text" else part.refusal) for part in item.content]
    return contents


def _finish_reason(response: Any, model: str) -> str:
    """`stop`, `length` or `content_filter`, as Chat Completions has it.

    Raises:
        ModelError: The response failed.
    """
    if response.status == "failed":
        raise ModelError(f"Model {model!r} failed while it was answering.", retryable=True)
    if response.status != "incomplete":
        return "stop"
    reason = response.incomplete_details.reason if response.incomplete_details else None
    return "content_filter" if reason == "content_filter" else "length"


def _usage(usage: Any) -> list[Content]:
    if usage is None:
        return []
    counts = {"input_token_count": usage.input_tokens, "output_token_count": usage.output_tokens, "total_token_count": usage.total_tokens}
    return [Content.from_usage(counts)]


async def _streamed(events: Any, model: str) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Text as it comes, tool calls when they are complete, usage at the end.

    Raises:
        ModelError: The response failed, or the stream ended without one.
    """
    response_id: str | None = None
    async for event in closing(events, model):
        match event.type:
            case "response.created":
                response_id = event.response.id
            case "response.output_text.delta" | "response.refusal.delta":
                yield ChatResponseUpdate([Content.from_text(event.delta)], "assistant", response_id, model)
            case "response.reasoning_summary_text.delta":
                yield ChatResponseUpdate([Content.from_text_reasoning(event.delta)], "assistant", response_id, model)
            case "response.output_item.done" if event.item.type == "function_call":
                item = event.item
                call = Content.from_function_call(item.call_id, item.name, item.arguments)
                yield ChatResponseUpdate([call], "assistant", response_id, model)
            case "response.completed" | "response.incomplete":
                finish = _finish_reason(event.response, model)
                yield ChatResponseUpdate(_usage(event.response.usage), "assistant", response_id, event.response.model, finish)
                return
            case "response.failed" | "error":
                raise ModelError(f"Model {model!r} failed while it was answering.", retryable=True)
            case _:
                continue
    raise ModelError(f"Model {model!r} broke off its answer.", retryable=True)
