"""Converts the response of an agent's run to an MCP tool result: the final text, images and files, and token usage in `_meta`."""

from __future__ import annotations

import json

from gateway.agents.following import awaits_caller
from gateway.agents.run_loop import LIMIT_KEY
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import AGENT_META_KEY
from gateway.policy.schema_check import SchemaCheck, measure
from gateway.tools.base import Complete
from gateway.tools.contents import to_block
from gateway.types.content import Content
from gateway.types.responses import AgentResponse, last_text

_SHOWN = frozenset({"data", "uri"})
"""Types of the response's contents (images, files, links) that the tool result contains in addition to text."""


def to_complete(response: AgentResponse, *, model: str | None, output: JsonObject | None, hands_back: bool = False) -> Complete:
    """Convert an agent's response to a tool result: the assistant's last text with the run's images, audio, files and links, or an error.

    `output` is the JSON Schema that the text must match, if any. A run that ends with tool calls for the caller is not an error. A run that
    ends with questions is an error, unless `hands_back` is set, which means that the caller answers questions itself.
    """
    text = last_text(response.messages)
    rich = [c for m in response.messages if m.role == "assistant" for c in m.contents if c.type in _SHOWN and c.uri]
    limit = response.additional_properties.get(LIMIT_KEY)
    shown = f"{text}\n\n(Stopped: {limit}.)" if limit and text and output is None else text
    blocks = [*([{"type": "text", "text": shown}] if shown or not rich else []), *(to_block(content) for content in rich)]
    result: JsonObject = {"content": blocks, "_meta": {AGENT_META_KEY: _note(response, model)}}
    if awaits_caller(response) and (hands_back or not response.user_input_requests):
        return Complete(result)
    if response.user_input_requests:
        result |= _error(f"The agent cannot go on: {_request_text(response.user_input_requests)}.")
    elif output is not None:
        result |= _structured(text, output, blocks)
    elif not text and not rich:
        result |= _error("The agent returned an empty answer. Call it again, or state the task in more detail.")
    return Complete(result)


def _note(response: AgentResponse, model: str | None) -> JsonObject:
    note: JsonObject = {"model": model} if model else {}
    if response.usage_details:
        note["usage"] = response.usage_details
    if response.finish_reason:
        note["finishReason"] = response.finish_reason
    if limit := response.additional_properties.get(LIMIT_KEY):
        note["stopped"] = limit
    annotations = [a for m in response.messages for c in m.contents for a in c.annotations or ()]
    if annotations:
        note["citations"] = [{key: value for key, value in a.items() if key != "raw_representation"} for a in annotations]
    return note


def _request_text(requests: list[Content]) -> str:
    first = requests[0]
    call = first.function_call or first
    if first.consent_link:
        return f"a person must consent at {first.consent_link}"
    return f"a person must answer its call of {call.name!r}" if call.name else "a person must answer it first"


def _structured(text: str, schema: JsonObject, blocks: list[JsonObject]) -> JsonObject:
    """Return a tool result with the agent's answer as structured content, or an error with the reason if it does not match `schema`."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        value = None
    problem = "it is not a JSON object" if not isinstance(value, dict) else SchemaCheck(schema).find(value, measure(value))
    if problem is None:
        return {"structuredContent": value, "content": blocks}
    return _error(f"The agent's answer does not match its output schema: {problem}. The answer was:\n{text}")


def _error(text: str) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], "isError": True}
