"""`FunctionInvocationContext`: one tool call of an agent's run, as function middleware sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonObject, JsonValue
from gateway.tools.base import Tool
from gateway.tools.context import CallContext


@dataclass(slots=True)
class FunctionInvocationContext:
    """Edit `arguments` before `call_next`, `result` after; `result` set without `call_next` replaces the call."""

    function: Tool
    arguments: JsonObject
    ctx: CallContext
    tools: list[Tool]
    """The run's live list: what is added or removed here counts from the next model call on."""
    metadata: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    result: JsonValue = None
    """What the model will read: text, or a JSON value."""
