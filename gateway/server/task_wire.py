"""Tasks that run here as both dialects write them down: the extension (SEP-2663) and 2025-11-25."""

from __future__ import annotations

from gateway.json_types import JsonObject
from gateway.tasks.answers import status_message
from gateway.tasks.task import Task

POLL_MS = 500
"""How often clients are told to poll tasks that run here."""


def modern_task(task: Task) -> JsonObject:
    """As the extension has it, without what it gave or asks (`Task`)."""
    wire: JsonObject = {"taskId": task.id, "status": task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttlMs": int(task.ttl_seconds * 1000), "pollIntervalMs": POLL_MS}
    if message := status_message(task):
        wire["statusMessage"] = message
    return wire


def modern_state(task: Task) -> JsonObject:
    """With its questions, its result or its error (`DetailedTask`)."""
    wire = modern_task(task)
    if task.status == "input_required":
        wire["inputRequests"] = dict(task.asks)
    elif task.status == "completed":
        wire["result"] = task.result
    elif task.status == "failed":
        wire["error"] = task.error
        wire.setdefault("statusMessage", (task.error or {}).get("message", ""))
    return wire


def legacy_task(task: Task) -> JsonObject:
    """As 2025-11-25 has it: a tool that says that it failed is a failed task there."""
    failed = task.status == "completed" and bool((task.result or {}).get("isError"))
    wire: JsonObject = {"taskId": task.id, "status": "failed" if failed else task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttl": int(task.ttl_seconds * 1000), "pollInterval": POLL_MS}
    message = status_message(task) or str((task.error or {}).get("message", ""))
    if message:
        wire["statusMessage"] = message
    return wire
