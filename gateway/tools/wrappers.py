"""`RenamedTool`: wraps a tool to give it another name, for models that see exposed names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from gateway.json_types import JsonObject
from gateway.policy.caller_rights import Rights
from gateway.tools.base import DescribingTool, NamedTool, Tool, ToolOutcome
from gateway.tools.context import CallContext


class RenamedTool:
    """Wraps a tool to give it another name, and passes calls on unchanged.

    A `ToolBox` returns renamed tools, so that models of agents see the same names as clients.
    """

    def __init__(self, tool: Tool, name: str) -> None:
        self.inner = tool
        self.native_name = tool.definition.name
        self.source: str | None = getattr(tool, "source", None)
        """Id of the source that provides the tool, or `None` if it is unknown."""
        self.definition = dataclasses.replace(tool.definition, name=name)

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        return self.definition.name

    @property
    def description(self) -> str:
        """The description for the model; empty if the tool has no description."""
        return self.definition.description or ""

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Call the wrapped tool."""
        return await self.inner.call(arguments, ctx)

    def described(self, rights: Rights | None, named: Sequence[str]) -> RenamedTool:
        """Return this tool with the description for a caller with these `rights` (`None`: no restriction).

        For the model of an agent, `named` are the skills that the agent's file names.
        """
        tool, shown = self.inner, self.definition
        if not isinstance(tool, DescribingTool) or (description := tool.description_for(rights, named)) == (shown.description or ""):
            return self
        copy = RenamedTool(tool, shown.name)
        copy.definition = dataclasses.replace(shown, description=description)
        return copy


def named(tool: Tool) -> NamedTool:
    """Return the tool itself if it has the attributes `name` and `description`, else a wrapper that takes both from its definition."""
    if hasattr(tool, "name") and hasattr(tool, "description"):
        return cast("NamedTool", tool)
    return RenamedTool(tool, tool.definition.name)
