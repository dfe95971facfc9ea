"""The layers that agents written for agent-framework are put together from; `Agent` already is all of them.

Each goes before the class whose `run` it is around: `class Mine(AgentTelemetryLayer, AgentMiddlewareLayer, BaseAgent)`. Over
`Agent` they do nothing of their own. Their signatures pass on what they do not know, as mixins must.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from gateway.agents.agent import Agent
from gateway.agents.base import stream_of
from gateway.agents.context import AgentContext, AgentStream
from gateway.agents.tracing import begun, finish
from gateway.middleware import check_layer, listed, sort_middleware, through
from gateway.sessions.session import AgentSession
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS, Operation, follow
from gateway.types.messages import to_messages
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream


class AgentTelemetryLayer:
    """A span for each run of an agent of one's own kind, where `enable_instrumentation` was called."""

    AGENT_PROVIDER_NAME: str = "unknown"
    """The provider in telemetry, where none is given."""

    def __init__(
        self, *args: Any, otel_agent_provider_name: str | None = None, otel_provider_name: str | None = None, **kwargs: Any
    ) -> None:
        """The rest goes to the class behind it."""
        super().__init__(*args, **kwargs)
        self.otel_provider_name: str | None = otel_agent_provider_name or otel_provider_name or self.AGENT_PROVIDER_NAME

    def run(self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any) -> Any:
        """The run of the class behind this one, in a span: to be awaited, or with `stream` its parts."""
        answer: Any = cast("Any", super()).run(messages, stream=stream, session=session, **kwargs)
        if isinstance(self, Agent) or not OBSERVABILITY_SETTINGS.enable_instrumentation:
            return answer
        operation = begun(self, to_messages(messages), session, kwargs.get("options") or {})
        if not stream:
            return _followed(answer, operation)
        parts = stream_of(answer)
        told = follow(operation, _read(parts), lambda seen: finish(operation, AgentResponse.from_updates(seen)))
        return ResponseStream(told, lambda _: parts.get_final_response())


class AgentMiddlewareLayer:
    """Agent middleware around the runs of an agent of one's own kind."""

    def __init__(self, *args: Any, middleware: Any = None, **kwargs: Any) -> None:
        """The rest goes to the class behind it, and the list with it: chat and function middleware is that class's to use.

        Raises:
            MiddlewareException: An item is not middleware.
            TypeError: The class has no other base that takes the arguments.
        """
        check_layer(AgentMiddlewareLayer, self, (*args, middleware))
        cast("Any", super()).__init__(*args, middleware=middleware, **kwargs)
        self.agent_middleware: list[Any] = list(sort_middleware(listed(middleware)).agent)

    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, middleware: Any = None, **kwargs: Any
    ) -> Any:
        """The run of the class behind this one inside the agent's middleware, then the run's own."""
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
        finish(operation, response)


async def _read(updates: AgentStream) -> AsyncGenerator[AgentResponseUpdate, None]:
    try:
        async for update in updates:
            yield update
    finally:
        await updates.aclose()
