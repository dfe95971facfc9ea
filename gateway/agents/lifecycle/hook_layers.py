"""`lifecycle_middleware`: converts lifecycle hooks to agent, chat and function middleware.

This is the only module that uses `Turn`, the object that calls the hooks of one run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

import anyio

from gateway.agents.lifecycle.hook_state import HookEvents
from gateway.agents.lifecycle.hooks import (
    FunctionContext,
    FunctionHandler,
    FunctionRequest,
    LifecycleHooks,
    MessageTurnContext,
    ModelHandler,
    ModelRequest,
    ModelStreamHandler,
    TurnFacts,
    check_hooks,
    overrides,
)
from gateway.agents.lifecycle.sealed import FixedDict, fixed, free, set_fields
from gateway.agents.lifecycle.turn import OpenTurns, Turn
from gateway.agents.run_context import AgentContext, AgentMiddleware, AgentStream
from gateway.chat.chat_context import ChatContext
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.errors import MiddlewareFailure, MiddlewareTermination, UserInputRequired
from gateway.json_types import JsonValue, members_of
from gateway.middleware import CallNext, as_answer, replay
from gateway.staging import ExperimentalFeature, experimental
from gateway.tools.base import Tool
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.options import ChatOptions
from gateway.types.responses import AgentResponse, AgentResponseUpdate, ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

CLEAN_UP_SECONDS = 5.0
"""Time limit, in seconds, for the `after_*` hooks of a run that failed or was cancelled, or whose stream was not read to its end."""


@experimental(feature_id=ExperimentalFeature.LIFECYCLE_HOOKS)
def lifecycle_middleware(*hooks: LifecycleHooks, events: HookEvents | None = None) -> list[object]:
    """Return one agent, one chat and one function middleware that call the given hooks. Add all three, adjacent, to `Agent(middleware=…)`.

    `events` receives the events that the hooks send to the program.

    Raises:
        MiddlewareException: An argument is not an instance of a `LifecycleHooks` class, or has a hook that is not async.
    """
    for hook in hooks:
        check_hooks(hook)
    turns = OpenTurns(hooks, events or HookEvents())
    return [_AgentLayer(turns), _ChatLayer(turns), _FunctionLayer(turns)]


class _AgentLayer(AgentMiddleware):
    """Agent middleware that calls the lifecycle hooks of a whole run: `before_message_turn`, `after_message_turn` and `on_error`."""

    def __init__(self, turns: OpenTurns) -> None:
        self._turns = turns

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        changed: list[AgentResponse] = []
        steps = self._steps(context, call_next, changed)
        if context.stream:
            context.result = ResponseStream(steps, lambda updates: changed[-1] if changed else AgentResponse.from_updates(updates))
            return
        async with aclosing(steps):
            async for _ in steps:
                pass

    async def _steps(
        self, context: AgentContext, call_next: CallNext, changed: list[AgentResponse]
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """Run the agent and call the hooks of the run. Yield the updates of a streamed run; without streaming, yield nothing.

        If a hook may have changed the run's response, the response is appended to `changed`.
        """
        key, turn = self._turns.open(_facts(context))
        hook_context = _turn_context(context, turn)
        stopped: MiddlewareTermination | None = None
        ended = False
        try:
            try:
                loaded = await context.load_history() if turn.sees_history else {}
                hook_context.history[:0] = [message for messages in loaded.values() for message in messages]
                await turn.begin(hook_context)
                _apply_input(context, hook_context, loaded)
                async with aclosing(_run_inner(context, call_next, hook_context)) as updates:
                    async for update in updates:
                        yield update
            except MiddlewareTermination as stop:
                stopped = stop
            except Exception as error:  # `on_error` receives every exception; `report` raises it again unless a hook ends the run
                set_fields(hook_context, error=error)
                reason = await turn.report("message_turn", error)
                context.result = AgentResponse(messages=[Message("assistant", [reason])])
                set_fields(hook_context, response=context.result)
                if context.stream:
                    for update in context.result.to_updates():
                        yield update
            ended = True
            if (response := await _end_turn(turn, hook_context)) is not None:
                changed.append(response)
            if stopped is not None and not (context.stream and hook_context.response is not None):
                raise stopped
        finally:
            self._turns.close(key)
            if not ended:
                with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
                    await turn.end(hook_context)


async def _end_turn(turn: Turn, hook_context: MessageTurnContext) -> AgentResponse | None:
    """Call the hooks `after_message_turn` at the end of a run. Return the run's response if a hook may have changed it, else `None`."""
    given = None if hook_context.response is None else hook_context.response.messages
    before = [] if given is None else [*given]
    if given is not None:
        set_fields(hook_context, turn_history=given)
    await turn.end(hook_context)
    if hook_context.response is None:
        return None
    if hook_context.turn_history is not given:
        hook_context.response.messages = hook_context.turn_history
    is_changed = hook_context.error is None or hook_context.response.messages != before
    return hook_context.response if turn.changes_response and is_changed else None


async def _run_inner(
    context: AgentContext, call_next: CallNext, hook_context: MessageTurnContext
) -> AsyncGenerator[AgentResponseUpdate, None]:
    """Run the inner middleware and the agent, store the response in `hook_context`, and yield the updates of a streamed run.

    Raises:
        MiddlewareTermination: Inner middleware ended the run; the response that it set is stored.
    """
    own = context.result if context.stream else None
    stopped: MiddlewareTermination | None = None
    try:
        await call_next()
    except MiddlewareTermination as stop:
        stopped = stop
    given = None if context.result is own else context.result
    if stopped is not None and given is None:
        given = stopped.result
    answer: AgentStream | AgentResponse | None = as_answer(given, AgentResponse.from_updates, AgentResponse)
    context.result = answer
    if isinstance(answer, ResponseStream):
        async with aclosing(answer) as inner:
            async for update in inner:
                yield update
        set_fields(hook_context, response=await answer.get_final_response())
    elif answer is not None:
        set_fields(hook_context, response=answer)
        for update in answer.to_updates() if context.stream else ():
            yield update
    if stopped is not None:
        raise stopped


class _ChatLayer(ChatMiddleware):
    """Chat middleware that calls the lifecycle hooks around each iteration (a model call and its tool calls) and around each model call."""

    def __init__(self, turns: OpenTurns) -> None:
        self._turns = turns

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        turn = self._turns.current
        if turn is None:
            await call_next()
        elif context.stream:
            context.result = ResponseStream(self._streamed(turn, context, call_next), ChatResponse.from_updates)
        else:
            context.result = await self._whole(turn, context, call_next)

    async def _whole(self, turn: Turn, context: ChatContext, call_next: CallNext) -> ChatResponse:
        source = "iteration"
        try:
            request, answer = await _begin(turn, context)
            source = "model_call"
            if answer is None:
                handler: ModelHandler = _whole_sender(context, call_next)
                for hook in turn.hooks:
                    handler = _wrapped(hook.wrap_model_call, handler)
                answer = await handler(request)
            source = "iteration"
            if not await turn.lets_tools_run(answer):
                for message in answer.messages:
                    message.contents = _without_calls(message.contents)
            return answer
        except MiddlewareTermination:
            raise
        except Exception as error:  # `on_error` receives every exception; `report` raises it again unless a hook ends the run
            reason = await turn.report(source, error)
            return _reply(reason)

    async def _streamed(self, turn: Turn, context: ChatContext, call_next: CallNext) -> AsyncGenerator[ChatResponseUpdate, None]:
        source = "iteration"
        seen: list[ChatResponseUpdate] = []
        held: list[ChatResponseUpdate] = []
        try:
            request, answer = await _begin(turn, context)
            source = "model_call"
            handler = _stream_sender(context, call_next)
            for hook in turn.hooks:
                handler = _stream_wrapped(hook, handler)
            updates = replay(answer) if answer is not None else handler(request)
            try:
                async for update in updates:
                    seen.append(update)
                    if turn.holds_calls and any(content.type == "function_call" for content in update.contents):
                        held.append(update)
                    else:
                        yield update
            finally:
                if (close := getattr(updates, "aclose", None)) is not None:
                    await close()
            source = "iteration"
            runs = await turn.lets_tools_run(ChatResponse.from_updates(seen), is_streamed=True)
            for update in held:
                update.contents = update.contents if runs else _without_calls(update.contents)
                yield update
        except MiddlewareTermination:
            raise
        except Exception as error:  # `on_error` receives every exception; `report` raises it again unless a hook ends the run
            reason = await turn.report(source, error)
            yield ChatResponseUpdate(contents=[Content.from_text(reason)], role="assistant")


class _FunctionLayer(FunctionMiddleware):
    """Function middleware that calls the lifecycle hooks around each tool call."""

    def __init__(self, turns: OpenTurns) -> None:
        self._turns = turns

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        turn = self._turns.current
        if turn is None:
            await call_next()
            return
        call_id = str(context.metadata.get("call_id") or "")
        hook_context = FunctionContext(
            state=turn.state,
            events=turn.events,
            facts=turn.facts,
            iteration=turn.iteration,
            function=context.function,
            function_name=context.function.definition.name,
            call_id=call_id,
            arguments=fixed(context.arguments, "arguments"),
            toolkit=_toolkit(context.function),
        )
        try:
            await self._call(turn, hook_context, context, call_next)
        except (MiddlewareTermination, MiddlewareFailure, UserInputRequired):
            raise
        except Exception as error:  # `on_error` receives every exception; `report` raises it again unless a hook ends the run
            set_fields(hook_context, error=error)
            reason = await turn.report("tool_call", error)
            raise MiddlewareTermination(reason, result=reason) from error
        finally:
            set_fields(hook_context, result=context.result)
            text = None if hook_context.error is None else str(hook_context.error)
            await turn.end_function(hook_context, Content.from_function_result(call_id, context.result, text))

    async def _call(self, turn: Turn, hook_context: FunctionContext, context: FunctionInvocationContext, call_next: CallNext) -> None:
        await turn.begin_function(hook_context)
        if hook_context.block_execution:
            context.result = hook_context.override_result
            return
        if hook_context.call_id in turn.blocked:
            context.result = turn.blocked.pop(hook_context.call_id)
            return

        arguments = context.arguments

        async def send(request: FunctionRequest) -> JsonValue:
            context.arguments = dict(arguments) if request.arguments is hook_context.arguments else free(dict(request.arguments))
            await call_next()
            return context.result

        handler: FunctionHandler = send
        for hook in turn.hooks:
            handler = _wrapped(hook.wrap_function_call, handler)
        request = FunctionRequest(
            function=hook_context.function,
            function_name=hook_context.function_name,
            call_id=hook_context.call_id,
            arguments=hook_context.arguments,
            state=turn.state,
            iteration=turn.iteration,
            toolkit=hook_context.toolkit,
            facts=turn.facts,
        )
        context.result = await handler(request)


# -- turns -------------------------------------------------------------------------------------------------------


def _facts(context: AgentContext) -> TurnFacts:
    agent, session = context.agent, context.session
    conversation = context.options.get("conversation_id") if session is None else session.session_id
    return TurnFacts(agent_name=agent.name or agent.id, conversation_id=conversation, run_options=FixedDict(context.options, "run_options"))


def _turn_context(context: AgentContext, turn: Turn) -> MessageTurnContext:
    index = _newest_of_user(context.messages)
    newest = None if index is None else context.messages[index]
    history = [message for number, message in enumerate(context.messages) if number != index]
    text = "" if newest is None else newest.text
    return MessageTurnContext(state=turn.state, events=turn.events, facts=turn.facts, user_message=text, history=history, message=newest)


def _apply_input(context: AgentContext, hook_context: MessageTurnContext, loaded: Mapping[str, Sequence[Message]]) -> None:
    """Apply the hooks' changes of the history and the user's message (`hook_context`) to the run (`context`)."""
    index = _newest_of_user(context.messages)
    newest = [] if index is None else [context.messages[index]]
    if hook_context.user_message != (newest[0].text if newest else ""):
        others = [content for message in newest for content in message.contents if content.type != "text"]
        newest = [Message("user", [Content.from_text(hook_context.user_message), *others])]
    context.loaded, rest = _split(hook_context.history, loaded, context.messages)
    context.messages = [*rest, *newest]


def _split(
    history: Sequence[Message], loaded: Mapping[str, Sequence[Message]], given: Sequence[Message]
) -> tuple[dict[str, list[Message]], list[Message]]:
    """Divide the run's `history`, which hooks may have changed, into loaded messages, by history provider, and the run's input.

    `loaded` maps each provider to the messages that it loaded; `given` has the run's own input. Loaded messages are not stored again;
    input messages are stored. A message that a hook added counts as input if it follows the run's own input, or if no provider loaded
    messages. Otherwise it counts as loaded by the provider of the next loaded message, or by the last provider if no such message follows.
    """
    homes = {id(message): source for source, messages in loaded.items() for message in messages}
    own = {id(message) for message in given}
    kept: dict[str, list[Message]] = {source: [] for source in loaded}
    rest: list[Message] = []
    new: list[Message] = []
    for message in history:
        if (source := homes.get(id(message))) is not None:
            kept[source] += [*new, message]
            new = []
        elif rest or id(message) in own or not loaded:
            rest.append(message)
        else:
            new.append(message)
    if new:
        kept[next(reversed(kept))] += new
    return kept, rest


def _newest_of_user(messages: list[Message]) -> int | None:
    return next((index for index in range(len(messages) - 1, -1, -1) if messages[index].role == "user"), None)


# -- model calls -------------------------------------------------------------------------------------------------


async def _begin(turn: Turn, context: ChatContext) -> tuple[ModelRequest, ChatResponse | None]:
    """Call the hooks `before_iteration`. Return the model request with the hooks' changes, and a response or `None`.

    If a hook skipped the model call or ended the run, the response is used instead of calling the model.
    """
    hook_context = await turn.begin_iteration(list(context.messages), cast("ChatOptions", dict(context.options)))
    model = hook_context.options.get("model") or getattr(context.client, "model", None)
    request = ModelRequest(
        model=model,
        messages=tuple(hook_context.messages),
        options=FixedDict(hook_context.options, "options"),
        state=turn.state,
        iteration=hook_context.iteration,
        facts=turn.facts,
    )
    if (reason := turn.ended_because) is not None:
        return request, _reply(reason)
    if not hook_context.skip_llm_call:
        return request, None
    return request, hook_context.override_response or ChatResponse(messages=[Message("assistant", [])])


def _apply(context: ChatContext, request: ModelRequest) -> None:
    context.messages = list(request.messages)
    context.options = cast("ChatOptions", dict(request.options))
    if request.model is not None and request.model != getattr(context.client, "model", None):
        context.options["model"] = request.model


def _whole_sender(context: ChatContext, call_next: CallNext) -> ModelHandler:
    async def send(request: ModelRequest) -> ChatResponse:
        _apply(context, request)
        await call_next()
        result = context.result
        if isinstance(result, ResponseStream):
            return await result.get_final_response()
        return result if result is not None else ChatResponse(messages=[])

    return send


def _stream_sender(context: ChatContext, call_next: CallNext) -> ModelStreamHandler:
    async def send(request: ModelRequest) -> AsyncGenerator[ChatResponseUpdate, None]:
        _apply(context, request)
        await call_next()
        result = context.result
        if result is not None:
            async with aclosing(replay(result) if isinstance(result, ChatResponse) else result) as updates:
                async for update in updates:
                    yield update

    return send


def _stream_wrapped(hook: LifecycleHooks, inner: ModelStreamHandler) -> ModelStreamHandler:
    """Return the streamed model call `inner` wrapped by the hook's `wrap_model_call_streaming`.

    If `wrap_model_call_streaming` returns `None`, and the hook overrides `wrap_model_call`, that method wraps the call instead.
    """

    def call(request: ModelRequest) -> AsyncIterator[ChatResponseUpdate]:
        own = hook.wrap_model_call_streaming(request, inner)
        if own is not None:
            return own
        return _simple(hook, request, inner) if overrides(hook, "wrap_model_call") else inner(request)

    return call


async def _simple(hook: LifecycleHooks, request: ModelRequest, inner: ModelStreamHandler) -> AsyncGenerator[ChatResponseUpdate, None]:
    async def collect(asked: ModelRequest) -> ChatResponse:
        return ChatResponse.from_updates([update async for update in inner(asked)])

    for update in (await hook.wrap_model_call(request, collect)).to_updates():
        yield update


def _wrapped(
    hook: Callable[[RequestT, Callable[[RequestT], Awaitable[ResultT]]], Awaitable[ResultT]],
    inner: Callable[[RequestT], Awaitable[ResultT]],
) -> Callable[[RequestT], Awaitable[ResultT]]:
    return lambda request: hook(request, inner)


def _reply(text: str) -> ChatResponse:
    return ChatResponse(messages=[Message("assistant", [text])])


def _without_calls(contents: Sequence[Content]) -> list[Content]:
    return [content for content in contents if content.type != "function_call"]


def _toolkit(tool: Tool) -> str | None:
    """Return the id of the context provider that added a tool, or else the id of the tool's source in the gateway, or `None`."""
    marked = members_of(getattr(tool, "additional_properties", None)).get("context_source")
    source: object = marked or getattr(tool, "source", None)
    return source if isinstance(source, str) else None
