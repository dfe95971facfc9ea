"""Protocols through which agents and workflows use the gateway: `ToolBox` finds the gateway's tools, and `ResourceBox` reads resources.

`ToolGuards` adds policy checks to the tools that an agent or workflow defines itself. `app` implements these protocols (except `ToolGuard`,
which `gate.own_tools` implements); tests use scripted implementations. All calls and reads pass the gate (the pipeline of policy checks),
as those of clients do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gateway.policy.decision import Reject
from gateway.tools.base import ReadOutcome, Tool
from gateway.tools.context import AgentScope, CallContext


class ToolBox(Protocol):
    """Protocol: finds the tools that match patterns in the files of agents and workflows, such as `docs/read_*`."""

    async def tools(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match at least one of the patterns `<source>/<glob>` (`docs/read_*`, `agent/researcher`).

        Each tool occurs once, in the order of the gateway's list of tools. `definition.name` is the name by which clients call the tool. It
        is not an error if a pattern matches no tool.
        """
        ...

    async def quarantined(self, patterns: Sequence[str]) -> Sequence[Tool]:
        """Return the tools that match a pattern but are quarantined: they are not served until a person accepts their definitions.

        The gate refuses and records each call of a returned tool. The tool's definition contains only the name.
        """
        ...


class ToolGuard(Protocol):
    """Protocol of the gate (the policy checks of calls) for tools that one agent or workflow defines, such as an agent's file tools."""

    @property
    def source(self) -> str:
        """Id of the agent or workflow: `agent/<name>` or `workflow/<name>`."""
        ...

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools that policy does not hide, in order, each wrapped so that its calls pass the policy checks (the gate).

        A tool that already has a gate is returned unchanged, even if policy hides it. A tool that is only declared (the program that runs
        the agent answers its calls) is not wrapped, and left out if policy hides it.
        """
        ...

    def lent(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return tools of other sources, which the key `skills` of the agent's file adds, wrapped so that the agent's policy applies too.

        A call passes the checks of the agent's policy, and then those of the tool's source. Tools that the agent's policy hides are left
        out. The policy's rules use the names that the tools have at their source.
        """
        ...

    def step(self, tool: Tool) -> Tool:
        """Return a step of an agent's or workflow's run, wrapped so that it passes the policy checks (the gate).

        The step has the form of a tool, which no model sees. If policy hides the tool, the gate refuses the step and records the refusal.
        """
        ...

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Ask a person to approve the call of `name`, which the text `shown` describes. Return the refusal, or `None` if approved.

        Without asking, the call is refused if the gate has no approvals (outside `moongate run`). `key` identifies the question in a
        durable task (`CallContext.question`).

        Raises:
            GatewayError: The person cannot be asked.
        """
        ...

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """Return a tool that runs a Python function (`found`), wrapped so that its calls pass the policy checks (the gate).

        `reference` is the name of the function in the agent's or workflow's file. The gate refuses each call if the policy of the source
        `function`, or the policy of the agent or workflow, denies the function.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedScope(AgentScope):
    """The run of an agent or workflow of a gateway, with the policy checks for tools that the agent or workflow defines itself."""

    tool_guard: ToolGuard


def guard_in(ctx: CallContext) -> ToolGuard | None:
    """Return the policy checks for the own tools of the gateway's agent or workflow that makes a call; `None` for other calls."""
    return ctx.run.tool_guard if isinstance(ctx.run, GuardedScope) else None


def guarded_by(ctx: CallContext, guard: ToolGuard | None) -> CallContext:
    """Return a copy of `ctx` for the run of an agent or workflow, with the policy checks for its own tools."""
    invocation = ctx.run.invocation
    scope = AgentScope(invocation=invocation) if guard is None else GuardedScope(invocation=invocation, tool_guard=guard)
    return dataclasses.replace(ctx, run=scope)


@runtime_checkable
class ToolGuards(Protocol):
    """Protocol: provides the gates (policy checks) for tools that single agents and workflows define themselves."""

    def guard_of(self, source: str) -> ToolGuard:
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
