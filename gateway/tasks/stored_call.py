"""Converts a call to the JSON that is stored with its task, and back to a `CallContext`. Used by `task_executor` and `upkeep`."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict
from typing import Any, cast

from gateway.auth.principal import Principal
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import IDEMPOTENCY_KEY, request_meta
from gateway.storage.record_types import TaskRow
from gateway.tasks.caller import fit_message
from gateway.tools.call_facts import CallFacts
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile

INTERNAL = -32603
"""JSON-RPC error code "Internal error"."""


def to_stored(arguments: JsonObject, ctx: CallContext, *, resumes: bool) -> JsonObject:
    """Return what another process needs to run the call again. `resumes` says whether another process may run it."""
    principal, client = ctx.facts.principal, ctx.facts.client
    call: JsonObject = {
        "arguments": arguments,
        "meta": dict(ctx.facts.meta),
        "name": principal.name,
        "client": {**asdict(client), "capabilities": dict(client.capabilities)},
    }
    if principal.scopes is not None:
        call["scopes"] = list(principal.scopes)
    if ctx.facts.request_state is not None or ctx.facts.input_responses is not None:
        call |= {"state": ctx.facts.request_state, "responses": dict(ctx.facts.input_responses or {})}
    if not resumes:
        call["resumes"] = False
    return call


def from_stored(row: TaskRow) -> CallContext:
    """Return the context of a stored call, with the scopes that its caller had then.

    A row without scopes was stored before API keys had scopes, so its caller is unrestricted.
    """
    call = row.call
    scopes = cast("list[str] | None", call.get("scopes"))
    return CallContext(
        CallFacts(
            principal=Principal(row.principal, str(call.get("name") or ""), None if scopes is None else tuple(scopes)),
            client=ClientProfile(**cast("dict[str, JsonValue]", call["client"])),
            meta=request_meta(call["meta"]),
            request_state=call.get("state"),
            input_responses=call.get("responses"),
        )
    )


def request_key(ctx: CallContext) -> str:
    """Return the SHA-256 of the client's idempotency key, or an empty string. The client may send any text as its key."""
    given = ctx.facts.meta.get(IDEMPOTENCY_KEY)
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest() if isinstance(given, str) and given else ""


def ended(row: TaskRow, outcome: JsonObject, status: str) -> dict[str, Any]:
    """Return the fields of a task that ended now. The message says how it ended and replaces the last progress."""
    result: JsonObject = outcome.get("result") or {}
    error: JsonObject = outcome.get("error") or {}
    contents: list[JsonObject] = result.get("content") or [] if result.get("isError") else []
    texts: list[str] = [str(part["text"]) for part in contents if part.get("text")]
    failed = "The tool failed without an error text" if result.get("isError") else status.capitalize()
    message = str(error.get("message") or "") or "".join(texts[:1]) or failed
    now = time.time()
    return {"outcome": outcome, "status": status, "message": fit_message(message), "updated_at": now, "gone_at": now + row.ttl_seconds}


def error_outcome(message: str, code: int = INTERNAL) -> JsonObject:
    """Return the outcome of a task that ended with a JSON-RPC error."""
    return {"error": {"code": code, "message": message}}
