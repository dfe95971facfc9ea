"""A call as it is stored with its task, and its context when another process takes the task up. Used by `runner`."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict
from typing import Any, cast

from gateway.auth.principal import Principal
from gateway.json_types import JsonObject, JsonValue
from gateway.policy.metadata import IDEMPOTENCY_KEY, request_meta
from gateway.storage.entries import TaskRow
from gateway.tasks.caller import fit_message
from gateway.tools.context import CallContext, ClientProfile

INTERNAL = -32603
"""JSON-RPC's code for what went wrong inside."""

_FAILED = "The tool failed without a text"


def to_stored(arguments: JsonObject, ctx: CallContext, *, resumes: bool) -> JsonObject:
    """What a later process needs to make the call again; `resumes` is whether it may."""
    principal, client = ctx.principal, ctx.client
    call: JsonObject = {
        "arguments": arguments,
        "meta": dict(ctx.meta),
        "name": principal.name,
        "client": {**asdict(client), "capabilities": dict(client.capabilities)},
    }
    if principal.scopes is not None:
        call["scopes"] = list(principal.scopes)
    if ctx.request_state is not None or ctx.input_responses is not None:
        call |= {"state": ctx.request_state, "responses": dict(ctx.input_responses or {})}
    if not resumes:
        call["resumes"] = False
    return call


def from_stored(row: TaskRow) -> CallContext:
    """The context of a task's call, with the rights that its caller had.

    Rows without scopes are of keys for everything, as all keys were before there were scopes.
    """
    call = row.call
    scopes = cast("list[str] | None", call.get("scopes"))
    return CallContext(
        principal=Principal(row.principal, str(call.get("name") or ""), None if scopes is None else tuple(scopes)),
        client=ClientProfile(**cast("dict[str, JsonValue]", call["client"])),
        meta=request_meta(call["meta"]),
        request_state=call.get("state"),
        input_responses=call.get("responses"),
    )


def request_key(ctx: CallContext) -> str:
    """The digest of the idempotency key that came with a request: its caller made it up, so it may be anything."""
    given = ctx.meta.get(IDEMPOTENCY_KEY)
    return hashlib.sha256(given.encode("utf-8", "surrogatepass")).hexdigest() if isinstance(given, str) and given else ""


def ended(row: TaskRow, outcome: JsonObject, status: str) -> dict[str, Any]:
    """Return the fields of a task that ended now. Its message says how it ended, in place of the last progress."""
    result: JsonObject = outcome.get("result") or {}
    error: JsonObject = outcome.get("error") or {}
    contents: list[JsonObject] = result.get("content") or [] if result.get("isError") else []
    texts: list[str] = [str(part["text"]) for part in contents if part.get("text")]
    message = str(error.get("message") or "") or "".join(texts[:1]) or (_FAILED if result.get("isError") else status.capitalize())
    now = time.time()
    return {"outcome": outcome, "status": status, "message": fit_message(message), "updated_at": now, "gone_at": now + row.ttl_seconds}


def error_outcome(code: int, message: str) -> JsonObject:
    """The outcome of a task that ended with a JSON-RPC error."""
    return {"error": {"code": code, "message": message}}
