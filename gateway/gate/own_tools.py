"""`OwnToolGates`: applies policy to tools that agents and workflows define themselves, which are not in the catalog ("own tools").

Own tools are those that context providers add to an agent's run (`files`, memory, …), and the Python functions of workflow files. Calls of
them pass the same checks as every tool call (rules, approvals, limits, events), with the policy of the source `agent/<name>` or
`workflow/<name>`. Clients cannot find them, and the key `tools` of agent files cannot name them. The tools that an agent's `skills` key
adds are in the catalog; their calls are checked with the policy of `agent/<name>`, then with that of `skill`. `app` creates the object;
`agents` and `workflows` use it through `tools.toolbox.ToolGuards`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gateway.auth.principal import Principal
from gateway.config.policies import SourcePolicy
from gateway.gate.approvals import Question, note_approved
from gateway.gate.concurrency import Limiter
from gateway.gate.function_rules import FUNCTION_SOURCE, FunctionRules
from gateway.gate.pipeline import GateServices, SourceGate
from gateway.gate.tool_rules import ToolRules
from gateway.gate.tools import GuardedTool
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import RULE as APPROVAL_RULE
from gateway.policy.decision import PASS, Reject
from gateway.policy.own_sources import own_policy
from gateway.policy.tool_policy import hidden_by
from gateway.tools.base import Tool, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext
from gateway.tools.wrappers import RenamedTool

MAX_RULES = 1000
"""Maximum number of tools per agent or workflow whose compiled policy (`ToolRules`) is cached. The policy is cached by the tool's name,
because context providers create new tool objects for each run."""


class OwnTool(GuardedTool):
    """A tool that an agent or workflow defines itself, wrapped so that each call passes the checks of policy.

    The middleware of an agent's run finds the wrapped tool in `original`, and its attribute `additional_properties`.
    """

    __slots__ = ("original",)

    def __init__(self, tool: Tool, rules: ToolRules, gate: SourceGate) -> None:
        super().__init__(_Approved(tool) if rules.needs_approval else tool, rules, gate, exposed_name=tool.definition.name)
        self.original = tool
        """The wrapped tool, whose calls are not checked."""

    @property
    def additional_properties(self) -> JsonObject:
        """The attribute `additional_properties` of the wrapped tool; empty if the tool does not have it."""
        return getattr(self.original, "additional_properties", {})


class OwnToolGates:
    """Finds or creates the `OwnToolGuard` of each agent and workflow.

    The guard applies policy to the tools that its agent or workflow defines itself. Implements `ToolGuards`.
    """

    def __init__(self, rules: FunctionRules, services: GateServices) -> None:
        """`rules` returns the policy of each source; it must return the same object until the operator changes the policy.

        `services` are the objects that all checks share, such as approvals and events.
        """
        self._rules = rules
        self._services = services
        self._guards: dict[str, OwnToolGuard] = {}

    def guard_of(self, source: str) -> OwnToolGuard:
        """Return the object that applies policy to the tools which the agent or workflow `source` defines itself.

        If the policy of the source has changed, the object is a new one.
        """
        written = self._rules.policies(source)
        guard = self._guards.get(source)
        if guard is None or guard.written is not written:
            guard = self._guards[source] = OwnToolGuard(source, written, self._services, self)
        return guard

    def function(self, source: str, reference: str, found: object, tool: Tool) -> Tool:
        """Wrap `tool`, which runs the Python function `found`, so that each call passes the policy of the agent or workflow `source`.

        `reference` is the function's name in the file of the agent or workflow (`package.module:name`). If the operator wrote a policy for
        the source `function`, each call then passes that policy too.
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
    """Applies policy to the tools that one agent or workflow defines itself: wraps them so that each call is checked.

    Implements `ToolGuard`.
    """

    def __init__(self, source: str, written: SourcePolicy | None, services: GateServices, gates: OwnToolGates) -> None:
        self.written = written
        """The policy of the agent or workflow as the operator wrote it; `None` if there is none."""
        self._policy = own_policy(written)
        self._all = gates
        is_limited = written is not None and "max_concurrency" in written.model_fields_set
        self._gate = SourceGate(source, services, Limiter(self._policy.max_concurrency) if is_limited else None)
        self._rules: dict[str, tuple[ToolDefinition, ToolRules]] = {}

    @property
    def source(self) -> str:
        """Id of the agent or workflow: `agent/<name>` or `workflow/<name>`."""
        return self._gate.source

    def guarded(self, tools: Sequence[Tool]) -> list[Tool]:
        """Wrap tools of this agent or workflow, so that each call passes its policy. Tools that the policy hides are left out.

        A tool that is wrapped already is returned unchanged, even if the policy hides it. A tool that the gateway does not run itself
        (`declaration_only`) is not wrapped.
        """
        return [
            tool if is_guarded(tool) or getattr(tool, "declaration_only", False) else self.behind_gate(tool)
            for tool in tools
            if is_guarded(tool) or hidden_by(tool.definition.name, self._policy) is None
        ]

    def step(self, tool: Tool) -> Tool:
        """Wrap a step of an agent's run, such as storing memories, that is written as a tool, so that it passes the agent's policy.

        If the policy hides the tool, the step is refused, and the refusal is recorded in the audit log.
        """
        name, source = tool.definition.name, self._gate.source
        rule = hidden_by(name, self._policy)
        text = f"`policies[{source!r}].{rule}` does not allow {name!r}; the operator can change that rule."
        return self.behind_gate(tool, denied=Reject(rule, text) if rule else None)

    def lent(self, tools: Sequence[Tool]) -> list[Tool]:
        """Wrap tools of other sources for this agent or workflow, so that each call passes the policy of the agent or workflow, too.

        Tools that the policy of the agent or workflow hides are left out.
        """
        return [self._lent(tool) for tool in tools if hidden_by(_native_name(tool), self._policy) is None]

    async def approve(self, name: str, shown: str, ctx: CallContext, key: str = "") -> Reject | None:
        """Ask a person to approve an action called `name`, which the text `shown` describes. Return the refusal; `None` if approved.

        `key` identifies the question in a durable task (a background call that continues after a restart), so that the person is not asked
        again when the task is resumed.
        """
        approvals = self._gate.services.approvals
        if approvals is None:
            return Reject(APPROVAL_RULE, "A person must approve this, but can only be asked in a gateway that `moongate run` started.")
        return await approvals.ask(Question("call", self._gate.source, name, shown), ctx, self._policy.approval_by, key)

    def function(self, reference: str, found: object, tool: Tool) -> Tool:
        """Wrap `tool`, which runs the Python function `found`, so that each call passes the policy of this agent or workflow.

        `reference` is the function's name in the file of the agent or workflow (`package.module:name`).
        """
        return self._all.function(self._gate.source, reference, found, tool)

    def behind_gate(self, tool: Tool, *, is_audited: bool = True, denied: Reject | None = None) -> OwnTool:
        """Wrap a tool so that each call passes the policy of this agent or workflow, even if the policy hides the tool.

        With `denied`, every call is refused with this reason. Without `is_audited`, calls are not recorded in the audit log.
        """
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
    """A tool under another name: the name by which policies refer to it.

    `needs_approval`, if given, decides whether a person must approve each call, in place of the author's setting. It is false if the tool
    is already wrapped by an object that asks for approvals, so that the person is not asked twice.
    """

    records_steps = True
    """Read by the gate, which then does not record calls of this object in a durable task: a call of the wrapped tool, or the workflow's
    step that calls it, is recorded already."""

    def __init__(self, tool: Tool, name: str, *, needs_approval: bool | None = None) -> None:
        definition = tool.definition
        needs = definition.needs_approval if needs_approval is None else needs_approval
        self.definition = dataclasses.replace(definition, name=name, needs_approval=needs)
        self.call = tool.call


class _Approved:
    """A tool whose calls a person has already approved. It records this in the run, so that the run's middleware does not ask again."""

    def __init__(self, tool: Tool) -> None:
        self.definition = tool.definition
        self.records_steps = bool(getattr(tool, "records_steps", False))
        self._tool = tool

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Record in the run's metadata that a person approved the call, and call the tool."""
        note_approved(ctx)
        return await self._tool.call(arguments, ctx)


def _native_name(tool: Tool) -> str:
    return tool.native_name if isinstance(tool, RenamedTool) else tool.definition.name


def is_guarded(tool: Tool) -> bool:
    """Whether calls of the tool already pass the checks of policy, because it is a `GuardedTool`, or a renamed one (`RenamedTool`)."""
    return isinstance(_unwrapped(tool), GuardedTool)


def admitted(tools: Sequence[Tool], caller: Principal) -> list[Tool]:
    """Return the tools of the catalog that a caller may use by its rights, for a file with `runs-as: caller`. Other tools are kept."""
    return [tool for tool in tools if not isinstance(inner := _unwrapped(tool), GuardedTool) or inner.admit(caller) is PASS]


def _unwrapped(tool: Tool) -> Tool:
    while isinstance(tool, RenamedTool):
        tool = tool.inner
    return tool
