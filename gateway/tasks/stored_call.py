"""Converts a tool call to the JSON that is stored with its task, and back to a `CallContext`. Used by the modules that run tasks."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any, cast

from gateway.auth.principal import LOCAL, Principal
from gateway.auth.principal_facts import facts_of, from_facts
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import IDEMPOTENCY_KEY, request_meta
from gateway.protocol import INTERNAL_ERROR
from gateway.storage.record_types import TaskRow
from gateway.storage.shared_clock import shared_now
from gateway.tasks.caller import fit_message
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile


def to_stored(arguments: JsonObject, ctx: CallContext, *, resumes: bool, queue: str = "") -> JsonObject:
    """Return the JSON from which another process can repeat the tool call of a task.

    The JSON has the call's arguments, client and `_meta`, the name and scopes of its principal, the facts of a user with an access token
    (never the token), and the `requestState` and answers to
    requests for input that the client sent. The tool's name and the principal's id are not in the JSON, but in other columns of the task's
    row. If `resumes` is false, the JSON also contains the mark that no other process may repeat the call. `queue` is the task queue at
    Temporal; empty for that of the gateway.
    """
    principal, client = ctx.facts.principal, ctx.facts.client
    call: JsonObject = {
        "arguments": arguments,
        "meta": dict(ctx.facts.meta),
        "name": principal.name,
        "client": {**asdict(client), "capabilities": dict(client.capabilities)},
    }
    if principal.scopes is not None:
        call["scopes"] = list(principal.scopes)
    if principal.kind == "user":
        call["user"] = facts_of(principal)
    if ctx.facts.request_state is not None or ctx.facts.input_responses is not None:
        call |= {"state": ctx.facts.request_state, "responses": dict(ctx.facts.input_responses or {})}
    if not resumes:
        call["resumes"] = False
    if queue:
        call["queue"] = queue
    return call


def queue_of(row: TaskRow) -> str:
    """Return the task queue at Temporal that was stored with a task; empty for that of the gateway."""
    return str(row.call.get("queue") or "")


def from_stored(row: TaskRow) -> CallContext:
    """Create the context of the stored call of a task. The principal has the scopes that it had when the task was created.

    If the row has no scopes, no scopes restrict the principal: its API key had none, or an older version stored the row.
    """
    call = row.call
    scopes = cast("list[str] | None", call.get("scopes"))
    user = from_facts(call.get("user"))
    kind = "local" if row.principal == LOCAL.id else "key"
    named = Principal(row.principal, str(call.get("name") or ""), None if scopes is None else tuple(scopes), kind)
    return CallContext(
        CallFacts(
            principal=user if user is not None and user.id == row.principal else named,
            client=ClientProfile(**cast("dict[str, JsonValue]", call["client"])),
            meta=request_meta(call["meta"]),
            request_state=call.get("state"),
            input_responses=call.get("responses"),
        )
    )


def request_key(ctx: CallContext) -> str:
    """Return the SHA-256 of the idempotency key in the request's `_meta`, in hexadecimal; empty if the request has no such key.

    A digest is used because a client may send any text as the key.
    """
    given = ctx.facts.meta.get(IDEMPOTENCY_KEY)
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest() if isinstance(given, str) and given else ""


def ended(row: TaskRow, outcome: JsonObject, status: str) -> dict[str, Any]:
    """Return the fields of `TaskRow` that change when a task ends now with this outcome and status.

    The status message becomes the error text, or else the status.
    """
    result: JsonObject = outcome.get("result") or {}
    error: JsonObject = outcome.get("error") or {}
    contents: list[JsonObject] = result.get("content") or [] if result.get("isError") else []
    texts: list[str] = [str(part["text"]) for part in contents if part.get("text")]
    failed = "The tool failed without an error text" if result.get("isError") else status.capitalize()
    message = str(error.get("message") or "") or "".join(texts[:1]) or failed
    now = shared_now()
    return {"outcome": outcome, "status": status, "message": fit_message(message), "updated_at": now, "gone_at": now + row.ttl_seconds}


def error_outcome(message: str, code: int = INTERNAL_ERROR) -> JsonObject:
    """Return the outcome to store for a task that ends with a JSON-RPC error."""
    return {"error": {"code": code, "message": message}}
