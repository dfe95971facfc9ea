"""Protocols through which agents and workflows reach tools: `ToolBox` for tools that they name, `ToolGuard` for tools of their own.

`app` implements them; tests have scripted ones. A tool box returns guarded tools, so agents and workflows pass the same policy as clients.
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
        """Return the tools that match any of the `<source>/<glob>` patterns (`docs/read_*`, `agent/researcher`).

        In catalog order, each once; `definition.name` is the exposed name. A pattern may match no tool.
        """
        ...


class ToolGuard(Protocol):
    """The gate for the tools that one agent or workflow brings along."""

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools that policy does not hide, in order, each behind the gate. A guarded tool is returned unchanged.

        A tool that is only declared is returned unchanged too, because its caller answers it.
        """
        ...

    def lent(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return tools of other sources that the file adds by a key (`skills`), in order, without those that policy hides.

        A call passes this gate and then the gate of the tool's own source. Rules name the tools by their native names.
        """
        ...

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Ask a person to approve `name`, which the text `shown` describes; `None` means approved.

        `key` identifies the question in a durable task (`CallContext.question`).

        Raises:
            GatewayError: The person cannot be asked.
        """
        ...

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """Return `tool`, which runs the Python function `found`, behind the gate. A file refers to the function as `reference`.

        The gate refuses each call if the policy of `function` or of this source denies the function.
        """
        ...


@runtime_checkable
class ToolGuards(Protocol):
    """The gates of all agents and workflows."""

    def guard_of(self, source: str) -> ToolGuard:
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
