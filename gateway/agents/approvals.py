"""Approvals inside a run: which calls wait for a person, and what an answer means when the conversation goes on.

The run that asks ends with the requests; the answers come as contents of a later run (requirements AP1-AP4, AP13). With a
session only what needs an answer is shown: calls of the same batch that need none are held in the session and run
together with the approved ones. An answer counts only for a request that its session remembers.

Every question and every answer is logged here, without arguments, so that there is a record also where a model's provider keeps the
conversation and has no place for them (requirements AP5).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from gateway.json_types import JsonMapping, JsonObject
from gateway.tools.base import Tool
from gateway.tools.invocation import SessionData
from gateway.types.arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

STATE_KEY = "tool_approval"
"""Where in a session's state approvals are kept; shared with the middleware that remembers rules."""

REJECTED = "Error: Tool call invocation was rejected by user."
UNKNOWN_REQUEST = "Error: Tool call invocation was rejected: nobody was asked about this call."
NEVER_ANSWERED = "Error: This call was never run: the conversation went on without an answer to it."


class ToDict(Protocol):
    """State as an object."""

    def to_dict(self) -> JsonObject:
        """JSON form."""
        ...


@dataclass(frozen=True, slots=True)
class Resumed:
    """The calls that answers of this run let go on, and those they stop."""

    calls: list[Content]
    approvals: list[Content | None]
    """Beside each call the answer that let it; `None` for one that needed none."""
    refused: list[Content]
    """A `function_result` for each call that was not approved."""
    decided: list[Content]
    """All these calls, refused ones included, in the order of the answers."""


def needs_approval(tool: Tool | None) -> bool:
    """Whether a person decides on each call of a tool, in the conversation itself."""
    return getattr(tool, "approval_mode", None) == "always_require"


def ask(calls: Sequence[Content], tools: Sequence[Tool], handed_back: frozenset[str], session: SessionData | None) -> list[Content]:
    """The requests to show for a batch in which some call needs an approval; the rest is held where there is a session."""
    by_name = {tool.definition.name: tool for tool in tools}
    shown: list[Content] = []
    held: list[Content] = []
    for call in calls:
        tool = by_name.get(call.name or "")
        is_free = tool is not None and not needs_approval(tool) and call.name not in handed_back
        if is_free and session is not None and not getattr(tool, "declaration_only", False):
            held.append(call)
        else:
            shown.append(Content.from_function_approval_request(call.call_id or "", call))
    remember(shown, session)
    if session is not None and held:
        groups = cast("list[JsonObject]", _state(session).setdefault("held", []))
        groups.append({"ids": [request.id for request in shown], "calls": [call.to_dict() for call in held]})
    return shown


def remember(requests: Sequence[Content], session: SessionData | None) -> None:
    """Note in the session what a person is asked; contents that ask for something else than an approval are left out."""
    asked = {r.id or "": r.function_call.to_dict() for r in requests if r.type == "function_approval_request" and r.function_call}
    for request_id, call in asked.items():
        note("waits for an approval", request_id, call.get("call_id"), call.get("name"), session)
    if session is not None and asked:
        cast("dict[str, JsonObject]", _state(session).setdefault("pending", {})).update(asked)


def answered(messages: Sequence[Message]) -> bool:
    """Whether any answer or request of an approval is in the conversation."""
    return any(content.type in _APPROVALS and not _is_hosted(content) for message in messages for content in message.contents)


_APPROVALS = ("function_approval_request", "function_approval_response")


def resume(messages: Sequence[Message], session: SessionData | None) -> Resumed:
    """What the answers among these messages decide. Answers to calls that have their result already say nothing new."""
    done = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    resumed = Resumed([], [], [], [])
    ids: set[str] = set()
    for answer in (c for m in messages for c in m.contents if c.type == "function_approval_response" and not _is_hosted(c)):
        call = answer.function_call
        if call is None or call.call_id in done or (answer.id or "") in ids:
            continue
        ids.add(answer.id or "")
        resumed.decided.append(call)
        known = _take_pending(session, answer.id or "", call)
        verdict = "unknown request" if not known else "approved" if answer.approved else "rejected"
        note(verdict, answer.id, call.call_id, call.name, session)
        if known and answer.approved:
            resumed.calls.append(call)
            resumed.approvals.append(answer)
        else:
            text = REJECTED if known else UNKNOWN_REQUEST
            resumed.refused.append(Content.from_function_result(call.call_id or "", text, "rejected"))
    for call in _take_held(session, ids):
        if call.call_id not in done:
            resumed.decided.append(call)
            resumed.calls.append(call)
            resumed.approvals.append(None)
    return resumed


def note(what: str, request_id: str | None, call_id: str | None, tool: str | None, session: SessionData | None) -> None:
    """Write down what became of a call that a person decides on."""
    of_session = getattr(session, "session_id", None) or "-"
    logger.info("call %s of tool %r: %s (request %s, session %s)", call_id, tool, what, request_id or "-", of_session)


def note_hosted(messages: Sequence[Message], session: SessionData | None) -> None:
    """Write down the new answers about tools that the model's provider runs; they go on to it as they are."""
    for message in reversed(messages):
        if message.role == "assistant":
            return  # what is before was written down when it was new
        for content in message.contents:
            if content.type == "function_approval_response" and _is_hosted(content) and content.function_call is not None:
                call = content.function_call
                note("approved" if content.approved else "rejected", content.id, call.call_id, call.name, session)


def settle(messages: list[Message]) -> None:
    """Turn requests back into the calls they are about, and drop answers: what is left is what models know.

    The results of the calls are added by whoever ran them. Hosted tools' approvals stay: their provider wants them.
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
    """Give calls that never got a result one that says so; providers refuse a conversation with an open call."""
    done = {c.call_id for m in messages for c in m.contents if c.type == "function_result"}
    for index in range(len(messages) - 1, -1, -1):
        missing = [c for c in messages[index].contents if c.type == "function_call" and c.call_id not in done]
        if missing:
            results = [Content.from_function_result(call.call_id or "", NEVER_ANSWERED, "never answered") for call in missing]
            messages.insert(index + 1, Message("tool", results))


def _has_call(messages: Sequence[Message], index: int, call_id: str | None) -> bool:
    """Whether the call that the message at `index` asks about is in the conversation itself.

    A result of the same id ends the search in both directions, because some models use the same ids again.
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
    """The session's own part for approvals; a program may have put the middleware's state there as the object it is."""
    stored = session.state.setdefault(STATE_KEY, {})
    if not isinstance(stored, dict):
        stored = session.state[STATE_KEY] = cast("ToDict", stored).to_dict()
    return cast("JsonObject", stored)


def _take_pending(session: SessionData | None, request_id: str, call: Content) -> bool:
    """Whether the session asked about exactly this call; an answer counts once. Without a session the caller is believed."""
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
