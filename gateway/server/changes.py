"""`Changes`: notifies 2025 sessions of changed lists and resources, and passes the same changes to the streams of 2026 clients.

It works without the SDK, for sessions on the fast path. The streams (`sdk_path.listen_streams`) are attached when the SDK is loaded.
Changes within `COALESCE_SECONDS` become one notification, and each list is notified at most once per `SPACING_SECONDS`. Clients are
always notified of the last change. Each session is notified in a separate task, so a client that does not read delays no other client.
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
"""Changes of a list within this time are sent in one notification."""

SPACING_SECONDS = 1.0
"""Minimum time between two notifications of one list to one client."""

SEND_SECONDS = 5.0
"""Timeout of sending notifications to one client. After it, the notifications that were being sent to the client are dropped."""

MAX_PENDING_UPDATES = 10_000
"""Maximum number of pending resource updates, in total and per client. Later updates are dropped, as the specification allows."""

_LISTENERS = ""
"""Key, in place of a session's, for all 2026 clients together: a listen stream does not identify the client that loaded tools."""

_NOTIFICATIONS: dict[ChangeKind, str] = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}


_Key = TypeVar("_Key", bound=str)


class _Paced(Generic[_Key]):
    """Keys of pending notifications, such as kinds of lists. Each key becomes due at most once per `SPACING_SECONDS`."""

    def __init__(self) -> None:
        self._waiting: set[_Key] = set()
        self._not_before: dict[_Key, float] = {}

    def add(self, key: _Key) -> None:
        """Add the key of a pending notification."""
        self._waiting.add(key)

    def due(self) -> float:
        """Return the time when the next pending notification is due (event loop clock); infinite if no notification is pending."""
        return min((self._not_before.get(key, -math.inf) for key in self._waiting), default=math.inf)

    def take(self) -> set[_Key]:
        """Remove and return the keys of the notifications that are due."""
        now = anyio.current_time()
        self._not_before = {key: time for key, time in self._not_before.items() if time > now}
        ready = {key for key in self._waiting if key not in self._not_before}
        self._waiting -= ready
        self._not_before.update(dict.fromkeys(ready, now + SPACING_SECONDS))
        return ready


class Streams(Protocol):
    """The interface through which `Changes` notifies the `subscriptions/listen` streams of 2026 clients."""

    async def list_changed(self, kind: ChangeKind) -> None:
        """Send the list-changed notification of `kind` to each stream that subscribed to this notification."""
        ...

    async def resource_updated(self, uri: str) -> None:
        """Send a resource update to each stream that subscribed to the resource."""
        ...


@dataclass(slots=True)
class _Pending:
    """Notifications of one 2025 session that are not sent yet: kinds of changed lists, and URIs of updated resources."""

    lists: set[ChangeKind] = field(default_factory=lambda: cast("set[ChangeKind]", set()))
    updates: dict[str, None] = field(default_factory=lambda: cast("dict[str, None]", {}))


class Changes:
    """Observes changes of the catalog, and notifies the clients of them while `run` runs."""

    def __init__(self, catalog: Catalog, clients: Clients) -> None:
        self._catalog = catalog
        self._clients = clients
        self.streams: Streams | None = None
        """The listen streams of 2026 clients, which are also notified; `None` before the SDK is loaded."""
        self._lists: _Paced[ChangeKind] = _Paced()
        self._updates: dict[str, None] = {}
        self._scopes: _Paced[str] = _Paced()
        self._sending: dict[LegacySession, _Pending] = {}
        """Sessions to which a task is sending, with the notifications that the task sends next."""
        self._wake = anyio.Event()
        if catalog.disclosure is not None:
            catalog.disclosure.subscribe(self._listing_changed)
        catalog.subscribe(self._list_changed)
        catalog.subscribe_updates(self._resource_changed)

    def _list_changed(self, kind: ChangeKind) -> None:
        self._lists.add(kind)
        self._wake.set()

    def _listing_changed(self, scope: str) -> None:
        """Note that one client loaded or unloaded tools. Only its 2025 session is notified; for a 2026 client, every listen stream."""
        sessions = {scope_of(session.profile.session_id, "") for session in self._clients.all()}
        self._scopes.add(scope if scope in sessions else _LISTENERS)
        self._wake.set()

    def _resource_changed(self, uri: str) -> None:
        if len(self._updates) < MAX_PENDING_UPDATES:
            self._updates[uri] = None
            self._wake.set()

    async def run(self) -> None:
        """Send notifications of changes until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                with anyio.CancelScope(deadline=min(self._lists.due(), self._scopes.due())):
                    await self._wake.wait()
                await anyio.sleep(COALESCE_SECONDS)
                self._wake = anyio.Event()
                updates, self._updates = self._updates, {}
                own = {scope_of(session.profile.session_id, ""): session for session in self._clients.all()}
                lists, scopes = self._lists.take(), self._scopes.take()
                if self.streams is not None:
                    named: set[ChangeKind] = {*lists, "tools"} if _LISTENERS in scopes else lists
                    for kind in sorted(named):
                        await self.streams.list_changed(kind)
                    for uri in updates:
                        await self.streams.resource_updated(uri)
                for scope, session in own.items():
                    changed: set[ChangeKind] = {*lists, "tools"} if scope in scopes else lists
                    self._notify(session, changed, [u for u in updates if session.watched[u]], tasks)

    def _notify(self, session: LegacySession, lists: set[ChangeKind], updates: list[str], tasks: anyio.abc.TaskGroup) -> None:
        """Notify a session. If a task is sending notifications to the session already, the task sends these next."""
        if not lists and not updates:
            return
        pending = self._sending.get(session)
        if pending is None:
            pending = self._sending[session] = _Pending()
            tasks.start_soon(self._send_all, session, pending)
        pending.lists |= lists
        for uri in updates[: MAX_PENDING_UPDATES - len(pending.updates)]:
            pending.updates[uri] = None

    async def _send_all(self, session: LegacySession, pending: _Pending) -> None:
        try:
            while pending.lists or pending.updates:
                lists, pending.lists = sorted(pending.lists), set()
                updates, pending.updates = pending.updates, {}
                with anyio.move_on_after(SEND_SECONDS):
                    for kind in lists:
                        await session.channel.notify(_NOTIFICATIONS[kind], None)
                    for uri in updates:
                        await session.channel.notify("notifications/resources/updated", {"uri": uri})
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            logger.debug("notification not sent reason=client-closed")
        finally:
            del self._sending[session]
