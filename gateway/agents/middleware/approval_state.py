"""What `ToolApprovalMiddleware` keeps in a session: standing rules, and the questions and answers on their way.

Everything is JSON in the session's state, so a conversation can be taken up in another process between question and answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.session import AgentSession
from gateway.types.arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

ALWAYS_APPROVE_PROPERTY = "tool_approval"
"""Of an approval response: it also makes a standing rule. Taken off before the run loop sees the response."""

ALWAYS_APPROVE_SCOPE_PROPERTY = "always_approve"
ALWAYS_APPROVE_TOOL = "tool"
ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS = "tool_with_arguments"

MAX_PENDING = 100
"""Questions of one session that may wait for an answer."""

REQUEST = "function_approval_request"
RESPONSE = "function_approval_response"


class ToolApprovalRule:
    """Calls that need no question any more."""

    __slots__ = ("arguments", "server_label", "tool_name")

    def __init__(self, tool_name: str, arguments: Mapping[str, str] | None = None, *, server_label: str | None = None) -> None:
        """`arguments` are values as canonical JSON text: `None` fits every call of the tool, `{}` only one without arguments.

        `server_label` is the hosted server that the tool is of; a rule never reaches over to another one.

        Raises:
            ValueError: The name is empty.
        """
        if not tool_name.strip():
            raise ValueError("A tool approval rule needs the name of a tool.")
        self.tool_name = tool_name.strip()
        self.arguments = None if arguments is None else dict(arguments)
        self.server_label = server_label

    @classmethod
    def for_call(cls, call: Content, *, with_arguments: bool) -> ToolApprovalRule:
        """The rule that lets this call, or with any arguments, through from now on."""
        return cls(call.name or "", canonical_arguments(call) if with_arguments else None, server_label=server_label(call))

    def fits(self, call: Content) -> bool:
        """Whether a `function_call` is covered."""
        if call.name != self.tool_name or server_label(call) != self.server_label:
            return False
        return self.arguments is None or canonical_arguments(call) == self.arguments

    def to_dict(self) -> JsonObject:
        """JSON form."""
        data: JsonObject = {"type": "tool_approval_rule", "tool_name": self.tool_name}
        if self.arguments is not None:
            data["arguments"] = self.arguments
        if self.server_label is not None:
            data["server_label"] = self.server_label
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ToolApprovalRule:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A value is missing or of another type.
        """
        name, arguments, label = data.get("tool_name"), data.get("arguments"), data.get("server_label")
        if not isinstance(name, str) or not isinstance(label, str | None) or not isinstance(arguments, Mapping | None):
            raise ValueError("A tool approval rule needs a tool_name; arguments must be an object and server_label text, where given.")
        texts = None if arguments is None else {str(k): str(v) for k, v in cast("JsonMapping", arguments).items()}
        return cls(name, texts, server_label=label)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolApprovalRule) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

    def __repr__(self) -> str:
        return f"ToolApprovalRule({self.tool_name!r}, {self.arguments!r}, server_label={self.server_label!r})"


class ToolApprovalState:
    """One session's rules, questions and answers."""

    __slots__ = ("collected_approval_responses", "held_messages", "pending_approval_requests", "queued_approval_requests", "rules")

    def __init__(
        self,
        *,
        rules: Sequence[ToolApprovalRule | JsonMapping] | None = None,
        queued_approval_requests: Sequence[Content | JsonMapping] | None = None,
        collected_approval_responses: Sequence[Content | JsonMapping] | None = None,
        pending_approval_requests: Sequence[Content | JsonMapping] | None = None,
        held_messages: Sequence[Message | JsonMapping] | None = None,
    ) -> None:
        self.rules = [rule if isinstance(rule, ToolApprovalRule) else ToolApprovalRule.from_dict(rule) for rule in rules or ()]
        self.queued_approval_requests = _contents(queued_approval_requests)
        """Not shown yet; one is, per run."""
        self.collected_approval_responses = _contents(collected_approval_responses)
        """Answers that the run loop has not seen yet."""
        self.pending_approval_requests = _contents(pending_approval_requests)
        """Shown, and not answered yet: only these can be answered (requirements AP13)."""
        self.held_messages = [item if isinstance(item, Message) else Message.from_dict(item) for item in held_messages or ()]
        """What was said beside an answer while more questions were open; it reaches the model with the last answer."""

    def to_dict(self) -> JsonObject:
        """JSON form."""
        return {
            "rules": [rule.to_dict() for rule in self.rules],
            "queued_approval_requests": [content.to_dict() for content in self.queued_approval_requests],
            "collected_approval_responses": [content.to_dict() for content in self.collected_approval_responses],
            "pending_approval_requests": [content.to_dict() for content in self.pending_approval_requests],
            "held_messages": [message.to_dict() for message in self.held_messages],
        }

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ToolApprovalState:
        """The inverse of `to_dict`.

        Raises:
            ValueError: A rule is damaged.
        """
        return cls(
            rules=data.get("rules"),
            queued_approval_requests=data.get("queued_approval_requests"),
            collected_approval_responses=data.get("collected_approval_responses"),
            pending_approval_requests=data.get("pending_approval_requests"),
            held_messages=data.get("held_messages"),
        )

    def add_rule(self, rule: ToolApprovalRule) -> None:
        """Add a rule, unless the very same one is there."""
        if rule not in self.rules:
            self.rules.append(rule)

    def show(self, requests: Sequence[Content]) -> None:
        """Note what a person is shown; of questions that nobody ever answers the oldest are forgotten."""
        self.pending_approval_requests = [*self.pending_approval_requests, *requests][-MAX_PENDING:]

    def take_answer(self, response: Content) -> bool:
        """Collect a person's answer to a question that was shown; false, and nothing done, for any other.

        What was asked is what is approved: the call comes from our record, not from the answer.
        """
        asked = next((request for request in self.pending_approval_requests if _answers(response, request)), None)
        call = None if asked is None else call_of(asked)
        if asked is None or call is None:
            logger.warning("an approval response for %r answers no question of this session and is dropped", response.id)
            return False
        self.pending_approval_requests.remove(asked)
        scope = always_approve_scope(response)
        if response.approved and scope is not None:
            self.add_rule(ToolApprovalRule.for_call(call, with_arguments=scope == ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS))
        kept = {key: value for key, value in response.additional_properties.items() if key != ALWAYS_APPROVE_PROPERTY}
        answer = asked.to_function_approval_response(approved=bool(response.approved))
        answer.additional_properties.update(kept)
        self.collected_approval_responses.append(answer)
        return True

    @classmethod
    def load(cls, session: AgentSession, source_id: str) -> ToolApprovalState:
        """The session's state.

        Raises:
            TypeError: Something else is stored under this key.
        """
        stored: object = session.state.get(source_id)
        if isinstance(stored, ToolApprovalState):
            return stored
        if stored is not None and not isinstance(stored, Mapping):
            raise TypeError(f"session.state[{source_id!r}] must be an object, not {type(stored).__name__}.")
        return cls.from_dict(cast("JsonMapping", stored or {}))

    def save(self, session: AgentSession, source_id: str) -> None:
        """Put the state into the session; what others stored beside it stays."""
        stored: object = session.state.get(source_id)
        others: JsonMapping = cast("JsonMapping", stored) if isinstance(stored, Mapping) else {}
        session.state[source_id] = {**others, **self.to_dict()}


def create_always_approve_tool_response(request: Content, *, reason: str | None = None) -> Content:
    """Approve a request, and every later call of its tool in this session."""
    return _always(request, ALWAYS_APPROVE_TOOL, reason)


def create_always_approve_tool_with_arguments_response(request: Content, *, reason: str | None = None) -> Content:
    """Approve a request, and every later call of its tool with exactly these arguments in this session."""
    return _always(request, ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS, reason)


def canonical_arguments(call: Content) -> dict[str, str] | None:
    """A call's arguments as texts that are equal when the values are; `None`, which fits no rule, where they are no object."""
    try:
        arguments: JsonMapping = read_arguments(call.arguments)
    except ValueError:
        return None
    return {key: _canonical(value) for key, value in arguments.items()}


def call_of(request: Content) -> Content | None:
    """The `function_call` that a request is about."""
    call = request.function_call
    return call if isinstance(call, Content) and call.type == "function_call" and call.name else None


def server_label(call: Content) -> str | None:
    """The hosted server that a call goes to, where it goes to one."""
    label = call.additional_properties.get("server_label")
    return label if isinstance(label, str) else None


def always_approve_scope(response: Content) -> str | None:
    """The standing rule that a response makes, if any."""
    note: JsonValue = response.additional_properties.get(ALWAYS_APPROVE_PROPERTY)
    scope: object = cast("JsonMapping", note).get(ALWAYS_APPROVE_SCOPE_PROPERTY) if isinstance(note, Mapping) else None
    return scope if scope in (ALWAYS_APPROVE_TOOL, ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS) else None


def _always(request: Content, scope: str, reason: str | None) -> Content:
    response = request.to_function_approval_response(approved=True)
    note: JsonObject = {ALWAYS_APPROVE_SCOPE_PROPERTY: scope}
    if reason is not None:
        note["reason"] = reason
    response.additional_properties[ALWAYS_APPROVE_PROPERTY] = note
    return response


def _answers(response: Content, request: Content) -> bool:
    """Whether a response is to this request, about the same call."""
    asked, answered = call_of(request), call_of(response)
    if response.id != request.id or asked is None or answered is None:
        return False
    same_tool = (answered.name, server_label(answered)) == (asked.name, server_label(asked))
    return same_tool and canonical_arguments(answered) == canonical_arguments(asked)


def _contents(given: Sequence[Content | JsonMapping] | None) -> list[Content]:
    return [item if isinstance(item, Content) else Content.from_dict(item) for item in given or ()]


def _canonical(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
