"""`CallMethods`: serves `tools/call` requests of 2025 and 2026 clients with the MCP SDK. `server.calls` runs the calls."""

from __future__ import annotations

from functools import partial
from typing import cast

from mcp_types import CallToolRequestParams

from gateway.catalog import Catalog
from gateway.errors import GatewayError
from gateway.gate.rpc_errors import failed_call
from gateway.json_types import JsonObject
from gateway.protocol import INTERNAL_ERROR, RpcError
from gateway.server.calls import CallHandler, is_plain_result, to_wire
from gateway.server.client_limits import fit_outcome
from gateway.server.clients import Clients, RequestContext, is_modern, presence_of, scope_of_request
from gateway.server.in_flight import InFlightCall, call_in
from gateway.server.parked import ParkedCalls
from gateway.server.sdk_path.wire_caller import WireCaller, is_sdk_result
from gateway.server.visible_tools import seek_visible
from gateway.tools.base import Complete, ToolOutcome
from gateway.tools.context import CallContext

KEY_GONE = "The API key or access token of this call is no longer valid, so the call was ended."

STOPPED = "The gateway was stopped before this call ended. The call may have had effects: send it again if that does no harm."


class CallMethods:
    """Request handler of the MCP SDK's server for `tools/call`."""

    def __init__(self, calls: CallHandler, catalog: Catalog, clients: Clients, parked: ParkedCalls) -> None:
        self._calls = calls
        self._catalog = catalog
        self._clients = clients
        self._parked = parked

    async def __call__(self, ctx: RequestContext, params: CallToolRequestParams) -> JsonObject:
        """Serve a `tools/call` request of a 2025 or 2026 client.

        If the fast path, which does not use the SDK, already started the call, await that call. A call that requests input from a 2026
        client has several rounds: the client retries its request with the answers. This method handles the request of one round.
        """
        modern = is_modern(ctx)
        caller = WireCaller(ctx, self._clients.tasks)
        call = self._clients.context(ctx, caller)
        try:
            started = _started_call(ctx)
            outcome: ToolOutcome = Complete.text(KEY_GONE, is_error=True)
            running = self._calls.running
            with running.of(call.facts.principal.id, presence_of(ctx)) as scope:  # if cancelled, `outcome` keeps its value
                outcome = await (self._leg(ctx, params.name, call, caller) if started is None else started.outcome(caller))
            if scope.cancelled_caught and running.is_stopped:
                raise RpcError(INTERNAL_ERROR, STOPPED)
            if modern and scope_of_request(ctx) is None:
                self._parked.note_remote_parked(outcome, partial(self._again, ctx, params.name), call)
        except GatewayError as error:
            outcome = failed_call(error, call.facts.client.era).result()
        finally:
            await caller.finish()
        if isinstance(outcome, Complete):
            wire = to_wire(fit_outcome(outcome, call.facts.client), modern=modern)
            if is_plain_result(wire) or is_sdk_result(wire, ctx.protocol_version):
                return wire
            outcome = Complete.text(f"Tool {params.name!r} answered with a result that cannot be read; it may have run.", is_error=True)
        return to_wire(outcome, modern=modern)

    async def _leg(self, ctx: RequestContext, name: str, call: CallContext, caller: WireCaller) -> ToolOutcome:
        tool = await seek_visible(self._catalog, name, call.facts.principal)
        arguments = cast("JsonObject", (ctx.params or {}).get("arguments") or {})
        return await (self._calls.run if is_modern(ctx) else self._calls.run_legacy)(tool, arguments, call, caller)

    async def _again(self, ctx: RequestContext, name: str, leg: CallContext) -> ToolOutcome:
        arguments = cast("JsonObject", (ctx.params or {}).get("arguments") or {})
        return await (await self._catalog.seek(name)).call(arguments, leg)


def _started_call(ctx: RequestContext) -> InFlightCall | None:
    """Return the running call of a request that was started without the MCP SDK (on the fast path), and then delegated to the SDK path.

    Return `None` if the call was not started yet.
    """
    request: object = ctx.request
    if isinstance(request, InFlightCall):  # over stdio
        return request
    scope = scope_of_request(ctx)
    return None if scope is None else call_in(scope)
