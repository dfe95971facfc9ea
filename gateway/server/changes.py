"""Tells clients what changed: legacy sessions by notification, modern ones on their `subscriptions/listen` streams.

Bursts are coalesced: however often a list changes, a client hears of it once per round of sending.
"""

from __future__ import annotations

import logging

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
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ServerNotification,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    ToolListChangedNotification,
)

from gateway.catalog import Catalog
from gateway.catalog.disclosure import scope_of
from gateway.errors import GatewayError
from gateway.server.clients import Clients, LegacySession, RequestContext
from gateway.server.reads import MAX_WATCHED
from gateway.tools.base import ChangeKind

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05
"""Changes within this time are told together."""

SEND_SECONDS = 5.0
"""A client that does not take a notification within this time is skipped."""

MAX_PENDING_UPDATES = 10_000
"""Changed resources waiting to be told; further ones are dropped, as the spec allows."""

_EVENTS: dict[ChangeKind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}
_NOTIFICATIONS: dict[ChangeKind, ServerNotification] = {
    "tools": ToolListChangedNotification(),
    "resources": ResourceListChangedNotification(),
    "prompts": PromptListChangedNotification(),
}


class Changes:
    """Follows the catalog and tells the clients; `run` must be going."""

    def __init__(self, catalog: Catalog, clients: Clients) -> None:
        self._catalog = catalog
        self._clients = clients
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._lists: set[ChangeKind] = set()
        self._updates: dict[str, None] = {}
        self._scopes: set[str] = set()
        self._wake = anyio.Event()
        if catalog.disclosure is not None:
            catalog.disclosure.subscribe(self._listing_changed)
        catalog.subscribe(self._list_changed)
        catalog.subscribe_updates(self._resource_changed)

    def _list_changed(self, kind: ChangeKind) -> None:
        self._lists.add(kind)
        self._wake.set()

    def _listing_changed(self, scope: str) -> None:
        """One client loaded or unloaded tools: only its session is told, or every listener of the modern era."""
        self._scopes.add(scope)
        self._wake.set()

    def _resource_changed(self, uri: str) -> None:
        if len(self._updates) < MAX_PENDING_UPDATES:
            self._updates[uri] = None
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._wake.wait()
            await anyio.sleep(COALESCE_SECONDS)
            self._wake = anyio.Event()
            lists, self._lists = self._lists, set()
            updates, self._updates = self._updates, {}
            scopes, self._scopes = self._scopes, set()
            own = {scope_of(session.profile.session_id, ""): session for session in self._clients.all()}
            if scopes - set(own):
                await self._bus.publish(_EVENTS["tools"])
            for kind in sorted(lists):
                await self._bus.publish(_EVENTS[kind])
            for uri in updates:
                await self._bus.publish(ResourceUpdated(uri=uri))
            async with anyio.create_task_group() as tasks:
                for scope, session in own.items():
                    told: set[ChangeKind] = {*lists, "tools"} if scope in scopes else lists
                    tasks.start_soon(self._tell, session, sorted(told), [u for u in updates if session.watched[u]])

    async def _tell(self, session: LegacySession, lists: list[ChangeKind], updates: list[str]) -> None:
        with anyio.move_on_after(SEND_SECONDS):
            try:
                for kind in lists:
                    await session.channel.send_notification(_NOTIFICATIONS[kind])
                for uri in updates:
                    await session.channel.send_resource_updated(uri)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                logger.debug("a client left while it was told of changes")

    async def listen(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """`subscriptions/listen` (modern): watch the named resources as long as the stream is open."""
        uris = list(dict.fromkeys(str(uri) for uri in params.notifications.resource_subscriptions or ()))
        if len(uris) > MAX_WATCHED:
            raise MCPError(INVALID_PARAMS, f"A client may watch at most {MAX_WATCHED} resources.")
        watched: list[str] = []
        try:
            for uri in uris:
                with anyio.move_on_after(SEND_SECONDS):
                    try:
                        await self._catalog.watch(uri)
                        watched.append(uri)
                    except GatewayError as error:
                        logger.debug("%r cannot be watched: %s", uri, error)
            return await self._listen(ctx, params)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SEND_SECONDS):
                for uri in watched:
                    try:
                        await self._catalog.unwatch(uri)
                    except GatewayError as error:
                        logger.debug("%r cannot be unwatched: %s", uri, error)

    def close(self) -> None:
        """End every listen stream gracefully."""
        self._listen.close()
