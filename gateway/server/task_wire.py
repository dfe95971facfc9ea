"""Converts tasks that run here to the wire formats of both eras: the 2026 extension (SEP-2663) and 2025-11-25."""

from __future__ import annotations

from gateway.json_types import JsonObject
from gateway.tasks.task import Task
from gateway.tasks.task_questions import status_message

POLL_MS = 500
"""Poll interval that is sent to clients."""


def modern_task(task: Task) -> JsonObject:
    """Return a task as `Task` of the 2026 extension."""
    wire: JsonObject = {"taskId": task.id, "status": task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttlMs": int(task.ttl_seconds * 1000), "pollIntervalMs": POLL_MS}
    if message := status_message(task):
        wire["statusMessage"] = message
    return wire


def modern_state(task: Task) -> JsonObject:
    """Return a task as `DetailedTask` of the 2026 extension, with its requests for input, result or error."""
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
    """Return a task in the format of 2025-11-25, where a result with `isError` means a failed task."""
    failed = task.status == "completed" and bool((task.result or {}).get("isError"))
    wire: JsonObject = {"taskId": task.id, "status": "failed" if failed else task.status, "createdAt": task.created.isoformat()}
    wire |= {"lastUpdatedAt": task.updated.isoformat(), "ttl": int(task.ttl_seconds * 1000), "pollInterval": POLL_MS}
    message = status_message(task) or str((task.error or {}).get("message", ""))
    if message:
        wire["statusMessage"] = message
    return wire
