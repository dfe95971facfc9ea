"""`OwnToolGates`: the gate for tools that agents and workflows bring along themselves, under `agent/<name>` and `workflow/<name>`.

These tools are the ones that context providers add to a run (`files`, memory, skills, …) and the Python functions of workflow files.
They pass `GuardedTool` like every other tool: rules, approvals, limits and events. They are not in the catalog, so no client and no
`tools` list finds them. Made by `app`; used by `agents` and `workflows` through `toolbox.ToolGuards`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from gateway.config.policies import SourcePolicy
from gateway.errors import PolicyDenied
from gateway.json_types import JsonObject
from gateway.policy.approvals import RULE as APPROVAL_RULE
from gateway.policy.decision import Reject
from gateway.policy.own_sources import own_policy
from gateway.policy.tools import judge_tool
from gateway.telemetry.events import EventStream
from gateway.tools.approvals import Approvals, Question, note_approved
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.function_rules import FUNCTION_SOURCE, FunctionRules
from gateway.tools.guard import GuardedTool, ToolGate
from gateway.tools.results import ResultKeeper
from gateway.tools.slot import Limiter
from gateway.tools.wrappers import RenamedTool

MAX_GATES = 1000
"""Compiled gates kept per source. Providers make new tool objects for each run, and compiling their rules each time is slow."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateServices:
    """What every gate needs of the gateway."""

    events: EventStream
    approvals: Approvals | None = None
    keeper: ResultKeeper | None = None
    mask: Callable[[str], str] | None = None


class OwnTool(GuardedTool):
    """One such tool behind the gate. Middleware of a run sees the attributes of the tool itself."""

    __slots__ = ("original",)

    def __init__(self, tool: Tool, *, source: str, gate: ToolGate, limiter: Limiter | None, services: GateServices) -> None:
        super().__init__(
            _Approved(tool) if gate.needs_approval else tool,
            exposed_name=tool.definition.name,
            source=source,
            policy=gate,
            limiter=limiter,
            events=services.events,
            approvals=services.approvals,
        )
        self.original = tool

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.definition.name

    @property
    def additional_properties(self) -> JsonObject:
        """The tool's own."""
        return getattr(self.original, "additional_properties", {})


class OwnToolGates:
    """Implements `ToolGuards`."""

    def __init__(self, rules: FunctionRules, services: GateServices) -> None:
        """`rules` has what the operator wrote for a source now: the same object as long as nobody changed it."""
        self._rules = rules
        self._services = services
        self._guards: dict[str, OwnToolGuard] = {}

    def guard_of(self, source: str) -> OwnToolGuard:
        """The gate of one source; a new one after its rules changed."""
        written = self._rules.policies(source)
        guard = self._guards.get(source)
        if guard is None or guard.written is not written:
            guard = self._guards[source] = OwnToolGuard(source, written, self._services, self)
        return guard

    def function(self, source: str, reference: str, found: object, tool: Tool) -> Tool:
        """See `ToolGuard.function`. The rules of `function`, if there are any, are a gate inside that of `source`."""
        verdict = self._rules.judge(source, reference, found)
        if verdict is not None:
            raise PolicyDenied(f"{reference} may not run: {verdict.reason}", rule=verdict.rule, subject=source)
        named = _Renamed(tool, self._rules.names(reference, found).name)
        if self._rules.policies(FUNCTION_SOURCE) is None:
            return self.guard_of(source).behind_gate(named)
        inner = self.guard_of(FUNCTION_SOURCE).behind_gate(named, is_audited=False)
        return self.guard_of(source).behind_gate(_Renamed(inner, named.definition.name, needs_approval=False))


class OwnToolGuard:
    """Implements `ToolGuard` for one source."""

    def __init__(self, source: str, written: SourcePolicy | None, services: GateServices, gates: OwnToolGates) -> None:
        self.source = source
        self.written = written
        """The rules as the operator wrote them."""
        self._policy = own_policy(written)
        self._services = services
        self._all = gates
        is_limited = written is not None and "max_concurrency" in written.model_fields_set
        self._limiter = Limiter(self._policy.max_concurrency) if is_limited else None
        self._gates: dict[str, tuple[ToolDefinition, ToolGate]] = {}

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """See `ToolGuard`."""
        return [
            tool if is_guarded(tool) or getattr(tool, "declaration_only", False) else self.behind_gate(tool)
            for tool in tools
            if is_guarded(tool) or self._exists(tool.definition.name)
        ]

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """See `ToolGuard`."""
        approvals = self._services.approvals
        if approvals is None:
            return Reject(APPROVAL_RULE, "A person must approve this, and there is nobody to ask.")
        return await approvals.ask(Question("call", self.source, name, shown), ctx, self._policy.approval_by, key)

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """See `ToolGuard`."""
        return self._all.function(self.source, reference, found, tool)

    def behind_gate(self, tool: Tool, *, is_audited: bool = True) -> OwnTool:
        """The tool behind the gate, whether or not policy lets it exist."""
        gate = self._gate(tool)
        gate = gate if is_audited else dataclasses.replace(gate, is_audited=False)
        return OwnTool(tool, source=self.source, gate=gate, limiter=self._limiter, services=self._services)

    def _exists(self, name: str) -> bool:
        override = self._policy.overrides.get(name)
        filters = self._policy.tools
        return judge_tool(name, filters.allow, filters.deny) and (override is None or override.enabled)

    def _gate(self, tool: Tool) -> ToolGate:
        definition = tool.definition
        if getattr(tool, "approval_mode", None) == "always_require" and not definition.needs_approval:
            definition = dataclasses.replace(definition, needs_approval=True)
        known = self._gates.get(definition.name)
        if known is not None and known[0] == definition:
            return known[1]
        if len(self._gates) >= MAX_GATES:
            self._gates.clear()
        services = self._services
        gate = ToolGate.build(definition, self._policy, is_own=True, keeper=services.keeper, mask=services.mask)
        self._gates[definition.name] = definition, gate
        return gate


class _Renamed:
    """A tool under the name that the rules of its function use. Its author's wish for an approval is met once, by the inner gate."""

    def __init__(self, tool: Tool, name: str, *, needs_approval: bool | None = None) -> None:
        definition = tool.definition
        needs = definition.needs_approval if needs_approval is None else needs_approval
        self.definition = dataclasses.replace(definition, name=name, needs_approval=needs)
        self.call = tool.call


class _Approved:
    """Marks each call of a tool as approved at the gate, so that inner code does not ask again."""

    def __init__(self, tool: Tool) -> None:
        self.definition = tool.definition
        self._tool = tool

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Call the tool."""
        note_approved(ctx)
        return await self._tool.call(arguments, ctx)


def is_guarded(tool: Tool) -> bool:
    """Whether a tool is behind a gate of this gateway already."""
    while isinstance(tool, RenamedTool):
        tool = tool.inner
    return isinstance(tool, GuardedTool)
