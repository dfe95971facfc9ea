"""`Changes`: notifies 2025 sessions of changed lists and resources, and passes the same changes to the streams of 2026 clients.

It needs no SDK, so a session on the fast path is notified without it. The streams are `listening`'s, which comes with the SDK.
Changes within `COALESCE_SECONDS` become one notification, and each list is notified at most once per `SPACING_SECONDS`; the last change
is always notified. Each session is notified in a task of its own, so a client that does not read delays no other client.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

import anyio
import anyio.abc

from gateway.catalog import Catalog
from gateway.catalog.disclosure import scope_of
from gateway.server.clients import Clients, LegacySession
from gateway.tools.base import ChangeKind

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05
"""Changes within this time are told together."""

SPACING_SECONDS = 1.0
"""Between two notifications of one list to one client."""

SEND_SECONDS = 5.0
"""A client that does not take a notification within this time is skipped."""

MAX_PENDING_UPDATES = 10_000
"""Changed resources waiting to be told, of all and of one client; further ones are dropped, as the spec allows."""

_LISTENERS = ""
"""The scope of all clients of the modern era together: who of them loaded tools cannot be told apart on a stream."""

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


class Streams(Protocol):
    """The `subscriptions/listen` streams of 2026 clients."""

    async def list_changed(self, kind: ChangeKind) -> None:
        """Send a notification that a list changed to each stream that asked for it."""
        ...

    async def resource_updated(self, uri: str) -> None:
        """The same for a watched resource."""
        ...


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
        self._streams: Streams | None = None
        self._lists: _Paced[ChangeKind] = _Paced()
        self._updates: dict[str, None] = {}
        self._scopes: _Paced[str] = _Paced()
        self._telling: dict[LegacySession, _News] = {}
        """The sessions being told something right now, with what they are told after it."""
        self._wake = anyio.Event()
        if catalog.disclosure is not None:
            catalog.disclosure.subscribe(self._listing_changed)
        catalog.subscribe(self._list_changed)
        catalog.subscribe_updates(self._resource_changed)

    def notify_streams(self, streams: Streams) -> None:
        """Pass changes to `streams` from now on."""
        self._streams = streams

    def _list_changed(self, kind: ChangeKind) -> None:
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
                if self._streams is not None:
                    named: set[ChangeKind] = {*lists, "tools"} if _LISTENERS in scopes else lists
                    for kind in sorted(named):
                        await self._streams.list_changed(kind)
                    for uri in updates:
                        await self._streams.resource_updated(uri)
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
