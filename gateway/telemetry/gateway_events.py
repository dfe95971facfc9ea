"""`EventStream`: a bounded list of the gateway's recent events, and the listeners that are called for each event.

`app` creates the stream and passes it to the packages that emit events. The console, the audit log and tests read it. Old events are
dropped; emitting never waits for a listener. Events contain names, counts and outcomes, never arguments, results or secrets.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonObject

logger = logging.getLogger(__name__)

DEFAULT_CAPACITY = 2000
"""Maximum number of events that are kept: about ten screens of the console, less than a megabyte."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the gateway, such as the end of a call."""

    kind: str
    """Stable type of the event: `call.started`, `call.finished`, `call.refused`, `source.state`, `catalog.changed`, `ask.judged`, …"""
    time: float
    """When the event occurred, in seconds since the Unix epoch."""
    source: str = ""
    """Id of the source of tools that the event concerns, or an empty string."""
    name: str = ""
    """Exposed name of a tool, resource or prompt, or the subject of the event."""
    principal: str = ""
    """`Principal.id` of the caller, or an empty string if the event has no caller."""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Further facts of the event, as small JSON values."""


Listener = Callable[[Event], None]
"""Function that is called synchronously with each event, during calls, so it must be quick. Its exceptions are logged and dropped."""

_Row = tuple[str, float, str, str, str, JsonObject | None]


class EventStream:
    """Keeps the gateway's recent events, and calls listeners for each. Cheap enough for every call: without listeners, one tuple."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """Keep at most `capacity` events."""
        self._ring: deque[_Row] = deque(maxlen=capacity)
        self._listeners: tuple[tuple[Listener, Collection[str] | None], ...] = ()
        self._wanted: frozenset[str] | None = frozenset()
        """Kinds of events to which at least one listener has subscribed; `None` for all kinds."""

    def emit(
        self, kind: str, *, source: str = "", name: str = "", principal: str = "", fields: JsonObject | None = None
    ) -> None:
        """Record an event and call its listeners. The stream owns `fields` afterwards: do not change it."""
        row = (kind, time.time(), source, name, principal, fields)
        self._ring.append(row)
        if self._wanted is None or kind in self._wanted:
            self._notify(row)

    def recent(self, limit: int = DEFAULT_CAPACITY) -> list[Event]:
        """Return the latest `limit` events, oldest first."""
        rows = list(self._ring.copy())
        return [_to_event(row) for row in rows[max(0, len(rows) - limit) :]]

    def subscribe(self, listener: Listener, kinds: Collection[str] | None = None) -> Callable[[], None]:
        """Call `listener` for each later event, or only for events of `kinds`. Return a function that unsubscribes, callable twice."""
        self._listen((*self._listeners, (listener, kinds)))

        def unsubscribe() -> None:
            self._listen(tuple(other for other in self._listeners if other[0] is not listener))

        return unsubscribe

    def _listen(self, listeners: tuple[tuple[Listener, Collection[str] | None], ...]) -> None:
        self._listeners = listeners
        wanted = [kinds for _, kinds in listeners]
        self._wanted = None if None in wanted else frozenset(kind for kinds in wanted if kinds is not None for kind in kinds)

    def _notify(self, row: _Row) -> None:
        event: Event | None = None
        for listener, kinds in self._listeners:
            if kinds is not None and row[0] not in kinds:
                continue
            event = event or _to_event(row)
            try:
                listener(event)
            except Exception:
                logger.exception("event listener failed kind=%s", event.kind)


def _to_event(row: _Row) -> Event:
    kind, at, source, name, principal, fields = row
    return Event(kind, at, source, name, principal, fields if fields is not None else {})
