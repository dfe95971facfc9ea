"""Protocols through which agents and workflows use the gateway: `ToolBox` finds tools, `ToolGuards` checks calls of tools of their own.

`ResourceBox` reads resources. `app` implements these protocols; tests use scripted implementations. Tools and resources pass the gate (the
pipeline of policy checks), so that the same policy applies to agents and workflows as to clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import CallContext, ToolGuard


class ToolBox(Protocol):
    """Protocol: finds the tools that files of agents and workflows name by patterns such as `docs/read_*`."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match at least one of the patterns `<source>/<glob>` (`docs/read_*`, `agent/researcher`).

        Each tool occurs once, in the order of the gateway's list of tools. `definition.name` is the name by which clients call the tool. It
        is not an error if a pattern matches no tool.
        """
        ...

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match a pattern, but are not served, because nobody has accepted their changed definitions.

        The gate refuses each call of them and records it. Their definitions have only the name.
        """
        ...


@runtime_checkable
class ToolGuards(Protocol):
    """Protocol: provides the gates (policy checks) for tools that single agents and workflows define themselves."""

    def guard_of(self, source: str) -> ToolGuard[Tool]:
        """Return the policy checks (the gate) for tools that an agent or workflow defines itself, with the current policy of `source`.

        `source` is `agent/<name>` or `workflow/<name>`.
        """
        ...


@runtime_checkable
class ResourceBox(Protocol):
    """Protocol: reads resources of the gateway for agents and workflows, with the same policy checks as for clients."""

    async def read_resource(self, uri: str, ctx: CallContext) -> ReadOutcome:
        """Read the resource with an exposed URI (the URI that clients use), and return its result.

        Raises:
            NotFound: The URI is unknown (`kind` is `resource`).
            GatewayError: The resource cannot be read.
        """
        ...
