"""`Agent`: instructions, a model, tools and middleware; `run` answers messages. Names are agent-framework's.

An agent is behaviour only and may run many conversations at once; a conversation's data is an `AgentSession`.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Literal, cast, overload

from gateway.agents.options import AgentContext, AgentStream, LoopOptions
from gateway.agents.run import RunObserver, RunPlan, run_stream
from gateway.chat.base import SupportsChatGetResponse
from gateway.errors import AgentError
from gateway.json_types import JsonObject
from gateway.middleware import Middleware, MiddlewareTermination, compose
from gateway.sessions.context import ContextProvider, SessionContext
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import AgentSession
from gateway.tools.base import Tool, ToolSource
from gateway.tools.context import CallContext
from gateway.tools.invocation import FunctionInvocationContext
from gateway.types.messages import Message, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ResponseStream, Run

Input = str | Message | Sequence[str | Message]


class Agent:
    """An agent over a chat client."""

    def __init__(
        self,
        client: SupportsChatGetResponse,
        instructions: str | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        tools: Tool | ToolSource | Sequence[Tool | ToolSource] = (),
        context_providers: Sequence[ContextProvider] = (),
        settings: AgentSettings | None = None,
    ) -> None:
        """Providers run in list order before a run and in reverse after it; `settings` has the rest.

        A source among `tools` (an `MCPTool`) gives each run the tools it has by then; whoever made it closes it.
        """
        self.id = str(uuid.uuid4())
        self.client = client
        self.instructions = instructions
        self.name = name
        self.description = description
        self.tools: list[Tool | ToolSource] = list(tools) if isinstance(tools, Sequence) else [tools]
        self.context_providers = list(context_providers)
        self.settings = settings or AgentSettings()

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new conversation."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """A conversation that a model provider keeps."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    @overload
    def run(
        self,
        messages: Input,
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        ctx: CallContext | None = None,
        observer: RunObserver | None = None,
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: Input,
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        ctx: CallContext | None = None,
        observer: RunObserver | None = None,
    ) -> AgentStream: ...
    def run(
        self,
        messages: Input,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        options: ChatOptions | None = None,
        ctx: CallContext | None = None,
        observer: RunObserver | None = None,
    ) -> Awaitable[AgentResponse] | AgentStream:
        """Answer `messages`: an awaitable of the whole response, or at once a stream of its parts.

        With a `session` the conversation goes on from where it was and is kept. `ctx` is the call on whose behalf
        the agent runs; its tools are called in that call's name. Raises as `run_stream` does.
        """
        context = AgentContext(self, to_messages(messages), session, stream)
        updates = self._through_middleware(context, options or {}, ctx or CallContext(), observer)
        response: AgentStream = ResponseStream(updates, self._finish)
        return response if stream else Run(response)

    def _finish(self, updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
        response = AgentResponse.from_updates(updates)
        response.agent_id = self.id
        return response

    async def _through_middleware(
        self, context: AgentContext, options: ChatOptions, ctx: CallContext, observer: RunObserver | None
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        async def call() -> None:
            context.result = ResponseStream(self._updates(context, options, ctx, observer), self._finish)

        try:
            await compose(self.settings.middleware, context, call)
        except MiddlewareTermination as stop:
            context.result = context.result or cast("AgentResponse | None", stop.result)
        result = context.result
        if isinstance(result, ResponseStream):
            try:
                async for update in result:
                    yield update
            finally:
                await result.aclose()
        elif result is not None:
            for number, message in enumerate(result.messages):
                message_id = message.message_id or f"message-{number}"
                yield AgentResponseUpdate(message.contents, message.role, message.author_name, message_id, result.response_id)

    async def _updates(
        self, context: AgentContext, options: ChatOptions, ctx: CallContext, observer: RunObserver | None
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """One run with its context providers around it."""
        session = context.session or AgentSession()
        providers = self._providers(context.session)
        around = SessionContext(
            session_id=session.session_id,
            service_session_id=session.service_session_id,
            input_messages=context.messages,
            options=options,
        )
        for provider in providers:
            if isinstance(provider, HistoryProvider) and not provider.load_messages:
                continue  # it only stores (requirements SE13)
            await provider.before_run(agent=self, session=session, context=around, state=_state_of(session, provider))
        plan = RunPlan(
            client=self.client,
            messages=around.get_messages(include_input=True),
            tools=_without_clashes([*await self._current_tools(), *around.tools]),
            options=self._options(options, around),
            loop=self.settings.loop,
            ctx=ctx,
            middleware=self.settings.function_middleware,
            agent_name=self.name,
            observer=observer,
        )
        seen: list[AgentResponseUpdate] = []
        async for update in run_stream(plan):
            seen.append(update)
            yield update
        around.finish(self._finish(seen))
        for provider in reversed(providers):
            await provider.after_run(agent=self, session=session, context=around, state=_state_of(session, provider))

    async def _current_tools(self) -> list[Tool]:
        found: list[Tool] = []
        for item in self.tools:
            if isinstance(item, ToolSource):
                found += await item.tools()
            else:
                found.append(item)
        return found

    def _providers(self, session: AgentSession | None) -> list[ContextProvider]:
        """The agent's providers; a session without any gets a history in itself (requirements SE16)."""
        if session is not None and not self.context_providers and session.service_session_id is None:
            return [InMemoryHistoryProvider()]
        return self.context_providers

    def _options(self, options: ChatOptions, around: SessionContext) -> ChatOptions:
        merged = cast("ChatOptions", {**self.settings.options, **options})
        parts = [self.instructions or "", merged.get("instructions") or "", *around.instructions]
        if text := "\n\n".join(part for part in parts if part):
            merged["instructions"] = text
        return merged


class AgentSettings:
    """What of an agent rarely differs from the defaults."""

    def __init__(
        self,
        *,
        options: ChatOptions | None = None,
        loop: LoopOptions | None = None,
        middleware: Sequence[Middleware[AgentContext]] = (),
        function_middleware: Sequence[Middleware[FunctionInvocationContext]] = (),
    ) -> None:
        """`options` are the agent's own, overlaid by a run's; middleware is outermost first."""
        self.options: ChatOptions = options or {}
        self.loop = loop or LoopOptions()
        self.middleware = tuple(middleware)
        self.function_middleware = tuple(function_middleware)


def _state_of(session: AgentSession, provider: ContextProvider) -> JsonObject:
    return session.state.setdefault(provider.source_id, {})


def _without_clashes(tools: Sequence[Tool]) -> list[Tool]:
    """The tools, each name once.

    Raises:
        AgentError: Two different tools have one name (requirements AG4).
    """
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if by_name.setdefault(tool.definition.name, tool) is not tool:
            raise AgentError(f"Two tools of this agent are called {tool.definition.name!r}.")
    return list(by_name.values())
