"""Error codes of one era that mean something to a client of the other: URLs to open first, and capabilities it lacks.

A 2025 server that needs a person at a URL answers with error -32042; a 2026 client is asked the same in an
`input_required` result and calls again. A server that misses a client capability says -32021; where policy holds that
capability back, the client is told so instead of being sent in circles. Used by `source` around every request.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.errors import PolicyDenied, ToolFailed, UpstreamRefused
from gateway.json_types import JsonMapping, JsonObject, JsonValue
from gateway.policy.framing import shown
from gateway.protocol import MISSING_REQUIRED_CLIENT_CAPABILITY
from gateway.tools.context import CallContext, ClientProfile

URL_REQUIRED = -32042
"""Code of 2025-11-25: the person has to visit the URLs in `data.elicitations` before the request can work."""

URL_STATE = "moongate:url-required"
"""Request state of a round made from that error: the retry is the request all over again."""

MAX_SHOWN_ISSUER = 200
"""Characters of the name of an authorization server that a person is shown."""

MAX_URLS = 8
"""URLs of one error that are shown."""

RESOURCE_MISSING = frozenset({-32002, -32602})
"""Codes by which servers say that a resource does not exist (legacy, modern)."""


def agreed(ctx: CallContext) -> bool:
    """Whether this is the retry of a request whose caller opened the page that was shown."""
    answers = (ctx.input_responses or {}).values()
    return ctx.request_state == URL_STATE and all(_action(answer) == "accept" for answer in answers)


def _action(answer: object) -> JsonValue:
    return cast("JsonMapping", answer).get("action") if isinstance(answer, dict) else None


def begin_again(ctx: CallContext) -> CallContext:
    """`ctx` as the server shall see it: the retry of a URL round carries nothing that the server asked for.

    Raises:
        ToolFailed: The person did not agree to open a URL.
    """
    if ctx.request_state != URL_STATE:
        return ctx
    if not agreed(ctx):
        raise ToolFailed("The server needs a page to be visited first, and the person did not agree to open it.")
    return dataclasses.replace(ctx, request_state=None, input_responses=None)


def sign_in_first(server: str, issuer: str, url: str) -> UpstreamRefused:
    """The refusal of a request for which a person signs in at `url` first, as a 2025 server says it."""
    where = shown(issuer, MAX_SHOWN_ISSUER)  # the server's own metadata may name it
    message = f"Server {server!r} needs you to sign in at {where!a}. Open the page on the machine of the gateway; your call goes on then."
    page: JsonObject = {"mode": "url", "elicitationId": secrets.token_urlsafe(16), "url": url, "message": message}
    return UpstreamRefused(message, server=server, code=URL_REQUIRED, data={"elicitations": [page]})


async def as_it_is(ask: JsonObject) -> JsonObject:
    """The judge of an ask of our own."""
    return ask


async def explain(
    error: UpstreamRefused, ctx: CallContext, relayed: JsonMapping, judge: Callable[[JsonObject], Awaitable[JsonObject]]
) -> JsonObject:
    """The result to take instead of a refusal; else raises what the caller should see.

    `relayed` are the capabilities declared to the server for this caller; `judge` passes one ask, naming who asks, or refuses it.

    Raises:
        UpstreamRefused: As it came, with the judged URLs.
        PolicyDenied: Policy refuses a URL, or keeps the capability that the server needs.
        AskUnavailable: The client cannot be shown URLs.
    """
    if error.code == URL_REQUIRED and (asks := _url_asks(error.data)):
        judged = {f"url-{number}": await judge(ask) for number, ask in enumerate(asks, 1)}
        if ctx.era == "modern":
            return {"resultType": "input_required", "inputRequests": judged, "requestState": URL_STATE}
        shown = {**cast("JsonObject", error.data), "elicitations": [ask["params"] for ask in judged.values()]}
        raise UpstreamRefused(str(error), server=error.server, code=error.code, data=shown)
    if error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
        held_back = _held_back(error.data, ctx.client, relayed)
        if held_back:
            raise PolicyDenied(
                f"Server {error.server!r} needs {held_back!r} of its client, which this gateway does not relay to it. "
                f"The operator can allow it with `{held_back}.mode` under its `policies`.",
                rule=f"{held_back}.mode",
                subject=error.server,
            )
    raise error


def _url_asks(data: JsonValue) -> list[JsonObject]:
    found = cast("JsonObject", data).get("elicitations") if isinstance(data, dict) else None
    entries = cast("list[JsonValue]", found) if isinstance(found, list) else []
    return [
        {"method": "elicitation/create", "params": {**cast("JsonObject", entry), "mode": "url"}}
        for entry in entries[:MAX_URLS]
        if isinstance(entry, dict)
    ]


def _held_back(data: JsonValue, client: ClientProfile, relayed: JsonMapping) -> str:
    """The first capability that the server needs, the client has, and it was not told of; else empty."""
    required = cast("JsonObject", data).get("requiredCapabilities") if isinstance(data, dict) else None
    names = cast("JsonObject", required) if isinstance(required, dict) else {}
    return next((name for name in names if client.can(name) and name not in relayed), "")
