"""`RunningCalls`: the calls under way on the SDK's path, by caller, so that those of a revoked API key can be ended.

Calls that the direct path answers itself are not in it: they are short, and their source's `timeoutSeconds` bounds them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import anyio


class RunningCalls:
    """Scopes of calls with the id of the principal each is for."""

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, str] = {}

    @contextmanager
    def of(self, principal: str) -> Generator[anyio.CancelScope]:
        """A call goes on inside; its scope is cancelled where it was ended."""
        scope = anyio.CancelScope()
        self._calls[scope] = principal
        try:
            with scope:
                yield scope
        finally:
            del self._calls[scope]

    def callers(self) -> set[str]:
        """Who has calls under way."""
        return set(self._calls.values())

    def end(self, principals: Collection[str]) -> None:
        """End all calls of these."""
        for scope in [scope for scope, principal in self._calls.items() if principal in principals]:
            scope.cancel()
