"""`ListenStreams`: serves the `subscriptions/listen` streams of 2026 clients with the MCP SDK's handler.

`server.changes` calls it when lists or resources have changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

from gateway.catalog import Catalog
from gateway.errors import GatewayError
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.server.changes import SEND_SECONDS
from gateway.server.clients import Clients, RequestContext
from gateway.server.sdk_path.task_notifications import TaskNotifications
from gateway.server.sdk_path.wire_caller import WireCaller
from gateway.server.watches import MAX_WATCHED
from gateway.tools.base import ChangeKind

logger = logging.getLogger(__name__)

MISSED_SECONDS = 10.0
"""Maximum age, in seconds, of the list changes that are sent on a new listen stream at its start. The client may have read the lists before
these changes."""

_EVENTS: dict[ChangeKind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


class _Bus(InMemorySubscriptionBus):
    """The MCP SDK's bus that passes changes to listen streams.

    Extended: new streams also get the list changes of the last `MISSED_SECONDS`.
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._catalog = catalog

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Pass the recent list changes to `listener`, the function of a new stream, and register it for later changes.

        Return the function that unregisters it.
        """
        since = anyio.current_time() - MISSED_SECONDS
        for kind, at in self._catalog.changed_at.items():
            if at > since:
                listener(_EVENTS[kind])
        return super().subscribe(listener)


class ListenStreams:
    """Serves the `subscriptions/listen` requests of 2026 clients, and sends changes on the open streams. `close` ends every stream."""

    def __init__(self, catalog: Catalog, clients: Clients, tasks: TaskNotifications) -> None:
        self._catalog = catalog
        self._clients = clients
        self._tasks = tasks
        self._bus = _Bus(catalog)
        self._listen = ListenHandler(self._bus)

    async def list_changed(self, kind: ChangeKind) -> None:
        """Send the list-changed notification for lists of `kind` on each open stream that subscribed to this notification."""
        await self._bus.publish(_EVENTS[kind])

    async def resource_updated(self, uri: str) -> None:
        """Send a resource update on each open stream that subscribed to the resource."""
        await self._bus.publish(ResourceUpdated(uri=uri))

    async def listen(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serve a `subscriptions/listen` request until its stream ends. Meanwhile, watch the resources that the request names for updates.

        Raises:
            RpcError: The request names more than `MAX_WATCHED` resources, or tasks that `TaskNotifications.on_stream` rejects.
        """
        uris = list(dict.fromkeys(str(uri) for uri in params.notifications.resource_subscriptions or ()))
        if len(uris) > MAX_WATCHED:
            raise RpcError(INVALID_PARAMS, f"A client may watch at most {MAX_WATCHED} resources.")
        call = self._clients.context(ctx, WireCaller(ctx))
        watched: list[str] = []

        async def watch(uri: str) -> None:
            try:
                await self._catalog.watch(uri, call)
                watched.append(uri)
            except GatewayError as error:
                logger.debug("resource not watched uri=%r error=%s", uri, error)

        try:
            with anyio.move_on_after(SEND_SECONDS):
                async with anyio.create_task_group() as tasks:
                    for uri in uris:
                        tasks.start_soon(watch, uri)
            if call.facts.principal.rights is not None:  # else it would get updates of resources that only other callers may watch
                accepted = params.notifications.model_copy(update={"resource_subscriptions": watched})
                params = params.model_copy(update={"notifications": accepted})
            async with self._tasks.on_stream(ctx, params) as inner:
                return await self._listen(inner, params)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SEND_SECONDS):
                for uri in watched:
                    try:
                        await self._catalog.unwatch(uri)
                    except GatewayError as error:
                        logger.debug("resource watch not ended uri=%r error=%s", uri, error)

    def close(self) -> None:
        """End every open listen stream, with a proper response to its request."""
        self._listen.close()
