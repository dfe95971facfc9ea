"""Tells clients what changed: legacy sessions by notification, modern ones on their `subscriptions/listen` streams.

Bursts are coalesced: however often a list changes, a client hears of it at once and then at most once a second, and of the
last change always. Each client is told in its own time: one that does not read delays nobody.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import anyio
import anyio.abc
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
from gateway.catalog.disclosure import scope_of
from gateway.errors import GatewayError
from gateway.protocol import INVALID_PARAMS, RpcError
from gateway.server.clients import Clients, LegacySession, RequestContext
from gateway.server.reads import MAX_WATCHED
from gateway.server.task_news import TaskNews
from gateway.server.wire_caller import WireCaller
from gateway.tools.base import ChangeKind

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05
"""Changes within this time are told together."""

SPACING_SECONDS = 1.0
"""Between two notifications of one list to one client."""

MISSED_SECONDS = 10.0
"""Who begins to listen is told of lists that changed so shortly before: it may have read them before that."""

SEND_SECONDS = 5.0
"""A client that does not take a notification within this time is skipped."""

MAX_PENDING_UPDATES = 10_000
"""Changed resources waiting to be told, of all and of one client; further ones are dropped, as the spec allows."""

_LISTENERS = ""
"""The scope of all clients of the modern era together: who of them loaded tools cannot be told apart on a stream."""

_EVENTS: dict[ChangeKind, ServerEvent] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}
_NOTIFICATIONS: dict[ChangeKind, str] = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}


_Key = TypeVar("_Key", bound=str)


class _Paced(Generic[_Key]):
    """What there is to tell, each key at most once per `SPACING_SECONDS`."""

    def __init__(self) -> None:
        self._waiting: set[_Key] = set()
        self._not_before: dict[_Key, float] = {}

    def add(self, key: _Key) -> None:
        """There is something to tell."""
        self._waiting.add(key)

    def due(self) -> float:
        """When the next of what waits may be told."""
        return min((self._not_before.get(key, -math.inf) for key in self._waiting), default=math.inf)

    def take(self) -> set[_Key]:
        """What may be told now; it counts as told."""
        now = anyio.current_time()
        self._not_before = {key: time for key, time in self._not_before.items() if time > now}
        ready = {key for key in self._waiting if key not in self._not_before}
        self._waiting -= ready
        self._not_before.update(dict.fromkeys(ready, now + SPACING_SECONDS))
        return ready


class _Bus(InMemorySubscriptionBus):
    """The SDK's, but a stream that opens hears at once of what its client may have missed: it listed first, and listens only now."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__()
        self._catalog = catalog

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """As the SDK's."""
        since = anyio.current_time() - MISSED_SECONDS
        for kind, at in self._catalog.changed_at.items():
            if at > since:
                listener(_EVENTS[kind])
        return super().subscribe(listener)


@dataclass(slots=True)
class _News:
    """What one legacy session has yet to be told."""

    lists: set[ChangeKind] = field(default_factory=lambda: cast("set[ChangeKind]", set()))
    updates: dict[str, None] = field(default_factory=lambda: cast("dict[str, None]", {}))


class Changes:
    """Follows the catalog and tells the clients; `run` must be going."""

    def __init__(self, catalog: Catalog, clients: Clients) -> None:
        self._catalog = catalog
        self._clients = clients
        self._bus = _Bus(catalog)
        self._listen = ListenHandler(self._bus)
        self._lists: _Paced[ChangeKind] = _Paced()
        self._updates: dict[str, None] = {}
        self._scopes: _Paced[str] = _Paced()
        self._telling: dict[LegacySession, _News] = {}
        """The sessions being told something right now, with what they are told after it."""
        self._wake = anyio.Event()
        self._tasks: TaskNews | None = None
        if catalog.disclosure is not None:
            catalog.disclosure.subscribe(self._listing_changed)
        catalog.subscribe(self.list_changed)
        catalog.subscribe_updates(self._resource_changed)

    def tell_tasks(self, tasks: TaskNews) -> None:
        """Have streams told of tasks too."""
        self._tasks = tasks

    def list_changed(self, kind: ChangeKind) -> None:
        """Clients are told soon."""
        self._lists.add(kind)
        self._wake.set()

    def _listing_changed(self, scope: str) -> None:
        """One client loaded or unloaded tools: only its session is told, or every listener of the modern era."""
        sessions = {scope_of(session.profile.session_id, "") for session in self._clients.all()}
        self._scopes.add(scope if scope in sessions else _LISTENERS)
        self._wake.set()

    def _resource_changed(self, uri: str) -> None:
        if len(self._updates) < MAX_PENDING_UPDATES:
            self._updates[uri] = None
            self._wake.set()

    async def run(self) -> None:
        """Send until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                with anyio.CancelScope(deadline=min(self._lists.due(), self._scopes.due())):
                    await self._wake.wait()
                await anyio.sleep(COALESCE_SECONDS)
                self._wake = anyio.Event()
                updates, self._updates = self._updates, {}
                own = {scope_of(session.profile.session_id, ""): session for session in self._clients.all()}
                lists, scopes = self._lists.take(), self._scopes.take()
                if _LISTENERS in scopes and "tools" not in lists:
                    await self._bus.publish(_EVENTS["tools"])
                for kind in sorted(lists):
                    await self._bus.publish(_EVENTS[kind])
                for uri in updates:
                    await self._bus.publish(ResourceUpdated(uri=uri))
                for scope, session in own.items():
                    told: set[ChangeKind] = {*lists, "tools"} if scope in scopes else lists
                    self._tell(session, told, [u for u in updates if session.watched[u]], tasks)

    def _tell(self, session: LegacySession, lists: set[ChangeKind], updates: list[str], tasks: anyio.abc.TaskGroup) -> None:
        """Have a session told, after what it is being told already: one task for a session at a time."""
        if not lists and not updates:
            return
        news = self._telling.get(session)
        if news is None:
            news = self._telling[session] = _News()
            tasks.start_soon(self._tell_all, session, news)
        news.lists |= lists
        for uri in updates[: MAX_PENDING_UPDATES - len(news.updates)]:
            news.updates[uri] = None

    async def _tell_all(self, session: LegacySession, news: _News) -> None:
        try:
            while news.lists or news.updates:
                lists, news.lists = sorted(news.lists), set()
                updates, news.updates = news.updates, {}
                with anyio.move_on_after(SEND_SECONDS):
                    for kind in lists:
                        await session.channel.notify(_NOTIFICATIONS[kind], None)
                    for uri in updates:
                        await session.channel.notify("notifications/resources/updated", {"uri": uri})
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("a client left while it was told of changes")
        finally:
            del self._telling[session]

    async def listen(self, ctx: RequestContext, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """`subscriptions/listen` (modern): watch the named resources as long as the stream is open."""
        uris = list(dict.fromkeys(str(uri) for uri in params.notifications.resource_subscriptions or ()))
        if len(uris) > MAX_WATCHED:
            raise RpcError(INVALID_PARAMS, f"A client may watch at most {MAX_WATCHED} resources.")
        facts = self._clients.context(ctx, WireCaller(ctx))
        watched: list[str] = []

        async def watch(uri: str) -> None:
            try:
                await self._catalog.watch(uri, facts)
                watched.append(uri)
            except GatewayError as error:
                logger.debug("%r cannot be watched: %s", uri, error)

        try:
            with anyio.move_on_after(SEND_SECONDS):
                async with anyio.create_task_group() as tasks:
                    for uri in uris:
                        tasks.start_soon(watch, uri)
            if facts.principal.scopes is not None:  # the stream would tell of what others watch
                told = params.notifications.model_copy(update={"resource_subscriptions": watched})
                params = params.model_copy(update={"notifications": told})
            if self._tasks is None:
                return await self._listen(ctx, params)
            async with self._tasks.on_stream(ctx, params) as inner:
                return await self._listen(inner, params)
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
