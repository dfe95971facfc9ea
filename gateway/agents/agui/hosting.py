"""Serves an agent of a program over AG-UI: `add_agent_framework_fastapi_endpoint` and `AgentFrameworkAgent`, as in agent-framework.

The program provides the web application, its authentication and its server. The AG-UI client stores the conversation and sends all of it
with each run; the AG-UI thread id becomes the id of the run's session. `server.agui_runs` serves the agents of the gateway instead.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol, cast

from ag_ui.core import BaseEvent, RunAgentInput
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.agents.agui.conversion import problem_of, to_messages, to_tools
from gateway.agents.agui.response_body import Channel, EventStream, refusal
from gateway.agents.agui.run_events import RunEvents
from gateway.agents.base_agent import stream_of
from gateway.agents.run_approvals import STATE_KEY
from gateway.errors import GatewayError, text_for_caller
from gateway.json_types import JsonMapping, JsonObject
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import accepts
from gateway.types.content import Content
from gateway.types.messages import Message

logger = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Maximum number of AG-UI threads whose approval requests are stored; the oldest thread's requests are dropped."""

_ANSWER: JsonObject = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}

AgentFactory = Callable[[RunAgentInput], SupportsAgentRun | Awaitable[SupportsAgentRun]]
"""Function that creates the agent for one AG-UI request; needed for agents and workflows that can execute only one run at a time."""


class WebApplication(Protocol):
    """Interface of a Starlette or FastAPI application: the method with which an agent is served at a path."""

    def add_route(self, path: str, route: Any, methods: list[str] | None = None) -> None:
        """Register the request handler `route` for a path."""
        ...


class AgentFrameworkAgent:
    """Adapter that runs an agent, or for each request a new agent that a factory creates, and yields the run as AG-UI events."""

    def __init__(self, agent: SupportsAgentRun | AgentFactory, name: str | None = None, description: str | None = None) -> None:
        """Wrap an agent or a function that creates agents. `name` and `description` default to those of the agent.

        Raises:
            TypeError: `agent` is neither an agent nor a function.
        """
        if not isinstance(agent, SupportsAgentRun) and not callable(agent):
            one = " A workflow executes one run at a time: pass a function that builds it and returns its as_agent()."
            hint = one if hasattr(agent, "as_agent") else ""
            text = f"AG-UI serves an agent, or a function that creates an agent for each request; not a {type(agent).__name__}.{hint}"
            raise TypeError(text)
        self.agent = agent
        self.name = name or getattr(agent, "name", None) or "agent"
        self.description = description or getattr(agent, "description", None) or ""
        self._waiting: OrderedDict[str, JsonObject] = OrderedDict()
        """Open approval requests of AG-UI threads, by thread id, in the form in which a session's state stores them."""

    async def run(self, request: RunAgentInput | JsonMapping) -> AsyncGenerator[BaseEvent, None]:
        """Run the agent for an AG-UI request and yield all events of the run. Every error during the run becomes a `RunErrorEvent`.

        Raises:
            ValidationError: The request is not a `RunAgentInput`.
        """
        wanted = request if isinstance(request, RunAgentInput) else RunAgentInput.model_validate(request)
        events = RunEvents(wanted)
        for event in events.started():
            yield event
        asked: dict[str, Content] = {}
        try:
            agent = await self._agent_for(wanted)
            session = agent.create_session(session_id=wanted.thread_id)
            try:  # a ValueError here is the client's mistake and is sent to it; a ValueError of the program's agent is only logged
                tools = _tools_for(agent, wanted)
                messages = self._resumed(wanted, session)
            except ValueError as error:
                for event in events.failed(str(error), "invalid_request"):
                    yield event
                return
            stream = stream_of(cast("Any", agent).run(messages, stream=True, session=session, **tools))
            try:
                async for update in stream:
                    asked |= {c.id or "": c for c in update.contents if c.type == "function_approval_request"}
                    for event in events.update(update):
                        yield event
            finally:
                await stream.aclose()
            self._remember(wanted.thread_id, session, asked)
            ending = events.interrupted({key: _question(request) for key, request in asked.items()}) if asked else events.finished()
        except GatewayError as error:
            ending = events.failed(text_for_caller(error), type(error).__name__)
        except Exception:  # the program's agent may raise anything
            logger.exception("AG-UI run failed agent=%s", self.name)
            ending = events.failed("The run failed with an internal error; see the log of the application.", "internal")
        for event in ending:
            yield event

    async def _agent_for(self, wanted: RunAgentInput) -> SupportsAgentRun:
        if isinstance(self.agent, SupportsAgentRun):
            return self.agent
        made = cast("object", self.agent(wanted))
        agent = cast("object", await made) if inspect.isawaitable(made) else made
        if not isinstance(agent, SupportsAgentRun):
            raise TypeError(f"The function that creates the agent of an AG-UI run returned a {type(agent).__name__}, not an agent.")
        return agent

    def _resumed(self, wanted: RunAgentInput, session: AgentSession) -> list[Message]:
        """Return the conversation of an AG-UI request; its answers to approval requests (`resume`) become a user message at the end.

        Raises:
            ValueError: An answer matches no open approval request of the thread; the requests stay open.
        """
        messages = to_messages(wanted.messages, wanted.context or ())
        state = self._waiting.get(wanted.thread_id)
        pending = cast("dict[str, JsonObject]", (state or {}).get("pending") or {})
        answers: list[Content] = []
        for entry in wanted.resume or ():
            call = pending.get(entry.interrupt_id)
            if call is None:
                raise ValueError(f"`resume` answers {entry.interrupt_id!r}, which is not an open request of thread {wanted.thread_id!r}.")
            approved = entry.status != "cancelled" and _is_yes(entry.payload)
            answers.append(Content.from_function_approval_response(approved, entry.interrupt_id, Content.from_dict(call)))
        self._waiting.pop(wanted.thread_id, None)
        if not answers:
            return messages
        session.state[STATE_KEY] = state
        return [*messages, Message("user", answers)]

    def _remember(self, thread_id: str, session: AgentSession, asked: JsonMapping) -> None:
        if not asked:
            return
        self._waiting[thread_id] = cast("JsonObject", session.state.get(STATE_KEY) or {})
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)


def add_agent_framework_fastapi_endpoint(
    app: WebApplication, agent: SupportsAgentRun | AgentFactory | AgentFrameworkAgent, path: str = "/"
) -> None:
    """Serve an agent over AG-UI at a path of a FastAPI or Starlette application. The application is responsible for access control."""
    hosted = agent if isinstance(agent, AgentFrameworkAgent) else AgentFrameworkAgent(agent)

    async def serve(request: Request) -> Response:
        try:
            wanted = RunAgentInput.model_validate_json(await request.body())
        except ValidationError as error:
            return refusal(400, f"The body is not a RunAgentInput: {problem_of(error)}")
        return _HostedRun(hosted, wanted)

    app.add_route(path, serve, methods=["POST"])


class _HostedRun(EventStream):
    """HTTP response that streams one run of a program's agent as AG-UI events."""

    def __init__(self, hosted: AgentFrameworkAgent, wanted: RunAgentInput) -> None:
        super().__init__()
        self._hosted = hosted
        self._wanted = wanted

    async def run(self, channel: Channel) -> None:
        """Run the agent and send each AG-UI event of the run."""
        events = self._hosted.run(self._wanted)
        try:
            async for event in events:
                await channel.send([event])
        finally:
            await events.aclose()


def _tools_for(agent: SupportsAgentRun, wanted: RunAgentInput) -> dict[str, Any]:
    """Return keyword arguments for the agent's `run` with the tools of the AG-UI request, if it has any.

    Raises:
        ValueError: The agent's `run` accepts no tools.
    """
    if not wanted.tools:
        return {}
    if not accepts(inspect.signature(agent.run).parameters, "tools"):
        raise ValueError(f"Agent {agent.name!r} accepts no tools from the application.")
    return {"tools": to_tools(wanted.tools)}


def _question(request: Content) -> JsonObject:
    """Convert an approval request to a request for input that the AG-UI client receives: a message and the schema of the answer."""
    call = request.function_call
    name = call.name if call is not None else ""
    return {"method": "tool_approval", "params": {"message": f"May the tool {name!r} be called?", "requestedSchema": _ANSWER}}


def _is_yes(payload: object) -> bool:
    """Return whether the answer to an approval request is `true` or `{"approved": true}`; every other answer rejects the tool call."""
    if isinstance(payload, dict):
        return cast("JsonObject", payload).get("approved") is True
    return payload is True
