"""`ReadMethods`: serves `resources/read`, `prompts/get`, `completion/complete`, resource subscriptions and `logging/setLevel`.

It serves 2025 and 2026 clients. The catalog finds the source (a remote server, or the gateway's own skills, agents, …) and applies policy;
this module converts parameters and results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from mcp_types import (
    CompleteRequestParams,
    GetPromptRequestParams,
    ReadResourceRequestParams,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)

from gateway.catalog import Catalog
from gateway.gate.rpc_errors import to_rpc_error
from gateway.json_types import JsonObject
from gateway.protocol import RpcError
from gateway.server.calls import input_required_to_wire
from gateway.server.clients import Clients, RequestContext, is_modern, scope_of_request
from gateway.server.parked import ParkedCalls, open_upstream_state, seal_upstream_state
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.server.watches import Watches
from gateway.tools.base import Finished, InputRequired, cacheable, complete_result
from gateway.tools.context import CallContext
from gateway.tools.drive import drive_rounds
from gateway.tools.ports import Era

Outcome = Finished | InputRequired


class ReadMethods:
    """Request handlers of the MCP SDK's server for reads, prompts, completion, resource subscriptions and `logging/setLevel`."""

    def __init__(self, catalog: Catalog, clients: Clients, parked: ParkedCalls, watches: Watches) -> None:
        """`watches` adds and removes the resource subscriptions of 2025 sessions.

        `parked` keeps the reads and prompts of 2026 clients that request input while they run, until the client's next request."""
        self._catalog = catalog
        self._clients = clients
        self._parked = parked
        self._watches = watches

    async def read(self, ctx: RequestContext, params: ReadResourceRequestParams) -> JsonObject:
        """Serve a `resources/read` request of a 2025 or 2026 client."""
        uri = str((ctx.params or {}).get("uri") or params.uri)
        may_wait = await self._catalog.may_request_input("resources", uri) if is_modern(ctx) else False
        wire = await self._answer(ctx, lambda call: self._catalog.read(uri, call), may_wait=may_wait)
        if is_modern(ctx) and wire["resultType"] == "complete":
            return cacheable(wire)
        return wire

    async def get_prompt(self, ctx: RequestContext, params: GetPromptRequestParams) -> JsonObject:
        """Serve a `prompts/get` request of a 2025 or 2026 client."""
        may_wait = await self._catalog.may_request_input("prompts", params.name) if is_modern(ctx) else False
        return await self._answer(ctx, lambda call: self._catalog.get_prompt(params.name, params.arguments or {}, call), may_wait=may_wait)

    async def complete(self, ctx: RequestContext, params: CompleteRequestParams) -> JsonObject:
        """Serve a `completion/complete` request of a 2025 or 2026 client."""
        raw = ctx.params or {}
        call = self._clients.context(ctx, WireCaller(ctx))
        context = cast("JsonObject | None", raw.get("context"))
        completion = await self._catalog.complete(dict(raw["ref"]), dict(raw["argument"]), context, call)
        return complete_result({"completion": completion}, is_modern=is_modern(ctx))

    async def subscribe(self, ctx: RequestContext, params: SubscribeRequestParams) -> JsonObject:
        """Serve a `resources/subscribe` request of a 2025 client. If its session already watches the resource, nothing changes."""
        session, uri = self._clients.session_of(ctx), str((ctx.params or {}).get("uri") or params.uri)
        try:
            if await self._watches.add(session, uri, self._clients.context(ctx, WireCaller(ctx))):
                await self._clients.share(session)
        except RpcError:
            raise
        except Exception as error:
            raise to_rpc_error(error, "legacy") from None
        return {}

    async def unsubscribe(self, ctx: RequestContext, params: UnsubscribeRequestParams) -> JsonObject:
        """Serve a `resources/unsubscribe` request of a 2025 client."""
        session, uri = self._clients.session_of(ctx), str((ctx.params or {}).get("uri") or params.uri)
        if await self._watches.remove(session, uri):
            await self._clients.share(session)
        return {}

    async def set_level(self, ctx: RequestContext, params: SetLevelRequestParams) -> JsonObject:
        """Serve a `logging/setLevel` request of a 2025 client, which sets the log level of its session only."""
        session = self._clients.session_of(ctx)
        session.log_level = params.level
        await self._clients.share(session)
        return {}

    async def _answer(self, ctx: RequestContext, work: Callable[[CallContext], Awaitable[Outcome]], *, may_wait: bool) -> JsonObject:
        """Run `work`, a resource read or prompt, and return its result as a JSON object.

        If `work` requests input, a 2025 client receives the request while `work` waits; a 2026 client receives it as the result.
        `may_wait` is whether `work` may request input while it runs.
        """
        modern = is_modern(ctx)
        era: Era = "modern" if modern else "legacy"
        caller = WireCaller(ctx, self._clients.tasks)
        call = self._clients.context(ctx, caller)
        try:
            if not modern:
                outcome: Outcome = await drive_rounds(work, call, ctx.method)
                await caller.close()
            elif may_wait and call.facts.client.takes_input_requests:
                outcome = await self._parked.run(work, call, caller)
            else:
                outcome = await work(call.with_state(open_upstream_state(call.facts.request_state)))
                outcome = seal_upstream_state(outcome) if isinstance(outcome, InputRequired) else outcome
                if scope_of_request(ctx) is None:
                    self._parked.note_remote_parked(outcome, work, call)
        except Exception as error:
            raise to_rpc_error(error, era) from None
        finally:
            await caller.finish()
        if isinstance(outcome, InputRequired):
            return input_required_to_wire(outcome)
        return complete_result(dict(outcome.result), is_modern=modern)
