"""Selects the gateway's events (such as the end of a call) that are written to the audit log. Used by `Gateway`."""

from __future__ import annotations

from collections.abc import Callable

from gateway.storage.record_types import AuditEntry
from gateway.storage.records import Records
from gateway.telemetry.gateway_events import Event, EventStream

AUDITED = frozenset(
    {
        "ask.judged",
        "approval.waiting",
        "approval.decided",
        "approval.rule",
        "call.audited",
        "call.refused",
        "command.accepted",
        "command.held",
        "read.refused",
        "script.refused",
        "script.finished",
    }
)
"""Kinds of events that are written to the audit log: decisions about calls and commands, runs of scripts, and (`call.audited`) runs of
code that agents and workflows define themselves: calls of tools that may change something, and code that runs while a file is loaded."""


def audit(events: EventStream, records: Records) -> Callable[[], None]:
    """From now on, write the gateway's events of the kinds in `AUDITED` to the audit log, a table of the database that `records` writes.

    `EventStream.stored` then waits until the emitted events are stored. Return a function that stops this recording.
    """

    def note(event: Event) -> None:
        records.note(AuditEntry(event.time, event.kind, event.source, event.name, event.principal, event.fields))

    events.store = records.writer.settle
    unsubscribe = events.subscribe(note, kinds=AUDITED)

    def stop() -> None:
        events.store = None
        unsubscribe()

    return stop
