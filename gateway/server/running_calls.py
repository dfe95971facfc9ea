"""`RunningCalls`: records which principal made each in-flight tool call, so that the calls of a revoked API key can be cancelled.

Only calls on the SDK path, which uses the MCP SDK, are recorded. Calls on the fast path, without the SDK, end or are handed over to the SDK
path within `HAND_OVER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import anyio


class RunningCalls:
    """Records in-flight tool calls: the cancel scope of each call, and the id of the principal that made it.

    `end` cancels the calls of principals whose API key was revoked. Calls are recorded when the MCP SDK handles them, not on the fast path.
    """

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, str] = {}

    @contextmanager
    def of(self, principal: str) -> Generator[anyio.CancelScope]:
        """Record a call of the principal with this id as long as the context is entered. `end` cancels the code inside the context."""
        scope = anyio.CancelScope()
        self._calls[scope] = principal
        try:
            with scope:
                yield scope
        finally:
            del self._calls[scope]

    def callers(self) -> set[str]:
        """Return the ids of the principals that have in-flight calls."""
        return set(self._calls.values())

    def end(self, principals: Collection[str]) -> None:
        """Cancel all in-flight calls of the principals with these ids."""
        for scope in [scope for scope, principal in self._calls.items() if principal in principals]:
            scope.cancel()
