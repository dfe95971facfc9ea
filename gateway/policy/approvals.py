"""Which calls a person must approve first, and what the person is shown. One decision for every path; asking is `tools.approvals`'s."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, cast

from gateway.config.models import GatewayConfig
from gateway.config.policies import ApprovalBy, ApprovalLists, SourcePolicy
from gateway.config.skills import ScriptSettings
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.decision import Reject
from gateway.policy.hidden_text import strip_text

RULE = "approval"
"""Rule id of a call or request that a person did not approve."""

MAX_SHOWN_VALUE = 400
"""Characters of one argument, or of one message, that a person is shown."""

MAX_SHOWN = 4000
"""Characters a person is shown in all; nobody reads more before pressing a button."""

SCRIPT_TOOL = "run_skill_script"
"""Native name of the tool that runs scripts of skills."""

Decision = Literal["approve", "approve_always_with_arguments", "approve_always", "decline"]
"""What a person may choose: this call, every call with these arguments, every call of the tool, none."""

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
    """Whether each call of the tool with native `name` needs a person's approval. Patterns are globs; `never` wins.

    `by_author`: the tool itself says that it does. Only a pattern of `never` that names it overrules that.
    """
    if isinstance(approval, str):
        return by_author or approval == "always"
    if any(fnmatchcase(name, pattern) for pattern in approval.never):
        return False
    return by_author or any(fnmatchcase(name, pattern) for pattern in approval.always)


@dataclass(frozen=True, slots=True)
class Approver:
    """A principal that wants to decide."""

    principal: str
    """Its id."""
    is_operator: bool
    admits: bool = True
    """Whether the scopes of its key admit the tool in question."""


def judge_approver(by: ApprovalBy, caller: str, approver: Approver) -> Reject | None:
    """Whether `approver` may decide on a call of the principal `caller`; `None` means yes."""
    is_caller = approver.principal == caller
    match by:
        case "caller" if is_caller or approver.is_operator:
            return None
        case "other-principal" if not is_caller and (approver.is_operator or approver.admits):
            return None
        case "operator" if approver.is_operator:
            return None
        case _:
            return Reject(RULE, f"{_WANTED[by]} must decide this, and {approver.principal!r} may not.")


def may_approve_itself(by: ApprovalBy, caller: str, *, is_operator: bool) -> bool:
    """Whether the caller's own client may be asked for the approval."""
    return judge_approver(by, caller, Approver(caller, is_operator)) is None


def waits_for(by: ApprovalBy) -> str:
    """The people that may decide, in a message to the caller."""
    return _WANTED[by][0].lower() + _WANTED[by][1:]


_WANTED: dict[ApprovalBy, str] = {
    "caller": "You or an operator",
    "operator": "An operator",
    "other-principal": "Somebody other than the caller",
}


def with_script_approval(policy: SourcePolicy, scripts: ScriptSettings) -> SourcePolicy:
    """The rules of the source `skill`, where running a script needs approval unless `skills.scripts.approval` is `never`."""
    lists = ApprovalLists() if policy.approval == "never" else policy.approval
    if scripts.approval == "never" or isinstance(lists, str):
        return policy
    return policy.model_copy(update={"approval": lists.model_copy(update={"always": [*lists.always, SCRIPT_TOOL]})})


def may_need_approval(config: GatewayConfig) -> bool:
    """Whether a rule of the configuration lets some call wait for an approval."""
    return bool(_asking_policies(config))


def approvers_of(config: GatewayConfig, default: ApprovalBy) -> set[ApprovalBy]:
    """Who may approve the calls that some rule of the configuration lets wait."""
    return {policy.approval_by or default for policy in _asking_policies(config)}


def _asking_policies(config: GatewayConfig) -> list[SourcePolicy]:
    found = [policy for policy in config.policies.values() if policy.sampling.mode == "ask" or _asks(policy.approval)]
    scripts = config.skills.scripts
    if scripts.enabled and scripts.approval == "always":
        found.append(config.policy("skill"))
    return found


def _asks(approval: Literal["never", "always"] | ApprovalLists) -> bool:
    return approval == "always" if isinstance(approval, str) else bool(approval.always or approval.by)


def may_stand(source: str, name: str) -> bool:
    """Whether a tool may be approved for good. A script's content is not among the arguments that a person sees."""
    return (source, name) != ("skill", SCRIPT_TOOL)


def canonical_arguments(arguments: JsonMapping) -> str:
    """A digest that is equal where the values are; never empty."""
    text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def approval_form(text: str, *, standing: bool = False) -> JsonObject:
    """The elicitation that asks for an approval, with `standing` also for good.

    Accepting it is not enough: a client may accept forms by itself.
    """
    offered = _STANDING if standing else _ONCE
    names = [_NAMES[decision] for decision in offered]
    choice: JsonObject = {"type": "string", "title": "Decision", "enum": list(offered), "enumNames": names}
    schema: JsonObject = {"type": "object", "properties": {_FIELD: choice}, "required": [_FIELD]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": text, "requestedSchema": schema}}


def read_decision(answer: JsonMapping, *, standing: bool = False) -> Decision:
    """What the answer to the same `approval_form` says; anything that was no choice there is a no."""
    content = cast("JsonMapping", answer.get("content") or {})
    chosen: JsonValue = content.get(_FIELD) if answer.get("action") == "accept" else None
    offered = _STANDING if standing else _ONCE
    return chosen if chosen in offered else "decline"


def is_approved(answer: JsonMapping) -> bool:
    """Whether the answer to an `approval_form` without `standing` approves."""
    return read_decision(answer) == "approve"


def describe_call(source: str, tool: str, arguments: JsonMapping) -> str:
    """What a person reads before a call: tool, source and arguments, bounded and without anything hidden."""
    lines = [f"Approve this call of {shown(tool, 80)!r} of {shown(source, 80)!r}?"]
    lines += [f"  {shown(name, 80)}: {shown(_text(value))}" for name, value in arguments.items()] or ["  (no arguments)"]
    return _bounded(lines)


def describe_sampling(source: str, params: JsonMapping, max_tokens: int | None) -> str:
    """What a person reads before a server may use a model: the server, the cap, and what the model would be told."""
    limit = f"up to {max_tokens} tokens" if max_tokens is not None else "without a limit of tokens"
    lines = [f"Server {shown(source, 80)!r} asks to use a model ({limit})."]
    if params.get("systemPrompt"):
        lines.append(f"  instructions: {shown(_text(params['systemPrompt']))}")
    if params.get("tools"):
        lines.append(f"  with {len(params['tools'])} tool(s) of its own")
    messages: Sequence[JsonMapping] = params.get("messages") or ()
    lines += [f"  {message.get('role')}: {shown(_content(message.get('content')))}" for message in messages]
    return _bounded(lines)


def describe_question(name: str, message: str, fields: JsonMapping) -> str:
    """What a person reads of a workflow's question: who asks, what, and the fields of the answer, bounded and without anything hidden."""
    lines = [f"Workflow {shown(name, 80)!r} asks:", *(f"  {shown(line)}" for line in message.splitlines() if line.strip())]
    lines += [f"  field {shown(field, 80)}: {shown(_text(schema))}" for field, schema in fields.items()]
    return _bounded(lines)


def shown(text: str, limit: int = MAX_SHOWN_VALUE) -> str:
    """`text` on one line, with nothing hidden in it and cut to `limit` characters."""
    line = " ".join(strip_text(text[: limit * 4]).split())
    return line if len(line) <= limit and len(text) <= limit * 4 else f"{line[:limit]}… ({len(text)} characters)"


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _content(content: JsonValue) -> str:
    blocks = cast("Sequence[JsonMapping]", content if isinstance(content, list) else [content])
    return " ".join(str(block.get("text", "")) if block.get("type") == "text" else f"[{block.get('type')}]" for block in blocks)


def _bounded(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…\n  ({len(text)} characters in all)"
