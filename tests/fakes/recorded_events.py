"""An event stream that keeps its events, for tests that look at them."""

from __future__ import annotations

from gateway.telemetry.gateway_events import Event, EventStream


class RecordedEvents(EventStream):
    """Keeps every event."""

    def __init__(self) -> None:
        super().__init__()
        self._events: list[Event] = []
        self.subscribe(self._events.append)

    def recent(self) -> list[Event]:
        """The events so far, oldest first."""
        return list(self._events)
