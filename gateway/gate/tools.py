"""`GuardedTool`: wraps a tool so that each call passes the checks of policy. The catalog, agents and workflows provide only wrapped tools.

It implements the steps of `gate.pipeline` for tools. The MCP server, agents, workflows, tasks, the command line and the console call it.
It does not produce MCP's JSON results; `server.calls` does.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from types import CoroutineType
from typing import Any, cast

from gateway.auth.principal import Principal
from gateway.errors import (
    CODE_ERRORS,
    GatewayError,
    InputExpired,
    InputUnavailable,
    MiddlewareException,
    NotFound,
    PolicyDenied,
    Rejected,
    ToolFailed,
    UserInputRequired,
    masked,
    only_cause,
    without_exit,
)
from gateway.gate.approvals import Grant
from gateway.gate.pipeline import GatedCall, OutcomeT, SourceGate, pass_gate
from gateway.gate.published import description_for
from gateway.gate.recorded import record_call
from gateway.gate.refusals import failed_result, noted_names, refusal, with_dropped
from gateway.gate.results import HelperResult, Judged, ResultOrigin, judge_large, judge_small
from gateway.gate.tool_rules import ToolRules
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import RULE as APPROVAL_RULE
from gateway.policy.caller_rights import ALLOWED, Decision, Rights, is_hidden
from gateway.policy.decision import Reject, Rewrite, Verdict
from gateway.policy.hidden_text import may_hide, strip_value
from gateway.policy.result_limits import MOST_COUNTED, judge_input_request
from gateway.policy.scopes import OWN_SOURCE
from gateway.tools.base import Complete, InputRequired, Releasable, TaskMethod, TaskStarted, TaskTool, Tool, ToolOutcome
from gateway.tools.context import CallContext

logger = logging.getLogger(__name__)

_OUTCOMES = {"MiddlewareTermination": "complete", "UserInputRequired": "input_required"}
"""Class name of an exception by which a tool ends an agent's run on purpose → outcome that the end event of the call reports."""


class GuardedTool:
    """A tool wrapped so that each call passes scopes, rules, approval and limits, and is recorded. Concurrent calls share the object."""

    __slots__ = ("definition", "exposed_name", "gate", "rules", "short_bytes", "source", "tool")

    def __init__(self, tool: Tool, rules: ToolRules, gate: SourceGate, *, exposed_name: str) -> None:
        """`exposed_name` is the tool's name for clients; `definition.name` stays its name at the source. `gate` has the source's limits."""
        self.tool = tool
        self.rules = rules
        self.gate = gate
        self.exposed_name = exposed_name
        self.source = gate.source
        """Id of the source that has the tool."""
        self.definition = rules.published
        """The tool's definition as clients see it, with the changes of policy, but with the tool's name at its source."""
        self.short_bytes = rules.results.max_result_bytes // MOST_COUNTED
        """Bytes of JSON up to which a result is certainly within the size limit, so that its size need not be measured."""

    @property
    def name(self) -> str:
        """The tool's name for clients."""
        return self.exposed_name

    @property
    def description(self) -> str:
        """The tool's description as clients see it, with the changes of policy; empty if it has none."""
        return self.definition.description or ""

    def running(self, tool: Tool) -> GuardedTool:
        """Return a `GuardedTool` that wraps `tool` with the name, rules and limits of this object."""
        return GuardedTool(tool, self.rules, self.gate, exposed_name=self.exposed_name)

    @property
    def task_limits(self) -> list[JsonObject]:
        """The limits on tasks of this tool and its source, as `policy.task_scheduling` reads them; limits per caller are not included."""
        return self.rules.task_limits(self.source, self.definition.name)

    def decide(self, principal: Principal) -> Decision:
        """Return whether the rights of the caller include this tool, and the conditions on its calls."""
        return ALLOWED if principal.rights is None else principal.rights.decide("tools", self.source, self.definition.name)

    def admit(self, principal: Principal) -> Verdict:
        """Judge whether the rights of the caller include this tool, and return the verdict as far as it depends on no arguments."""
        return self.decide(principal).verdict

    def may_ask(self, principal: Principal) -> bool:
        """Whether a call of the caller may send a request for input, such as for an approval."""
        return self.definition.may_request_input or (principal.rights is not None and self.decide(principal).needs_approval)

    def described(self, wire: JsonObject, rights: Rights) -> JsonObject:
        """Return `wire`, the tool's entry in a listing, with the description that is shown to a caller with these rights."""
        description = self.description_for(rights)
        return wire if description == self.definition.description else {**wire, "description": description}

    def description_for(self, rights: Rights | None, named: Sequence[str] = ()) -> str:
        """Return the tool's description for a caller (`published.description_for`)."""
        return description_for(self.tool, self.definition, rights, named)

    def check(self, arguments: JsonObject, principal: Principal) -> Verdict:
        """Judge the rights and arguments of a call without calling the tool. Used before a call is started as a task."""
        return self.rules.judge(arguments, self.decide(principal))

    def call(self, arguments: JsonObject, ctx: CallContext) -> CoroutineType[Any, Any, ToolOutcome]:
        """Execute one round of a call (a request and its result, which may request input) with all checks of policy; return its outcome.

        A refusal, a timeout and a failure are results with `isError`, because a model can act on them; the text of an unexpected exception
        goes to the log only. An exception of a tool that an agent or workflow defines itself is raised unchanged. Each round emits one
        event when it begins (`call.started`, or `call.resumed` for a later round) and one when it ends (`call.finished`, `call.refused` or
        `call.input_required`).

        Raises:
            InputUnavailable: The client cannot receive the tool's request for input; the error's form depends on its protocol version.
            NotFound: The tool no longer exists (`kind` is `tool`). Clients get the same error as for an unknown name.
            Rejected: A remote server answered with a JSON-RPC error, which may be relayed to the client.
        """
        return pass_gate(ToolCall(self, arguments, ctx))

    async def task(self, method: TaskMethod, params: JsonObject, ctx: CallContext) -> JsonObject:
        """Send a request about a task that a remote server runs for this tool, with the checks of policy, and return the response.

        Raises:
            NotFound: The task does not exist (`kind` is `task`).
            PolicyDenied: The scopes of the caller's API key no longer include the tool.
            ToolFailed: The server did not answer within the timeout of a call.
            Rejected: A remote server answered with a JSON-RPC error.
        """
        if not isinstance(self.tool, TaskTool):
            raise NotFound("task", "")
        return await pass_gate(TaskCall(self, self.tool, method, params, ctx))

    def cleaned(self, task: JsonObject) -> JsonObject:
        """Remove hidden characters from the status message and the error of a task, in place, if policy requires it; return the task."""
        if self.rules.results.hidden_text != "allow":
            task.update({key: strip_value(task[key]) for key in ("statusMessage", "error") if key in task})
        return task


class _ToolRequest(GatedCall[OutcomeT]):
    """Base class of requests that concern one tool (a call, or a request about a task), with the steps that `pass_gate` executes."""

    __slots__ = ("_rules", "_tool")

    def __init__(self, tool: GuardedTool, gate: SourceGate, ctx: CallContext, seconds: float) -> None:
        super().__init__(gate, tool.exposed_name, ctx, seconds)
        self._tool = tool
        self._rules = tool.rules

    def authorize(self) -> Reject | None:
        """Return a refusal if the caller's rights or policy forbid the tool, else `None`.

        Unless the tool is built in, the rights are then removed from the call's context, because they do not limit further calls that the
        tool makes. A tool that an agent or workflow defines itself needs no right: it is a part of the agent or workflow.
        """
        if self.ctx.facts.principal.rights is not None and not self._rules.is_own:
            decision = self._tool.decide(self.ctx.facts.principal)
            if isinstance(decision.verdict, Reject):
                return decision.verdict
            self.restrict(decision)
            if self.gate.source != OWN_SOURCE:
                self.ctx = self.ctx.authorized()
        return self._rules.denied

    def restrict(self, decision: Decision) -> None:
        """Apply the conditions under which the caller may use the tool. Requests about running tasks have none."""


class ToolCall(_ToolRequest[ToolOutcome]):
    """One round of a tool call (a request and its result, which may request input), with the steps that `pass_gate` executes for it."""

    __slots__ = ("_decision", "_grant", "_has_passed", "_is_shortened", "arguments", "dropped", "error", "kind")

    def __init__(self, tool: GuardedTool, arguments: JsonObject, ctx: CallContext) -> None:
        rules = tool.rules
        super().__init__(tool, tool.gate, ctx, rules.max_task_seconds if ctx.facts.in_task else rules.timeout_seconds)
        self.needs_approval = rules.needs_approval
        self._decision: Decision | None = None
        """The decision of the caller's rights, if it depends on the arguments."""
        self._grant: Grant | None = None
        self._has_passed = False
        """Whether policy judged the outcome already, before it was recorded as a step of a durable (resumable) task."""
        self._is_shortened = False
        self.arguments = arguments
        self.dropped: tuple[str, ...] = ()
        """Names of the arguments that policy removed from the call."""
        self.error = ""
        """Class name of the exception with which the call ended; empty if it ended without one."""
        self.kind = "call.finished"
        """Kind of the event that is emitted when the round ends."""

    def begin(self) -> None:
        """Emit the event `call.started`, or `call.resumed` if the client repeats the call with answers or a request state."""
        ctx = self.ctx
        kind = "call.started" if ctx.facts.input_responses is None and ctx.facts.request_state is None else "call.resumed"
        self.gate.services.events.emit(kind, source=self.gate.source, name=self.name, principal=ctx.facts.principal.id)

    def restrict(self, decision: Decision) -> None:
        """Require the approval that the caller's rights require, and judge the arguments by these rights later."""
        self.needs_approval = self.needs_approval or decision.needs_approval
        self._decision = decision if decision.reads_arguments else None

    def judge_arguments(self) -> Reject | None:
        """Check the arguments by the policy, and remove those that it does not allow. Return a refusal; `None` if the call is allowed."""
        verdict = self._rules.arguments.judge(self.arguments)
        if isinstance(verdict, Reject | Rewrite):
            self._drop(verdict.dropped)
            if isinstance(verdict, Reject):
                return verdict
            self.arguments = verdict.arguments
        return None if self._decision is None else self._decision.judge(self.arguments, self._tool.definition.input_schema)

    def _drop(self, names: tuple[str, ...]) -> None:
        """Record and log the names of the arguments that policy removed from the call. Their values may be secret, and are not logged."""
        self.dropped = names
        if names:
            logger.info("arguments dropped tool=%s arguments=%d names=%s", self.name, len(names), ",".join(map(ascii, noted_names(names))))

    async def approve(self) -> Reject | None:
        """Ask a person to approve the call, unless an earlier round of it was approved. Return a refusal; `None` if approved."""
        approvals = self.gate.services.approvals
        if approvals is None:
            return Reject(APPROVAL_RULE, "A person must approve this call, but can only be asked in a gateway that `moongate run` started.")
        name = self._tool.definition.name
        grant = await approvals.approve_call(self.gate.source, name, self.arguments, self.ctx, self._rules.approval_by)
        if isinstance(grant, Reject):
            return grant
        self._grant = grant
        self.ctx = grant.opened(self.ctx)
        return None

    def run(self, ctx: CallContext) -> CoroutineType[Any, Any, ToolOutcome]:
        """Call the tool. In a durable (resumable) task, record the outcome, or return the outcome that is already recorded instead.

        The outcome of a tool that an agent or workflow defines itself is not recorded if the tool has `records_steps`. Such a tool records
        its own steps, or changes only the state of the run, so that a resumed task must call it again.
        """
        is_step = not (self._rules.is_own and getattr(self._tool.tool, "records_steps", False))
        return self._recorded(ctx) if is_step and ctx.ports.durable is not None else self._settled(ctx)

    async def _settled(self, ctx: CallContext) -> ToolOutcome:
        """Call the tool, and return its outcome. An exception of the tool becomes a result with `isError`, except in two cases.

        `Rejected`, `InputUnavailable`, and `NotFound` with the kind `tool` are raised. If an agent or workflow defines the tool itself
        (`gate.own_tools`), every exception is raised unchanged.
        """
        rules = self._rules
        try:
            outcome = await self._tool.tool.call(self.arguments, ctx)
        except (*CODE_ERRORS, BaseExceptionGroup) as raised:
            error = only_cause(without_exit(raised, lambda text: ToolFailed(f"Tool {self.name!r} failed: {text}")))
            self._note(error)
            if rules.is_own:
                raise
            if isinstance(error, Rejected | InputUnavailable) or (isinstance(error, NotFound) and error.kind == "tool"):
                raise error from None
            return failed_result(error, self.name, self.gate.source)
        self._settle(outcome)
        mask = self.gate.services.mask
        if rules.is_local and self.outcome == "error" and mask is not None and isinstance(outcome, Complete):
            return Complete(cast("JsonObject", masked(outcome.result, mask)))  # text of the operator's own code may contain secrets
        return outcome

    def _note(self, error: Exception) -> None:
        """Record for the call's end event that the tool raised `error`. An error in `_OUTCOMES` is not a failure."""
        if isinstance(error, PolicyDenied):
            self.kind, self.outcome, self.rule = "call.refused", "refused", error.rule
        self.error = type(error).__name__
        self.outcome = _OUTCOMES.get(self.error, self.outcome if self.rule else "failed")
        self.mask(error)

    def _settle(self, outcome: ToolOutcome) -> None:
        """Record for the call's end event how the call ended, according to the outcome that the tool returned."""
        if isinstance(outcome, Complete):
            self.outcome = "error" if outcome.result.get("isError") else "complete"
        elif isinstance(outcome, InputRequired):
            self.kind, self.outcome = "call.input_required", "input_required"
        else:
            self.outcome = "task"

    async def _recorded(self, ctx: CallContext) -> ToolOutcome:
        """Call the tool as a step of a durable (resumable) task, and record the outcome; or return the outcome that is already recorded.

        The outcome is judged before it is recorded. A large result that passes unchanged keeps its memory reserved until it is recorded. If
        a tool that an agent or workflow defines itself fails, the error is recorded as a result with `isError`, because the tool may have
        had its effect; then the exception is raised. An exception that ends or fails the agent's run on purpose is not recorded.
        """
        assert ctx.ports.durable is not None
        claims: list[Releasable] = []
        fresh: ToolOutcome | None = None
        failure: BaseException | None = None

        async def settle(inner: CallContext) -> ToolOutcome:
            nonlocal fresh, failure
            try:
                outcome = await self._settled(inner)
            except (*CODE_ERRORS, BaseExceptionGroup) as raised:
                error = only_cause(raised)
                if not self._rules.is_own or isinstance(error, MiddlewareException | UserInputRequired):
                    raise
                failure = raised
                return failed_result(without_exit(error, ToolFailed), self.name, self.gate.source)
            if not self.is_plain(outcome):
                async with inner.limits.clocks[-1].paused():  # judging is not working time of the tool
                    outcome = await self.judge_outcome(outcome, claims)
            fresh = outcome
            return outcome

        try:
            outcome, self._has_passed = await record_call(
                ctx.ports.durable, self._tool.tool, self.name, self.arguments, ctx, settle, is_repeatable=self._rules.is_repeatable
            )
        except ToolFailed as error:
            self.outcome = "failed"
            return Complete.text(str(error), is_error=True)
        finally:
            for claim in claims:
                claim.release()
        if failure is not None:
            raise failure
        if fresh is not None:  # unlike the recorded outcome, it still has the JSON that it was read from, which can be sent unchanged
            return fresh
        self._settle(outcome)
        return outcome

    def is_plain(self, outcome: ToolOutcome) -> bool:
        """Whether the outcome need not be judged: it was judged before, or its JSON is short and cannot contain hidden characters."""
        if self._has_passed:
            return True
        encoded = outcome.encoded if isinstance(outcome, Complete) else None
        return encoded is not None and len(encoded) == 1 and len(encoded[0]) <= self._tool.short_bytes and not may_hide(encoded[0])

    async def judge_outcome(self, outcome: ToolOutcome, claims: list[Releasable] | None = None) -> ToolOutcome:
        """Check the result as policy says: remove or refuse hidden characters, then shorten or refuse a result over the size limit.

        Large results are checked in a worker thread or another process, and the memory reserved for a large result is released. With
        `claims`, the reservation of a large result that passes unchanged is added to this list instead, to be released later.
        """
        rules, store = self._rules.results, self.gate.services.store
        if isinstance(outcome, TaskStarted):
            self._tool.cleaned(outcome.task)
            return outcome
        if isinstance(outcome, InputRequired):  # texts of its requests were cleaned by `upstream.input_guard`
            verdict = judge_input_request(dict(outcome.requests), rules.max_result_bytes)
            return self._refused(verdict) if isinstance(verdict, Reject) else outcome
        origin = ResultOrigin(self.ctx.facts.principal.id, self.name, output_schema=self._tool.definition.output_schema)
        claim = outcome.claim
        if claim is None:
            parts = outcome.text_parts
            size = sum(map(len, outcome.encoded)) if outcome.encoded is not None else None
            may_have_hidden_text = parts is None or any(map(may_hide, parts))
            judged = await judge_small(outcome.result, rules, store, origin, size, is_searched=may_have_hidden_text)
            return outcome if judged is None else self._replaced(judged)
        passes = False
        try:
            if isinstance(claim, HelperResult):
                judged = await claim.judge(rules, store, origin)
                outcome = Complete.received(await claim.whole()) if judged is None else outcome
            else:
                judged = await judge_large(outcome.result, rules, store, origin)
            passes = judged is None and outcome.claim is not None
            return outcome if judged is None else self._replaced(judged)
        except ToolFailed as error:
            self.outcome = "failed"
            return Complete.text(str(error), is_error=True)
        finally:
            if claims is None or not passes:
                claim.release()
            else:
                claims.append(claim)

    def _replaced(self, judged: Judged) -> Complete:
        """Return the outcome that replaces a result according to policy: a refusal, or the shortened or cleaned result."""
        if judged.rule:
            return self._refused(Reject(judged.rule, judged.reason))
        self._is_shortened = judged.is_shortened
        return Complete(judged.result)

    def _refused(self, verdict: Reject) -> Complete:
        self.kind, self.outcome, self.rule = "call.refused", "refused", verdict.rule
        return refusal(verdict.rule, verdict.reason)

    def refuse(self, verdict: Reject) -> ToolOutcome:
        """Return the refusal of the call as a result with `isError`, which names the rule. A hidden tool raises `NotFound`."""
        if is_hidden(verdict):
            self._refused(verdict)
            raise NotFound("tool", self.name)
        return with_dropped(self._refused(verdict), self.dropped)

    def fail(self, error: GatewayError) -> ToolOutcome:
        """Return a result with `isError` if a person did not answer a question in time (`InputExpired`); raise any other error."""
        if not isinstance(error, InputExpired):
            raise error
        self.outcome = "timeout"
        return Complete.text(str(error), is_error=True)

    def time_out(self) -> ToolOutcome:
        """Return a result with `isError`, which names the time limit that the call exceeded and its policy key."""
        self.outcome = "timeout"
        key = "tasks.maxWaitSeconds" if self.ctx.facts.in_task else "timeoutSeconds"
        fix = f"Ask for less in one call, or have the operator raise `{key}` of {self.gate.source!r}."
        return Complete.text(f"Timed out after {self.seconds:g} s and was cancelled; it may have taken effect. {fix}", is_error=True)

    def complete(self, outcome: ToolOutcome) -> ToolOutcome:
        """Add the names of removed arguments to the outcome. If an approved call requests input, add a code that proves the approval."""
        if (self.is_noted or self._rules.is_audited) and (journal := self.gate.services.journal) is not None:
            self.size = journal.size_of(outcome)
        if self._grant is not None:
            outcome = self._grant.sealed(outcome)
        return with_dropped(outcome, self.dropped) if self.dropped else outcome

    def end(self) -> None:
        """Emit the event that the round ended. If the call finished and `ToolRules.is_audited`, also emit the event `call.audited`."""
        fields: JsonObject = {"outcome": self.outcome, "milliseconds": self.milliseconds}
        if self.rule:
            fields["rule"] = self.rule
        if self.error:
            fields["error"] = self.error
        if self._is_shortened:
            fields["shortened"] = True
        if self.dropped:
            fields |= {"dropped": noted_names(self.dropped), "droppedCount": len(self.dropped)}
        if (journal := self.gate.services.journal) is not None and journal.has_rules:
            journal.apply_rules(self.gate.source, self._tool.definition.name, self.arguments, fields)
        self.report(self.kind, fields)
        if self._rules.is_audited and self.kind == "call.finished":
            self.report_change()


class TaskCall(_ToolRequest[JsonObject]):
    """A request about a task that a server runs for a tool (`tasks/get`, `tasks/update`, `tasks/cancel`), with the steps of `pass_gate`.

    It needs no approval, because the call that started the task was approved.
    """

    __slots__ = ("_method", "_params", "_tasks")

    def __init__(self, tool: GuardedTool, tasks: TaskTool, method: TaskMethod, params: JsonObject, ctx: CallContext) -> None:
        # These requests take no concurrency slot, because a poll or cancellation must not wait for running calls to end. Limits on tasks
        # count their starts, and the caller's quotas count each poll (`server.usage`).
        super().__init__(tool, dataclasses.replace(tool.gate, limiter=None), ctx, tool.rules.timeout_seconds)
        self._tasks = tasks
        self._method: TaskMethod = method
        self._params = params

    async def run(self, ctx: CallContext) -> JsonObject:
        """Send the request to the remote server, and return its response."""
        try:
            answer = await self._tasks.task(self._method, self._params, ctx)
        except Exception:
            self.outcome = "failed"
            raise
        self.outcome = "complete"
        return answer

    async def judge_outcome(self, outcome: JsonObject) -> JsonObject:
        """Remove hidden characters from the response. Check the result of a finished task like the result of a call."""
        answer = self._tool.cleaned(outcome)
        if isinstance(result := answer.get("result"), dict):
            call = ToolCall(self._tool, {}, self.ctx)
            judged = await call.judge_outcome(Complete(cast("JsonObject", result)))
            if call.rule:
                self.outcome, self.rule = "refused", call.rule
            answer["result"] = judged.result if isinstance(judged, Complete) else result
        return answer

    def refuse(self, verdict: Reject) -> JsonObject:
        """Raise `PolicyDenied` with the reason of the refusal, and record the refusal for the event at the end of the request."""
        self.outcome, self.rule = "refused", verdict.rule
        if is_hidden(verdict):
            raise NotFound("task", "")
        raise PolicyDenied(verdict.reason, rule=verdict.rule, subject=self.name)

    def fail(self, error: GatewayError) -> JsonObject:
        """Remove secrets from the text of `error`, and raise it."""
        self.mask(error)
        raise error

    def time_out(self) -> JsonObject:
        """Raise `ToolFailed`, because the remote server did not answer within the timeout of a call."""
        self.outcome, fix = "timeout", f"try again, or have the operator raise `timeoutSeconds` of {self.gate.source!r}"
        raise ToolFailed(f"No answer about the task within {self.seconds:g} s; {fix}.")

    def end(self) -> None:
        """Emit the event that the request ended: `call.refused` if policy refused it or the task's result, else `task.finished`."""
        fields: JsonObject = {"method": self._method, "outcome": self.outcome, "milliseconds": self.milliseconds}
        if self.rule:
            fields["rule"] = self.rule
        self.report("call.refused" if self.outcome == "refused" else "task.finished", fields)
