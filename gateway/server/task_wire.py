"""Converts tasks that this gateway runs to JSON, as the 2026 tasks extension (SEP-2663) and protocol 2025-11-25 define it."""

from __future__ import annotations

from gateway.json_types import JsonObject
from gateway.tasks.task import Task
from gateway.tasks.task_questions import status_message

POLL_MS = 500
"""Milliseconds between two polls of a task that the gateway recommends to clients."""


def modern_task(task: Task) -> JsonObject:
    """Return a task of this gateway as the JSON object `Task` of the 2026 tasks extension."""
    wire: JsonObject = {"taskId": task.id, "status": task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttlMs": int(task.ttl_seconds * 1000), "pollIntervalMs": POLL_MS}
    if message := status_message(task):
        wire["statusMessage"] = message
    return wire


def modern_state(task: Task) -> JsonObject:
    """Return a task of this gateway as `DetailedTask` of the 2026 tasks extension, with its open requests for input, result or error."""
    wire = modern_task(task)
    if task.status == "input_required":
        wire["inputRequests"] = dict(task.open_requests)
    elif task.status == "completed":
        wire["result"] = task.result
    elif task.status == "failed":
        wire["error"] = task.error
        wire.setdefault("statusMessage", (task.error or {}).get("message", ""))
    return wire


def legacy_task(task: Task) -> JsonObject:
    """Return a task of this gateway as JSON object `Task` of protocol 2025-11-25. A task whose result has `isError` is shown as failed."""
    failed = task.status == "completed" and bool((task.result or {}).get("isError"))
    wire: JsonObject = {"taskId": task.id, "status": "failed" if failed else task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttl": int(task.ttl_seconds * 1000), "pollInterval": POLL_MS}
    message = status_message(task) or str((task.error or {}).get("message", ""))
    if message:
        wire["statusMessage"] = message
    return wire
