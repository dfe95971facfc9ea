"""`RoutedStates`: writes the id of this replica before each `requestState`, so that the client's retry is forwarded to this replica."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway.server.clients import RequestContext
from gateway.server.replica_routes import plain_state, routed_state

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult


class RoutedStates:
    """Middleware of the MCP SDK's server: adds the id of this replica to request states of results, and removes it from retried requests.

    It is the outermost middleware, so the states that it handles are encrypted.
    """

    def __init__(self, replica: str) -> None:
        """`replica` is the id of this replica."""
        self._replica = replica

    async def __call__(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Handle a request."""
        params = ctx.params
        if params is not None and isinstance(state := params.get("requestState"), str):
            ctx = dataclasses.replace(ctx, params={**params, "requestState": plain_state(state)})
        result = await call_next(ctx)
        if not isinstance(result, dict) or not isinstance(state := result.get("requestState"), str):
            return result
        return {**result, "requestState": routed_state(self._replica, state)}
