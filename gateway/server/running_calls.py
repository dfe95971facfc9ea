"""`RunningCalls`: records in-flight tool calls, to cancel the calls of a revoked API key, and those that a stopping gateway cannot finish.

Only calls on the SDK path, which uses the MCP SDK, are recorded. Calls on the fast path, without the SDK, end or are handed over to the SDK
path within `HAND_OVER_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager

import anyio

from gateway.server.request_presence import RequestPresence


class RunningCalls:
    """Records in-flight tool calls: the cancel scope of each call, and the id of the principal that made it.

    `end` cancels the calls of principals whose API key was revoked. Calls are recorded when the MCP SDK handles them, not on the fast path.
    """

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, tuple[str, RequestPresence | None]] = {}
        self.is_stopped = False
        """Whether `stop` was called."""

    @contextmanager
    def of(self, principal: str, presence: RequestPresence | None = None) -> Generator[anyio.CancelScope]:
        """Record a call of the principal with this id while the context is entered. `end` and `stop` cancel the code inside the context.

        `presence` tracks whether the client of a call in a 2025 session is reachable; `None` for other calls.
        """
        scope = anyio.CancelScope()
        self._calls[scope] = principal, presence
        if self.is_stopped:
            scope.cancel()
        try:
            with scope:
                yield scope
        finally:
            del self._calls[scope]

    def callers(self) -> set[str]:
        """Return the ids of the principals that have in-flight calls."""
        return {principal for principal, _ in self._calls.values()}

    def end(self, principals: Collection[str]) -> None:
        """Cancel all in-flight calls of the principals with these ids."""
        for scope in [scope for scope, (principal, _) in self._calls.items() if principal in principals]:
            scope.cancel()

    def may_be_resumed(self) -> bool:
        """Whether the client of a call has just lost its stream, and may come back for the result with `Last-Event-ID`."""
        now = anyio.current_time()
        return any(presence is not None and presence.may_return(now) for _, presence in self._calls.values())

    def stop(self) -> int:
        """Cancel all calls, also those that are recorded later, because the gateway stops. Return the number of calls in progress."""
        self.is_stopped = True
        for scope in list(self._calls):
            scope.cancel()
        return len(self._calls)
