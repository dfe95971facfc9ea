"""Middleware: code around a call, as `(context, call_next)`; generic over the context.

One composition for all layers: the first registered is the outermost. What a middleware does decides what runs
(requirements MW7-MW12): return after `call_next` - everything; return without it - only what wraps it, with
`context.result` as the outcome; raise `MiddlewareTermination` - nothing outside it runs its second half. The
contexts live with their rooms: function calls in `tools`, model calls in `chat`, runs in `agents`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

ContextT = TypeVar("ContextT")
ContextT_contra = TypeVar("ContextT_contra", contravariant=True)

CallNext = Callable[[], Awaitable[None]]
"""Runs everything further in. Takes no argument: the context is shared and mutable."""


class Middleware(Protocol[ContextT_contra]):
    """A callable around a call."""

    async def __call__(self, context: ContextT_contra, call_next: CallNext) -> None:
        """Do something before, call `call_next()` or not, do something after; read and set `context.result`."""
        ...


class MiddlewareTermination(Exception):
    """Stop the chain here. The outcome is `result`, or `context.result` where that was set (requirements C15)."""

    def __init__(self, message: str = "", *, result: object = None) -> None:
        super().__init__(message)
        self.result = result


async def compose(middleware: Sequence[Middleware[ContextT]], context: ContextT, inner: CallNext) -> None:
    """Run `inner` inside `middleware`, outermost first."""
    call: CallNext = _without_arguments(inner)
    for layer in reversed(middleware):
        call = _without_arguments(partial(layer, context, call))
    await call()


def _without_arguments(call: CallNext) -> CallNext:
    """`call` as a `call_next` that says what is wrong when it is given the context, as it once was (requirements C1)."""

    def call_next(*unexpected: object) -> Awaitable[None]:
        if unexpected:
            raise TypeError("call_next() takes no argument: the context is shared, so edit it and call call_next()")
        return call()

    return call_next
