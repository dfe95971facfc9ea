"""`WorkflowAgent`: an agent that runs a workflow. Names are those of Microsoft's agent-framework.

The workflow gets the agent's input messages. The workflow's outputs become messages of the agent's response, and its requests become
function calls in the response. The workflow object has state between runs, so an agent can have only one conversation at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Unpack, overload

from gateway.agents.base_agent import BaseAgent
from gateway.agents.run_context import AgentStream
from gateway.agents.run_updates import answer_of
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import ContextProvider, SessionContext, call_run_hook
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.workflows.agent_events import (
    REQUEST_INFO_FUNCTION_NAME,
    RequestInfoFunctionArgs,
    answers_in,
    in_call_order,
    updates_of,
    whole_response,
)
from gateway.workflows.events import EventLog, WorkflowEvent, WorkflowRunState
from gateway.workflows.run_request import AgentOptions, RunRequest
from gateway.workflows.run_stream import stream_run
from gateway.workflows.runnable import Runnable
from gateway.workflows.type_hints import is_compatible

Input = str | Message | Sequence[str | Message]


class WorkflowAgent(BaseAgent):
    """An agent that runs a workflow: each run of the agent is one run of the workflow."""

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = REQUEST_INFO_FUNCTION_NAME
    RequestInfoFunctionArgs = RequestInfoFunctionArgs
    """Class of the arguments of the function call that represents a request of the workflow.

    An alias for programs that were written for Microsoft's agent-framework."""

    def __init__(
        self,
        workflow: Runnable,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
    ) -> None:
        """Create an agent that runs `workflow`. The default id is random.

        Raises:
            ValueError: A run of the workflow cannot begin with a `list[Message]`.
        """
        if not any(is_compatible(list[Message], kind) for kind in workflow.input_types):
            raise ValueError(
                f"Workflow's start executor cannot handle list[Message], so it cannot be an agent; it is {workflow.entry_id!r}."
            )
        own_id = id or f"WorkflowAgent_{uuid.uuid4().hex[:8]}"
        super().__init__(id=own_id, name=name, description=description, context_providers=context_providers)
        self._workflow = workflow

    @property
    def workflow(self) -> Runnable:
        """The workflow that the agent runs."""
        return self._workflow

    @property
    def pending_requests(self) -> Mapping[str, WorkflowEvent[Any]]:
        """Requests of the workflow that have no response yet, by request id."""
        return self._workflow.pending

    @staticmethod
    def merge_updates(updates: Sequence[AgentResponseUpdate], response_id: str) -> AgentResponse:
        """Combine the updates of several agents, which are interleaved parts of their answers, into one response.

        The response has the answers one after the other, in the order of their first updates.
        """
        answers = list(dict.fromkeys(answer_of(update) for update in updates))
        answers.sort(key=lambda answer: answer is None)  # updates that do not belong to an answer come last
        response = AgentResponse.from_updates([update for answer in answers for update in updates if answer_of(update) == answer])
        response.messages = in_call_order(response.messages)
        response.response_id = response_id
        return response

    @overload
    def run(
        self,
        messages: Input | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        **options: Unpack[AgentOptions],
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self, messages: Input | None = None, *, stream: Literal[True], session: AgentSession | None = None, **options: Unpack[AgentOptions]
    ) -> AgentStream: ...
    def run(
        self, messages: Input | None = None, *, stream: bool = False, session: AgentSession | None = None, **options: Unpack[AgentOptions]
    ) -> Awaitable[AgentResponse] | AgentStream:
        """Run the workflow with the messages as its input. Return the response, or with `stream=True` a stream of its parts.

        If the workflow has open requests, it continues with the responses that the messages must contain: `function_result` contents with
        the request's id as call id, or approval responses. With a `checkpoint_id`, the workflow first continues from the checkpoint. If
        messages are given, the outputs of that run are dropped, and the messages are then handled as described above.

        Raises:
            AgentError: The workflow has open requests, but the messages contain no response, or contain contents that are not responses.
            Exception: Any exception that an executor of the workflow raised.
        """
        given = to_messages(messages) if messages is not None else []
        base = RunRequest.of_graph(None, **options)
        response_id = None if stream else str(uuid.uuid4())
        updates: AgentStream = ResponseStream(
            self._updates(given, session, base, response_id), partial(self._finish, response_id=response_id)
        )
        return updates if stream else updates.get_final_response()

    def _finish(self, updates: Sequence[AgentResponseUpdate], *, response_id: str | None) -> AgentResponse:
        """Combine the updates (parts of the response) of a run into the agent's response.

        `response_id` is the id of the response if the run is not streamed. If it is `None`, the id comes from the updates.
        """
        ids = [update.message_id for update in updates]
        in_parts = response_id is None or None in ids or len(set(ids)) < len(ids)
        response = AgentResponse.from_updates(updates) if in_parts else whole_response(updates)
        response.messages = in_call_order(response.messages)
        response.agent_id = self.id
        response.response_id = response_id or response.response_id
        return response

    async def _updates(
        self, given: list[Message], session: AgentSession | None, base: RunRequest, response_id: str | None
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        own = session or AgentSession()
        providers = self.context_providers
        if session is not None and not any(isinstance(item, HistoryProvider) and item.load_messages for item in providers):
            providers.append(InMemoryHistoryProvider())
        around = SessionContext(session_id=own.session_id, service_session_id=own.service_session_id, input_messages=given)
        for provider in providers:
            if isinstance(provider, HistoryProvider) and not provider.load_messages:
                continue
            await call_run_hook(provider, "before_run", self, own, around)
        seen: list[AgentResponseUpdate] = []
        async for event in self._events(around.get_messages(include_input=True), given, base, is_streaming=response_id is None):
            for update in updates_of(event):
                seen.append(update)
                yield update
        around.finish(self._finish(seen, response_id=response_id))
        for provider in reversed(providers):
            await call_run_hook(provider, "after_run", self, own, around)

    async def _events(
        self, messages: list[Message], given: list[Message], base: RunRequest, *, is_streaming: bool
    ) -> AsyncGenerator[WorkflowEvent[Any], None]:
        """Run or continue the workflow, and yield its events: while the run continues if `is_streaming`, otherwise after its end.

        `messages` is the input of a new run, including earlier messages of the session; `given` are the messages of this call only.
        """
        request = base
        if base.checkpoint_id is not None and given:
            await self._workflow.perform(base, EventLog())
            request = replace(base, checkpoint_id=None)
        if request.checkpoint_id is None:
            if self._workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
                request = replace(request, responses=answers_in(given))
            else:
                request = replace(request, message=messages)
        if not is_streaming:
            log = EventLog()
            await self._workflow.perform(request, log)
            for event in log.events:
                yield event
            return
        async with aclosing(stream_run(self._workflow, request, EventLog())) as stream:
            async for event in stream:
                yield event
