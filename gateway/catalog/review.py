"""`review_approvals`: a tool that shows a person the calls that wait for an approval, one form (elicitation) after the other.

The tool takes no arguments, so that a model can start a review but cannot decide. `policy.approval_policy` determines which principals may
decide; `gate.approvals` stores the calls that wait. `GatewaySource` creates the tool.
"""

from __future__ import annotations

from gateway.auth.principal import Principal, is_operator
from gateway.errors import InputUnavailable
from gateway.json_types import JsonObject
from gateway.policy.approval_policy import Approver, approval_form, judge_approver, may_stand, read_decision
from gateway.policy.caller_rights import admits
from gateway.policy.own_sources import is_own_source
from gateway.storage.record_types import PendingQuestion, QuestionState
from gateway.storage.records import Records
from gateway.tools.base import Complete, ToolDefinition, ToolOutcome
from gateway.tools.context import CallContext

REVIEW_TOOL = "review_approvals"

_STATES: dict[str, QuestionState] = {
    "approve": "approved",
    "approve_always": "approved_always",
    "approve_always_with_arguments": "approved_always_with_arguments",
    "decline": "denied",
}


class ReviewApprovals:
    """The MCP tool `review_approvals()`: shows a person each call that waits for an approval, and stores the person's decisions."""

    def __init__(self, records: Records, standing_days: float) -> None:
        """Create the tool. `records` is the database with the calls that wait for an approval.

        An operator may also approve all later calls of a tool by the same principal, for `standing_days` days; 0 removes this choice.
        """
        self._records = records
        self._standing_days = standing_days
        self.definition = ToolDefinition(
            name=REVIEW_TOOL,
            title="Review approvals",
            description=(
                "Show the person the calls of others that wait for an approval, one form after the other. The person decides; "
                "the result has the numbers of approved and declined calls."
            ),
            input_schema={"type": "object", "properties": {}, "additionalProperties": False},
            annotations={"readOnlyHint": False, "destructiveHint": False, "idempotentHint": False, "openWorldHint": False},
            may_request_input=True,
        )

    async def call(self, arguments: JsonObject, ctx: CallContext) -> ToolOutcome:
        """Show each waiting call that the calling principal may approve, until the person closes a form without a decision.

        The result counts the approved and declined calls, and the calls that no longer waited when the person decided. If the client cannot
        show forms, it is an error result. Raises `StorageError`.
        """
        principal = ctx.facts.on_behalf_of
        asks = await self._records.questions()
        waiting = [ask for ask in await asks.list(only_open=True) if may_review(ask, principal)]
        counts = {"approved": 0, "declined": 0, "gone": 0}
        for number, ask in enumerate(waiting, 1):
            standing = is_operator(principal) and bool(self._standing_days) and ask.kind == "call" and may_stand(ask.source, ask.name)
            text = f"Request {number} of {len(waiting)}, by {ask.principal!r}.\n{ask.shown}"
            try:
                answer = await ctx.ask(approval_form(text, standing=standing))
            except InputUnavailable as error:
                text = f"Nothing was decided: this client cannot show forms ({error}). Use `moongate approvals`."
                return Complete.text(text, is_error=True)
            if answer.get("action") != "accept":
                break
            state = _STATES[read_decision(answer, standing=standing)]
            was_open = await asks.move(ask.id, "open", state, decided_by=principal.id)
            counts["gone" if not was_open else "declined" if state == "denied" else "approved"] += 1
        return _summary(counts, len(waiting))


def may_review(ask: PendingQuestion, principal: Principal) -> bool:
    """Return whether the principal may approve or decline `ask`: a call or sampling request that waits for a person's approval.

    False for a question of a workflow, which only the workflow's caller can answer.
    """
    approver = Approver(principal.id, is_operator(principal), _admits(ask, principal))
    return ask.kind != "question" and judge_approver(ask.by, ask.principal, approver) is None


def _admits(ask: PendingQuestion, principal: Principal) -> bool:
    """Return whether the principal's rights include the tool whose call a person must approve, or the server that requests sampling.

    If an agent or workflow defines the called tool itself, the rights must include this agent or workflow.
    """
    if ask.kind == "sampling":
        return principal.rights is None or principal.rights.covers(ask.source)
    source, name = ask.source, ask.name
    if is_own_source(source):
        source, _, name = source.partition("/")
    return admits(principal.rights, "tools", source, name)


def _summary(counts: dict[str, int], total: int) -> Complete:
    left = total - sum(counts.values())
    structured: JsonObject = {**counts, "open": left}
    if not total:
        return Complete.text("Nothing waits for a decision of yours.", structured=structured)
    text = f"{counts['approved']} approved, {counts['declined']} declined, {left} left open"
    text += f", {counts['gone']} no longer waiting" if counts["gone"] else ""
    return Complete.text(f"{text}.", structured=structured)
