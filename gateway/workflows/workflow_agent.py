"""`WorkflowAgent`: a workflow as an agent: messages in, what the workflow puts out as messages, its requests as function calls.

Only outputs, intermediate outputs and requests cross the boundary (WF14). The workflow keeps its state between runs, so
one agent holds one conversation at a time. Names are agent-framework's.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, overload

from gateway.errors import AgentError
from gateway.json_types import JsonObject
from gateway.sessions.context import ContextProvider, SessionContext
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import AgentSession
from gateway.tools.context import CallContext
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ResponseStream
from gateway.workflows.agent_executor import is_request
from gateway.workflows.annotations import is_compatible, is_instance_of
from gateway.workflows.checkpoints import CheckpointStorage
from gateway.workflows.encoding import encode
from gateway.workflows.events import CROSSING_TYPES, WorkflowEvent, WorkflowRunState
from gateway.workflows.request import RunRequest
from gateway.workflows.stream import live

if TYPE_CHECKING:
    from gateway.workflows.workflow import Workflow

Input = str | Message | Sequence[str | Message]


class WorkflowAgent:
    """Runs a workflow whenever it is run."""

    REQUEST_INFO_FUNCTION_NAME: ClassVar[str] = "request_info"

    def __init__(
        self,
        workflow: Workflow,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
    ) -> None:
        """
        Raises:
            ValueError: The start executor takes no list of messages.
        """
        if not any(is_compatible(list[Message], kind) for kind in workflow.input_types):
            raise ValueError(
                f"Workflow's start executor {workflow.start_executor_id!r} cannot handle list[Message], so it cannot be an agent."
            )
        self.id = id or f"WorkflowAgent_{uuid.uuid4().hex[:8]}"
        self.name = name
        self.description = description
        self.context_providers: list[ContextProvider] = list(context_providers or ())
        self._workflow = workflow

    @property
    def workflow(self) -> Workflow:
        """The workflow."""
        return self._workflow

    @property
    def pending_requests(self) -> Mapping[str, WorkflowEvent[Any]]:
        """What it waits for, by request id."""
        return self._workflow.run_state.pending

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new conversation."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """A conversation that a model provider keeps."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    @overload
    def run(
        self,
        messages: Input | None = None,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: Input | None = None,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse]: ...
    def run(
        self,
        messages: Input | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        checkpoint_id: str | None = None,
        checkpoint_storage: CheckpointStorage | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
        ctx: CallContext | None = None,
    ) -> Awaitable[AgentResponse] | ResponseStream[AgentResponseUpdate, AgentResponse]:
        """Run the workflow with the messages, or, when it waits for answers, with the answers in them.

        Answers are `function_result` contents whose call id is the request's, or approval responses. With a checkpoint
        the workflow is put back there first.

        Raises:
            AgentError: The workflow waits for answers and the messages hold none.
            Exception: Whatever an executor raised.
        """
        given = to_messages(messages) if messages is not None else []
        kwargs = {"function_invocation_kwargs": function_invocation_kwargs, "client_kwargs": client_kwargs}
        own = {key: dict(value) for key, value in kwargs.items() if value is not None} or None
        base = RunRequest(None, None, checkpoint_id, checkpoint_storage, own, ctx)
        updates: ResponseStream[AgentResponseUpdate, AgentResponse] = ResponseStream(
            self._updates(given, session, base, is_streaming=stream), self._finish
        )
        return updates if stream else updates.get_final_response()

    def _finish(self, updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
        response = AgentResponse.from_updates(updates)
        response.agent_id = self.id
        return response

    async def _updates(
        self, given: list[Message], session: AgentSession | None, base: RunRequest, *, is_streaming: bool
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        own = session or AgentSession()
        providers = list(self.context_providers)
        if session is not None and not any(isinstance(item, HistoryProvider) and item.load_messages for item in providers):
            providers.append(InMemoryHistoryProvider())
        around = SessionContext(session_id=own.session_id, service_session_id=own.service_session_id, input_messages=given)
        for provider in providers:
            if isinstance(provider, HistoryProvider) and not provider.load_messages:
                continue
            await provider.before_run(agent=self, session=own, context=around, state=_state_of(own, provider))
        seen: list[AgentResponseUpdate] = []
        async for event in self._events(around.get_messages(include_input=True), given, base, is_streaming=is_streaming):
            for update in self._to_updates(event):
                seen.append(update)
                yield update
        around.finish(self._finish(seen))
        for provider in reversed(providers):
            await provider.after_run(agent=self, session=own, context=around, state=_state_of(own, provider))

    async def _events(
        self, messages: list[Message], given: list[Message], base: RunRequest, *, is_streaming: bool
    ) -> AsyncGenerator[WorkflowEvent[Any], None]:
        """The events of the run, as they come or (for an answer in one piece) afterwards."""
        request = base
        if base.checkpoint_id is not None and given:
            await self._workflow.perform(base, None, events=[])
            request = RunRequest(None, None, None, base.checkpoint_storage, base.run_kwargs, base.ctx)
        if request.checkpoint_id is None:
            is_waiting = self._workflow.status is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
            answers = _answers_in(given) if is_waiting else None
            request = RunRequest(None if is_waiting else messages, answers, None, base.checkpoint_storage, base.run_kwargs, base.ctx)
        events: list[WorkflowEvent[Any]] = []
        if not is_streaming:
            await self._workflow.perform(request, None, events=events)
            for event in events:
                yield event
            return
        stream = live(lambda emit: self._workflow.perform(request, emit, events=events, is_streaming=True))
        try:
            async for event in stream:
                yield event
        finally:
            await stream.aclose()

    def _to_updates(self, event: WorkflowEvent[Any]) -> list[AgentResponseUpdate]:
        if event.type not in CROSSING_TYPES:
            return []
        if event.type == "request_info":
            return [_update([self._to_content(event)], event.source_executor_id)]
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

    def _to_content(self, event: WorkflowEvent[Any]) -> Content:
        """A request as a call of `request_info`; what already asks a person stays as it is."""
        if isinstance(event.data, Content) and is_request(event.data):
            return event.data
        arguments: JsonObject = {
            "request_id": event.request_id,
            "source_executor_id": event.source_executor_id,
            "data": encode(event.data),
        }
        return Content.from_function_call(call_id=event.request_id, name=self.REQUEST_INFO_FUNCTION_NAME, arguments=arguments)


def _state_of(session: AgentSession, provider: ContextProvider) -> JsonObject:
    return session.state.setdefault(provider.source_id, {})


def _answers_in(messages: Sequence[Message]) -> dict[str, Any]:
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
