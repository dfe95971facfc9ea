"""Conversions for workflows that run as agents, used by `workflow_agent` and `functional_agent`.

They convert a workflow's events to updates (parts) of the agent's response, and the agent's input to responses to the workflow's requests.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel

from gateway.errors import AgentError, WorkflowCheckpointException
from gateway.json_types import JsonMapping, JsonObject
from gateway.types.annotations import UsageDetails, add_usage
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate, iso_time
from gateway.workflows.agent_executor import is_request
from gateway.workflows.encoding import TypeBook, decode, encode, settle
from gateway.workflows.events import CROSSING_TYPES, WorkflowEvent
from gateway.workflows.type_hints import is_instance_of

REQUEST_INFO_FUNCTION_NAME = "request_info"
"""Name of the function in the function calls with which a workflow that runs as an agent sends requests to its caller."""


class _Imported(TypeBook):
    """The classes whose objects may be decoded from the JSON of `RequestInfoFunctionArgs`.

    These are the classes that `TypeBook` allows, and all dataclasses, pydantic models and enums in imported modules. Creating objects of
    these classes runs no code except the validation of a pydantic model, and methods `from_dict` and `__new__` of the class.
    """

    def find(self, name: str) -> type | None:
        """Return the class with this name (`module:qualname`), or `None` if its objects may not be decoded."""
        known = super().find(name)
        if known is not None:
            return known
        module, _, qualname = name.partition(":")
        target: object = sys.modules.get(module)
        for part in qualname.split("."):
            target = getattr(target, part, None)
        if not isinstance(target, type) or not (is_dataclass(target) or issubclass(target, BaseModel | Enum)):
            return None
        return target


@dataclass
class RequestInfoFunctionArgs:
    """Arguments of the function call `request_info`, with which a workflow that runs as an agent sends a request to its caller."""

    request_id: str
    request_event: WorkflowEvent[Any]

    def to_dict(self) -> JsonObject:
        """Return the arguments of the function call as JSON-compatible data, with the request's data and types encoded."""
        event = self.request_event
        form: JsonObject = {"type": event.type, "data": encode(event.data), "request_id": event.request_id}
        form |= {"source_executor_id": event.source_executor_id, "request_type": encode(event.request_type)}
        return {"request_id": self.request_id, "request_event": {**form, "response_type": encode(event.response_type)}}

    @classmethod
    def from_dict(cls, payload: JsonMapping) -> RequestInfoFunctionArgs:
        """Create the arguments from the result of `to_dict`. The modules of the classes in the payload must be imported already.

        Raises:
            ValueError: The payload is not a result of `to_dict`, or contains a class that is not imported or not safe to decode.
        """
        if not payload.get("request_id") or not isinstance(payload.get("request_event"), dict):
            raise ValueError("The arguments of request_info need 'request_id' and 'request_event'.")
        book, event = _Imported(), cast("JsonObject", payload["request_event"])
        try:
            data, response_type = (settle(decode(event[key], book), book) for key in ("data", "response_type"))
            made = WorkflowEvent[Any].request_info(str(event["request_id"]), str(event["source_executor_id"]), data, response_type)
        except (KeyError, WorkflowCheckpointException) as error:
            raise ValueError(f"The arguments of request_info cannot be read: {error}.") from error
        return cls(str(payload["request_id"]), made)


def updates_of(event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
    """Convert an event of a workflow that runs as an agent to updates (parts) of the agent's response.

    Events for outputs, intermediate outputs and requests become updates. For all other types of events the list is empty.
    """
    if event.type not in CROSSING_TYPES:
        return []
    if event.type == "request_info":
        return [_update([_to_content(event)], event.source_executor_id, event)]
    data, author = event.data, event.executor_id
    if isinstance(data, AgentResponseUpdate):
        return [replace(data, contents=list(data.contents), author_name=data.author_name or author)]
    if isinstance(data, AgentResponse):
        updates = [_of_message(message, author) for message in data.messages]
        if updates and data.usage_details:
            usage = Content("usage", usage_details=data.usage_details)
            updates[-1].contents = [*updates[-1].contents, usage]
        return updates
    if isinstance(data, Message):
        return [_of_message(data, author)]
    if is_instance_of(data, list[Message]):
        return [_of_message(message, author) for message in cast("list[Message]", data)]
    contents = _contents_of(data)
    return [_update(contents, author, data)] if contents else []


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with tool results moved directly behind the message that contains their tool calls.

    Model providers require this order, which is lost if concurrent agents interleave their messages. Tool results without a call in
    `messages` are not moved.
    """
    ordered: list[Message] = []
    for message in messages:
        results = [content for content in message.contents if content.type == "function_result"]
        if message.role != "tool" or len(results) < len(message.contents):
            ordered.append(message)
            continue
        by_position: dict[int, list[Content]] = {}
        for result in results:
            by_position.setdefault(_position_of(result, message.author_name, ordered), []).append(result)
        for position in sorted(by_position, reverse=True):
            own = message if len(by_position) == 1 else copy(message)
            own.contents = by_position[position]
            ordered.insert(position, own)
    return ordered


def _position_of(result: Content, author: str | None, messages: Sequence[Message]) -> int:
    """Return the index in `messages` at which to insert a tool result: after its tool call and the results that already follow the call.

    If several messages contain a call with the result's id, the last of them by `author` is chosen, or the last of all if none is by
    `author`. If no message contains the call, the index is the end of the list.
    """
    calls = [i for i, m in enumerate(messages) if any(c.type == "function_call" and c.call_id == result.call_id for c in m.contents)]
    if not calls:
        return len(messages)
    own = [index for index in calls if messages[index].author_name == author]
    position = (own or calls)[-1] + 1
    while position < len(messages) and messages[position].role == "tool":
        position += 1
    return position


def whole_response(updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
    """Combine the updates (parts) of an agent's response into the whole response, for a caller without streaming: one message per update.

    The usage is the sum over all updates, and `created_at` is the latest date.
    """
    messages: list[Message] = []
    usage: UsageDetails | None = None
    for update in updates:
        for content in update.contents:
            if content.type == "usage":
                usage = add_usage(usage, content.usage_details)
        contents = [content for content in update.contents if content.type != "usage"]
        messages.append(
            Message(
                update.role or "assistant",
                contents,
                author_name=update.author_name,
                message_id=update.message_id,
                additional_properties=update.additional_properties,
                raw_representation=update.raw_representation,
            )
        )
    raw = [update.raw_representation for update in updates]
    dates = [update.created_at for update in updates if update.created_at]
    latest = max(dates, key=iso_time, default=None)
    return AgentResponse(messages, usage_details=usage, created_at=latest, raw_representation=raw)


def _to_content(event: WorkflowEvent[Any]) -> Content:
    """Return a workflow's request as a content of an agent's response: as a call of the function `request_info`.

    If the request's data is already a content for a person to answer, such as an approval request, this content is returned.
    """
    if isinstance(event.data, Content) and is_request(event.data):
        return event.data
    arguments = RequestInfoFunctionArgs(event.request_id, event).to_dict()
    return Content.from_function_call(call_id=event.request_id, name=REQUEST_INFO_FUNCTION_NAME, arguments=arguments)


def answers_in(messages: Sequence[Message]) -> dict[str, Any]:
    """Return the responses to a workflow's requests, by request id, from the input messages of the agent that runs the workflow.

    The responses are the tool results and the approval responses in the messages.

    Raises:
        AgentError: The messages contain no response, or a content that is not a response.
    """
    answers: dict[str, Any] = {}
    for message in messages:
        for content in message.contents:
            if content.type == "function_approval_response":
                answers[str(content.id)] = content
            elif content.type == "function_result":
                answers[str(content.call_id)] = content.result
            else:
                raise AgentError(
                    f"The workflow waits for answers, but the messages contain a content of type {content.type!r}. "
                    "Answer with function_result or function_approval_response contents."
                )
    if not answers:
        raise AgentError("The workflow waits for answers, but the messages contain none. Answer the requests in `pending_requests`.")
    return answers


def _update(contents: list[Content], author: str | None, raw: object) -> AgentResponseUpdate:
    return AgentResponseUpdate(contents, "assistant", author, str(uuid.uuid4()), raw_representation=raw)


def _of_message(message: Message, author: str | None) -> AgentResponseUpdate:
    return AgentResponseUpdate(
        list(message.contents),
        message.role,
        message.author_name or author,
        message.message_id or str(uuid.uuid4()),
        additional_properties=message.additional_properties or None,
        raw_representation=message.raw_representation or message,
    )


def _contents_of(data: Any) -> list[Content]:
    if isinstance(data, list):
        return [content for item in cast("list[Any]", data) for content in _contents_of(item)]
    return [data if isinstance(data, Content) else Content.from_text(data if isinstance(data, str) else str(data))]
