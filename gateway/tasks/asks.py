"""`OpenAsks`: the questions of a call whose client is asked in a result, not over a connection.

An ask waits here under a key until whoever serves the call hands its answer over. Used by parked calls (`server.parked`);
calls that run as tasks keep their asks on disk (`caller`); how the asks are shown and when they expire is theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast

import anyio

from gateway.json_types import JsonObject
from gateway.policy.metadata import ASK_KEY
from gateway.tools.context import CallContext, ClientProfile, capability_of, undeclared

KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Keys that whoever asks may choose."""


class OpenAsks:
    """The asks of one call."""

    def __init__(self, client: ClientProfile, on_ask: Callable[[], None]) -> None:
        """`client` decides what can be asked; `on_ask` is called whenever there is a new ask."""
        self._client = client
        self._on_ask = on_ask
        self._given: dict[str, JsonObject] = {}
        self._asked = 0
        self._keys: set[str] = set()
        self._answers: dict[str, JsonObject] = {}
        self._answered = anyio.Event()
        self.open: dict[str, JsonObject] = {}
        """What waits for an answer, by key, as a modern client gets it."""

    def expect(self, ctx: CallContext) -> None:
        """Take the answers that came with the first request, for asks whose server names their keys."""
        self._given = dict(cast("Mapping[str, JsonObject]", ctx.input_responses or {}))

    async def ask(self, request: JsonObject) -> JsonObject:
        """Show the request until it is answered; a key is never used twice.

        Raises:
            AskUnavailable: The client did not declare that it can be asked this.
        """
        if not self._client.can(capability_of(request)):
            raise undeclared(request)
        wanted, request = shown_ask(request)
        if wanted in self._given:
            return self._given.pop(wanted)
        key = self._key(wanted)
        self.open[key] = request
        self._on_ask()
        try:
            while key not in self._answers:
                await self._answered.wait()
            return self._answers.pop(key)
        finally:
            self.open.pop(key, None)
            self._answers.pop(key, None)

    def answer(self, responses: Mapping[str, object]) -> None:
        """Hand over answers to open asks; keys that are not open are ignored (SEP-2322), as is what is no object."""
        for key, response in responses.items():
            if key in self.open and isinstance(response, dict):
                del self.open[key]
                self._answers[key] = cast("JsonObject", response)
        answered, self._answered = self._answered, anyio.Event()
        answered.set()

    def _key(self, wanted: str) -> str:
        """The key whoever asks chose, where it is one and free; else one of ours."""
        self._asked += 1
        key = wanted if KEY.fullmatch(wanted) else f"ask-{self._asked}"
        while key in self._keys:
            key = f"{key}-{self._asked}"
        self._keys.add(key)
        return key


def shown_ask(request: JsonObject) -> tuple[str, JsonObject]:
    """The key an ask carries, and the ask as a modern client gets it: without that key and a 2025 `elicitationId`."""
    params: JsonObject = dict(request.get("params") or {})
    meta: JsonObject = dict(params.pop("_meta", None) or {})
    wanted = meta.pop(ASK_KEY, "")
    if meta:
        params["_meta"] = meta
    params.pop("elicitationId", None)
    shown = {**request, "params": params} if params or "params" in request else request
    return wanted if isinstance(wanted, str) else "", shown
