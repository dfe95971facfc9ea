"""Approvals of tool calls in an agent's run: requests to a person, and the person's answers in a later run.

A run that needs approvals ends with the requests; the answers arrive as contents of a later run's messages. With a session, calls of the
same model answer that need no approval are stored in the session and executed with the approved calls, and an answer counts only if the
session recorded the request. Without a session, all calls of the model answer become requests, and every answer counts.

Every request and every answer is logged, without arguments, because a conversation that a model provider stores contains neither requests
nor answers.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import Tool
from gateway.tools.invocation import SessionData
from gateway.types.call_arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message

logger = logging.getLogger("gateway.agents.approvals")
"""Logger of approvals. Its name is documented in `docs/middleware.md`, because operators filter the log by it."""

STATE_KEY = "tool_approval"
"""Key in a session's state for open approval requests. `ToolApprovalMiddleware` stores its approval rules under the same key."""

REJECTED = "Error: Tool call invocation was rejected by user."
UNKNOWN_REQUEST = "Error: Tool call invocation was rejected: no approval was requested for this call."
NEVER_ANSWERED = "Error: This call was not executed, because the conversation continued before it was answered."


@dataclass(frozen=True, slots=True)
class ApprovalDecisions:
    """The tool calls that the approval responses in a conversation approve or reject. `calls` are the calls to execute."""

    calls: list[Content]
    approvals: list[Content | None]
    """One entry for each of `calls`: the response that approved it, or `None` if the call needed no approval."""
    refused: list[Content]
    """One tool result (content of type `function_result`) for each rejected call, with the reason for the model."""
    decided: list[Content]
    """All approved and rejected calls, in the order of the approval responses, then the calls that needed no approval."""


def needs_approval(tool: Tool | None) -> bool:
    """Return whether the tool's `approval_mode` requires that a person approves each call, by an approval response in a later message."""
    return getattr(tool, "approval_mode", None) == "always_require"


def request_approvals(
    calls: Sequence[Content], tools: Sequence[Tool], caller_tools: frozenset[str], session: SessionData | None
) -> list[Content]:
    """Return the approval requests for the tool calls of one model answer; at least one of the calls must need an approval.

    Calls that need no approval are stored in the session, and executed once a person has answered one of the requests. Without a session,
    these calls become requests, too. Calls that the caller executes (of `caller_tools` or of a tool that is only declared), and calls of
    unknown tools, always become requests.
    """
    by_name = {tool.definition.name: tool for tool in tools}
    shown: list[Content] = []
    held: list[Content] = []
    for call in calls:
        tool = by_name.get(call.name or "")
        is_free = tool is not None and not needs_approval(tool) and call.name not in caller_tools
        if is_free and session is not None and not getattr(tool, "declaration_only", False):
            held.append(call)
        else:
            shown.append(Content.from_function_approval_request(call.call_id or "", call))
    remember_requests(shown, session)
    if session is not None and held:
        groups = cast("list[JsonObject]", _state(session).setdefault("held", []))
        groups.append({"ids": [request.id for request in shown], "calls": [call.to_dict() for call in held]})
    return shown


def remember_requests(requests: Sequence[Content], session: SessionData | None) -> None:
    """Record approval requests in the session and log them; other contents are skipped."""
    asked = {r.id or "": r.function_call.to_dict() for r in requests if r.type == "function_approval_request" and r.function_call}
    for request_id, call in asked.items():
        log_approval("requested", request_id, call.get("call_id"), call.get("name"), session)
    if session is not None and asked:
        cast("dict[str, JsonObject]", _state(session).setdefault("pending", {})).update(asked)


def has_approvals(messages: Sequence[Message]) -> bool:
    """Return whether the messages have an approval request or response for a tool that the model's provider does not execute itself."""
    return any(content.type in _APPROVALS and not _is_hosted(content) for message in messages for content in message.contents)


_APPROVALS = ("function_approval_request", "function_approval_response")


def take_decisions(messages: Sequence[Message], session: SessionData | None) -> ApprovalDecisions:
    """Return the tool calls that approval responses in `messages` approve or reject, and remove the requests from the session.

    Also return the calls of the same model answers that needed no approval, which the session stored. Responses for calls that already have
    a result are skipped.
    """
    done = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    found = ApprovalDecisions([], [], [], [])
    ids: set[str] = set()
    for answer in (c for m in messages for c in m.contents if c.type == "function_approval_response" and not _is_hosted(c)):
        call = answer.function_call
        if call is None or call.call_id in done or (answer.id or "") in ids:
            continue
        ids.add(answer.id or "")
        found.decided.append(call)
        known = _take_pending(session, answer.id or "", call)
        verdict = "unknown request" if not known else "approved" if answer.approved else "rejected"
        log_approval(verdict, answer.id, call.call_id, call.name, session)
        if known and answer.approved:
            found.calls.append(call)
            found.approvals.append(answer)
        else:
            text = REJECTED if known else UNKNOWN_REQUEST
            found.refused.append(Content.from_function_result(call.call_id or "", text, "rejected"))
    for call in _take_held(session, ids):
        if call.call_id not in done:
            found.decided.append(call)
            found.calls.append(call)
            found.approvals.append(None)
    return found


def log_approval(outcome: str, request_id: str | None, call_id: str | None, tool: str | None, session: SessionData | None) -> None:
    """Log the `outcome` (requested, approved, rejected, …) of the approval of a tool call, without the call's arguments."""
    session_id = getattr(session, "session_id", None) or "-"
    logger.info("approval changed outcome=%r tool=%s call=%s request=%s session=%s", outcome, tool, call_id, request_id or "-", session_id)


def log_hosted_approvals(messages: Sequence[Message], session: SessionData | None) -> None:
    """Log the new approval responses for tools that the model's provider executes; the provider receives them unchanged."""
    for message in reversed(messages):
        if message.role == "assistant":
            return  # the messages before this one were logged in an earlier run
        for content in message.contents:
            if content.type == "function_approval_response" and _is_hosted(content) and content.function_call is not None:
                call = content.function_call
                log_approval("approved" if content.approved else "rejected", content.id, call.call_id, call.name, session)


def restore_calls(messages: list[Message]) -> None:
    """In `messages`, replace approval requests by their tool calls and remove approval responses, because model APIs support neither.

    Results of the calls are not added here. Requests and responses for tools that the model's provider executes are not changed.
    """
    for index, message in reversed([*enumerate(messages)]):
        if not any(content.type in _APPROVALS for content in message.contents):
            continue
        kept: list[Content] = []
        for content in message.contents:
            if content.type not in _APPROVALS or _is_hosted(content):
                kept.append(content)
            elif content.type == "function_approval_request" and (call := content.function_call) is not None:
                if not _has_call(messages, index, call.call_id) and not any(item is call or item.call_id == call.call_id for item in kept):
                    kept.append(call)
        if kept:
            message.contents = kept
        else:
            messages.remove(message)


def close_open_calls(messages: list[Message]) -> None:
    """Add an error result for every tool call without a result, because model providers reject conversations with unanswered calls."""
    done = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    for index in range(len(messages) - 1, -1, -1):
        missing = [c for c in messages[index].contents if c.type == "function_call" and c.call_id not in done]
        if missing:
            results = [Content.from_function_result(call.call_id or "", NEVER_ANSWERED, "never answered") for call in missing]
            messages.insert(index + 1, Message("tool", results))


def _has_call(messages: Sequence[Message], index: int, call_id: str | None) -> bool:
    """Return whether the conversation contains the tool call `call_id`, for which the message at `index` requests approval.

    The search goes backwards from the message at `index`, then forwards. In each direction, the search stops at a result with the id
    `call_id`: some models reuse call ids, and a call beyond the result is a different call.
    """
    for part in (messages[: index + 1][::-1], messages[index + 1 :]):
        for message in part:
            types = {content.type for content in message.contents if content.call_id == call_id}
            if "function_call" in types:
                return True
            if "function_result" in types:
                break
    return False


def _is_hosted(content: Content) -> bool:
    call = content.function_call
    return call is not None and bool(call.additional_properties.get("server_label"))


def _state(session: SessionData) -> JsonObject:
    """Return the session's approval state as a mapping; a `ToolApprovalState` object that a program stored is converted."""
    stored = session.state.setdefault(STATE_KEY, {})
    if not isinstance(stored, dict):
        stored = session.state[STATE_KEY] = stored.to_dict()
    return cast("JsonObject", stored)


def _take_pending(session: SessionData | None, request_id: str, call: Content) -> bool:
    """Remove an approval request from the session. Return whether the request was for exactly this call; always true without a session."""
    if session is None:
        return True
    pending = cast("dict[str, JsonMapping]", _state(session).get("pending") or {})
    asked = pending.pop(request_id, None)
    if asked is None:
        return False
    known = Content.from_dict(asked)
    return (known.call_id, known.name, _arguments(known)) == (call.call_id, call.name, _arguments(call))


def _arguments(call: Content) -> object:
    try:
        return read_arguments(call.arguments)
    except ValueError:
        return call.arguments


def _take_held(session: SessionData | None, ids: set[str]) -> list[Content]:
    groups = cast("list[JsonMapping]", _state(session).get("held") or []) if session is not None and STATE_KEY in session.state else []
    taken = [group for group in groups if not ids.isdisjoint(cast("list[str]", group.get("ids") or []))]
    if session is None or not taken:
        return []
    _state(session)["held"] = [group for group in groups if group not in taken]
    return [Content.from_dict(call) for group in taken for call in cast("list[JsonObject]", group.get("calls") or [])]
