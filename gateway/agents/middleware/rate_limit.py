"""Rate-limiting middleware for model calls and tool calls: a number of calls per minute, with bursts.

A call waits until the rate permits it, or fails if it would have to wait too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import anyio

from gateway.chat.chat_context import ChatContext
from gateway.chat.chat_middleware import ChatMiddleware
from gateway.errors import ModelError, ToolFailed
from gateway.middleware import CallNext
from gateway.tools.invocation import FunctionInvocationContext, FunctionMiddleware


class TokenBucket:
    """Rate limiter (token bucket): `per_minute` tokens are added, at most `burst` are stored, and each call takes a token.

    It must be used in one event loop only.
    """

    def __init__(self, per_minute: float, burst: int) -> None:
        """Create a full bucket. Raises `ValueError` for a rate or burst that is not positive."""
        if per_minute <= 0 or burst < 1:
            raise ValueError("per_minute must be more than 0, and burst at least 1")
        self._per_second = per_minute / 60
        self._burst = burst
        self._level = float(burst)
        self._at: float | None = None

    async def take(self, max_wait_seconds: float) -> float | None:
        """Take a token, waiting for it if necessary, and return `None`.

        If the wait would exceed `max_wait_seconds`, take no token and return the seconds that the wait would take. Callers are served in
        order. A caller that is cancelled while it waits gives its token back.
        """
        now = anyio.current_time()
        if self._at is not None:
            self._level = min(self._burst, self._level + (now - self._at) * self._per_second)
        self._at = now
        wait = max(0.0, (1 - self._level) / self._per_second)
        if wait > max_wait_seconds:
            return wait
        self._level -= 1
        if wait:
            try:
                await anyio.sleep(wait)
            except anyio.get_cancelled_exc_class():
                self._level += 1
                raise
        return None


class ModelRateLimitMiddleware(ChatMiddleware):
    """Chat middleware that limits the rate of model calls over all agent runs that share this object."""

    def __init__(self, per_minute: float, *, burst: int = 1, max_wait_seconds: float = 60.0) -> None:
        """Set the limit in model calls per minute. Raises `ValueError` for a rate or burst that is not positive."""
        self._bucket = TokenBucket(per_minute, burst)
        self._max_wait_seconds = max_wait_seconds

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Wait until the rate limit permits this model call, then call the model.

        Raises:
            ModelError: The call would wait too long.
        """
        late = await self._bucket.take(self._max_wait_seconds)
        if late is not None:
            raise ModelError(f"Too many model calls: the next call can be made in {late:.1f} s.", status=429, retryable=True)
        await call_next()


class ToolRateLimitMiddleware(FunctionMiddleware):
    """Function middleware that limits the rate of calls of some tools over all agent runs that share this object."""

    def __init__(self, per_minute: float, *, tools: Sequence[str] = ("*",), burst: int = 1, max_wait_seconds: float = 60.0) -> None:
        """Limit the calls per minute of the tools whose names match the globs `tools`; these tools share one limit.

        Raises:
            ValueError: The rate or burst is not positive.
        """
        self._bucket = TokenBucket(per_minute, burst)
        self._tools = tuple(tools)
        self._max_wait_seconds = max_wait_seconds

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Wait until the rate limit permits this tool call, then execute it.

        Raises:
            ToolFailed: The call would wait too long; the model receives the wait in seconds.
        """
        name = context.function.definition.name
        if any(fnmatchcase(name, glob) for glob in self._tools):
            late = await self._bucket.take(self._max_wait_seconds)
            if late is not None:
                raise ToolFailed(f"Too many calls of {name!r}: try again in {late:.1f} s, or do without it.")
        await call_next()
