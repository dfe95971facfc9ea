"""Information-flow control: labels tool results, and allows or refuses later calls by the labels. `SecureAgentConfig` adds it to an agent.

A label states whether content is trusted and who may see it. The label of a conversation combines the labels of all its tool results, and
is stored in the session. `policy.labels` judges the calls. The API is agent-framework's. Agent-framework's variables, which hide untrusted
content from the model, are not supported.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import ClassVar, cast

from gateway.agents.middleware.per_run import PerRun
from gateway.errors import InputUnavailable, MiddlewareTermination, PolicyDenied, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, members_of
from gateway.middleware import CallNext
from gateway.policy.approval_policy import approval_form, describe_call, is_approved
from gateway.policy.decision import Reject
from gateway.policy.labels import (
    ConfidentialityLabel,
    ContentLabel,
    FlowRules,
    FlowTool,
    IntegrityLabel,
    combine_labels,
    judge_flow,
    label_result,
)
from gateway.policy.own_sources import is_own_source
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, SessionContext
from gateway.staging import ExperimentalFeature, experimental
from gateway.tools.base import Tool
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.tools.toolbox import guard_in
from gateway.types.content import Content

logger = logging.getLogger(__name__)

STATE_KEY = "security"
"""Key in a session's state: the security label of the conversation."""

CONTEXT_LABEL_KEY = "context_label"
"""Key in the metadata of a tool call: the security label of the conversation before the call."""

MAX_AUDIT_ENTRIES = 1000
"""Maximum number of violations that `get_audit_log` returns; older ones are dropped.

The Python logger records every violation, except that of a call that ended the run with an approval request.
"""


class LabelTrackingFunctionMiddleware(FunctionMiddleware):
    """Function middleware that labels each tool result (trust, confidentiality) and updates the label of the conversation.

    List it before `PolicyEnforcementFunctionMiddleware`, which checks calls by that label.
    """

    def __init__(
        self,
        default_integrity: IntegrityLabel = IntegrityLabel.UNTRUSTED,
        default_confidentiality: ConfidentialityLabel = ConfidentialityLabel.PUBLIC,
        *,
        rules: FlowRules | None = None,
    ) -> None:
        """Create the middleware. `rules` label the results of tools; a tool may declare labels in its `additional_properties`.

        Without `rules`, results of tools that declare no label are labelled `default_integrity` and `default_confidentiality`.
        """
        self.rules = rules or FlowRules(default_integrity=default_integrity, default_confidentiality=default_confidentiality)
        self._without_session: PerRun[ContentLabel] = PerRun(ContentLabel)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Execute a tool call, and combine the label of its result with the conversation's label.

        The result of a failed call is labelled, too, because the text of its error is content. A call that policy refused changes no label.
        """
        before = self.label_of(context)
        context.metadata[CONTEXT_LABEL_KEY] = before
        called = False
        try:
            await call_next()
            called = True
        except (PolicyDenied, MiddlewareTermination):
            raise  # refused by policy: the tool returned no content
        except Exception:
            called = True
            raise
        finally:
            if called:
                label = label_result(flow_tool(context.function), self.rules)
                context.metadata["result_label"] = label
                self._keep(context, combine_labels(self.label_of(context), label))

    def label_of(self, context: FunctionInvocationContext) -> ContentLabel:
        """Return the current security label of the conversation to which a tool call belongs."""
        if context.session is not None:
            stored = context.session.state.get(STATE_KEY)
            return ContentLabel.from_dict(cast("JsonMapping", stored)) if isinstance(stored, Mapping) else ContentLabel()
        return ContentLabel() if context.tools is None else self._without_session.of(context.tools)

    def _keep(self, context: FunctionInvocationContext, label: ContentLabel) -> None:
        if context.session is not None:
            context.session.state[STATE_KEY] = label.to_dict()
        elif context.tools is not None:
            self._without_session.put(context.tools, label)


class PolicyEnforcementFunctionMiddleware(FunctionMiddleware):
    """Function middleware that checks each tool call against the security label of the conversation.

    A call that violates the rules is refused, needs a person's approval, or is only logged.
    """

    def __init__(
        self,
        allow_untrusted_tools: Collection[str] | None = None,
        block_on_violation: bool = True,
        enable_audit_log: bool = True,
        approval_on_violation: bool = False,
        *,
        rules: FlowRules | None = None,
        may_end_run: bool = True,
    ) -> None:
        """Create the middleware. With `approval_on_violation`, a person is asked to approve a call that violates the rules.

        Without `approval_on_violation`, the call is refused, or only logged if `block_on_violation` is false. If no person can be asked
        during the run, the run ends with the approval request; if `may_end_run` is false, the call is refused instead.
        """
        given = rules or FlowRules()
        allowed = (*given.accepts_untrusted, *(allow_untrusted_tools or ()))
        self.rules = dataclasses.replace(given, accepts_untrusted=allowed)
        self.approval_on_violation = approval_on_violation
        self.block_on_violation = block_on_violation and not approval_on_violation
        self.enable_audit_log = enable_audit_log
        self._may_end_run = may_end_run
        self._audit_log: list[JsonObject] = []

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Check a tool call by the rules for the conversation's security label, then execute or refuse it.

        Raises:
            PolicyDenied: The call is refused; the model receives the reason.
            MiddlewareTermination: A person must decide; the run ends with the approval request.
        """
        label = context.metadata.get(CONTEXT_LABEL_KEY)
        if not isinstance(label, ContentLabel):
            raise PolicyDenied(
                "This conversation has no label: add LabelTrackingFunctionMiddleware before the enforcing middleware.",
                rule="security.unlabelled",
                subject=context.function.definition.name,
            )
        verdict = judge_flow(flow_tool(context.function), self.rules, label)
        if verdict is not None:
            await self._violated(context, verdict, label)
        await call_next()

    def get_audit_log(self) -> list[JsonObject]:
        """Return the calls that violated the rules and were refused, approved or only logged, oldest first, at most `MAX_AUDIT_ENTRIES`."""
        return list(self._audit_log)

    async def _violated(self, context: FunctionInvocationContext, verdict: Reject, label: ContentLabel) -> None:
        """Handle a call that violates the rules: raise `PolicyDenied`, or return if a person approves it or violations are only logged."""
        name = context.function.definition.name
        approved = getattr(context.metadata.get("approval_response"), "approved", False) is True
        if not approved and self.approval_on_violation:
            approved = await _ask(context, verdict, label, may_end_run=self._may_end_run)
        outcome = "approved" if approved else "refused" if self.block_on_violation or self.approval_on_violation else "logged"
        logger.warning("security violation tool=%s outcome=%s rule=%s", name, outcome, verdict.rule)
        if self.enable_audit_log:
            self._audit_log.append({"function": name, "rule": verdict.rule, "outcome": outcome, "context_label": label.to_dict()})
            del self._audit_log[:-MAX_AUDIT_ENTRIES]
        if outcome == "refused":
            raise PolicyDenied(
                f"Refused by {verdict.rule}: {verdict.reason} {name!r} must not be called after that.", rule=verdict.rule, subject=name
            )


@experimental(feature_id=ExperimentalFeature.SECURITY)
class SecureAgentConfig(ContextProvider):
    """Context provider that adds information-flow control to an agent's runs: labels of tool results restrict later tool calls."""

    DEFAULT_SOURCE_ID: ClassVar[str] = "secure_agent"

    def __init__(
        self,
        *,
        rules: FlowRules | None = None,
        allow_untrusted_tools: Collection[str] | None = None,
        block_on_violation: bool = True,
        approval_on_violation: bool = False,
        may_end_run: bool = True,
        source_id: str | None = None,
    ) -> None:
        """Create two middleware: one labels tool results by `rules`, the other allows or refuses later calls by the labels and `rules`.

        The other arguments decide what happens to a call that violates the rules (see `PolicyEnforcementFunctionMiddleware`).
        """
        super().__init__(source_id or self.DEFAULT_SOURCE_ID)
        self.label_tracker = LabelTrackingFunctionMiddleware(rules=rules)
        self.policy_enforcer = PolicyEnforcementFunctionMiddleware(
            allow_untrusted_tools, block_on_violation, approval_on_violation=approval_on_violation, rules=rules, may_end_run=may_end_run
        )

    def get_middleware(self) -> list[FunctionMiddleware]:
        """Return the labelling and the enforcing middleware in the required order, for agents without context providers."""
        return [self.label_tracker, self.policy_enforcer]

    def get_audit_log(self) -> list[JsonObject]:
        """Return the calls that violated the rules and were refused, approved or only logged, oldest first, at most `MAX_AUDIT_ENTRIES`."""
        return self.policy_enforcer.get_audit_log()

    async def before_run(self, *, agent: SupportsAgentRun, session: AgentSession, context: SessionContext, state: JsonObject) -> None:
        """Add the labelling and the enforcing middleware to the run."""
        context.extend_middleware(self.source_id, self.get_middleware())


async def _ask(context: FunctionInvocationContext, verdict: Reject, label: ContentLabel, *, may_end_run: bool) -> bool:
    """Ask a person to approve a tool call that violates the rules, and return whether the person approves it.

    The gateway or the caller's client asks the person. If neither can, return false, or with `may_end_run` end the run.

    Raises:
        MiddlewareTermination: The run ends; `context.result` is the approval request, and a later run may contain the answer.
    """
    name = context.function.definition.name
    guard = guard_in(context.ctx)
    if guard is not None or context.ctx.facts.client.can("elicitation.form"):
        described = describe_call(getattr(context.function, "source", None) or "the agent", name, context.arguments)
        shown = f"{verdict.reason}\n{described}"
        key = context.ctx.question(verdict.rule)
        try:
            if guard is not None:  # the gateway's policy selects the approver
                return await guard.approve(name, shown, context.ctx, key) is None
            return is_approved(await context.ctx.ask(approval_form(shown), key))
        except (InputUnavailable, ToolFailed, PolicyDenied):
            return False
    if not may_end_run:
        return False
    call_id = str(context.metadata.get("call_id") or "")
    call = Content.from_function_call(call_id, name, _as_json(context.arguments))
    note: JsonObject = {
        "policy_violation": True,
        "violation_type": verdict.rule,
        "reason": verdict.reason,
        "context_label": label.to_dict(),
    }
    context.result = Content.from_function_approval_request(call_id, call, additional_properties=note)
    raise MiddlewareTermination("A person must approve this call.")


def flow_tool(tool: Tool) -> FlowTool:
    """Return the facts about a tool that information-flow rules use: names, source, and the `additional_properties` that it declares."""
    source = getattr(tool, "source", None)
    return FlowTool(
        tool.definition.name,
        source if isinstance(source, str) and not is_own_source(source) else None,
        getattr(tool, "native_name", None),
        members_of(getattr(tool, "additional_properties", None)),
    )


def _as_json(arguments: JsonObject) -> JsonObject:
    """Convert arguments to JSON values (for example dates to text), because the approval request is stored as JSON."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(arguments, fallback=repr)
