"""Retrying middleware: `ModelRetryMiddleware` for model calls, `ToolRetryMiddleware` for idempotent tools."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence

import anyio

from gateway.chat.chat_context import ChatContext
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.errors import MiddlewareException, ModelError, PolicyDenied, UserInputRequired
from gateway.middleware import CallNext
from gateway.policy.retry_safety import is_idempotent
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware
from gateway.tools.schema import ArgumentsRefused
from gateway.types.responses import ChatResponse, ChatResponseUpdate
from gateway.types.streams import ResponseStream


class _Backoff:
    """Exponential backoff between attempts, with random pauses so that many callers do not retry at the same time."""

    def __init__(self, attempts: int, base_seconds: float, max_seconds: float) -> None:
        if attempts < 1:
            raise ValueError("attempts must be at least 1")
        if base_seconds < 0 or max_seconds < 0:
            raise ValueError("seconds must not be negative")
        self.attempts = attempts
        self._base = base_seconds
        self._max = max_seconds

    async def pause(self, attempt: int, wanted: float | None = None) -> None:
        """Wait after attempt number `attempt`: at least the seconds that the peer requested (`wanted`), at most the maximum pause."""
        longest = min(self._max, self._base * 2 ** (attempt - 1))
        await anyio.sleep(max(random.uniform(0, longest), min(wanted or 0.0, self._max)))


class ModelRetryMiddleware(ChatMiddleware):
    """Chat middleware that retries model calls that failed temporarily (`ModelError.retryable`).

    A streamed call is retried only if it fails before its first update. If the chat client retries, too, its retries are part of one
    attempt.
    """

    def __init__(self, *, attempts: int = 3, base_seconds: float = 0.5, max_seconds: float = 20.0) -> None:
        """Configure retries; `attempts` includes the first attempt. Raises `ValueError` for attempts below 1 or negative seconds."""
        self._backoff = _Backoff(attempts, base_seconds, max_seconds)

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Call the model until a call succeeds or the attempts are used up."""
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
"""Errors of a tool call for which `ToolRetryMiddleware` does not retry, because another attempt would fail in the same way."""


class ToolRetryMiddleware(FunctionMiddleware):
    """Function middleware that retries tool calls that raised an exception, if the tool may be called more than once.

    A tool may be called again if its name matches one of the globs `tools`. With `trust_annotations`, tools with a `readOnlyHint` or
    `idempotentHint` may be called again, too. Exceptions that would recur, such as refusals by policy, are not retried. Error results are
    not retried, because the model reacts to them.
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
        """Configure retries of tools whose names match the globs `tools`. Raises `ValueError` for attempts below 1 or negative seconds."""
        self._tools = tuple(tools)
        self._trust_annotations = trust_annotations
        self._backoff = _Backoff(attempts, base_seconds, max_seconds)

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Execute the tool call, and retry it after an exception if the tool may be called again."""
        attempt = 0
        tool = context.function.definition
        may_repeat = is_idempotent(tool.name, tool.annotations, idempotent=self._tools, trust_annotations=self._trust_annotations)
        while True:
            attempt += 1
            try:
                await call_next()
                return
            except _FINAL:
                raise
            except Exception:  # any exception of the tool; the last one is raised
                if not may_repeat or attempt >= self._backoff.attempts:
                    raise
            await self._backoff.pause(attempt)
