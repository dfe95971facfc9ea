"""`is_readable`: checks the form of a server's `CallToolResult` before the gateway uses it."""

from __future__ import annotations

from gateway.json_types import JsonMapping, JsonValue


def is_readable(result: JsonMapping) -> bool:
    """Return whether a tool result has content and its blocks are objects. The types of blocks are not checked."""
    content: list[JsonValue] | None = result.get("content")  # or another value
    if not isinstance(content, list):
        return "structuredContent" in result
    for block in content:
        if not isinstance(block, dict):
            return False
    return True
