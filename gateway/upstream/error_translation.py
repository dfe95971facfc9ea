"""Translates JSON-RPC errors of a server for a client that uses another MCP version. `source` uses this module for every request.

An MCP 2025 server that needs a person to open a URL answers with error -32042. An MCP 2026 client gets an `input_required` result with the
URL instead, and resends the request. A server that requires a client capability answers with -32021; if the gateway's policy withholds
that capability from the server, the client gets an error that names the policy.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable

from gateway.errors import PolicyDenied, Rejected, ToolFailed
from gateway.json_types import JsonMapping, JsonObject, JsonValue, members_of, objects_in
from gateway.policy.framing import shown
from gateway.protocol import MISSING_REQUIRED_CLIENT_CAPABILITY
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile

URL_REQUIRED = -32042
"""JSON-RPC error code of MCP 2025-11-25: a person has to open the URLs in `data.elicitations` before the request can succeed."""

URL_STATE = "moongate:url-required"
"""`requestState` of the `input_required` result that replaces error -32042.

A client's retry with this state is sent to the server like the first attempt.
"""

MAX_SHOWN_ISSUER = 200
"""Maximum characters of an authorization server's name in a message to a person."""

MAX_URLS = 8
"""Maximum number of URLs of one error -32042 that a person is asked to open."""

RESOURCE_MISSING = frozenset({-32002, -32602})
"""JSON-RPC error codes with which servers of MCP 2025 and 2026 answer a request for a resource that does not exist."""


def agreed(ctx: CallContext) -> bool:
    """Return whether `ctx` is a retry after error -32042 whose caller agreed to open the URLs."""
    answers = (ctx.facts.input_responses or {}).values()
    return ctx.facts.request_state == URL_STATE and all(members_of(answer).get("action") == "accept" for answer in answers)


def begin_again(ctx: CallContext) -> CallContext:
    """Return the context with which to send the request of a call to the server.

    A retry after error -32042 is sent like the first attempt, so its context has no answers and no request state. Other calls keep `ctx`.

    Raises:
        ToolFailed: The person did not agree to open a URL.
    """
    if ctx.facts.request_state != URL_STATE:
        return ctx
    if not agreed(ctx):
        raise ToolFailed("The server needs a page to be visited first, and the person did not agree to open it.")
    return ctx.with_answers(None, None)


def sign_in_first(server: str, issuer: str, url: str) -> Rejected:
    """Return error -32042 of MCP 2025-11-25 for a request that cannot succeed before a person signs in at `url`."""
    where = shown(issuer, MAX_SHOWN_ISSUER)  # made safe to show, because the issuer may come from the server's own metadata
    message = f"Server {server!r} needs you to sign in at {where!a}. Open the page on the machine of the gateway; your call goes on then."
    page: JsonObject = {"mode": "url", "elicitationId": secrets.token_urlsafe(16), "url": url, "message": message}
    return Rejected(message, server=server, code=URL_REQUIRED, data={"elicitations": [page]})


async def as_it_is(ask: JsonObject) -> JsonObject:
    """Return a request for input unchanged. Passed to `explain` as `judge` if the gateway itself, not a server, makes the request."""
    return ask


async def explain(
    error: Rejected, ctx: CallContext, relayed: JsonMapping, judge: Callable[[JsonObject], Awaitable[JsonObject]]
) -> JsonObject:
    """Return the result that the caller of `ctx` gets instead of a server's error, or raise the error that the caller gets.

    `relayed` are the client capabilities declared to the server for this caller. `judge` returns one request for input with the server's
    name added, or raises if policy refuses the request.

    Raises:
        Rejected: The server's error, unchanged or (-32042, for an MCP 2025 client) with the URLs that policy allowed.
        PolicyDenied: Policy refuses a URL, or withholds the capability that the server needs.
        InputUnavailable: The client cannot show URLs.
    """
    if error.code == URL_REQUIRED and (asks := _url_elicitations(error.data)):
        judged = {f"url-{number}": await judge(ask) for number, ask in enumerate(asks, 1)}
        if ctx.facts.era == "modern":
            return {"resultType": "input_required", "inputRequests": judged, "requestState": URL_STATE}
        shown = {**members_of(error.data), "elicitations": [ask["params"] for ask in judged.values()]}
        raise Rejected(str(error), server=error.server, code=error.code, data=shown)
    if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
        held_back = _held_back(error.data, ctx.facts.client, relayed)
        if held_back:
            raise PolicyDenied(
                f"Server {error.server!r} needs {held_back!r} of its client, which this gateway does not relay to it. "
                f"The operator can allow it with `{held_back}.mode` under its `policies`.",
                rule=f"{held_back}.mode",
                subject=error.server,
            )
    raise error


def _url_elicitations(data: JsonValue) -> list[JsonObject]:
    entries = objects_in(members_of(data).get("elicitations"))
    return [{"method": "elicitation/create", "params": {**entry, "mode": "url"}} for entry in entries[:MAX_URLS]]


def _held_back(data: JsonValue, client: ClientProfile, relayed: JsonMapping) -> str:
    """Return the first capability that the server requires and the client has, but that the gateway did not declare to the server.

    Return an empty string if there is no such capability. `data` is the data of error -32021.
    """
    names = members_of(members_of(data).get("requiredCapabilities"))
    return next((name for name in names if client.can(name) and name not in relayed), "")
