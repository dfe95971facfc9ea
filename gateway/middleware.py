"""Middleware: `(context, call_next)` functions and objects that wrap tool calls, model calls and agent runs.

`compose` runs middleware of all three kinds; the first middleware in a list is the outermost. A middleware decides how the call continues:
- It awaits `call_next` and returns: the inner middleware and the call run.
- It returns without `call_next`: the inner middleware and the call do not run, and `context.result` is the result.
- It raises `MiddlewareTermination`: the call ends, and code after `call_next` in outer middleware is skipped.
- It sets `context.terminate`: the inner middleware and the call do not run.

The context classes are in `tools` (tool calls), `chat` (model calls) and `agents` (runs). For model calls and runs, which can stream,
`through` runs the middleware.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gateway.errors import MiddlewareException, MiddlewareTermination
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.streams import ResponseStream

ContextT = TypeVar("ContextT")
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])
UpdateT = TypeVar("UpdateT")
UpdateT_co = TypeVar("UpdateT_co", covariant=True)

CallNext = Callable[[], Awaitable[None]]
"""Function that runs the rest of the middleware chain and the call. It has no parameter, because all middleware share one context."""


class MiddlewareType(StrEnum):
    """The kind of call that a middleware wraps."""

    AGENT = "agent"
    """Kind of a middleware that wraps a run of an agent."""
    FUNCTION = "function"
    """Kind of a middleware that wraps a tool call."""
    CHAT = "chat"
    """Kind of a middleware that wraps a call of a chat model."""


class Middleware(Protocol[ContextT_contra]):
    """A callable that wraps a tool call, model call or agent run. An object with a `process` method of this signature is accepted too."""

    async def __call__(self, context: ContextT_contra, call_next: CallNext) -> None:
        """Process one call: await `call_next()` to continue it; read or set `context.result`."""
        ...


async def compose(middleware: Sequence[Middleware[ContextT]], context: ContextT, inner: CallNext) -> None:
    """Run the call `inner` (a tool call, model call or agent run) inside `middleware`; the first middleware is the outermost."""
    call: CallNext = inner
    if middleware:
        call = _next_of(context, inner)
        for layer in reversed(middleware):
            call = _next_of(context, partial(_started, _as_function(layer), context, call))
    await call()


def _started(layer: Middleware[ContextT], context: ContextT, call: CallNext) -> Awaitable[None]:
    """Call one middleware and return its awaitable.

    Raises:
        MiddlewareException: The middleware is not async.
    """
    begun: object = layer(context, call)
    if not inspect.isawaitable(begun):
        raise MiddlewareException(f"Middleware {_name_of(layer)!r} must be async: define it with `async def`.")
    return cast("Awaitable[None]", begun)


class Response(Protocol[UpdateT_co]):
    """A complete response of a model or an agent that can be converted to the updates of a stream."""

    def to_updates(self) -> Sequence[UpdateT_co]:
        """Return updates which, when they are joined again, are equal to this response."""
        ...


async def replay(response: Response[UpdateT]) -> AsyncGenerator[UpdateT, None]:
    """Yield the updates of a complete response."""
    for update in response.to_updates():
        yield update


async def through(
    middleware: Sequence[Middleware[ContextT]],
    context: ContextT,
    send: Callable[[], AsyncGenerator[UpdateT, None]],
    fold: Callable[[Sequence[UpdateT]], Any],
    whole: Callable[..., Any],
    said: Callable[[Sequence[UpdateT]], Any] | None = None,
) -> AsyncGenerator[UpdateT, None]:
    """Run the streaming call `send` inside `middleware` and yield its updates. At the end, `context.result` is the complete response.

    Two functions join updates to a response of the class `whole`: `said` joins the updates that `send` yields, and `fold` joins updates
    that middleware set as the result. Without `said`, `fold` joins both.

    Raises:
        MiddlewareException: Middleware set a result that is not a response.
    """
    around = cast("Any", context)

    async def call() -> None:
        answer = ResponseStream(send(), said or fold)
        around.result = answer if around.stream else await answer.get_final_response()

    try:
        await compose(middleware, context, call)
    except MiddlewareTermination as stop:
        around.result = stop.result if around.result is None else around.result
    result: Any = as_answer(around.result, fold, whole)
    around.result = result
    while isinstance(result, ResponseStream):
        given = cast("ResponseStream[UpdateT, Any]", result)
        stream = given.with_context_hooks(
            fold,
            transform_hooks=around.stream_transform_hooks,
            result_hooks=around.stream_result_hooks,
            cleanup_hooks=around.stream_cleanup_hooks,
        )
        try:
            async for update in stream:
                yield update
            around.result = await stream.get_final_response()
            return
        except MiddlewareTermination as stop:  # the result is a stream, so middleware inside could only terminate while it was read
            instead = stop.result if around.result is given else around.result
        finally:
            await stream.aclose()
        result = around.result = as_answer(instead, fold, whole)
    if result is not None:
        for update in result.to_updates():
            yield update


def as_answer(result: Any, fold: Callable[[Sequence[Any]], Any], whole: Callable[..., Any]) -> Any:
    """Convert a result that middleware set (a response, updates, a message, content or text) to a response (class `whole`) or a stream.

    `None` stays `None`.

    Raises:
        MiddlewareException: The result has none of these types.
    """
    if result is None or isinstance(result, ResponseStream) or isinstance(result, cast("type", whole)):
        return cast("Any", result)
    if isinstance(result, AsyncIterable):
        return ResponseStream(cast("AsyncIterable[Any]", result), fold)
    if isinstance(result, Message):
        return whole(messages=[result])
    if isinstance(result, str | Content):
        return whole(messages=[Message("assistant", [result])])
    raise MiddlewareException(
        f"Middleware set context.result to {type(result).__name__}; set {cast('type', whole).__name__}, a ResponseStream, or text."
    )


def _as_function(layer: Middleware[ContextT]) -> Middleware[ContextT]:
    process = getattr(layer, "process", None)
    return layer if process is None else cast("Middleware[ContextT]", process)


def _next_of(context: object, call: CallNext) -> CallNext:
    """Return a function `call_next` that runs `call`. It rejects arguments, and does nothing if middleware has set `context.terminate`."""

    def call_next(*unexpected: object) -> Awaitable[None]:
        if unexpected:
            raise TypeError("call_next() takes no argument: the context is shared, so change it and call call_next()")
        return _nothing() if getattr(context, "terminate", False) else call()

    return call_next


async def _nothing() -> None:
    """Do nothing: runs instead of the inner middleware and the call if middleware has set `context.terminate`."""


# -- sorting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SortedMiddleware:
    """Middleware split by the kind of call that it wraps (agent runs, model calls, tool calls), each kind in its original order."""

    agent: Sequence[Middleware[Any]] = ()
    chat: Sequence[Middleware[Any]] = ()
    function: Sequence[Middleware[Any]] = ()


NOTHING = SortedMiddleware()


TYPE_ATTRIBUTE = "middleware_type"
"""Name of the attribute that holds the `MiddlewareType` of a middleware class or a decorated function."""

_CONTEXTS = {
    "AgentContext": MiddlewareType.AGENT,
    "ChatContext": MiddlewareType.CHAT,
    "FunctionInvocationContext": MiddlewareType.FUNCTION,
}


def sort_middleware(middleware: object) -> SortedMiddleware:
    """Split middleware (a mixed list, a single item, or `None`) by kind.

    A function declares its kind by a decorator or by the annotation of its first parameter. An object with an undeclared `process`
    method is agent middleware.

    Raises:
        MiddlewareException: An item is a class or not middleware. A function declares no kind or two different kinds, or does not
            take `(context, call_next)`.
    """
    if not middleware:
        return NOTHING
    agent: list[Middleware[Any]] = []
    chat: list[Middleware[Any]] = []
    function: list[Middleware[Any]] = []
    for item in listed(middleware):
        kept = cast("Middleware[Any]", item)
        match _type_of(item):
            case MiddlewareType.AGENT:
                agent.append(kept)
            case MiddlewareType.CHAT:
                chat.append(kept)
            case MiddlewareType.FUNCTION:
                function.append(kept)
    return SortedMiddleware(agent, chat, function)


def listed(middleware: object) -> list[Any]:
    """Return middleware (a list, a single item, or `None`) as a new list."""
    if isinstance(middleware, list | tuple):
        return list(cast("Sequence[Any]", middleware))
    return [] if middleware is None else [middleware]


def check_layer(layer: type, instance: object, args: Sequence[object]) -> None:
    """Check that the mixin `layer` has a class to pass its positional arguments to: the next class in the method resolution order.

    Raises:
        TypeError: The next class is `object`. The program called the mixin with an agent or client object instead of subclassing it.
    """
    behind = cast("Any", super(layer, instance)).__init__
    if args and getattr(behind, "__objclass__", None) is object:
        raise TypeError(
            f"{layer.__name__} does not wrap an object. List it as a base class before the class that it wraps: "
            f"class MyClass({layer.__name__}, …). An Agent and a chat client accept middleware= themselves."
        )


def mark(function: FunctionT, kind: MiddlewareType) -> FunctionT:
    """Set the kind of call that a middleware function wraps, and return the function. Used by the decorators."""
    setattr(function, TYPE_ATTRIBUTE, kind)
    return function


def around_models(middleware: SortedMiddleware) -> SortedMiddleware:
    """Check that no item of a chat client's middleware is agent middleware, and return the middleware unchanged.

    Raises:
        MiddlewareException: An item is agent middleware.
    """
    if middleware.agent:
        names = ", ".join(repr(_name_of(layer)) for layer in middleware.agent)
        raise MiddlewareException(f"A chat client takes chat and function middleware only; pass {names} to the agent instead.")
    return middleware


def _name_of(item: object) -> str:
    item = getattr(item, "__self__", item)  # a bound `process` method is named after its class
    return str(getattr(item, "__name__", type(item).__name__))


def _type_of(item: object) -> MiddlewareType:
    name = _name_of(item)
    if isinstance(item, type):
        raise MiddlewareException(f"Middleware {name!r} is a class; pass an instance: {name}().")
    marked = cast("MiddlewareType | None", getattr(item, TYPE_ATTRIBUTE, None))
    if marked is not None and not inspect.isroutine(item):
        return marked
    function = item if inspect.isroutine(item) else getattr(item, "process", item)
    if not callable(function):
        raise MiddlewareException(
            f"{item!r} is not middleware: pass an async function of (context, call_next), or an object with such a method `process`."
        )
    annotated = _annotated(function, name)
    if marked is not None and annotated is not None and marked != annotated:
        taken = next(context for context, kind in _CONTEXTS.items() if kind is annotated)
        raise MiddlewareException(f"Middleware {name!r} is marked as {marked.value} middleware, but its first parameter is a {taken}.")
    found = marked or annotated
    if found is None and function is not item:
        return MiddlewareType.AGENT
    if found is None:
        raise MiddlewareException(
            f"Cannot determine middleware type of {name!r}: mark it with @agent_middleware, @chat_middleware or "
            "@function_middleware, or annotate its first parameter with AgentContext, ChatContext or FunctionInvocationContext."
        )
    return found


def _annotated(function: Callable[..., object], name: str) -> MiddlewareType | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if len(parameters) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise MiddlewareException(f"Middleware {name!r} must have at least 2 parameters, (context, call_next); it has {len(parameters)}.")
    annotation: object = parameters[0].annotation
    written = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return _CONTEXTS.get(written.strip("\"' ").rpartition(".")[2])
