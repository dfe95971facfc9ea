"""`BaseAgent`: the base class of all agents. `Agent` calls a model through a chat client; `A2AAgent` calls a remote agent."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

from gateway.errors import UserInputRequired
from gateway.former_names import FormerMethods
from gateway.json_types import JsonObject
from gateway.middleware import listed, replay, sort_middleware
from gateway.sessions.session import AgentSession, SupportsAgentRun
from gateway.sessions.session_context import ContextProvider, accepts
from gateway.tools.function import ApprovalMode, FunctionTool
from gateway.tools.invocation import FunctionInvocationContext
from gateway.tools.run_state_tool import RunStateTool
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")
_CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class BaseAgent(FormerMethods):
    """Base class of agents. A subclass implements `run(messages, *, stream=False, session=None, **kwargs)`."""

    require_per_service_call_history_persistence: bool = False

    def __init__(
        self,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: Any = None,
        additional_properties: JsonObject | None = None,
    ) -> None:
        """Store the configuration; the subclass's `run` decides whether it uses `context_providers` and `middleware`.

        Raises:
            MiddlewareException: An item of `middleware` is not middleware.
        """
        self.id = id or str(uuid.uuid4())
        self.name = name
        self.description = description
        self.context_providers: list[ContextProvider] = list(context_providers or ())
        self.middleware: list[Any] = listed(middleware)
        sort_middleware(self.middleware)  # raises for an item that is not middleware now instead of in the first run
        self.additional_properties: JsonObject = additional_properties or {}

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """Return a new session with this id, or with a random id. A conversation that a history provider stores under the id continues."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """Return a session that continues a conversation that the model's provider stores under `service_session_id`."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_name: str = "task",
        arg_description: str | None = None,
        approval_mode: ApprovalMode = "never_require",
        stream_callback: Callable[[AgentResponseUpdate], Any] | None = None,
        propagate_session: bool = False,
    ) -> FunctionTool[..., Any]:
        """Return a tool with one string argument that runs this agent, for use by another agent.

        Each call starts a new conversation, unless `propagate_session` is set: then a run shares the id and the state of the calling
        agent's session, but not the conversation that the calling agent's model provider stores. `stream_callback` receives the updates
        of each run.

        Raises:
            TypeError: The agent has no `run`.
            ValueError: Neither the agent nor the `name` argument gives a name.
        """
        if not isinstance(self, SupportsAgentRun):
            raise TypeError(f"Agent {type(self).__name__} must implement SupportsAgentRun to be used as a tool: it has no run().")
        if not (name or self.name):
            raise ValueError("Agent tool name cannot be None: give the agent a name, or pass name=.")
        chosen = name if name and _CALLABLE.fullmatch(name) else _tool_name(name or self.name or "")
        argument: JsonObject = {"type": "string", "description": arg_description or f"Task for {chosen}"}
        schema: JsonObject = {"type": "object", "properties": {arg_name: argument}, "required": [arg_name], "additionalProperties": False}

        async def run_agent(invocation: FunctionInvocationContext, **arguments: Any) -> str:
            session = _shared_session(cast("AgentSession | None", invocation.session)) if propagate_session else None
            stream = self._run_for(str(arguments.get(arg_name, "")), session, invocation)
            async for update in stream:
                if stream_callback is not None and inspect.isawaitable(awaited := stream_callback(update)):
                    await awaited
            response = await stream.get_final_response()
            if response.user_input_requests:
                raise UserInputRequired(response.user_input_requests)
            return response.text

        return RunStateTool(  # the run's own tools and models record their steps
            run_agent, name=chosen, description=description or self.description or "", schema=schema, approval_mode=approval_mode
        )

    def _run_for(
        self, task: str, session: AgentSession | None, invocation: FunctionInvocationContext
    ) -> ResponseStream[AgentResponseUpdate, AgentResponse]:
        """Start a streamed run that serves a tool call of another agent.

        The values for tools (`function_invocation_kwargs`) and the context of that call are passed on if `run` has parameters for them.
        """
        run: Callable[..., Any] = cast("Any", self).run
        parameters = inspect.signature(run).parameters
        given: dict[str, Any] = {}
        if accepts(parameters, "function_invocation_kwargs"):
            given["function_invocation_kwargs"] = dict(invocation.kwargs)
        if "ctx" in parameters:
            given["ctx"] = invocation.ctx.child()
        return stream_of(run(task, stream=True, session=session, **given))


def _shared_session(session: AgentSession | None) -> AgentSession | None:
    """Return a new session with the id and state of `session`, but without the conversation that the model's provider stores.

    Several agents that share the session may run at the same time, and cannot continue the same conversation.
    """
    if session is None:
        return None
    own = AgentSession(session_id=session.session_id)
    own.state = session.state
    return own


def _tool_name(name: str) -> str:
    """Convert an agent's name to a tool name of letters, digits and `_`. It never begins with a digit, which some models reject."""
    chosen = _NOT_IN_NAMES.sub("_", name).strip("_") or "agent"
    return f"_{chosen}" if chosen[:1].isdigit() else chosen


def stream_of(answer: Any) -> ResponseStream[AgentResponseUpdate, AgentResponse]:
    """Convert the result of an agent's `run` (a stream, updates, a response, or an awaitable of one of these) to a stream."""
    if isinstance(answer, ResponseStream):
        return cast("ResponseStream[AgentResponseUpdate, AgentResponse]", answer)
    return ResponseStream(_settled(answer), AgentResponse.from_updates)


async def _settled(answer: Any) -> Any:
    found = await answer if inspect.isawaitable(answer) else answer
    return replay(found) if isinstance(found, AgentResponse) else found
