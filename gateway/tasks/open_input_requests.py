"""`OpenInputRequests`: the unanswered requests for input of one call, which the client gets in an `input_required` result (MCP 2026-07-28).

The client answers the requests for input by sending the call again. `server.parked` uses this module: it keeps the call running between the
two requests of the client, and decides how the requests for input are shown and when they expire. Calls that run as tasks store their
requests for input in the database instead (`caller`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import anyio

from gateway.json_types import JsonObject
from gateway.policy.metadata import ASK_KEY
from gateway.tools.context import CallContext
from gateway.tools.ports import ClientProfile, capability_of, undeclared

KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Matches the keys that a server may choose for its requests for input."""


class OpenInputRequests:
    """Stores the requests for input of one call until the client resends the call with the answers."""

    def __init__(self, client: ClientProfile, on_request: Callable[[], None]) -> None:
        """Store the arguments. `client` has the capabilities of the client; `on_request` is called for each new request."""
        self._client = client
        self._on_request = on_request
        self._given: dict[str, JsonObject] = {}
        self._count = 0
        self._keys: set[str] = set()
        self._answers: dict[str, JsonObject] = {}
        self._answered = anyio.Event()
        self.open: dict[str, JsonObject] = {}
        """The requests without an answer, by key, in the form of MCP's `inputRequests`."""

    def expect(self, ctx: CallContext) -> None:
        """Store the answers in `ctx` that the client has sent before the server requested the input.

        If the server then sends a request for input with the key of a stored answer, `ask` returns the answer at once.
        """
        self._given = dict(cast("Mapping[str, JsonObject]", ctx.facts.input_responses or {}))

    async def ask(self, request: JsonObject) -> JsonObject:
        """Add a request for input to `open` under a key that is unique in the call, wait for its answer, and return the answer.

        Raises:
            InputUnavailable: The client did not declare the capability for this request.
        """
        if not self._client.can(capability_of(request)):
            raise undeclared(request)
        wanted, request = shown_request(request)
        if wanted in self._given:
            return self._given.pop(wanted)
        key = self._new_key(wanted)
        self.open[key] = request
        self._on_request()
        try:
            while key not in self._answers:
                await self._answered.wait()
            return self._answers.pop(key)
        finally:
            self.open.pop(key, None)
            self._answers.pop(key, None)

    def answer(self, responses: Mapping[str, object]) -> None:
        """Pass the client's answers, by key, to the open requests. Unknown keys (SEP-2322) and answers that are not objects are ignored."""
        for key, response in responses.items():
            if key in self.open and isinstance(response, dict):
                del self.open[key]
                self._answers[key] = cast("JsonObject", response)
        answered, self._answered = self._answered, anyio.Event()
        answered.set()

    def _new_key(self, wanted: str) -> str:
        self._count += 1
        key = wanted if KEY.fullmatch(wanted) else f"ask-{self._count}"
        while key in self._keys:
            key = f"{key}-{self._count}"
        self._keys.add(key)
        return key


def shown_request(request: JsonObject) -> tuple[str, JsonObject]:
    """Split a server's request for input: return the key that the server chose (or ""), and the request in the form for 2026 clients.

    The request for 2026 clients contains neither the key nor an `elicitationId`.
    """
    params: JsonObject = dict(request.get("params") or {})
    meta: JsonObject = dict(params.pop("_meta", None) or {})
    wanted = meta.pop(ASK_KEY, "")
    if meta:
        params["_meta"] = meta
    params.pop("elicitationId", None)
    shown = {**request, "params": params} if params or "params" in request else request
    return wanted if isinstance(wanted, str) else "", shown
