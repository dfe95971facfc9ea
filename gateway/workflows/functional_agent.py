"""`FunctionalWorkflowAgent`: an agent that runs a functional workflow (an async function). Names are those of Microsoft's agent-framework.

The function's result becomes the agent's response. Requests of the function to its caller become approval requests for a call of
`request_info`, because clients of agents can show approval requests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar, Literal, Unpack, cast, overload

from pydantic_core import to_jsonable_python

from gateway.agents.base_agent import BaseAgent
from gateway.agents.run_context import AgentStream
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import ContextProvider
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.workflows.agent_events import REQUEST_INFO_FUNCTION_NAME, answers_in, in_call_order, updates_of
from gateway.workflows.agent_executor import is_request
from gateway.workflows.events import EventLog, WorkflowEvent
from gateway.workflows.run_request import RunOptions, RunRequest
from gateway.workflows.run_stream import stream_run
from gateway.workflows.runnable import Runnable
from gateway.workflows.type_hints import is_instance_of


class FunctionalWorkflowAgent(BaseAgent):
    """An agent that runs a functional workflow (an async function): each run of the agent is one run of the workflow."""

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME

    def __init__(
        self,
        workflow: Runnable,
        *,
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
    ) -> None:
        """Create an agent that runs `workflow`. Name and description default to those of the workflow.

        `context_providers` are stored as an attribute but never run, because the function gets only its message.
        """
        own_name = name or workflow.name
        super().__init__(
            id=f"FunctionalWorkflowAgent_{own_name}",
            name=own_name,
            description=description if description is not None else workflow.description,
            context_providers=context_providers,
        )
        self._workflow = workflow

    @property
    def pending_requests(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests of the workflow that have no response yet, by request id."""
        return self._workflow.pending

    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[False] = False, session: AgentSession | None = None, **options: Unpack[RunOptions]
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self, messages: Any = None, *, stream: Literal[True], session: AgentSession | None = None, **options: Unpack[RunOptions]
    ) -> AgentStream: ...
    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **options: Unpack[RunOptions]
    ) -> Awaitable[AgentResponse] | AgentStream:
        """Run the workflow with the messages as its input, or continue it. Return the response, or with `stream` a stream of its parts.

        The workflow continues if `responses` (by request id) or a checkpoint are given. If neither is given and the workflow has open
        requests, the messages must contain the responses, as `function_result` contents or approval responses, and it continues with them.
        """
        updates = ResponseStream(self._updates(RunRequest(messages, **options)), _finish)
        return updates if stream else updates.get_final_response()

    async def _updates(self, request: RunRequest) -> AsyncGenerator[AgentResponseUpdate, None]:
        if request.message is not None and request.responses is None and request.checkpoint_id is None and self._workflow.pending:
            messages = to_messages(cast("list[str | Message]", request.message))
            request = replace(request, message=None, responses=self._answers_in(messages))
        request.check()
        async with aclosing(stream_run(self._workflow, request, EventLog())) as stream:
            async for event in stream:
                if event.type == "request_info":
                    yield AgentResponseUpdate([_to_approval(event)], "assistant", self.name)
                    continue
                for update in updates_of(event):
                    yield update

    def _answers_in(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Return the responses to the workflow's requests that the messages contain, by request id.

        An approval response is converted to a boolean, unless the response type of the request accepts a `Content`.
        """
        answers = answers_in(messages)
        for key, answer in answers.items():
            event = self._workflow.pending.get(key)
            if isinstance(answer, Content) and event is not None and not is_instance_of(answer, event.response_type):
                answers[key] = answer.approved
        return answers


def _finish(updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
    response = AgentResponse.from_updates(updates)
    response.messages = in_call_order(response.messages)
    return response


def _to_approval(event: WorkflowEvent[Any]) -> Content:
    """Return a workflow's request as an approval request for a call of the function `request_info` with the request's data.

    If the request's data is already a content for a person to answer, such as an approval request, this content is returned.
    """
    if isinstance(event.data, Content) and is_request(event.data):
        return event.data
    arguments = {"request_id": event.request_id, "data": to_jsonable_python(event.data, fallback=str)}
    call = Content.from_function_call(call_id=event.request_id, name=REQUEST_INFO_FUNCTION_NAME, arguments=arguments)
    return Content.from_function_approval_request(
        id=event.request_id, function_call=call, additional_properties={"request_id": event.request_id}
    )
