"""`OwnToolGates`: the gate for tools that agents and workflows bring along themselves, with the policies
of the sources `agent/<name>` and `workflow/<name>`.

These tools are the ones that context providers add to a run (`files`, memory, …) and the Python functions of workflow files. They pass
the same steps as every tool: rules, approvals, limits and events. They are not in the catalog, so no client and no `tools` list finds
them. The tools that an agent's `skills` key adds are in the catalog; their calls pass the gate of `agent/<name>`, then that of `skill`.
Made by `app`; used by `agents` and `workflows` through `tools.toolbox.ToolGuards`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gateway.config.policies import SourcePolicy
from gateway.gate.approvals import Question, note_approved
from gateway.gate.concurrency import Limiter
from gateway.gate.function_rules import FUNCTION_SOURCE, FunctionRules
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import RULE as APPROVAL_RULE
from gateway.policy.decision import Reject
from gateway.policy.own_sources import own_policy
from gateway.policy.tool_policy import hidden_by
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.wrappers import RenamedTool

MAX_RULES = 1000
"""Maximum tools per source whose compiled rules are kept, because context providers make new tool objects for each run."""


class OwnTool(GuardedTool):
    """A tool that an agent or workflow brings along, behind the gate. It shows the attributes of the tool to middleware of the run."""

    __slots__ = ("original",)

    def __init__(self, tool: Tool, rules: ToolRules, gate: SourceGate) -> None:
        super().__init__(_Approved(tool) if rules.needs_approval else tool, rules, gate, exposed_name=tool.definition.name)
        self.original = tool
        """The tool without the gate."""

    @property
    def additional_properties(self) -> JsonObject:
        """The `additional_properties` that the tool's author set; empty without them."""
        return getattr(self.original, "additional_properties", {})


class OwnToolGates:
    """Implements `ToolGuards`: has the gates for the own tools of all agents and workflows."""

    def __init__(self, rules: FunctionRules, services: GateServices) -> None:
        """`rules` has the policy of each source. A policy stays the same object until the operator changes the policy."""
        self._rules = rules
        self._services = services
        self._guards: dict[str, OwnToolGuard] = {}

    def guard_of(self, source: str) -> OwnToolGuard:
        """Return the gate for the own tools of `source`. After the policy of the source changed, it is a new gate."""
        written = self._rules.policies(source)
        guard = self._guards.get(source)
        if guard is None or guard.written is not written:
            guard = self._guards[source] = OwnToolGuard(source, written, self._services, self)
        return guard

    def function(self, source: str, reference: str, found: object, tool: Tool) -> Tool:
        """Return `tool`, which runs the Python function `found`, behind the gate of `source`, as `ToolGuard.function` describes.

        If the operator wrote a policy for the source `function`, a gate with that policy is inside the first gate.
        """
        verdict = self._rules.judge(source, reference, found)
        named = _Renamed(tool, self._rules.names(reference, found).name)
        if verdict is not None:
            return self.guard_of(source).behind_gate(named, denied=verdict)
        if self._rules.policies(FUNCTION_SOURCE) is None:
            return self.guard_of(source).behind_gate(named)
        inner = self.guard_of(FUNCTION_SOURCE).behind_gate(named, is_audited=False)
        return self.guard_of(source).behind_gate(_Renamed(inner, named.definition.name, needs_approval=False))


class OwnToolGuard:
    """Implements `ToolGuard`: the gate for the own tools of one agent or workflow."""

    def __init__(self, source: str, written: SourcePolicy | None, services: GateServices, gates: OwnToolGates) -> None:
        self.written = written
        """The policy of the source as the operator wrote it; `None` without one."""
        self._policy = own_policy(written)
        self._all = gates
        is_limited = written is not None and "max_concurrency" in written.model_fields_set
        self._gate = SourceGate(source, services, Limiter(self._policy.max_concurrency) if is_limited else None)
        self._rules: dict[str, tuple[ToolDefinition, ToolRules]] = {}

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return the tools that policy does not hide, each behind the gate. Guarded and only declared tools are returned unchanged."""
        return [
            tool if is_guarded(tool) or getattr(tool, "declaration_only", False) else self.behind_gate(tool)
            for tool in tools
            if is_guarded(tool) or hidden_by(tool.definition.name, self._policy) is None
        ]

    def lent(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return tools of other sources, each behind this gate too, without the tools that policy hides."""
        return [self._lent(tool) for tool in tools if hidden_by(_native_name(tool), self._policy) is None]

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Ask a person to approve `name`, which the text `shown` describes; `None` means approved."""
        approvals = self._gate.services.approvals
        if approvals is None:
            return Reject(APPROVAL_RULE, "A person must approve this, and there is nobody to ask.")
        return await approvals.ask(Question("call", self._gate.source, name, shown), ctx, self._policy.approval_by, key)

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """Return `tool`, which runs the Python function `found`, behind the gate."""
        return self._all.function(self._gate.source, reference, found, tool)

    def behind_gate(self, tool: Tool, *, is_audited: bool = True, denied: Reject | None = None) -> OwnTool:
        """Return the tool behind the gate, even a tool that policy hides. With `denied`, the gate refuses every call with this reason."""
        rules = self._rules_of(tool)
        if denied is not None or not is_audited:
            rules = dataclasses.replace(rules, denied=denied, is_audited=is_audited and rules.is_audited)
        return OwnTool(tool, rules, self._gate)

    def _lent(self, tool: Tool) -> Tool:
        own = self.behind_gate(_Renamed(tool, _native_name(tool), needs_approval=False))
        again = RenamedTool(own, tool.definition.name)
        again.source = getattr(tool, "source", None)
        return again

    def _rules_of(self, tool: Tool) -> ToolRules:
        definition = tool.definition
        if getattr(tool, "approval_mode", None) == "always_require" and not definition.needs_approval:
            definition = dataclasses.replace(definition, needs_approval=True)
        known = self._rules.get(definition.name)
        if known is not None and known[0] == definition:
            return known[1]
        if len(self._rules) >= MAX_RULES:
            self._rules.clear()
        rules = ToolRules.build(definition, self._policy, is_own=True)
        self._rules[definition.name] = definition, rules
        return rules


class _Renamed:
    """A tool under another name: that by which policies name its function, or its native name.

    `needs_approval=False` is for an outer gate: if the author wants an approval, only the inner gate asks for the approval.
    """

    def __init__(self, tool: Tool, name: str, *, needs_approval: bool | None = None) -> None:
        definition = tool.definition
        needs = definition.needs_approval if needs_approval is None else needs_approval
        self.definition = dataclasses.replace(definition, name=name, needs_approval=needs)
        self.call = tool.call


class _Approved:
    """A tool whose calls are recorded as approved at the gate, so that middleware of the run does not ask for approval again."""

    def __init__(self, tool: Tool) -> None:
        self.definition = tool.definition
        self._tool = tool

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Record the call as approved at the gate, and call the tool."""
        note_approved(ctx)
        return await self._tool.call(arguments, ctx)


def _native_name(tool: Tool) -> str:
    return tool.native_name if isinstance(tool, RenamedTool) else tool.definition.name


def is_guarded(tool: Tool) -> bool:
    """Whether calls of the tool pass a gate already, also if the tool was renamed."""
    while isinstance(tool, RenamedTool):
        tool = tool.inner
    return isinstance(tool, GuardedTool)
