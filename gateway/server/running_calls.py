"""`RunningCalls`: the in-flight calls of the SDK path by caller, so that the calls of a revoked API key can be cancelled.

Calls that the fast path answers are not included, because they end or reach the SDK path within `HAND_OVER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import anyio


class RunningCalls:
    """The cancel scopes of calls in flight, each with the id of the principal that made the call."""

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, str] = {}

    @contextmanager
    def of(self, principal: str) -> Generator[anyio.CancelScope]:
        """Register a call of a principal while the context is entered. `end` cancels the code inside."""
        scope = anyio.CancelScope()
        self._calls[scope] = principal
        try:
            with scope:
                yield scope
        finally:
            del self._calls[scope]

    def callers(self) -> set[str]:
        """Return the ids of principals with in-flight calls."""
        return set(self._calls.values())

    def end(self, principals: Collection[str]) -> None:
        """Cancel all calls of these principals."""
        for scope in [scope for scope, principal in self._calls.items() if principal in principals]:
            scope.cancel()
