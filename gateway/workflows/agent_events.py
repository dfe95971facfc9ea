"""What of a workflow's events crosses to whoever uses it as an agent, and how answers come back (WF14).

Shared by `workflow_agent` and `functional`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, cast

from gateway.errors import AgentError
from gateway.json_types import JsonObject
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.workflows.agent_executor import is_request
from gateway.workflows.annotations import is_instance_of
from gateway.workflows.encoding import encode
from gateway.workflows.events import CROSSING_TYPES, WorkflowEvent

REQUEST_INFO_FUNCTION_NAME = "request_info"
"""The function that a request calls."""


def updates_of(event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
    """An event as parts of an agent's answer; none where it stays inside."""
    if event.type not in CROSSING_TYPES:
        return []
    if event.type == "request_info":
        return [_update([_to_content(event)], event.source_executor_id)]
    data, author = event.data, event.executor_id
    if isinstance(data, AgentResponseUpdate):
        return [
            AgentResponseUpdate(
                list(data.contents), data.role, data.author_name or author, data.message_id, data.response_id, data.finish_reason
            )
        ]
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
    return [_update(contents, author)] if contents else []


def _to_content(event: WorkflowEvent[Any]) -> Content:
    """A request as a call of `request_info`; what already asks a person stays as it is."""
    if isinstance(event.data, Content) and is_request(event.data):
        return event.data
    arguments: JsonObject = {
        "request_id": event.request_id,
        "source_executor_id": event.source_executor_id,
        "data": encode(event.data),
    }
    return Content.from_function_call(call_id=event.request_id, name=REQUEST_INFO_FUNCTION_NAME, arguments=arguments)


def answers_in(messages: Sequence[Message]) -> dict[str, Any]:
    """The answers to requests in an agent's input, by request id.

    Raises:
        AgentError: There are none, or there is something else.
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
                    f"The workflow waits for answers, and the messages hold a content of type {content.type!r}; "
                    "answer with function_result or function_approval_response contents."
                )
    if not answers:
        raise AgentError("The workflow waits for answers, and the messages hold none.")
    return answers


def _update(contents: list[Content], author: str | None) -> AgentResponseUpdate:
    return AgentResponseUpdate(contents, "assistant", author, str(uuid.uuid4()))


def _of_message(message: Message, author: str | None) -> AgentResponseUpdate:
    return AgentResponseUpdate(list(message.contents), message.role, message.author_name or author, message.message_id or str(uuid.uuid4()))


def _contents_of(data: Any) -> list[Content]:
    if isinstance(data, list):
        return [content for item in cast("list[Any]", data) for content in _contents_of(item)]
    return [data if isinstance(data, Content) else Content.from_text(data if isinstance(data, str) else str(data))]
