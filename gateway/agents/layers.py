"""Mixins with agent-framework's names that add telemetry and middleware to an agent class; `Agent` has both without these mixins.

List the mixins before the class whose `run` they wrap: `class MyAgent(AgentTelemetryLayer, AgentMiddlewareLayer, BaseAgent)`. They have no
effect on subclasses of `Agent`. Their methods pass unknown arguments to the wrapped class.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from gateway.agents.agent import Agent
from gateway.agents.base_agent import stream_of
from gateway.agents.run_context import AgentContext, AgentStream
from gateway.agents.tracing import begin_run, finish_run
from gateway.middleware import check_layer, listed, sort_middleware, through
from gateway.sessions.session import AgentSession
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Operation, follow
from gateway.types.messages import to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream


class AgentTelemetryLayer:
    """Mixin for agent classes that traces each run as a span while instrumentation is enabled (`enable_instrumentation`)."""

    AGENT_PROVIDER_NAME: str = "unknown"
    """Default for the provider name of the agent in telemetry."""

    def __init__(
        self, *args: Any, otel_agent_provider_name: str | None = None, otel_provider_name: str | None = None, **kwargs: Any
    ) -> None:
        """Set the provider name in telemetry. Other arguments go to the class that this mixin wraps."""
        super().__init__(*args, **kwargs)
        self.otel_provider_name: str | None = otel_agent_provider_name or otel_provider_name or self.AGENT_PROVIDER_NAME

    def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any) -> Any:
        """Call `run` of the wrapped class inside a span: return an awaitable response, or with `stream` a stream of updates."""
        answer: Any = cast("Any", super()).run(messages, stream=stream, session=session, **kwargs)
        if isinstance(self, Agent) or not OBSERVABILITY_SETTINGS.enable_instrumentation:
            return answer
        operation = begin_run(self, to_messages(messages), session, kwargs.get("options") or {})
        if not stream:
            return _followed(answer, operation)
        parts = stream_of(answer)
        traced = follow(operation, _read(parts), lambda seen: finish_run(operation, AgentResponse.from_updates(seen)))
        return ResponseStream(traced, lambda _: parts.get_final_response())


class AgentMiddlewareLayer:
    """Mixin for agent classes that wraps agent middleware around each run."""

    def __init__(self, *args: Any, middleware: Any = None, **kwargs: Any) -> None:
        """Store the agent middleware of the list `middleware`. The wrapped class receives all arguments, also the whole list.

        Raises:
            MiddlewareException: An item of `middleware` is not middleware.
            TypeError: The class has no other base that accepts the arguments.
        """
        check_layer(AgentMiddlewareLayer, self, (*args, middleware))
        cast("Any", super()).__init__(*args, middleware=middleware, **kwargs)
        self.agent_middleware: list[Any] = list(sort_middleware(listed(middleware)).agent)

    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, middleware: Any = None, **kwargs: Any
    ) -> Any:
        """Call `run` of the wrapped class inside middleware: first (outermost) the agent's, then the agent middleware of this run."""
        inner: Callable[..., Any] = cast("Any", super()).run
        own = listed(middleware)
        if isinstance(self, Agent):
            return inner(messages, stream=stream, session=session, middleware=middleware, **kwargs)
        layers = [*self.agent_middleware, *sort_middleware(own).agent]
        if not layers:
            return inner(messages, stream=stream, session=session, **kwargs)
        context = AgentContext(cast("Any", self), to_messages(messages), session, stream, kwargs=dict(kwargs))

        def send() -> AsyncGenerator[AgentResponseUpdate, None]:
            return _read(stream_of(inner(context.messages, stream=stream, session=context.session, **context.kwargs)))

        def folded(updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
            return context.result if isinstance(context.result, AgentResponse) else AgentResponse.from_updates(updates)

        answer: AgentStream = ResponseStream(through(layers, context, send, AgentResponse.from_updates, AgentResponse), folded)
        return answer if stream else answer.get_final_response()


async def _followed(answer: Awaitable[AgentResponse], operation: Operation) -> AgentResponse:
    response = AgentResponse()
    try:
        with operation.active():
            response = await answer
        return response
    except BaseException as error:
        operation.fail(error)
        raise
    finally:
        finish_run(operation, response)


async def _read(updates: AgentStream) -> AsyncGenerator[AgentResponseUpdate, None]:
    try:
        async for update in updates:
            yield update
    finally:
        await updates.aclose()
