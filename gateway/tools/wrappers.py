"""Small tools around tools."""

from __future__ import annotations

import dataclasses

from gateway.json_types import JsonObject
from gateway.tools.base import Tool, ToolOutcome
from gateway.tools.context import CallContext


class RenamedTool:
    """A tool under another name; what a `ToolBox` hands out, so that models see exposed names."""

    def __init__(self, tool: Tool, name: str) -> None:
        self.inner = tool
        self.native_name = tool.definition.name
        self.source: str | None = getattr(tool, "source", None)
        """Id of the source the tool is from, where it is known."""
        self.definition = dataclasses.replace(tool.definition, name=name)

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Call the tool."""
        return await self.inner.call(arguments, ctx)
