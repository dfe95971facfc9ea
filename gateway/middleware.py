"""Middleware: code around a call, as `(context, call_next)`; generic over the context.

One composition for all layers: the first registered is the outermost. What a middleware does decides what runs
(requirements MW7-MW12): return after `call_next` - everything; return without it - only what wraps it, with
`context.result` as the outcome; raise `MiddlewareTermination` - nothing outside it runs its second half. The
contexts live with their rooms: function calls in `tools`, model calls in `chat`, runs in `agents`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gateway.errors import MiddlewareException, MiddlewareFailure, MiddlewareTermination

__all__ = [
    "CallNext",
    "Middleware",
    "MiddlewareException",
    "MiddlewareFailure",
    "MiddlewareTermination",
    "MiddlewareType",
    "SortedMiddleware",
    "compose",
    "listed",
    "sort_middleware",
]

ContextT = TypeVar("ContextT")
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)
FunctionT = TypeVar("FunctionT", bound=Callable[..., Awaitable[None]])

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
        call = _without_arguments(inner)
        for layer in reversed(middleware):
            call = _without_arguments(partial(_as_function(layer), context, call))
    await call()


def _as_function(layer: Middleware[ContextT]) -> Middleware[ContextT]:
    process = getattr(layer, "process", None)
    return layer if process is None else cast("Middleware[ContextT]", process)


def _without_arguments(call: CallNext) -> CallNext:
    """`call` as a `call_next` that says what is wrong when it is given the context, as it once was (requirements C1)."""

    def call_next(*unexpected: object) -> Awaitable[None]:
        if unexpected:
            raise TypeError("call_next() takes no argument: the context is shared, so edit it and call call_next()")
        return call()

    return call_next


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
    """Take a mixed list of middleware (or a single one, or `None`) apart by what each is around (requirements MW5).

    A function says it by a decorator or by the annotation of its first parameter. An object that is neither a
    middleware nor callable counts as one around runs.

    Raises:
        MiddlewareException: A function says nothing, contradicts itself, or does not take `(context, call_next)`.
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


def mark(function: FunctionT, kind: MiddlewareType) -> FunctionT:
    """Say what a middleware function is around; what the decorators do."""
    setattr(function, TYPE_ATTRIBUTE, kind)
    return function


def _type_of(item: object) -> MiddlewareType:
    marked = cast("MiddlewareType | None", getattr(item, TYPE_ATTRIBUTE, None))
    if marked is not None and not inspect.isroutine(item):
        return marked
    function = item if inspect.isroutine(item) else getattr(item, "process", item)
    if not callable(function):
        return MiddlewareType.AGENT
    name = str(getattr(item, "__name__", type(item).__name__))
    annotated = _annotated(function, name)
    if marked is not None and annotated is not None and marked != annotated:
        raise MiddlewareException(f"Middleware {name!r} is marked as {marked.value} middleware, but takes a {annotated.value} context.")
    found = marked or annotated
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


