"""`EventStream`: calls listeners with the events of the gateway.

`app` creates the stream and passes it to the packages that emit events. The audit log subscribes to the stream, which itself stores no
events. Events contain names, counts and outcomes, never results or secrets, and of arguments only what the section `audit` requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import cast

from gateway.json_types import JsonObject

logger = logging.getLogger(__name__)


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
    """Exposed name of the tool, resource or prompt that the event concerns, or another name, such as `tools` in `catalog.changed`."""
    principal: str = ""
    """`Principal.id` of the caller, or an empty string if the event has no caller."""
    fields: JsonObject = field(default_factory=lambda: cast("JsonObject", {}))
    """Further facts of the event, as small JSON values."""


Listener = Callable[[Event], None]
"""Function that receives the events to which it subscribed.

It runs synchronously inside calls, so it must be quick. Its exceptions are logged and dropped."""


class EventStream:
    """Passes the events of the gateway to listeners that subscribed to them. An event without listeners costs only one look-up."""

    def __init__(self) -> None:
        self._listeners: tuple[tuple[Listener, Collection[str] | None], ...] = ()
        self._wanted: frozenset[str] | None = frozenset()
        """Kinds of events to which at least one listener has subscribed; `None` for all kinds."""
        self.store: Callable[[], Awaitable[None]] | None = None
        """Function that waits until the emitted refusals, approvals and other decisions are stored; `None` if nothing stores them.

        It has a deadline, and never raises."""

    async def stored(self) -> None:
        """Wait until the audit log has stored the decisions that were emitted. Code that emits a decision calls this before it answers.

        The wait has a deadline. An entry that is not stored by then is stored later.
        """
        if self.store is not None:
            await self.store()

    def emit(self, kind: str, *, source: str = "", name: str = "", principal: str = "", fields: JsonObject | None = None) -> None:
        """Create an event, and call the listeners that subscribed to its kind. The caller must not change `fields` afterwards."""
        if self._wanted is None or kind in self._wanted:
            self._notify(Event(kind, time.time(), source, name, principal, fields if fields is not None else {}))

    def subscribe(self, listener: Listener, kinds: Collection[str] | None = None) -> Callable[[], None]:
        """Call `listener` for each later event, or only for events of `kinds`.

        Returns a function that ends all subscriptions of `listener`. The function may be called twice.
        """
        self._listen((*self._listeners, (listener, kinds)))

        def unsubscribe() -> None:
            self._listen(tuple(other for other in self._listeners if other[0] is not listener))

        return unsubscribe

    def _listen(self, listeners: tuple[tuple[Listener, Collection[str] | None], ...]) -> None:
        self._listeners = listeners
        wanted = [kinds for _, kinds in listeners]
        self._wanted = None if None in wanted else frozenset(kind for kinds in wanted if kinds is not None for kind in kinds)

    def _notify(self, event: Event) -> None:
        for listener, kinds in self._listeners:
            if kinds is not None and event.kind not in kinds:
                continue
            try:
                listener(event)
            except Exception:
                logger.exception("event listener failed kind=%s", event.kind)
