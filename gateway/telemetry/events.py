"""`EventStream`: the bounded list of what happened lately, and whoever listens to it.

Made once by `app` and handed to every room that has something to tell; the console, the audit record and
tests read it. Not a log and not a queue: old events fall out, nothing waits for a listener. Events never
carry arguments, results or secrets; put names, counts and outcomes in `fields`.
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
"""Events kept: about ten screens of the console, under a megabyte."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    kind: str
    """Dotted and stable: `call.started`, `call.finished`, `call.refused`, `source.state`, `catalog.changed`, `ask.judged`, …"""
    time: float
    """Seconds since the epoch."""
    source: str = ""
    """Source id, where one is concerned."""
    name: str = ""
    """Exposed name of a tool, resource or prompt, or the subject of the event."""
    principal: str = ""
    """`Principal.id` of the caller, where there is one."""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Small plain data."""


Listener = Callable[[Event], None]
"""Called synchronously for each event, on the call path: it must be quick. What it raises is logged and dropped."""

_Row = tuple[str, float, str, str, str, JsonObject | None]


class EventStream:
    """A ring of recent events with listeners. Cheap enough for the call path: without listeners, one tuple per event."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """Keep at most `capacity` events."""
        self._ring: deque[_Row] = deque(maxlen=capacity)
        self._listeners: tuple[tuple[Listener, Collection[str] | None], ...] = ()
        self._wanted: frozenset[str] | None = frozenset()
        """The kinds that anybody listens to; `None` for all."""

    def emit(
        self, kind: str, *, source: str = "", name: str = "", principal: str = "", fields: JsonObject | None = None
    ) -> None:
        """Record one event and tell the listeners. `fields` is handed over: do not change it afterwards."""
        row = (kind, time.time(), source, name, principal, fields)
        self._ring.append(row)
        if self._wanted is None or kind in self._wanted:
            self._tell(row)

    def recent(self, limit: int = DEFAULT_CAPACITY) -> list[Event]:
        """The latest events, oldest first, at most `limit`."""
        rows = list(self._ring.copy())
        return [_to_event(row) for row in rows[max(0, len(rows) - limit) :]]

    def subscribe(self, listener: Listener, kinds: Collection[str] | None = None) -> Callable[[], None]:
        """Call `listener` for every event (of these `kinds`) from now on; returns what undoes it (calling that twice is fine)."""
        self._listen((*self._listeners, (listener, kinds)))

        def unsubscribe() -> None:
            self._listen(tuple(other for other in self._listeners if other[0] is not listener))

        return unsubscribe

    def _listen(self, listeners: tuple[tuple[Listener, Collection[str] | None], ...]) -> None:
        self._listeners = listeners
        wanted = [kinds for _, kinds in listeners]
        self._wanted = None if None in wanted else frozenset(kind for kinds in wanted if kinds is not None for kind in kinds)

    def _tell(self, row: _Row) -> None:
        event: Event | None = None
        for listener, kinds in self._listeners:
            if kinds is not None and row[0] not in kinds:
                continue
            event = event or _to_event(row)
            try:
                listener(event)
            except Exception:
                logger.exception("A listener failed on event %s", event.kind)


def _to_event(row: _Row) -> Event:
    kind, at, source, name, principal, fields = row
    return Event(kind, at, source, name, principal, fields if fields is not None else {})
