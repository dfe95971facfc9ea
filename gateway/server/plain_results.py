"""Results of calls that go out as they are, told without a model: for `direct`, and for `calls` before a model is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonValue
from gateway.protocol import SERVER_INFO_META_KEY

_BLOCKS: Mapping[str, Sequence[str]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
"""What blocks have beside their type."""
_RESULT = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
"""What every version has as it is, as these blocks, so that no model needs to look at it."""


def is_plain_result(result: JsonMapping) -> bool:
    """Whether the SDK's models of every version would send the result as it is."""
    content: list[JsonMapping] | None = result.get("content")  # at best
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
