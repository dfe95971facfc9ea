"""Trace spans and metrics of model calls, following OpenTelemetry's conventions for generative AI.

`chat_middleware.around_model` calls `traced_call` for each request to a model, inside all chat middleware, if instrumentation is on.
Requests of every client are therefore traced. `agents.tracing` records agent runs and tool calls.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from gateway.json_types import JsonMapping, JsonObject
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, TOKEN_BUCKETS, Attributes, Operation, follow
from gateway.types.content import Content, UsageDetails
from gateway.types.messages import Message
from gateway.types.responses import ChatResponse, ChatResponseUpdate

if TYPE_CHECKING:
    from gateway.chat.chat_context import ChatContext

DURATION = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"

LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "server.address",
    "server.port",
)
"""Span attributes that are also labels of the metrics for duration and token counts."""

_REQUEST = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "conversation_id": "gen_ai.conversation.id",
}
_USAGE = {
    "input_token_count": "gen_ai.usage.input_tokens",
    "output_token_count": "gen_ai.usage.output_tokens",
    "cache_read_input_token_count": "gen_ai.usage.cache_read.input_tokens",
    "cache_creation_input_token_count": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning_output_token_count": "gen_ai.usage.reasoning.output_tokens",
}


def traced_call(
    context: ChatContext, send: Callable[[], AsyncGenerator[ChatResponseUpdate, None]]
) -> AsyncGenerator[ChatResponseUpdate, None]:
    """Call `send`, which requests a model response, and return the parts of the response. Record the request in a span."""
    model = str(context.options.get("model") or getattr(context.client, "model", None) or "unknown")
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider_of(context.client), "gen_ai.request.model": model}
    operation = Operation(f"chat {model}", {**attributes, **_server(context.client)}, kind="client", metric=DURATION)
    options = cast("JsonMapping", context.options)
    operation.add({name: value for key, name in _REQUEST.items() if (value := options.get(key)) is not None})
    stop = options.get("stop")
    if stop:
        operation.add({"gen_ai.request.stop_sequences": [stop] if isinstance(stop, str) else list(stop)})
    if options.get("response_format") is not None:
        operation.add({"gen_ai.output.type": "json"})
    if OBSERVABILITY_SETTINGS.enable_sensitive_data:
        operation.add(request_attributes(context.messages, options))
    try:
        parts = send()
    except Exception as error:  # a client may raise before it yields the first part
        operation.fail(error)
        operation.end(labels=LABELS)
        raise
    return follow(operation, parts, partial(_finish, context, operation, attributes))


def _finish(context: ChatContext, operation: Operation, attributes: Mapping[str, str], updates: Sequence[ChatResponseUpdate]) -> None:
    response = context.said or ChatResponse.from_updates(updates)
    operation.add(answered(response.response_id, response.model, response.finish_reason, response.usage_details))
    if OBSERVABILITY_SETTINGS.enable_sensitive_data:
        operation.add({"gen_ai.output.messages": shown(response.messages, response.finish_reason)})
    labels: dict[str, str] = {**attributes, **({"gen_ai.response.model": response.model} if response.model else {})}
    count_tokens(response.usage_details, labels)
    operation.end(labels=LABELS)


def count_tokens(usage: UsageDetails | None, labels: Attributes, *, metric: str = TOKENS) -> None:
    """Record the numbers of input and output tokens in the histogram `metric`. Model requests and agent runs have different histograms."""
    for kind in ("input", "output"):
        tokens = (usage or {}).get(f"{kind}_token_count")
        if tokens is not None:
            histogram = OBSERVABILITY_SETTINGS.histogram(metric, "{token}", TOKEN_BUCKETS)
            histogram.record(tokens, {**labels, "gen_ai.token.type": kind})


def answered(
    response_id: str | None, model: str | None, finish_reason: str | None, usage: UsageDetails | None
) -> dict[str, str | int | Sequence[str]]:
    """Return the span attributes that describe a response: id, model, finish reason and token counts."""
    found: dict[str, str | int | Sequence[str]] = {
        name: value for name, value in (("gen_ai.response.id", response_id), ("gen_ai.response.model", model)) if value
    }
    if finish_reason:
        found["gen_ai.response.finish_reasons"] = [finish_reason]
    return found | {name: value for key, name in _USAGE.items() if (value := (usage or {}).get(key)) is not None}


def provider_of(client: object) -> str:
    """Return the name of a chat client's provider for telemetry, or `unknown`."""
    return str(getattr(client, "otel_provider_name", None) or getattr(client, "OTEL_PROVIDER_NAME", None) or "unknown")


def _server(client: object) -> dict[str, str | int]:
    address = getattr(client, "service_url", None)
    parts = urlsplit(str(address()) if callable(address) else "")
    found: dict[str, str | int] = {"server.address": parts.hostname} if parts.hostname else {}
    return found | ({"server.port": parts.port} if parts.port else {})


# -- content of messages; recorded only if `enable_sensitive_data` is on -------------------------------------------------------------------


def request_attributes(messages: Sequence[Message], options: JsonMapping) -> dict[str, str]:
    """Return the span attributes with the messages, instructions and tools of a request, recorded only with `enable_sensitive_data`."""
    found = {"gen_ai.input.messages": shown(messages)}
    if options.get("instructions"):
        found["gen_ai.system_instructions"] = _text([{"type": "text", "content": options["instructions"]}])
    definitions = [d for tool in options.get("tools") or () if (d := getattr(tool, "definition", None)) is not None]
    if definitions:
        described = [{"type": "function", "name": d.name, "description": d.description, "parameters": d.input_schema} for d in definitions]
        found["gen_ai.tool.definitions"] = _text(described)
    return found


def shown(messages: Sequence[Message], finish_reason: str | None = None) -> str:
    """Return messages as JSON text, in the format of OpenTelemetry's conventions for generative AI."""
    parts: list[JsonObject] = [{"role": message.role, "parts": [_part(content) for content in message.contents]} for message in messages]
    if parts and finish_reason:
        parts[-1]["finish_reason"] = "tool_call" if finish_reason == "tool_calls" else finish_reason
    return _text(parts)


def _part(content: Content) -> JsonObject:
    match content.type:
        case "text":
            return {"type": "text", "content": content.text}
        case "text_reasoning":
            return {"type": "reasoning", "content": content.text}
        case "uri" | "data":
            media_type = content.media_type or ""
            kind: JsonObject = {"type": "uri", "uri": content.uri} if content.type == "uri" else {"type": "blob"}
            if content.type == "data":
                kind["content"] = (content.uri or "").partition("base64,")[2]
            return {**kind, "mime_type": media_type, "modality": media_type.partition("/")[0]}
        case "function_call":
            return {"type": "tool_call", "id": content.call_id, "name": content.name, "arguments": content.arguments}
        case "function_result":
            return {"type": "tool_call_response", "id": content.call_id, "response": content.result}
        case _:
            return content.to_dict()


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
