"""`ToolBox`: how agents and workflows get the tools they name, without knowing the catalog. `ToolGuard`: how they gate their own.

The catalog's owner (`app`) provides both; tests provide scripted ones. A tool box hands out guarded tools, so agents
and workflows pass the same policy as any client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.policy.decision import Reject
from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext


class ToolBox(Protocol):
    """Finds tools by pattern."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """The tools that match any of the `<source>/<glob>` patterns (`docs/read_*`, `agent/researcher`).

        In catalog order, each once; `definition.name` is the exposed, model-safe name. A pattern that matches
        nothing is no error.
        """
        ...


class ToolGuard(Protocol):
    """The gate for the tools that one agent or workflow brings along itself."""

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """The tools that policy lets exist, in order, each behind the gate. A tool that is behind the gate already is returned as it is.

        A tool that is only declared stays as it is too: its caller answers it, and nothing runs here.
        """
        ...

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Have a person approve something that is called `name` here and described by `shown`; `None` means yes.

        `key` identifies the question in a durable task (`CallContext.question`).

        Raises:
            GatewayError: The person cannot be asked.
        """
        ...

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """`tool`, which runs the Python function `found` that a file refers to as `reference`, behind the gate.

        Raises:
            PolicyDenied: The rules of `function` or of this source do not let the function run.
        """
        ...


@runtime_checkable
class ToolGuards(Protocol):
    """The gates of all agents and workflows."""

    def guard_of(self, source: str) -> ToolGuard:
        """The gate for the source `agent/<name>` or `workflow/<name>`, by the rules in force now."""
        ...


@runtime_checkable
class ResourceBox(Protocol):
    """Reads resources as clients do, through the gate."""

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """An exposed resource.

        Raises:
            NotFound: There is none with this URI (`kind` is `resource`).
            GatewayError: It cannot be read.
        """
        ...
