"""`lifecycle_middleware`: the hooks as one middleware of each kind. Where each hook is called is decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TypeVar, cast

import anyio

from gateway.agents.context import AgentContext, AgentMiddleware, AgentStream
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
from gateway.agents.lifecycle.sealed import FixedDict, fixed, free, settle
from gateway.agents.lifecycle.state import HookEvents
from gateway.agents.lifecycle.turn import Turn, Turns
from gateway.chat.middleware import ChatContext, ChatMiddleware
from gateway.errors import MiddlewareFailure, MiddlewareTermination, UserInputRequired
from gateway.json_types import JsonValue
from gateway.middleware import CallNext, as_answer
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
"""How long after hooks may take in a run that was cancelled or left."""


@experimental(feature_id=ExperimentalFeature.LIFECYCLE_HOOKS)
def lifecycle_middleware(*hooks: LifecycleHooks, events: HookEvents | None = None) -> list[object]:
    """Return middleware of all three kinds for these hooks: put all of it into an agent's `middleware`, side by side.

    Raises:
        MiddlewareException: An argument is not an object of a `LifecycleHooks` class, or has a hook that is not async.
    """
    for hook in hooks:
        check_hooks(hook)
    turns = Turns(hooks, events or HookEvents())
    return [_AgentLayer(turns), _ChatLayer(turns), _FunctionLayer(turns)]


class _AgentLayer(AgentMiddleware):
    """Message turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        changed: list[AgentResponse] = []
        steps = self._steps(context, call_next, changed)
        if context.stream:
            context.result = ResponseStream(steps, partial(_whole_of, changed))
            return
        async with aclosing(steps):
            async for _ in steps:
                pass

    async def _steps(
        self, context: AgentContext, call_next: CallNext, changed: list[AgentResponse]
    ) -> AsyncGenerator[AgentResponseUpdate, None]:
        """The turn; of a streamed run its updates come out, of a whole one nothing does.

        `changed` gets the turn's response if a hook may have changed it.
        """
        key, turn = self._turns.open(_facts(context))
        told = _turn_context(context, turn)
        stopped: MiddlewareTermination | None = None
        ended = False
        try:
            try:
                loaded = await context.load_history() if turn.sees_history else {}
                told.history[:0] = [message for messages in loaded.values() for message in messages]
                await turn.begin(told)
                _take_input(context, told, loaded)
                async with aclosing(_answered(context, call_next, told)) as updates:
                    async for update in updates:
                        yield update
            except MiddlewareTermination as stop:
                stopped = stop
            except Exception as error:  # hooks hear of any error; it goes on from here unless one of them ends the run
                settle(told, error=error)
                reason = await turn.report("message_turn", error)
                if reason is None:
                    raise
                context.result = AgentResponse(messages=[Message("assistant", [reason])])
                settle(told, response=context.result)
                if context.stream:
                    for update in context.result.to_updates():
                        yield update
            ended = True
            if (response := await _ended(turn, told)) is not None:
                changed.append(response)
            if stopped is not None and not (context.stream and told.response is not None):
                raise stopped
        finally:
            self._turns.close(key)
            if not ended:
                with anyio.move_on_after(CLEAN_UP_SECONDS, shield=True):
                    await turn.end(told)


async def _ended(turn: Turn, told: MessageTurnContext) -> AgentResponse | None:
    """End the turn, and return its response if hooks may have changed it."""
    given = None if told.response is None else told.response.messages
    before = [] if given is None else [*given]
    if given is not None:
        settle(told, turn_history=given)
    await turn.end(told)
    if told.response is None:
        return None
    if told.turn_history is not given:
        told.response.messages = told.turn_history
    is_changed = told.error is None or told.response.messages != before
    return told.response if turn.changes_response and is_changed else None


async def _answered(context: AgentContext, call_next: CallNext, told: MessageTurnContext) -> AsyncGenerator[AgentResponseUpdate, None]:
    """Run what is further in, and note its response in `told`; of a streamed run its updates come out.

    Raises:
        MiddlewareTermination: Middleware further in ended the run; the response that it gave is noted.
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
        settle(told, response=await answer.get_final_response())
    elif answer is not None:
        settle(told, response=answer)
        for update in answer.to_updates() if context.stream else ():
            yield update
    if stopped is not None:
        raise stopped


def _whole_of(changed: Sequence[AgentResponse], updates: Sequence[AgentResponseUpdate]) -> AgentResponse:
    """Return the whole of a streamed turn, as hooks left it."""
    return changed[-1] if changed else AgentResponse.from_updates(updates)


class _ChatLayer(ChatMiddleware):
    """Iterations and model calls."""

    def __init__(self, turns: Turns) -> None:
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
                _drop_calls(answer)
            return answer
        except MiddlewareTermination:
            raise
        except Exception as error:  # as in the agent layer
            reason = await turn.report(source, error)
            if reason is None:
                raise
            return _said(reason)

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
            updates = _updates_of(answer) if answer is not None else handler(request)
            try:
                async for update in updates:
                    seen.append(update)
                    if turn.holds_calls and any(content.type == "function_call" for content in update.contents):
                        held.append(update)
                    else:
                        yield update
            finally:
                close = getattr(updates, "aclose", None)
                if close is not None:
                    await close()
            source = "iteration"
            runs = await turn.lets_tools_run(ChatResponse.from_updates(seen), is_streamed=True)
            for update in held:
                yield update if runs else _without_calls(update)
        except MiddlewareTermination:
            raise
        except Exception as error:  # as in the agent layer
            reason = await turn.report(source, error)
            if reason is None:
                raise
            yield ChatResponseUpdate(contents=[Content.from_text(reason)], role="assistant")


class _FunctionLayer(FunctionMiddleware):
    """Tool calls."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        turn = self._turns.current
        if turn is None:
            await call_next()
            return
        call_id = str(context.metadata.get("call_id") or "")
        told = FunctionContext(
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
            await self._call(turn, told, context, call_next)
        except (MiddlewareTermination, MiddlewareFailure, UserInputRequired):
            raise
        except Exception as error:  # as in the agent layer
            settle(told, error=error)
            reason = await turn.report("tool_call", error)
            if reason is None:
                raise
            raise MiddlewareTermination(reason, result=reason) from error
        finally:
            settle(told, result=context.result)
            text = None if told.error is None else str(told.error)
            await turn.end_function(told, Content.from_function_result(call_id, context.result, text))

    async def _call(self, turn: Turn, told: FunctionContext, context: FunctionInvocationContext, call_next: CallNext) -> None:
        await turn.begin_function(told)
        if told.block_execution:
            context.result = told.override_result
            return
        if told.call_id in turn.blocked:
            context.result = turn.blocked.pop(told.call_id)
            return

        arguments = context.arguments

        async def send(request: FunctionRequest) -> JsonValue:
            context.arguments = dict(arguments) if request.arguments is told.arguments else free(dict(request.arguments))
            await call_next()
            return context.result

        handler: FunctionHandler = send
        for hook in turn.hooks:
            handler = _wrapped(hook.wrap_function_call, handler)
        request = FunctionRequest(
            function=told.function,
            function_name=told.function_name,
            call_id=told.call_id,
            arguments=told.arguments,
            state=turn.state,
            iteration=turn.iteration,
            toolkit=told.toolkit,
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


def _take_input(context: AgentContext, told: MessageTurnContext, loaded: Mapping[str, Sequence[Message]]) -> None:
    """Put what the hooks made of the history and the input into the run."""
    index = _newest_of_user(context.messages)
    newest = [] if index is None else [context.messages[index]]
    if told.user_message != (newest[0].text if newest else ""):
        others = [content for message in newest for content in message.contents if content.type != "text"]
        newest = [Message("user", [Content.from_text(told.user_message), *others])]
    context.loaded, rest = _split(told.history, loaded, context.messages)
    context.messages = [*rest, *newest]


def _split(
    history: Sequence[Message], loaded: Mapping[str, Sequence[Message]], given: Sequence[Message]
) -> tuple[dict[str, list[Message]], list[Message]]:
    """Split a changed history into what stands for each loaded one and the rest, which is input of the run and is stored.

    A new message belongs to the history of the loaded message after it, or to the last history: the model sees it, and it is not
    stored. Behind a message that the run itself was given, and without a history, a new message is input.
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
    """Begin an iteration: the request the hooks made, and the answer where one of them gave it."""
    told = await turn.begin_iteration(list(context.messages), cast("ChatOptions", dict(context.options)))
    model = told.options.get("model") or getattr(context.client, "model", None)
    request = ModelRequest(
        model=model,
        messages=tuple(told.messages),
        options=FixedDict(told.options, "options"),
        state=turn.state,
        iteration=told.iteration,
        facts=turn.facts,
    )
    if (reason := turn.ended_because) is not None:
        return request, _said(reason)
    if not told.skip_llm_call:
        return request, None
    return request, told.override_response or ChatResponse(messages=[Message("assistant", [])])


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
        if isinstance(result, ResponseStream):
            async with aclosing(result) as inner:
                async for update in inner:
                    yield update
        elif result is not None:
            for update in result.to_updates():
                yield update

    return send


def _stream_wrapped(hook: LifecycleHooks, inner: ModelStreamHandler) -> ModelStreamHandler:
    """One hook around a streamed call: its streaming form, else its simple one, else nothing."""

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


async def _updates_of(response: ChatResponse) -> AsyncGenerator[ChatResponseUpdate, None]:
    for update in response.to_updates():
        yield update


def _wrapped(
    hook: Callable[[RequestT, Callable[[RequestT], Awaitable[ResultT]]], Awaitable[ResultT]],
    inner: Callable[[RequestT], Awaitable[ResultT]],
) -> Callable[[RequestT], Awaitable[ResultT]]:
    return lambda request: hook(request, inner)


def _said(text: str) -> ChatResponse:
    return ChatResponse(messages=[Message("assistant", [text])])


def _drop_calls(response: ChatResponse) -> None:
    for message in response.messages:
        message.contents = [content for content in message.contents if content.type != "function_call"]


def _without_calls(update: ChatResponseUpdate) -> ChatResponseUpdate:
    update.contents = [content for content in update.contents if content.type != "function_call"]
    return update


def _toolkit(tool: Tool) -> str | None:
    """Where a tool is from: its provider's mark, or its source in the gateway."""
    properties = getattr(tool, "additional_properties", None)
    marked = cast("dict[str, JsonValue]", properties).get("context_source") if isinstance(properties, dict) else None
    source: object = marked or getattr(tool, "source", None)
    return source if isinstance(source, str) else None
