"""Protocols through which agents and workflows reach tools: `ToolBox` for tools that they name, `ToolGuards` for tools of their own.

`app` implements them; tests have scripted ones. A tool box returns guarded tools, so agents and workflows pass the same policy as clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext, ToolGuard


class ToolBox(Protocol):
    """Finds tools by pattern."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match any of the `<source>/<glob>` patterns (`docs/read_*`, `agent/researcher`).

        In catalog order, each once; `definition.name` is the exposed name. A pattern may match no tool.
        """
        ...


@runtime_checkable
class ToolGuards(Protocol):
    """The gates of all agents and workflows."""

    def guard_of(self, source: str) -> ToolGuard[Tool]:
        """Return the gate for the source `agent/<name>` or `workflow/<name>`, with the current policy."""
        ...


@runtime_checkable
class ResourceBox(Protocol):
    """Reads resources as clients do, through the gate."""

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read an exposed resource.

        Raises:
            NotFound: The URI is unknown (`kind` is `resource`).
            GatewayError: The resource cannot be read.
        """
        ...
