"""`AgentExecutor`: a workflow executor (node of the graph) that runs an agent. Public names are those of Microsoft's agent-framework.

The executor collects messages until the agent must answer, and sends the answer along its edges, with the whole conversation. The agent's
requests to a person, such as approval requests, become requests of the workflow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

from gateway.agents.agent import Agent
from gateway.agents.model_call_recorder import RecordModelCalls
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.tools.context import CallContext
from gateway.types.content import Content
from gateway.types.messages import Message, to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.workflows.executor import Executor, handler, response_handler
from gateway.workflows.run_state import RUN_KWARGS_KEY
from gateway.workflows.workflow_context import WorkflowContext

ContextMode = Literal["full", "last_agent", "custom"]


@dataclass
class AgentExecutorRequest:
    """Messages for an agent in a workflow. If `should_respond` is false, they are added to the conversation, and the agent does not run."""

    messages: list[Message]
    should_respond: bool = True


@dataclass
class AgentExecutorResponse:
    """The message that an agent in a workflow sends to the next executors: its answer, and the conversation that ends with this answer."""

    executor_id: str
    agent_response: AgentResponse
    full_conversation: list[Message]

    def with_text(self, text: str) -> AgentExecutorResponse:
        """Return a copy in which one assistant message with `text` replaces the answer, also at the end of the conversation."""
        message = Message("assistant", [text])
        count = len(self.agent_response.messages)
        before = self.full_conversation[:-count] if count else self.full_conversation
        return AgentExecutorResponse(self.executor_id, AgentResponse([message]), [*before, message])


AgentContextOf = WorkflowContext[AgentExecutorResponse, AgentResponse | AgentResponseUpdate]


class AgentExecutor(Executor):
    """A workflow executor (node of the graph) that runs one agent. Its runs use one session, the given or a new one, until `forget`."""

    shows_parts: ClassVar[bool] = True
    """Whether a streamed run yields each part of the agent's answer as an output when the part arrives, instead of the complete answer."""

    def __init__(
        self,
        agent: SupportsAgentRun,
        *,
        session: AgentSession | None = None,
        id: str | None = None,
        context_mode: ContextMode | None = None,
        context_filter: Callable[[list[Message]], list[Message]] | None = None,
    ) -> None:
        """Create an executor for `agent`. The default `id` is the agent's name, or the agent's id if it has no name.

        `context_mode` selects the messages that this agent gets from an agent before it in the graph: the whole conversation (`full`, the
        default), only the answer (`last_agent`), or the messages that `context_filter` returns for the conversation (`custom`).

        Raises:
            ValueError: The agent has neither name nor id, `context_mode` is unknown, or it is `custom` without a `context_filter`.
        """
        super().__init__(id or resolve_agent_id(agent))
        mode = context_mode or "full"
        if mode not in ("full", "last_agent", "custom"):
            raise ValueError("context_mode must be one of 'full', 'last_agent', or 'custom'.")
        if mode == "custom" and context_filter is None:
            raise ValueError("context_filter must be provided when context_mode is set to 'custom'.")
        self._agent = agent
        self._session = session or agent.create_session()
        self._mode: ContextMode = mode
        self._filter = context_filter
        self._cache: list[Message] = []
        self._earlier: list[Message] = []
        """Messages of the conversation before the person's answer, if the agent has asked a person; otherwise empty.

        The agent's session already contains them, so they are not sent to the agent again, but they are part of the conversation that is
        sent to the next executors.
        """
        self._pending: dict[str, Content] = {}
        self._answers: list[Content] = []

    @property
    def agent(self) -> SupportsAgentRun:
        """The agent that this executor runs."""
        return self._agent

    @property
    def description(self) -> str | None:
        """The description of the agent that this executor runs, or `None`."""
        return self._agent.description

    @handler
    async def run(self, request: AgentExecutorRequest, ctx: AgentContextOf) -> None:
        """Handle an `AgentExecutorRequest`: add its messages to the conversation, and run the agent if `should_respond` is true."""
        self._cache += request.messages
        if request.should_respond:
            await self._answer(ctx)

    @handler
    async def from_response(self, prior: AgentExecutorResponse, ctx: AgentContextOf) -> None:
        """Handle another agent's answer: add the messages that `context_mode` selects from its conversation, and run this agent."""
        if self._filter is not None and self._mode == "custom":
            self._cache += self._filter(prior.full_conversation)
        else:
            self._cache += prior.full_conversation if self._mode == "full" else prior.agent_response.messages
        await self._answer(ctx)

    @handler
    async def from_str(self, text: str, ctx: AgentContextOf) -> None:
        """Handle a text: add it to the conversation as a user message, and run the agent."""
        self._cache += to_messages(text)
        await self._answer(ctx)

    @handler
    async def from_message(self, message: Message, ctx: AgentContextOf) -> None:
        """Handle a `Message`: add it to the conversation, and run the agent."""
        self._cache.append(message)
        await self._answer(ctx)

    @handler
    async def from_messages(self, messages: list[str | Message], ctx: AgentContextOf) -> None:
        """Handle a list of messages: add them to the conversation (a text as a user message), and run the agent."""
        self._cache += to_messages(messages)
        await self._answer(ctx)

    @response_handler
    async def handle_user_input_response(self, original_request: Content, response: Content, ctx: AgentContextOf) -> None:
        """Handle a response to one of the agent's requests, such as an approval.

        The response is stored, and the agent runs when each of its requests has a response.
        """
        asked = self._pending.pop(_request_id(original_request), original_request)
        self._answers.append(with_id(response, _request_id(asked)))
        if self._pending:
            return
        role = "tool" if all(answer.type == "function_result" for answer in self._answers) else "user"
        self._cache = [Message(role, self._answers)]
        self._answers = []
        await self._answer(ctx)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        """Return the state of this executor for a checkpoint: messages, the agent's session, open requests and collected responses."""
        return {
            "cache": list(self._cache),
            "earlier": list(self._earlier),
            "agent_session": self._session.to_dict(),
            "pending_agent_requests": dict(self._pending),
            "pending_responses_to_agent": list(self._answers),
        }

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Restore the state of this executor that `on_checkpoint_save` returned."""
        self._cache = list(state["cache"])
        self._earlier = list(state.get("earlier", []))  # checkpoints of earlier versions do not have the key
        self._session = AgentSession.from_dict(state["agent_session"])
        self._pending = dict(state["pending_agent_requests"])
        self._answers = list(state["pending_responses_to_agent"])

    def reset(self) -> None:
        """Drop the collected messages that the agent has not answered yet. The agent's session does not change."""
        self._cache.clear()
        self._earlier.clear()

    def forget(self) -> None:
        """Drop all messages, requests and responses, and start a new session with the agent."""
        self._cache, self._earlier, self._answers, self._pending = [], [], [], {}
        self._session = self._agent.create_session()

    async def publish_answer(self, answer: AgentExecutorResponse, ctx: AgentContextOf, *, is_shown: bool) -> None:
        """Yield the agent's answer as an output of the workflow, and send it along the edges.

        `is_shown` means that the parts of the answer were already yielded while the agent ran; the answer is then sent but not yielded.
        Subclasses override this method to handle the answer differently.
        """
        if not is_shown:
            await ctx.yield_output(self._with_calls(answer.agent_response))
        await ctx.send_message(answer)

    def _with_calls(self, response: AgentResponse) -> AgentResponse:
        """Return the response, preceded by the earlier tool calls whose results it contains.

        A response contains results without their calls if the agent made the calls, asked a person for approval, and then continued.
        """
        results = {content.call_id for message in response.messages for content in message.contents if content.type == "function_result"}
        calls: list[Message] = []
        for message in self._earlier:
            own = copy(message)
            own.contents = [c for c in message.contents if c.type == "function_call" and c.call_id in results]
            calls += [own] if own.contents else []
        if not calls:
            return response
        shown = copy(response)
        shown.messages = [*calls, *response.messages]
        return shown

    async def _answer(self, ctx: AgentContextOf) -> None:
        kwargs = self._run_kwargs(ctx)
        is_streamed = ctx.is_streaming() and self.shows_parts
        if is_streamed:
            response, asked = await self._streamed(ctx, kwargs)
        else:
            run = cast("Callable[..., Awaitable[AgentResponse]]", self._agent.run)
            response = await run(list(self._cache), stream=False, session=self._session, **kwargs)
            asked = list(requests_of(response))
        self._earlier += _without_approvals([*self._cache, *response.messages] if asked else self._cache)
        if asked:
            for request in asked:
                key = ctx.free_request_id(_request_id(request))
                self._pending[key] = request
                await ctx.request_info(with_id(request, key), Content, request_id=key)
            return
        conversation = [*self._earlier, *response.messages]
        await self.publish_answer(AgentExecutorResponse(self.id, response, conversation), ctx, is_shown=is_streamed)
        self._cache, self._earlier = [], []

    async def _streamed(self, ctx: AgentContextOf, kwargs: Mapping[str, Any]) -> tuple[AgentResponse, list[Content]]:
        run = cast("Callable[..., ResponseStream[AgentResponseUpdate, AgentResponse]]", self._agent.run)
        stream = run(list(self._cache), stream=True, session=self._session, **kwargs)
        updates: list[AgentResponseUpdate] = []
        asked: list[Content] = []
        async for update in stream:
            updates.append(update)
            found = [content for content in update.contents if is_request(content)]
            asked += found
            if not found:
                await ctx.yield_output(update)
        finish = cast("Callable[[], Awaitable[AgentResponse]] | None", getattr(stream, "get_final_response", None))
        response = await finish() if finish is not None else AgentResponse.from_updates(updates)
        known = {_request_id(request) for request in asked}
        asked += [request for request in requests_of(response) if _request_id(request) not in known]
        return response, asked

    def _run_kwargs(self, ctx: AgentContextOf) -> dict[str, Any]:
        """Return the keyword arguments for this agent's `run`.

        They contain the arguments that the workflow's caller gave for all agents or for this executor's id. For an `Agent`, they also
        contain the current call context and, in a durable task (background call that resumes after a restart), a middleware that records
        model calls.
        """
        given = cast("Mapping[str, Mapping[str, Any]]", ctx.get_state(RUN_KWARGS_KEY, {}))
        kwargs: dict[str, Any] = {}
        for kind, values in given.items():
            own = values.get(self.id) if ctx.are_by_executor(values) else values
            if own is not None:
                kwargs[kind] = own
        serve_call(self._agent, ctx.call)
        if isinstance(self._agent, Agent):
            kwargs["ctx"] = ctx.call
            if ctx.call.ports.durable is not None:
                kwargs["middleware"] = [RecordModelCalls(ctx.call, ctx.call.ports.durable)]
        return kwargs


@runtime_checkable
class ServesCall(Protocol):
    """An agent that can act on behalf of the tool call that runs the workflow: with the client, rights and deadline of that call."""

    def serve(self, call: CallContext) -> None:
        """Set the tool call on whose behalf the agent's next runs are made. The workflow runs as part of this call."""
        ...


def serve_call(agent: object, call: CallContext) -> None:
    """Pass the tool call that runs the workflow to an agent of the workflow, if the agent has the method `serve` to receive it."""
    if isinstance(agent, ServesCall):
        agent.serve(call)


def resolve_agent_id(agent: SupportsAgentRun) -> str:
    """Return the id of an agent's executor in a workflow graph: the agent's name, or the agent's id if it has no name.

    Raises:
        ValueError: The agent has neither a name nor an id.
    """
    found = agent.name or agent.id
    if not found:
        raise ValueError("Agent must have a non-empty name or id or an explicit id must be provided.")
    return found


def is_agent(value: object) -> bool:
    """Return whether a value is an agent that `AgentExecutor` can run: an object with methods `run` and `create_session`."""
    return callable(getattr(value, "run", None)) and callable(getattr(value, "create_session", None))


def is_request(content: Content) -> bool:
    """Return whether a message's content is a request that a person must answer, such as an approval request."""
    return content.type == "function_approval_request" or bool(content.user_input_request)


def requests_of(response: AgentResponse) -> Sequence[Content]:
    """Return the contents of an agent's response that a person must answer, such as approval requests."""
    return [content for message in response.messages for content in message.contents if is_request(content)]


def _without_approvals(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without approval requests and approval responses, which models do not accept as input.

    Messages that have only such contents are left out.
    """
    kept: list[Message] = []
    for message in messages:
        contents = [content for content in message.contents if content.type not in _APPROVALS]
        if len(contents) == len(message.contents):
            kept.append(message)
        elif contents:
            own = copy(message)
            own.contents = contents
            kept.append(own)
    return kept


_APPROVALS = ("function_approval_request", "function_approval_response")


def _request_id(content: Content) -> str:
    return content.id or content.call_id or ""


def with_id(content: Content, key: str) -> Content:
    """Return a copy of `content`, a request for a person's answer or the response to it, with the id `key`.

    If `content` already has this id, return it without a copy. In an approval request, the id of the tool call to approve does not change.
    """
    if _request_id(content) == key:
        return content
    own = copy(content)
    if content.id:
        own.id = key
    else:
        own.call_id = key
    return own
