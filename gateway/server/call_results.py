"""Results of calls as they are sent: `to_wire` builds them, `is_plain_result` says which ones need no validation. Used by both paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.protocol import SERVER_INFO_META_KEY
from gateway.tools.base import Complete, InputRequired, TaskStarted, ToolOutcome

_BLOCKS: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
"""The fields of content blocks, in addition to `type`."""
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""Fields of a result that are the same in every protocol version."""


def to_wire(outcome: ToolOutcome, *, modern: bool) -> JsonObject:
    """Return an outcome as `CallToolResult`, `InputRequiredResult` or `CreateTaskResult`."""
    match outcome:
        case Complete():
            result: JsonObject = outcome.result if "content" in outcome.result else {"content": [], **outcome.result}
            return {"resultType": "complete", **result} if modern else result
        case InputRequired():
            return input_required_to_wire(outcome)
        case TaskStarted():
            return {**outcome.task, "resultType": "task"}


def input_required_to_wire(outcome: InputRequired) -> JsonObject:
    """Return an outcome as `InputRequiredResult`."""
    wire: JsonObject = {"resultType": "input_required"}
    if outcome.requests:
        wire["inputRequests"] = {key: dict(request) for key, request in outcome.requests.items()}
    if outcome.state is not None:
        wire["requestState"] = outcome.state
    if outcome.meta:
        wire["_meta"] = outcome.meta
    return wire


def is_plain_result(result: JsonMapping) -> bool:
    """Whether the SDK's models of every protocol version would send the result unchanged."""
    content: list[JsonMapping] | None = result.get("content")  # checked in the next line
    if not isinstance(content, list):
        return False
    for key in result:
        if key not in _RESULT:
            return False
    if "_meta" in result and not _is_plain_result_meta(result["_meta"]):
        return False
    if "structuredContent" in result and result["structuredContent"] is None:
        return False
    if "isError" in result and not isinstance(result["isError"], bool):
        return False
    for block in content:
        if not _is_plain_block(block):
            return False
    return True


def _is_plain_result_meta(meta: JsonValue) -> bool:
    return isinstance(meta, dict) and SERVER_INFO_META_KEY not in meta and None not in cast("JsonMapping", meta).values()


def _is_plain_block(block: JsonMapping) -> bool:
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    known = _BLOCKS.get(kind) if isinstance(kind, str) else None
    if known is None or len(block) != len(known) + 1:
        return False
    for name in known:
        if not isinstance(block.get(name), str):
            return False
    return True
