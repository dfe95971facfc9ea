"""`Changes`: notifies 2025 sessions of changed lists and resources, and passes the same changes to the listen streams of 2026 clients.

It does not need the MCP SDK, so it also notifies sessions on the fast path, which are served without the SDK. A listen stream
(`sdk_path.listen_streams`) is the response to `subscriptions/listen`; these streams are attached when the SDK is loaded. Changes of a list
within `COALESCE_SECONDS` are sent as one notification, and a client is notified of each list at most once per `SPACING_SECONDS`: a change
within this time is notified at its end. Each session is notified in a separate task, so a client that does not read delays no other client.
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
"""Changes of a list (tools, resources or prompts) that follow within this many seconds are sent to clients as one notification."""

SPACING_SECONDS = 1.0
"""Minimum seconds between two notifications to a client that the same list has changed."""

SEND_SECONDS = 5.0
"""Timeout in seconds for sending notifications to a 2025 client. After a timeout, the notifications that were being sent are dropped."""

MAX_PENDING_UPDATES = 10_000
"""Maximum number of updated resources that wait to be passed on to the clients, and of those that wait for one 2025 client.

Further updates are dropped, as MCP allows."""

_LISTENERS = ""
"""Key of a pending tool-list notification for all 2026 clients together, because a listen stream does not identify its client. The key of a
notification for a 2025 client identifies the client's session."""

_NOTIFICATIONS: dict[ChangeKind, str] = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}


_Key = TypeVar("_Key", bound=str)


class _Paced(Generic[_Key]):
    """A rate limiter for notifications, by a key such as the kind of a list. Each key is due at most once per `SPACING_SECONDS`."""

    def __init__(self) -> None:
        self._waiting: set[_Key] = set()
        self._not_before: dict[_Key, float] = {}

    def add(self, key: _Key) -> None:
        """Add the key of a notification that is to be sent. A key that is pending already is added only once."""
        self._waiting.add(key)

    def due(self) -> float:
        """Return the event loop's time at which the next pending notification may be sent; infinity if no notification is pending."""
        return min((self._not_before.get(key, -math.inf) for key in self._waiting), default=math.inf)

    def take(self) -> set[_Key]:
        """Remove and return the keys of the pending notifications that may be sent now."""
        now = anyio.current_time()
        self._not_before = {key: time for key, time in self._not_before.items() if time > now}
        ready = {key for key in self._waiting if key not in self._not_before}
        self._waiting -= ready
        self._not_before.update(dict.fromkeys(ready, now + SPACING_SECONDS))
        return ready


class Streams(Protocol):
    """Interface of the object that sends changes on the `subscriptions/listen` streams of 2026 clients."""

    async def list_changed(self, kind: ChangeKind) -> None:
        """Send the list-changed notification for lists of `kind` on each stream that subscribed to this notification."""
        ...

    async def resource_updated(self, uri: str) -> None:
        """Send a resource update on each stream that subscribed to the resource."""
        ...


@dataclass(slots=True)
class _Pending:
    """The notifications that wait to be sent to the client of a 2025 session: kinds of changed lists, and URIs of updated resources."""

    lists: set[ChangeKind] = field(default_factory=lambda: cast("set[ChangeKind]", set()))
    updates: dict[str, None] = field(default_factory=lambda: cast("dict[str, None]", {}))


class Changes:
    """Observes the catalog for changed lists and resources, and notifies 2025 and 2026 clients of the changes while `run` runs."""

    def __init__(self, catalog: Catalog, clients: Clients) -> None:
        self._catalog = catalog
        self._clients = clients
        self.streams: Streams | None = None
        """The listen streams of 2026 clients, which are also notified; `None` before the SDK is loaded."""
        self._lists: _Paced[ChangeKind] = _Paced()
        self._updates: dict[str, None] = {}
        self._scopes: _Paced[str] = _Paced()
        self._sending: dict[LegacySession, _Pending] = {}
        """Sessions to which a task is sending notifications, each with the notifications that the task will send next."""
        self._wake = anyio.Event()
        if catalog.disclosure is not None:
            catalog.disclosure.subscribe(self._listing_changed)
        catalog.subscribe(self._list_changed)
        catalog.subscribe_updates(self._resource_changed)

    def _list_changed(self, kind: ChangeKind) -> None:
        self._lists.add(kind)
        self._wake.set()

    def _listing_changed(self, scope: str) -> None:
        """Record that a client loaded or unloaded on-demand tools, which are listed only for clients that load them.

        `scope` is the key under which the catalog stores which tools the client has loaded. A 2025 client is notified on its session. For a
        2026 client, every listen stream is notified, because a stream does not identify its client.
        """
        sessions = {scope_of(session.profile.session_id, "") for session in self._clients.all()}
        self._scopes.add(scope if scope in sessions else _LISTENERS)
        self._wake.set()

    def _resource_changed(self, uri: str) -> None:
        if len(self._updates) < MAX_PENDING_UPDATES:
            self._updates[uri] = None
            self._wake.set()

    async def run(self) -> None:
        """Send notifications of changed lists and resources to the clients, until cancelled."""
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
        """Notify a 2025 session of changed lists and updated resources, in a new task in the group `tasks`.

        If a task is already sending notifications to the session, that task sends these next.
        """
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
