"""`RunningCalls`: records which principal made each in-flight call on the SDK path, to cancel the calls of a revoked API key.

Calls on the fast path are not recorded, because they end or are handed over to the SDK path within `HAND_OVER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import anyio


class RunningCalls:
    """Records the in-flight tool calls of the SDK path: the cancel scope of each call, and the id of the principal that made it.

    `end` cancels the calls of principals whose API key was revoked.
    """

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, str] = {}

    @contextmanager
    def of(self, principal: str) -> Generator[anyio.CancelScope]:
        """Record a call of the principal with this id while the context is entered. `end` cancels the code inside the context."""
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
