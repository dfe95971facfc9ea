"""Middleware that tries again: `ModelRetryMiddleware` for model calls, `ToolRetryMiddleware` for tools that may run twice."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence

import anyio

from gateway.chat.middleware import ChatContext, ChatMiddleware
from gateway.errors import MiddlewareException, ModelError, PolicyDenied, UserInputRequired
from gateway.middleware import CallNext
from gateway.policy.repeats import is_repeatable
from gateway.tools.base import Tool
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.tools.schema import ArgumentsRefused
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class _Backoff:
    """Pauses between attempts: up to twice as long each time, at random, so that many callers do not come back at once."""

    def __init__(self, attempts: int, base_seconds: float, max_seconds: float) -> None:
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        if base_seconds < 0 or max_seconds < 0:
            raise ValueError("seconds must not be negative")
        self.attempts = attempts
        self._base = base_seconds
        self._max = max_seconds

    async def pause(self, attempt: int, wanted: float | None = None) -> None:
        """Wait before attempt `attempt + 1`; at least what the peer wanted, which is bounded too."""
        longest = min(self._max, self._base * 2 ** (attempt - 1))
        await anyio.sleep(max(random.uniform(0, longest), min(wanted or 0.0, self._max)))


class ModelRetryMiddleware(ChatMiddleware):
    """Repeats model calls that failed in a way that passes (`ModelError.retryable`).

    A streamed answer is only begun anew while nothing of it has been handed on. Clients that retry by themselves do so
    inside each attempt.
    """

    def __init__(self, *, attempts: int = 3, base_seconds: float = 0.5, max_seconds: float = 20.0) -> None:
        """`attempts` counts the first one. Raises `ValueError` for numbers that make no sense."""
        self._backoff = _Backoff(attempts, base_seconds, max_seconds)

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Call, and call again."""
        if context.stream:
            context.result = ResponseStream(self._streamed(context, call_next), ChatResponse.from_updates)
            return
        attempt = 0
        while True:
            attempt += 1
            try:
                await call_next()
                return
            except ModelError as error:
                await self._pause_or_raise(error, attempt)

    async def _streamed(self, context: ChatContext, call_next: CallNext) -> AsyncGenerator[ChatResponseUpdate, None]:
        attempt = 0
        while True:
            attempt += 1
            handed_on = False
            inner: object = None
            try:
                await call_next()
                inner = context.result
                if isinstance(inner, ChatResponse):
                    for update in inner.to_updates():
                        yield update
                elif inner is not None:
                    async for update in inner:
                        handed_on = True
                        yield update
                return
            except ModelError as error:
                if handed_on:
                    raise
                await self._pause_or_raise(error, attempt)
            finally:
                if isinstance(inner, ResponseStream):
                    await inner.aclose()

    async def _pause_or_raise(self, error: ModelError, attempt: int) -> None:
        if not error.retryable or attempt >= self._backoff.attempts:
            raise error
        wanted: object = getattr(error, "retry_after_seconds", None)
        await self._backoff.pause(attempt, wanted if isinstance(wanted, float) else None)


_FINAL = (PolicyDenied, ArgumentsRefused, UserInputRequired, MiddlewareException)
"""Calling again would change nothing about these."""


class ToolRetryMiddleware(FunctionMiddleware):
    """Repeats tool calls that raised an error, for tools that may run more than once.

    That a tool may is said by name here, or by its own `readOnlyHint` or `idempotentHint` where `trust_annotations` is set.
    A refusal by policy is never repeated, and neither is a result that says it is an error: the model decides about those.
    """

    def __init__(
        self,
        tools: Sequence[str] = (),
        *,
        trust_annotations: bool = False,
        attempts: int = 3,
        base_seconds: float = 0.5,
        max_seconds: float = 20.0,
    ) -> None:
        """`tools` are globs over tool names. Raises `ValueError` for numbers that make no sense."""
        self._tools = tuple(tools)
        self._trust_annotations = trust_annotations
        self._backoff = _Backoff(attempts, base_seconds, max_seconds)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Call, and where the tool may run again, call again."""
        attempt = 0
        may_repeat = covers(self._tools, context.function, trust_annotations=self._trust_annotations)
        while True:
            attempt += 1
            try:
                await call_next()
                return
            except _FINAL:
                raise
            except Exception:  # whatever the function raised: nothing is swallowed, the last one goes on from here
                if not may_repeat or attempt >= self._backoff.attempts:
                    raise
            await self._backoff.pause(attempt)


def covers(globs: Sequence[str], tool: Tool, *, trust_annotations: bool) -> bool:
    """Whether a tool is named, or says of itself that calling it again changes nothing more."""
    definition = tool.definition
    return is_repeatable(definition.name, definition.annotations, idempotent=globs, trust_annotations=trust_annotations)
