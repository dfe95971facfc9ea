"""State of `ToolApprovalMiddleware` in a session: approval rules, open approval requests and collected answers.

The state is stored as JSON, so that a conversation can continue in another process between a request and its answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.sessions.session import AgentSession
from gateway.types.call_arguments import read_arguments
from gateway.types.content import Content
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

ALWAYS_APPROVE_PROPERTY = "tool_approval"
"""Key in `additional_properties` of an approval response that also creates a rule for later calls.

The key is removed before the agent's run receives the response.
"""

ALWAYS_APPROVE_SCOPE_PROPERTY = "always_approve"
ALWAYS_APPROVE_TOOL = "tool"
ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS = "tool_with_arguments"

MAX_PENDING = 100
"""Maximum number of approval requests per session that a person has seen and not answered."""

REQUEST = "function_approval_request"
RESPONSE = "function_approval_response"


@dataclass(slots=True)
class ToolApprovalRule:
    """A rule that approves calls of one tool without asking a person.

    Raises:
        ValueError: The name is empty.
    """

    tool_name: str
    arguments: Mapping[str, str] | None = None
    """Arguments that a call must have, by name, as canonical JSON. `None` matches every call; `{}` matches calls without arguments."""
    server_label: str | None = field(default=None, kw_only=True)
    """Label of the tool's MCP server if the model's provider executes the tool, else `None`. A rule matches no other server's tools."""

    def __post_init__(self) -> None:
        self.tool_name = self.tool_name.strip()
        if not self.tool_name:
            raise ValueError("A tool approval rule needs a tool name.")

    @classmethod
    def for_call(cls, call: Content, *, with_arguments: bool) -> ToolApprovalRule:
        """Return a rule that approves every call of the tool in `call`, or with `with_arguments` only calls with the same arguments.

        Raises:
            ValueError: `with_arguments` is true and the arguments are not a JSON object, so that no later call can have the same.
        """
        arguments = canonical_arguments(call)
        if with_arguments and arguments is None:
            raise ValueError(f"The arguments of the call of {call.name!r} are not a JSON object.")
        return cls(call.name or "", arguments if with_arguments else None, server_label=server_label(call))

    def fits(self, call: Content) -> bool:
        """Return whether the rule approves the tool call `call`, a content of type `function_call`."""
        if call.name != self.tool_name or server_label(call) != self.server_label:
            return False
        return self.arguments is None or canonical_arguments(call) == self.arguments

    def to_dict(self) -> JsonObject:
        """Return the rule as a JSON object."""
        data: JsonObject = {"type": "tool_approval_rule", "tool_name": self.tool_name}
        if self.arguments is not None:
            data["arguments"] = dict(self.arguments)
        if self.server_label is not None:
            data["server_label"] = self.server_label
        return data

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ToolApprovalRule:
        """Create a rule from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A value is missing or has a wrong type.
        """
        name, arguments, label = data.get("tool_name"), data.get("arguments"), data.get("server_label")
        if not isinstance(name, str) or not isinstance(label, str | None) or not isinstance(arguments, Mapping | None):
            raise ValueError("A tool approval rule needs a tool_name; arguments must be an object and server_label text, if given.")
        texts = None if arguments is None else {str(k): str(v) for k, v in cast("JsonMapping", arguments).items()}
        return cls(name, texts, server_label=label)


class ToolApprovalState:
    """Approval rules, approval requests and their answers in one session, as `ToolApprovalMiddleware` stores them."""

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
        """Approval requests that no person has seen; one of them is shown per run."""
        self.collected_approval_responses = _contents(collected_approval_responses)
        """Answers that the agent's run has not yet received."""
        self.pending_approval_requests = _contents(pending_approval_requests)
        """Approval requests that a person has seen and not answered; only these requests accept an answer."""
        self.held_messages = [item if isinstance(item, Message) else Message.from_dict(item) for item in held_messages or ()]
        """Input messages of runs that only showed a queued approval request; the next run that calls the model sends them."""

    def to_dict(self) -> JsonObject:
        """Return the state as a JSON object."""
        return {name: [item.to_dict() for item in getattr(self, name)] for name in self.__slots__}

    @classmethod
    def from_dict(cls, data: JsonMapping) -> ToolApprovalState:
        """Create the state from the JSON object that `to_dict` returned.

        Raises:
            ValueError: A rule has a missing or wrong value.
        """
        return cls(**{name: data.get(name) for name in cls.__slots__})

    def add_rule(self, rule: ToolApprovalRule) -> None:
        """Add an approval rule, unless an equal rule exists."""
        if rule not in self.rules:
            self.rules.append(rule)

    def show(self, requests: Sequence[Content]) -> None:
        """Record approval requests that a person now sees. Beyond `MAX_PENDING` unanswered requests, the oldest are dropped."""
        self.pending_approval_requests = [*self.pending_approval_requests, *requests][-MAX_PENDING:]

    def take_answer(self, response: Content) -> bool:
        """Collect the answer to an approval request that a person has seen, and add the rule that the answer creates, if any.

        Return false, and drop the answer, if it matches no request that a person has seen. The answer applies to the call in the recorded
        request, not to the call in the answer.
        """
        asked = next((request for request in self.pending_approval_requests if _answers(response, request)), None)
        call = None if asked is None else call_of(asked)
        if asked is None or call is None:
            logger.warning("approval response dropped request=%s reason=no_such_open_request", response.id)
            return False
        self.pending_approval_requests.remove(asked)
        scope = always_approve_scope(response)
        if response.approved and scope is not None:
            with suppress(ValueError):  # no later call can have the same arguments
                self.add_rule(ToolApprovalRule.for_call(call, with_arguments=scope == ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS))
        kept = {key: value for key, value in response.additional_properties.items() if key != ALWAYS_APPROVE_PROPERTY}
        answer = asked.to_function_approval_response(approved=bool(response.approved))
        answer.additional_properties.update(kept)
        self.collected_approval_responses.append(answer)
        return True

    @classmethod
    def load(cls, session: AgentSession, source_id: str) -> ToolApprovalState:
        """Return the approval state that is stored in the session under `source_id`, or an empty state.

        Raises:
            TypeError: Another value is stored under this key.
        """
        stored: object = session.state.get(source_id)
        if isinstance(stored, ToolApprovalState):
            return stored
        if stored is not None and not isinstance(stored, Mapping):
            raise TypeError(f"session.state[{source_id!r}] must be an object, not {type(stored).__name__}.")
        return cls.from_dict(cast("JsonMapping", stored or {}))

    def save(self, session: AgentSession, source_id: str) -> None:
        """Store the approval state in the session's state under `source_id`. Other values in the object under this key are kept."""
        stored: object = session.state.get(source_id)
        others: JsonMapping = cast("JsonMapping", stored) if isinstance(stored, Mapping) else {}
        session.state[source_id] = {**others, **self.to_dict()}


def create_always_approve_tool_response(request: Content, *, reason: str | None = None) -> Content:
    """Return an approval response that approves the requested tool call, and every later call of the tool in this session."""
    return _always(request, ALWAYS_APPROVE_TOOL, reason)


def create_always_approve_tool_with_arguments_response(request: Content, *, reason: str | None = None) -> Content:
    """Return a response that approves the requested tool call, and every later call of the tool with equal arguments in this session."""
    return _always(request, ALWAYS_APPROVE_TOOL_WITH_ARGUMENTS, reason)


def canonical_arguments(call: Content) -> dict[str, str] | None:
    """Return the arguments of a tool call as a map of names to values in canonical JSON.

    Return `None`, which no rule with arguments matches, if the arguments are not a JSON object.
    """
    try:
        arguments: JsonMapping = read_arguments(call.arguments)
    except ValueError:
        return None
    return {key: json.dumps(value, sort_keys=True, separators=(",", ":"), default=str) for key, value in arguments.items()}


def call_of(request: Content) -> Content | None:
    """Return the tool call (content of type `function_call`) that an approval request or response is about, or `None`."""
    call = request.function_call
    return call if isinstance(call, Content) and call.type == "function_call" and call.name else None


def server_label(call: Content) -> str | None:
    """Return the label of the MCP server on which the model's provider executes a tool call; `None` for calls executed here."""
    label = call.additional_properties.get("server_label")
    return label if isinstance(label, str) else None


def always_approve_scope(response: Content) -> str | None:
    """Return which later calls an approval response also approves: `tool`, `tool_with_arguments`, or `None` for no later calls."""
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
    """Return whether an approval response has the id of `request` and is about the same tool and arguments."""
    asked, answered = call_of(request), call_of(response)
    if response.id != request.id or asked is None or answered is None:
        return False
    same_tool = (answered.name, server_label(answered)) == (asked.name, server_label(asked))
    return same_tool and canonical_arguments(answered) == canonical_arguments(asked)


def _contents(given: Sequence[Content | JsonMapping] | None) -> list[Content]:
    return [item if isinstance(item, Content) else Content.from_dict(item) for item in given or ()]
