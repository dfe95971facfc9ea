"""`Load`: numbers that describe what a gateway does now, such as running calls. Its parts report them, and `prometheus` exports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Load = Mapping[str, Sequence[tuple[float, Mapping[str, str]]]]
"""Name of a metric (a key of `GAUGES`) → its values now, each with its labels."""

GAUGES: Mapping[str, str] = {
    "moongate.source.ready": "1 if the gateway can use the source of tools, else 0",
    "moongate.calls.running": "Calls and reads that run now",
    "moongate.calls.queued": "Calls and reads that wait for a slot of their source",
    "moongate.children": "Child processes of stdio servers that run now",
    "moongate.sessions": "Sessions of MCP 2025 clients over HTTP that are open now",
    "moongate.streams": "Streams to clients that are open now",
    "moongate.tasks.running": "Tasks that run in this process now",
    "moongate.audit.queued": "Entries of the audit log that are not stored yet",
    "moongate.audit.dropped": "Entries of the audit log that were dropped because the database did not answer, since the start",
}
"""Name of each metric of a gateway's load, with its description. All are gauges; the labels are names of the configuration."""
