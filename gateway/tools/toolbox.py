"""Protocols through which agents and workflows reach tools: `ToolBox` for tools that they name, `ToolGuards` for tools of their own.

`app` implements both; tests use scripted implementations. A tool box returns tools behind the gate, so calls of agents and workflows
pass the same policy as calls of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext, ToolGuard


class ToolBox(Protocol):
    """Finds the tools that agents and workflows name, by patterns such as `docs/read_*`."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match any of the `<source>/<glob>` patterns (`docs/read_*`, `agent/researcher`).

        The tools are in the order of the catalog, each once. `definition.name` is the exposed name. A pattern may match no tool.
        """
        ...


@runtime_checkable
class ToolGuards(Protocol):
    """The gates for the tools that agents and workflows bring along themselves."""

    def guard_of(self, source: str) -> ToolGuard[Tool]:
        """Return the gate for the own tools of `agent/<name>` or `workflow/<name>`, with the current policy of this source."""
        ...


@runtime_checkable
class ResourceBox(Protocol):
    """Reads resources as clients do, through the gate."""

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read the resource with this exposed URI, the URI that clients use.

        Raises:
            NotFound: The URI is unknown (`kind` is `resource`).
            GatewayError: The resource cannot be read.
        """
        ...
