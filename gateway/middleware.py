"""Middleware: code around a call, as `(context, call_next)`; generic over the context.

One composition for all layers: the first registered is the outermost. What a middleware does decides what runs
(requirements MW7-MW12): return after `call_next` - everything; return without it - only what wraps it, with
`context.result` as the outcome; raise `MiddlewareTermination` - nothing outside it runs its second half; set
`context.terminate` - nothing further in runs. The contexts live with their rooms: function calls in `tools`, model
calls in `chat`, runs in `agents`; the latter two answer in parts and share `through`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gateway.errors import MiddlewareException, MiddlewareFailure, MiddlewareTermination
from gateway.types.content import Content
from gateway.types.messages import Message
from gateway.types.streams import ResponseStream

__all__ = [
    "CallNext",
    "Middleware",
    "MiddlewareException",
    "MiddlewareFailure",
    "MiddlewareTermination",
    "MiddlewareType",
    "SortedMiddleware",
    "around_models",
    "as_answer",
    "check_layer",
    "compose",
    "listed",
    "sort_middleware",
    "through",
]

ContextT = TypeVar("ContextT")
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])
UpdateT = TypeVar("UpdateT")

CallNext = Callable[[], Awaitable[None]]
"""Runs everything further in. Takes no argument: the context is shared and mutable."""


class MiddlewareType(StrEnum):
    """What a middleware is around."""

    AGENT = "agent"
    """A run."""
    FUNCTION = "function"
    """A tool call."""
    CHAT = "chat"
    """A model call."""


class Middleware(Protocol[ContextT_contra]):
    """A callable around a call. Classes with a `process` of this form will do as well."""

    async def __call__(self, context: ContextT_contra, call_next: CallNext) -> None:
        """Do something before, call `call_next()` or not, do something after; read and set `context.result`."""
        ...


async def compose(middleware: Sequence[Middleware[ContextT]], context: ContextT, inner: CallNext) -> None:
    """Run `inner` inside `middleware`, outermost first."""
    call: CallNext = inner
    if middleware:
        call = _next_of(context, inner)
        for layer in reversed(middleware):
            call = _next_of(context, partial(_started, _as_function(layer), context, call))
    await call()


def _started(layer: Middleware[ContextT], context: ContextT, call: CallNext) -> Awaitable[None]:
    """Start one middleware.

    Raises:
        MiddlewareException: The middleware is not async.
    """
    begun: object = layer(context, call)
    if not inspect.isawaitable(begun):
        raise MiddlewareException(f"Middleware {_name_of(layer)!r} must be async: define it with `async def`.")
    return cast("Awaitable[None]", begun)


async def through(
    middleware: Sequence[Middleware[ContextT]],
    context: ContextT,
    send: Callable[[], AsyncGenerator[UpdateT, None]],
    fold: Callable[[Sequence[UpdateT]], Any],
    whole: Callable[..., Any],
    said: Callable[[Sequence[UpdateT]], Any] | None = None,
) -> AsyncGenerator[UpdateT, None]:
    """The parts of what `send` gives inside `middleware`. Once they have all come `context.result` is the whole of them.

    `fold` makes the whole, an instance of the class `whole`, of parts; `said` does of those that `send` gave, where that is
    not the same.

    Raises:
        MiddlewareException: Middleware set a result that is no answer.
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
        except MiddlewareTermination as stop:  # middleware further out streams itself, so what is further in ended only now
            instead = stop.result if around.result is given else around.result
        finally:
            await stream.aclose()
        result = around.result = as_answer(instead, fold, whole)
    if result is not None:
        for update in result.to_updates():
            yield update


def as_answer(result: Any, fold: Callable[[Sequence[Any]], Any], whole: Callable[..., Any]) -> Any:
    """Return a result as middleware may set it (the whole, its parts, or only what is said in it) as the whole or a stream of parts.

    Raises:
        MiddlewareException: It is not an answer.
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
        f"Middleware set context.result to a {type(result).__name__}; set {cast('type', whole).__name__}, a ResponseStream, or a text."
    )


def _as_function(layer: Middleware[ContextT]) -> Middleware[ContextT]:
    process = getattr(layer, "process", None)
    return layer if process is None else cast("Middleware[ContextT]", process)


def _next_of(context: object, call: CallNext) -> CallNext:
    """`call` as a `call_next`: it says what is wrong when it is given the context, as it once was (requirements C1), and does
    nothing once a middleware further out has set `terminate`.
    """

    def call_next(*unexpected: object) -> Awaitable[None]:
        if unexpected:
            raise TypeError("call_next() takes no argument: the context is shared, so edit it and call call_next()")
        return _nothing() if getattr(context, "terminate", False) else call()

    return call_next


async def _nothing() -> None:
    """What is further in than a middleware that set `terminate`."""


# -- sorting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SortedMiddleware:
    """A mixed list taken apart, each kind in its order."""

    agent: Sequence[Middleware[Any]] = ()
    chat: Sequence[Middleware[Any]] = ()
    function: Sequence[Middleware[Any]] = ()


NOTHING = SortedMiddleware()


TYPE_ATTRIBUTE = "middleware_type"
"""Where a middleware class, or a function that a decorator marked, says what it is around."""

_CONTEXTS = {
    "AgentContext": MiddlewareType.AGENT,
    "ChatContext": MiddlewareType.CHAT,
    "FunctionInvocationContext": MiddlewareType.FUNCTION,
}


def sort_middleware(middleware: object) -> SortedMiddleware:
    """Split a mixed list of middleware (or a single one, or `None`) by what each is around.

    A function declares its kind by a decorator or by the annotation of its first parameter. An object with a `process`
    method that declares nothing counts as middleware around runs.

    Raises:
        MiddlewareException: An item is not middleware or is a class. A function declares no kind or two different ones, or
            does not take `(context, call_next)`.
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
    """What a caller may give as middleware, one or several or none, as a list of its own."""
    if isinstance(middleware, list | tuple):
        return list(cast("Sequence[Any]", middleware))
    return [] if middleware is None else [middleware]


def check_layer(layer: type, instance: object, args: Sequence[object]) -> None:
    """Check that a layer's constructor has a class behind it that takes its positional arguments.

    Raises:
        TypeError: The class has no other base for them: the layer was called like a function around an agent or a client.
    """
    behind = cast("Any", super(layer, instance)).__init__
    if args and getattr(behind, "__objclass__", None) is object:
        raise TypeError(
            f"{layer.__name__} does not wrap an object. Name it among the bases of a class, before the class that it is around: "
            f"class Mine({layer.__name__}, …). An Agent and a chat client take middleware= themselves."
        )


def mark(function: FunctionT, kind: MiddlewareType) -> FunctionT:
    """Say what a middleware function is around; what the decorators do."""
    setattr(function, TYPE_ATTRIBUTE, kind)
    return function


def around_models(middleware: SortedMiddleware) -> SortedMiddleware:
    """Return the middleware of a chat client as it is.

    Raises:
        MiddlewareException: Some of it is around runs, and a chat client has no runs.
    """
    if middleware.agent:
        names = ", ".join(repr(_name_of(layer)) for layer in middleware.agent)
        raise MiddlewareException(f"A chat client takes chat and function middleware only; give {names} to the agent.")
    return middleware


def _name_of(item: object) -> str:
    item = getattr(item, "__self__", item)  # a class's `process` is named after the class
    return str(getattr(item, "__name__", type(item).__name__))


def _type_of(item: object) -> MiddlewareType:
    name = _name_of(item)
    if isinstance(item, type):
        raise MiddlewareException(f"Middleware {name!r} is a class; pass an object of it: {name}().")
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
        raise MiddlewareException(f"Middleware {name!r} is marked as {marked.value} middleware, but takes a parameter of type {taken}.")
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
