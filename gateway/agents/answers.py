"""A run's response as the result of a tool call: its last word with what belongs to it, and what it cost in `_meta`."""

from __future__ import annotations

import json

from gateway.agents.following import is_handed_back
from gateway.agents.run import LIMIT_KEY
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.checking import SchemaCheck, measure
from gateway.policy.metadata import AGENT_META_KEY
from gateway.tools.base import Complete
from gateway.tools.contents import to_block
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, last_text

_SHOWN = frozenset({"data", "uri"})
"""Kinds of content that go out beside text."""


def to_complete(response: AgentResponse, *, model: str | None, output: JsonObject | None, hands_back: bool = False) -> Complete:
    """The last word of the assistant, with the images, audio, files and links that it gave in this run.

    `hands_back`: the caller answers calls and questions itself, so that they are an outcome without a text.
    """
    text = last_text(response.messages)
    rich = _rich_contents(response.messages)
    limit = response.additional_properties.get(LIMIT_KEY)
    shown = f"{text}\n\n(Stopped: {limit}.)" if limit and text and output is None else text
    blocks = [*([{"type": "text", "text": shown}] if shown or not rich else []), *(to_block(content) for content in rich)]
    result: JsonObject = {"content": blocks, "_meta": {AGENT_META_KEY: _note(response, model)}}
    if is_handed_back(response) and (hands_back or not response.user_input_requests):
        return Complete(result)
    if response.user_input_requests:
        result |= _error(f"The agent cannot go on: {_asked(response.user_input_requests)}.")
    elif output is not None:
        result |= _structured(text, output, blocks)
    elif not text and not rich:
        result |= _error("The agent gave no answer.")
    return Complete(result)


def _rich_contents(messages: list[Message]) -> list[Content]:
    return [c for m in messages if m.role == "assistant" for c in m.contents if c.type in _SHOWN and c.uri]


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


def _asked(requests: list[Content]) -> str:
    first = requests[0]
    call = first.function_call or first
    if first.consent_link:
        return f"a person must consent at {first.consent_link}"
    return f"a person must answer its call of {call.name!r}" if call.name else "a person must answer it first"


def _structured(text: str, schema: JsonObject, blocks: list[JsonObject]) -> JsonObject:
    """Structured content, or an error result that says what is wrong with the answer."""
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        value = None
    problem = "it is no JSON object" if not isinstance(value, dict) else SchemaCheck(schema).find(value, measure(value))
    if problem is None:
        return {"structuredContent": value, "content": blocks}
    return _error(f"The agent's answer does not have the form it must have ({problem}). The answer was:\n{text}")


def _error(text: str) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], "isError": True}
