"""`EventStream`: listeners receive events, and failing listeners affect nothing."""

from __future__ import annotations

import logging
import time

import pytest

from gateway.telemetry.gateway_events import Event, EventStream


def test_event_keeps_its_fields() -> None:
    stream = EventStream()
    heard: list[Event] = []
    stream.subscribe(heard.append)
    before = time.time()
    stream.emit("source.state", source="docs", name="n", principal="local", fields={"state": "ready"})
    (event,) = heard
    assert event == Event("source.state", event.time, "docs", "n", "local", {"state": "ready"})
    assert before <= event.time <= time.time()


def test_listeners_receive_events_until_they_unsubscribe() -> None:
    stream = EventStream()
    heard: list[Event] = []
    stream.emit("a")
    leave = stream.subscribe(heard.append)
    stream.emit("b")
    leave()
    leave()
    stream.emit("c")
    assert [event.kind for event in heard] == ["b"]


def test_failing_listener_affects_neither_caller_nor_others(caplog: pytest.LogCaptureFixture) -> None:
    stream = EventStream()
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken listener")

    stream.subscribe(broken)
    stream.subscribe(heard.append)
    with caplog.at_level(logging.ERROR):
        stream.emit("a")
    assert [event.kind for event in heard] == ["a"]
    assert "broken listener" in caplog.text


def test_listener_may_leave_while_it_is_called() -> None:
    stream = EventStream()
    heard: list[str] = []

    def once(event: Event) -> None:
        heard.append(event.kind)
        leave()

    leave = stream.subscribe(once)
    stream.subscribe(lambda event: heard.append(f"other {event.kind}"))
    stream.emit("a")
    stream.emit("b")
    assert heard == ["a", "other a", "other b"]
