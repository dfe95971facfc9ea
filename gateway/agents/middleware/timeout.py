"""Middleware with time limits: `ModelTimeoutMiddleware` for model calls, `ToolTimeoutMiddleware` for tool calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from fnmatch import fnmatchcase

import anyio

from gateway.chat.chat_context import ChatContext, ChatStream
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.errors import InputExpired, ModelError, ToolFailed
from gateway.middleware import CallNext
from gateway.tools.context import CallClock
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class ModelTimeoutMiddleware(ChatMiddleware):
    """Chat middleware that fails a model call that takes too long, with a retryable `ModelError`."""

    def __init__(self, seconds: float) -> None:
        """Limit each model call to `seconds`.

        For a stream, the limit applies to the total time in which the caller waits for updates, up to the end of the stream.

        Raises:
            ValueError: `seconds` is not positive.
        """
        if seconds <= 0:
            raise ValueError("seconds must be more than 0")
        self._seconds = seconds

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Call the model, and raise a retryable `ModelError` if it does not answer within the time limit."""
        with anyio.move_on_after(self._seconds):
            started = anyio.current_time()
            await call_next()
            if isinstance(context.result, ResponseStream):
                left = self._seconds - (anyio.current_time() - started)
                context.result = ResponseStream(self._streamed(context.result, left), ChatResponse.from_updates)
            return
        raise self._error()

    async def _streamed(self, inner: ChatStream, left: float) -> AsyncGenerator[ChatResponseUpdate, None]:
        parts = aiter(inner)
        try:
            while True:
                started = anyio.current_time()
                update: ChatResponseUpdate | None = None
                with anyio.move_on_after(left) as scope:  # for one update only, because a scope must not stay open across a yield
                    update = await anext(parts, None)
                if scope.cancelled_caught:
                    raise self._error()
                if update is None:
                    return
                left -= anyio.current_time() - started
                yield update
        finally:
            await inner.aclose()

    def _error(self) -> ModelError:
        return ModelError(f"The model did not answer within {self._seconds:g} s.", retryable=True)


class ToolTimeoutMiddleware(FunctionMiddleware):
    """Function middleware that fails a tool call that takes too long. The model receives the error as the call's result.

    The time in which the call waits for a person's answer does not count.
    """

    def __init__(self, seconds: float, *, tools: Mapping[str, float] | None = None) -> None:
        """Limit tool calls to `seconds`. `tools` maps globs over tool names to other limits; the first glob that matches applies.

        Raises:
            ValueError: A limit is not positive.
        """
        self._tools = [*(tools or {}).items(), ("*", seconds)]
        if any(limit <= 0 for _, limit in self._tools):
            raise ValueError("seconds must be more than 0")

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Execute the tool call within its time limit.

        Raises:
            ToolFailed: The call did not finish in time and was cancelled.
            InputExpired: A person did not answer the call's request for input in time.
        """
        name = context.function.definition.name
        seconds = next(limit for glob, limit in self._tools if fnmatchcase(name, glob))
        clock = CallClock(seconds)
        outer = context.ctx
        context.ctx = outer.limited(clock, None)
        try:
            with clock.scope:
                await call_next()
                return
        finally:
            context.ctx = outer
        if clock.ended:
            raise InputExpired(clock.ended)
        raise ToolFailed(f"Tool {name!r} did not finish within {seconds:g} s and was stopped; the call may have taken effect.")
