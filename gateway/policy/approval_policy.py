"""Decides which calls a person must approve, who may approve them, and what the person sees. `gate.approvals` asks for the approval."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast

from gateway.config.models import GatewayConfig
from gateway.config.policies import ApprovalBy, ApprovalLists, SourcePolicy
from gateway.config.skill_settings import ScriptSettings
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.framing import quote, shown
from gateway.policy.own_sources import is_own_source

RULE = "approval"
"""Rule id in the rejection of a tool call or sampling request that a person did not approve."""

MAX_SHOWN_NAME = 80
"""Maximum number of characters of a tool's, source's or argument's name in the text that asks for an approval."""

MIN_SHOWN_VALUE, MAX_SHOWN_VALUE = 60, 400
"""Limits, in characters, of one argument or message in the text that asks for an approval.

A call with more arguments, or a sampling request with more messages, shows less of each.
"""

MAX_SHOWN = 4000
"""Maximum number of characters of the text that describes a call to a person; people do not read more before they decide."""

SCRIPT_TOOL = "run_skill_script"
"""Name of the tool that runs scripts of skills."""

Decision = Literal["approve", "approve_always_with_arguments", "approve_always", "decline"]
"""Decision of a person about a call: approve this call, every call with these arguments, or every call of the tool; or decline."""

_FIELD = "decision"
_NAMES: dict[Decision, str] = {
    "approve": "Approve this call",
    "approve_always_with_arguments": "Approve every call with these arguments, until revoked",
    "approve_always": "Approve every call of this tool, until revoked",
    "decline": "Decline",
}
_ONCE: tuple[Decision, ...] = ("approve", "decline")
_STANDING: tuple[Decision, ...] = ("approve", "approve_always_with_arguments", "approve_always", "decline")


def judge_approval(name: str, approval: Literal["never", "always"] | ApprovalLists, *, by_author: bool = False) -> bool:
    """Return whether a person must approve every call of a tool. `name` is the tool's name at its server.

    `approval` is the value of the key `approval` in the policy of the tool's source: `never`, `always`, or an object with lists `always`
    and `never` of globs over tool names, of which `never` takes precedence. `by_author`: the tool's own definition requires approval, and
    only a matching glob in `never` overrides this.
    """
    if isinstance(approval, str):
        return by_author or approval == "always"
    if any(fnmatchcase(name, pattern) for pattern in approval.never):
        return False
    return by_author or any(fnmatchcase(name, pattern) for pattern in approval.always)


@dataclass(frozen=True, slots=True)
class Approver:
    """A principal that wants to approve or decline a call."""

    principal: str
    """Id of the principal that wants to decide."""
    is_operator: bool
    """Whether the principal is an operator of the gateway."""
    admits: bool = True
    """Whether the scopes of the principal's API key cover the tool that is called."""


def judge_approver(by: ApprovalBy, caller: str, approver: Approver) -> Reject | None:
    """Return why the principal `approver` may not decide on a call (approve or decline it), or `None` if it may.

    `caller` is the id of the principal that made the call. `by` is the policy's setting: who must decide, the caller, another principal,
    or an operator. An operator may also decide for the caller, and as another principal on calls that are not its own.
    """
    is_caller = approver.principal == caller
    match by:
        case "caller" if is_caller or approver.is_operator:
            return None
        case "other-principal" if not is_caller and (approver.is_operator or approver.admits):
            return None
        case "operator" if approver.is_operator:
            return None
        case _:
            return Reject(RULE, f"{_APPROVERS[by]} must decide this, and {approver.principal!r} may not.")


def may_approve_itself(by: ApprovalBy, caller: str, *, is_operator: bool) -> bool:
    """Return whether the principal `caller` may approve its own call, so that its client can show the form for the approval."""
    return judge_approver(by, caller, Approver(caller, is_operator)) is None


def judge_sampling(source: str, by: ApprovalBy | None, *, has_forms: bool) -> Reject | None:
    """Return why no person can be asked to approve a sampling request of the server `source`, or `None` if a person can be asked.

    The client's user can be asked if the client supports elicitation forms (`has_forms`). Somebody else can be asked if the configured
    approver `by` is an operator or another principal. `by` is `None` if no approver is configured.
    """
    if has_forms or by in ("operator", "other-principal"):
        return None
    return Reject(
        "sampling.mode",
        f"`policies.{source}.sampling.mode` is `ask`, and the connected client has no forms (`elicitation`) to ask its user. "
        f"Use a client with forms, or set `policies.{source}.approval.by` to `operator`; then an operator decides (`moongate approvals`).",
    )


def approvers(by: ApprovalBy) -> str:
    """Return words for the people who may approve a call, for a message to any reader: for example `the caller or an operator`."""
    return "the caller or an operator" if by == "caller" else waits_for(by)


def waits_for(by: ApprovalBy) -> str:
    """Return words for the people who may approve a call, for a message to the caller itself: for example `you or an operator`."""
    return _APPROVERS[by][0].lower() + _APPROVERS[by][1:]


_APPROVERS: dict[ApprovalBy, str] = {
    "caller": "You or an operator",
    "operator": "An operator",
    "other-principal": "Somebody other than the caller",
}


def with_script_approval(policy: SourcePolicy, scripts: ScriptSettings) -> SourcePolicy:
    """Return `policy`, the policy of the source `skill`, with approval required for the tool that runs scripts of skills.

    Returns `policy` itself if `skills.scripts.approval` is `never`, or if the policy requires approval for all tools.
    """
    lists = ApprovalLists() if policy.approval == "never" else policy.approval
    if scripts.approval == "never" or isinstance(lists, str):
        return policy
    return policy.model_copy(update={"approval": lists.model_copy(update={"always": [*lists.always, SCRIPT_TOOL]})})


def may_need_approval(config: GatewayConfig) -> bool:
    """Return whether any policy in the configuration can require that a person approves a call or a sampling request."""
    return bool(_policies_with_approval(config))


def approvers_of(config: GatewayConfig, default: ApprovalBy) -> set[ApprovalBy]:
    """Return the approvers in all policies that can require an approval. `default` is the approver if a policy names none."""
    return {policy.approval_by or default for policy in _policies_with_approval(config)}


def _policies_with_approval(config: GatewayConfig) -> list[SourcePolicy]:
    found = [policy for policy in config.policies.values() if policy.sampling.mode == "ask" or _requires_some(policy.approval)]
    scripts = config.skills.scripts
    if scripts.enabled and scripts.approval == "always":
        found.append(config.policy("skill"))
    return found


def _requires_some(approval: Literal["never", "always"] | ApprovalLists) -> bool:
    return approval == "always" if isinstance(approval, str) else bool(approval.always or approval.by)


def may_stand(source: str, name: str) -> bool:
    """Return whether a person may approve all future calls of a tool. True except for the gateway's tool that runs scripts of skills.

    The arguments of that tool do not show the script's content, so a person cannot judge its future calls.
    """
    return name != SCRIPT_TOOL or not (source == "skill" or is_own_source(source))


def canonical_arguments(arguments: JsonMapping) -> str:
    """Return a SHA-256 digest of a call's arguments, equal for equal arguments. Permanent approvals of such calls store it."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def approval_form(text: str, *, standing: bool = False) -> JsonObject:
    """Return the elicitation request that asks a person to approve a call. `text` describes the call.

    With `standing`, the form also offers permanent approvals, which cover later calls of the tool. The form has one required field with
    the decision: accepting the form is not enough, because a client may accept forms automatically.
    """
    schema = _approval_schema(_STANDING if standing else _ONCE)
    return {"method": "elicitation/create", "params": {"mode": "form", "message": text, "requestedSchema": schema}}


def _approval_schema(offered: Sequence[Decision]) -> JsonObject:
    names = [_NAMES[decision] for decision in offered]
    choice: JsonObject = {"type": "string", "title": "Decision", "enum": list(offered), "enumNames": names}
    return {"type": "object", "properties": {_FIELD: choice}, "required": [_FIELD]}


def offered_decisions(schema: JsonMapping) -> dict[Decision, str]:
    """Return the decisions that the schema of an approval form offers, with their displayed texts; empty for any other form's schema."""
    for offered in (_ONCE, _STANDING):
        if schema == _approval_schema(offered):
            return {decision: _NAMES[decision] for decision in offered}
    return {}


def decision_answer(decision: Decision) -> JsonObject:
    """Return the elicitation result that answers an approval form with `decision`."""
    return {"action": "decline"} if decision == "decline" else {"action": "accept", "content": {_FIELD: decision}}


def read_decision(answer: JsonMapping, *, standing: bool = False) -> Decision:
    """Return the decision in the answer to an approval form; any invalid choice means `decline`.

    `standing` must have the value with which `approval_form` created the form: whether permanent approvals were offered.
    """
    content = cast("JsonMapping", answer.get("content") or {})
    chosen: JsonValue = content.get(_FIELD) if answer.get("action") == "accept" else None
    offered = _STANDING if standing else _ONCE
    return chosen if chosen in offered else "decline"


def is_approved(answer: JsonMapping) -> bool:
    """Return whether a person's answer to an approval form that did not offer permanent approvals approves the call."""
    return read_decision(answer) == "approve"


def describe_call(source: str, tool: str, arguments: JsonMapping) -> str:
    """Return the text that asks a person to approve a call: a line with tool and source, then the arguments, quoted and shortened."""
    limit = max(MIN_SHOWN_VALUE, min(MAX_SHOWN_VALUE, MAX_SHOWN // max(1, len(arguments))))
    pairs = [(shown(name, MAX_SHOWN_NAME), shown(_text(value), limit)) for name, value in arguments.items()]
    return _described(f"Approve this call of {_name(tool)} of {_name(source)}?", pairs, empty="(no arguments)")


def describe_sampling(source: str, params: JsonMapping, max_tokens: int | None) -> str:
    """Return the text that asks a person to approve a sampling request: a line with server and limits, then the shortened prompt."""
    terms = [f"up to {max_tokens} tokens" if max_tokens is not None else "without a token limit"]
    if tools := params.get("tools"):
        terms.append(f"with {len(tools)} tool{'' if len(tools) == 1 else 's'} of its own")
    parts = [("instructions", shown(_text(params["systemPrompt"]), MAX_SHOWN_VALUE))] if params.get("systemPrompt") else []
    messages: Sequence[JsonMapping] = params.get("messages") or ()
    limit = max(MIN_SHOWN_VALUE, min(MAX_SHOWN_VALUE, MAX_SHOWN // max(1, len(messages))))
    parts += [(shown(str(message.get("role")), MAX_SHOWN_NAME), shown(_content(message.get("content")), limit)) for message in messages]
    return _described(f"Server {_name(source)} wants to use a model ({', '.join(terms)}).", parts, empty="(no messages)")


def describe_question(name: str, message: str, fields: JsonMapping) -> str:
    """Return the text that shows a workflow's question to a person: a line that names the workflow, the question, and the answer's fields.

    The question and the fields are marked as quotations, so that they cannot be mistaken for text of the gateway.
    """
    lines = [f"Workflow {_name(name)} asks:", *_cut(list(quote(message)), MAX_SHOWN // 2)]
    pairs = [(shown(field, MAX_SHOWN_NAME), shown(_text(schema), MAX_SHOWN_VALUE)) for field, schema in fields.items()]
    return "\n".join([*lines, "Fields of the answer:", *_lines(pairs)])


def _described(ours: str, pairs: Sequence[tuple[str, str]], *, empty: str) -> str:
    return "\n".join([ours, *(_lines(pairs) if pairs else [f"  {empty}"])])


def _lines(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the lines `NAME: VALUE` of a prompt, marked as quotations, for pairs such as the arguments of a call.

    If the lines exceed `MAX_SHOWN` characters together, the values of the longest pairs are left out, and their names are listed at the
    end.
    """
    blocks = [list(quote(f"{name}: {value}", indent="  ")) for name, value in pairs]
    sizes = [sum(map(len, block)) for block in blocks]
    total, left_out = sum(sizes), set[int]()
    for index in sorted(range(len(blocks)), key=sizes.__getitem__, reverse=True):
        if total <= MAX_SHOWN:
            break
        left_out.add(index)
        total -= sizes[index]
    lines = [line for index, block in enumerate(blocks) if index not in left_out for line in block]
    if left_out:
        names = ", ".join(pairs[index][0] for index in sorted(left_out))
        lines += [f"  ({len(left_out)} more, not shown:)", *quote(shown(names, MAX_SHOWN_VALUE))]
    return lines


def _cut(lines: list[str], limit: int) -> list[str]:
    """Return the first of `lines`, up to `limit` characters in total. If lines are omitted, a last line says how many."""
    kept: list[str] = []
    for number, line in enumerate(lines):
        if sum(map(len, kept)) + len(line) > limit:
            return [*kept, f"  ({len(lines) - number} more lines, not shown)"]
        kept.append(line)
    return kept


def _name(name: str) -> str:
    return repr(shown(name, MAX_SHOWN_NAME))


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(content: JsonValue) -> str:
    blocks = cast("Sequence[JsonMapping]", content if isinstance(content, list) else [content])
    return " ".join(str(block.get("text", "")) if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks)
