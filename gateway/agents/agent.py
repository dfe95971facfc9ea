"""`Agent`: calls a model through a chat client, with instructions and tools. Methods and parameters have the names of agent-framework.

An agent stores no conversation and can run many at once. The data of a conversation is in an `AgentSession`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, Unpack, cast, overload

from gateway.agents.base_agent import BaseAgent
from gateway.agents.call_history import CallHistory
from gateway.agents.run_context import AgentContext, AgentRunContext, AgentStream, MiddlewareTypes, as_current_run, current_run_context
from gateway.agents.run_loop import RunObserver, RunPlan, run_stream
from gateway.agents.run_updates import AgentUpdates, ReplacedAnswer, with_replaced
from gateway.agents.tracing import traced_run
from gateway.chat.chat_client import OptionsT
from gateway.chat.chat_context import SupportsChatGetResponse
from gateway.chat.loop_options import LoopOptions, check_tool_values, loop_options
from gateway.errors import AgentInvalidRequestException
from gateway.json_types import JsonMapping, JsonObject
from gateway.middleware import SortedMiddleware, listed, sort_middleware, through
from gateway.sessions.compaction_provider import RunCompaction
from gateway.sessions.history import HistoryProvider, InMemoryHistoryProvider
from gateway.sessions.session import AgentSession
from gateway.sessions.session_context import PRINCIPAL_KEY, ContextProvider, SessionContext, call_run_hook, state_of
from gateway.telemetry.instrumentation import OBSERVABILITY_SETTINGS
from gateway.tools.context import CallContext
from gateway.tools.tool_lists import ToolList, normalize_tools, separate_hosted_tools
from gateway.tools.toolbox import guard_in
from gateway.types.compaction import CompactionStrategy, TokenizerProtocol
from gateway.types.copying import last_raw
from gateway.types.messages import AgentRunInputs, Message, own_copies, to_messages
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate
from gateway.types.streams import ResponseStream
from gateway.types.structured import TypedFormat, response_format

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from gateway.agents.mcp_server import Lifespan


class RunArguments(TypedDict, Generic[OptionsT], total=False):
    """Keyword arguments of `Agent.run`, except `stream`."""

    session: AgentSession | None
    middleware: MiddlewareTypes | Sequence[object] | None
    options: OptionsT | ChatOptions | None
    tools: ToolList
    function_invocation_kwargs: JsonMapping | None
    client_kwargs: JsonMapping | None
    compaction_strategy: CompactionStrategy | None
    tokenizer: TokenizerProtocol | None
    ctx: CallContext | None
    observer: RunObserver | None


class Agent(BaseAgent, Generic[OptionsT]):
    """An agent that calls a model through a chat client and executes the tools that the model calls.

    The type parameter is the type of the options that the chat client accepts.
    """

    def __init__(
        self,
        client: SupportsChatGetResponse,
        instructions: str | None = None,
        *,
        id: str | None = None,
        name: str | None = None,
        description: str | None = None,
        tools: Any = None,
        default_options: OptionsT | ChatOptions | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: Any = None,
        function_invocation_configuration: LoopOptions | JsonMapping | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        require_per_service_call_history_persistence: bool = False,
        additional_properties: JsonObject | None = None,
    ) -> None:
        """Configure the agent; nothing runs yet.

        Context providers run in list order before a run and in reverse order after it. `middleware` mixes agent, chat and function
        middleware; the first item is the outermost. `tools` takes plain functions and tool sources such as `MCPTool`; a source contributes
        the tools that it has when a run starts. The caller closes the tool sources, unless it enters the agent with `async with`. Options
        of a run override `default_options`; loop limits in the options override `function_invocation_configuration`.

        With `require_per_service_call_history_persistence`, the agent's history providers load before and store after each model call
        instead of once per run, so a run that fails keeps its completed calls. In this mode, a run fails if the model's provider stores the
        conversation although neither the option `store` nor, without the option, the chat client's default says so.

        Raises:
            TypeError: `client` is not a chat client.
            ValueError: A loop limit is unknown or out of range.
            MiddlewareException: An item of `middleware` is not middleware.
        """
        if not callable(getattr(client, "get_response", None)):
            raise TypeError(
                f"An agent needs a chat client, not {client!r}: pass an object with get_response, such as OpenAIChatClient(model=…)."
            )
        super().__init__(
            id=id,
            name=name,
            description=description,
            context_providers=context_providers,
            middleware=middleware,
            additional_properties=additional_properties,
        )
        self.client = client
        self.instructions = instructions
        self.default_options = cast("ChatOptions", dict(default_options or {}))
        self.tools: list[Any] = normalize_tools(tools) + normalize_tools(self.default_options.pop("tools", None))
        self.function_invocation_configuration = function_invocation_configuration
        loop_options(function_invocation_configuration)  # raises for a wrong limit now instead of in the first run
        self.compaction_strategy = compaction_strategy
        self.tokenizer = tokenizer
        self.require_per_service_call_history_persistence = require_per_service_call_history_persistence
        self.otel_provider_name: str | None = None
        """Provider name in the telemetry of runs; `None` uses the chat client's provider name."""
        self._warned_of_loaders = False
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Enter the chat client and those tool sources that are context managers; leaving the agent closes them."""
        async with AsyncExitStack() as entering:
            for one in (self.client, *self.tools):
                if isinstance(one, AbstractAsyncContextManager):
                    await entering.enter_async_context(cast("AbstractAsyncContextManager[object]", one))
            self._entered = entering.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._entered.aclose()

    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[False] = False,
        **arguments: Unpack[RunArguments[OptionsT]],
    ) -> Awaitable[AgentResponse]: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: Literal[True],
        **arguments: Unpack[RunArguments[OptionsT]],
    ) -> AgentStream: ...
    @overload
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        **arguments: Unpack[RunArguments[OptionsT]],
    ) -> Awaitable[AgentResponse] | AgentStream: ...
    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        middleware: Any = None,
        options: OptionsT | ChatOptions | None = None,
        tools: Any = None,
        function_invocation_kwargs: JsonMapping | None = None,
        client_kwargs: JsonMapping | None = None,
        compaction_strategy: CompactionStrategy | None = None,
        tokenizer: TokenizerProtocol | None = None,
        ctx: CallContext | None = None,
        observer: RunObserver | None = None,
        thread: object = None,
    ) -> Awaitable[AgentResponse] | AgentStream:
        """Run the agent on `messages`: return an awaitable response, or with `stream` a stream of updates.

        `session` continues a stored conversation. `middleware` and `tools` are added to the agent's own for this run only.
        Tools and function middleware receive `function_invocation_kwargs`; the model never does. `ctx` is the context of the gateway call
        that the run serves: tools are called with that call's caller and rights. A run without `ctx` inside another run has the outer
        run's caller and policy checks. A failed run raises `ModelError`, `AgentError` (such as `UnknownTool`), `MiddlewareFailure`, or an
        exception of a context provider or of agent middleware.
        """
        if thread is not None:
            raise TypeError("run() takes no thread: a conversation is an AgentSession; pass session=agent.create_session().")
        check_tool_values(function_invocation_kwargs)
        agent = cast("Agent", self)
        context = AgentContext(
            agent,
            to_messages(messages),
            session,
            stream,
            cast("ChatOptions", dict(options)) if options else {},
            tools,
            client_kwargs=dict(client_kwargs or {}),
            function_invocation_kwargs=dict(function_invocation_kwargs or {}),
            compaction_strategy=compaction_strategy or self.compaction_strategy,
            tokenizer=tokenizer or self.tokenizer,
        )
        given = sort_middleware([*self.middleware, *listed(middleware)])
        around = current_run_context()
        call = ctx or (CallContext() if around is None else around.call.detached())
        steps = _AgentRun(agent, context, given, call, observer)
        current = AgentRunContext(agent, session, tuple(context.messages), context.options, call)
        if not stream:
            return steps.whole(current)
        response: AgentStream = ResponseStream(steps.updates(), steps.folded)
        return response.with_pull_context_manager(lambda: as_current_run(current))

    def warn_of_loaders(self) -> None:
        """Warn once if the agent's history providers load the conversation twice or not at all."""
        if self._warned_of_loaders:
            return
        self._warned_of_loaders = True
        histories = [provider for provider in self.context_providers if isinstance(provider, HistoryProvider)]
        loading = [provider.source_id for provider in histories if provider.replays]
        if len(loading) > 1:
            warnings.warn(
                f"{len(loading)} history providers of agent {self.name or self.id!r} load messages ({', '.join(loading)}), so the model "
                "receives the conversation several times; pass load_messages=False to all but one.",
                stacklevel=2,
            )
        elif histories and not loading:
            warnings.warn(
                f"No history provider of agent {self.name or self.id!r} loads messages, so the model never receives earlier turns; "
                "remove load_messages=False from one of them.",
                stacklevel=2,
            )

    def as_mcp_server(
        self, *, server_name: str = "Agent", version: str | None = None, instructions: str | None = None, lifespan: Lifespan | None = None
    ) -> Server[Any]:
        """Return an MCP server of the Python SDK whose only tool runs this agent on the argument `task`.

        Each call starts a new conversation. The program runs the server on a transport. `moongate run` serves agents with sessions,
        progress, approvals and access control, which this server does not have.
        """
        from gateway.agents.mcp_server import to_mcp_server  # imports the MCP SDK, which takes seconds and few programs need

        return to_mcp_server(cast("Agent", self), name=server_name, version=version or "", instructions=instructions, lifespan=lifespan)


RawAgent = Agent
"""Alias of `Agent`. In agent-framework, `RawAgent` omits middleware and telemetry, which cost nothing here if they are not used."""


class _AgentRun:
    """Executes one run of an agent: agent middleware wraps the context providers, which wrap the loop of model and tool calls."""

    def __init__(
        self, agent: Agent, context: AgentContext, middleware: SortedMiddleware, ctx: CallContext, observer: RunObserver | None
    ) -> None:
        self._agent = agent
        self._context = context
        self._middleware = middleware
        self._ctx = ctx
        self._observer = observer
        self._replaced: list[ReplacedAnswer] = []
        context.loader = self._load_history

    def folded(self, updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
        """Return the response of the run: the response that agent middleware set, or else the `updates` of the run, joined."""
        made = self._context.result if self._middleware.agent else None
        return made if isinstance(made, AgentResponse) else self._fold(updates)

    def _fold(self, updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
        if self._replaced and not self._context.stream_transform_hooks:  # the changes of transform hooks must not be replaced
            hides = all(update.response_id is None for update in updates)
            parts = AgentUpdates(self._replaced[0].message_id.rpartition("-")[0], self._agent.name, self._agent.id, hides)
            updates = with_replaced(updates, self._replaced, parts)
        wanted = self._context.options.get("response_format", self._agent.default_options.get("response_format"))
        response = AgentResponse.from_updates(updates, output_format_type=response_format(wanted))
        response.agent_id = response.agent_id or self._agent.id
        if not self._context.stream:
            response.raw_representation = last_raw(response.raw_representation)
        return response

    async def whole(self, current: AgentRunContext) -> AgentResponse:
        """Run the agent without streaming and return the response."""
        with as_current_run(current):
            return self.folded([update async for update in self.updates()])

    def updates(self) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Return a generator that runs the agent, wrapped by its agent middleware, and yields the updates of the run."""
        layers = self._middleware.agent
        return through(layers, self._context, self._inner, self._fold, AgentResponse) if layers else self._inner()

    def _inner(self) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Return a generator that runs the agent without agent middleware and yields the updates; traced if instrumentation is on."""
        if OBSERVABILITY_SETTINGS.enable_instrumentation:
            return traced_run(self._agent, self._context, self._run())
        return self._run()

    async def _run(self) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Run the loop of model and tool calls and yield its updates. Context providers are called before and after the loop.

        Raises:
            AgentInvalidRequestException: A background run has no session to store its conversation. Or the agent stores messages after
                each model call, and the run continues a conversation that the model's provider stores (see `_stored_by_call`).
        """
        context = self._context
        if context.session is None and cast("JsonMapping", {**self._agent.default_options, **context.options}).get("background"):
            raise AgentInvalidRequestException("A run in the background needs a session: pass session=agent.create_session().")
        providers = self._providers()
        session = AgentSession() if context.session is None and providers else context.session
        around = SessionContext(
            session_id=session.session_id if session is not None else None,
            service_session_id=session.service_session_id if session is not None else None,
            input_messages=context.messages,
            options=context.options,
            metadata={PRINCIPAL_KEY: self._ctx.facts.principal.id},
            call=self._ctx,
        )
        hooked = [(provider, session) for provider in providers] if session is not None else []
        by_call = self._stored_by_call(around, session) if session is not None else None
        loaded, context.loaded = context.loaded or {}, None  # if middleware runs the agent again, the history must be loaded again
        for provider, own in hooked:
            await self._begin(provider, own, around, by_call, loaded.get(provider.source_id))
        plan = await self._plan(around)
        seen: list[AgentResponseUpdate] = []
        async with AsyncExitStack() as closing:
            if by_call is not None:
                plan = replace(plan, history=by_call)
                closing.push_async_callback(by_call.aclose)
            async for update in await closing.enter_async_context(aclosing(run_stream(plan))):
                seen.append(update)
                if by_call is not None:
                    by_call.add_update(update)
                yield update
            if by_call is not None:
                by_call.ended()
        if providers:
            around.finish(self._fold(seen))
            for provider, own in reversed(hooked):
                if by_call is None or not isinstance(provider, HistoryProvider):
                    await call_run_hook(provider, "after_run", self._agent, own, around)

    async def _load_history(self) -> dict[str, list[Message]]:
        """Load the session's earlier messages for middleware that reads them before the run. Return them by history provider id."""
        session = self._context.session
        if session is None or self._is_loaded_elsewhere(session):
            return {}
        return {
            provider.source_id: await provider.load(session.session_id, state_of(session, provider))
            for provider in self._providers()
            if isinstance(provider, HistoryProvider) and provider.load_messages and provider.loads_only
        }

    async def _begin(
        self,
        provider: ContextProvider,
        session: AgentSession,
        around: SessionContext,
        by_call: CallHistory | None,
        loaded: Sequence[Message] | None,
    ) -> None:
        """Call a context provider's `before_run`. If middleware already loaded the provider's messages, use them (`loaded`) instead."""
        is_history = isinstance(provider, HistoryProvider)
        if is_history and (not provider.load_messages or self._is_loaded_elsewhere(session)):
            return  # this history provider only stores messages, or the model's provider stores the conversation
        if loaded is not None:
            around.extend_messages(provider, loaded)
            if by_call is not None:
                by_call.use_run_messages()
            return
        await call_run_hook(provider, "before_run", self._agent, session, around)
        if is_history and by_call is not None:
            by_call.loaded(provider)

    def _stored_by_call(self, around: SessionContext, session: AgentSession) -> CallHistory | None:
        """Return the `CallHistory` that stores messages after each model call; `None` if the agent stores them once per run or not at all.

        Raises:
            AgentInvalidRequestException: The run continues a conversation that the model's provider stores, and `store` (or without
                this option, the chat client's default) is false.
        """
        agent = self._agent
        histories = any(isinstance(provider, HistoryProvider) for provider in agent.context_providers)
        if not agent.require_per_service_call_history_persistence or not histories:
            return None
        options, stores = self._kept_by_provider()
        if not stores and (session.service_session_id or options.get("conversation_id") is not None):
            raise AgentInvalidRequestException(
                "require_per_service_call_history_persistence cannot be used with a conversation that the model's provider keeps; "
                "pass store=True if the provider should keep it, or remove the setting."
            )
        return CallHistory(agent, session, around, is_kept_elsewhere=stores)

    async def _plan(self, around: SessionContext) -> RunPlan:
        agent, context = self._agent, self._context
        tools, hosted = await separate_hosted_tools(
            [
                *agent.tools,
                *normalize_tools(context.tools),
                *normalize_tools(context.options.get("tools")),
                *normalize_tools(around.tools or None),
            ]
        )
        if (guard := guard_in(self._ctx)) is not None:
            tools = guard.guarded(tools)
        options = self._options(around)
        conversation = options.get("conversation_id") or (context.session.service_session_id if context.session else None)
        if conversation:
            options["conversation_id"] = conversation
        client_side = sort_middleware(getattr(agent.client, "function_middleware", None))
        added = sort_middleware(around.get_middleware())
        strategy = context.compaction_strategy or getattr(agent.client, "compaction_strategy", None)
        tokenizer = context.tokenizer or getattr(agent.client, "tokenizer", None)
        return RunPlan(
            client=agent.client,
            messages=own_copies(around.get_messages(include_input=True)),
            tools=tools,
            hosted_tools=hosted,
            options=options,
            loop=loop_options(
                getattr(agent.client, "function_invocation_configuration", None),
                agent.function_invocation_configuration,
                options.get("loop"),
            ),
            ctx=self._ctx,
            stream=context.stream,
            function_middleware=[*client_side.function, *self._middleware.function, *added.function],
            chat_middleware=[*self._middleware.chat, *added.chat],
            session=context.session,
            function_invocation_kwargs=context.function_invocation_kwargs,
            client_kwargs=context.client_kwargs,
            compaction=RunCompaction(strategy, tokenizer) if strategy or tokenizer else None,
            agent_name=agent.name,
            agent_id=agent.id,
            observer=self._observer,
            replaced=self._replaced,
        )

    def _providers(self) -> list[ContextProvider]:
        """Return the agent's context providers.

        If an agent without context providers runs with a session, add an in-memory history provider to the agent, so that the session's
        conversation is stored. Add none if the model's provider stores the conversation.
        """
        agent, context = self._agent, self._context
        if not agent.context_providers and context.session is not None and not self._is_kept_elsewhere(context.session):
            agent.context_providers.append(InMemoryHistoryProvider())
        agent.warn_of_loaders()
        return list(agent.context_providers)

    def _is_loaded_elsewhere(self, session: AgentSession) -> bool:
        by_call = self._agent.require_per_service_call_history_persistence
        return bool(session.service_session_id) or (by_call and self._is_kept_elsewhere(session))

    def _is_kept_elsewhere(self, session: AgentSession) -> bool:
        """Return whether the model's provider stores the conversation, so that no history provider has to load it."""
        options, stores = self._kept_by_provider()
        return bool(session.service_session_id or options.get("conversation_id") or stores)

    def _kept_by_provider(self) -> tuple[JsonMapping, bool]:
        """Return the agent's options overridden by the run's options, and whether the model's provider stores the conversation.

        The option `store` decides whether the provider stores the conversation. Without the option, the chat client's default applies.
        """
        options = {**self._agent.default_options, **{key: value for key, value in self._context.options.items() if value is not None}}
        stores = options.get("store")
        return options, bool(getattr(self._agent.client, "STORES_BY_DEFAULT", False) if stores is None else stores)

    def _options(self, around: SessionContext) -> ChatOptions:
        defaults, own = self._agent.default_options, self._context.options
        merged = cast("ChatOptions", {**defaults, **{key: value for key, value in own.items() if value is not None}})
        for key in ("logit_bias", "metadata"):
            if (first := defaults.get(key)) and (second := own.get(key)):
                cast("JsonObject", merged)[key] = {**first, **second}
        instructions = (self._agent.instructions, defaults.get("instructions"), own.get("instructions"))
        parts = [*dict.fromkeys(instructions), *around.instructions]
        if text := "\n\n".join(part for part in parts if part):
            merged["instructions"] = text
        wanted = response_format(merged.get("response_format"))
        if isinstance(wanted, TypedFormat):
            merged["response_format"] = wanted.schema
        return merged
