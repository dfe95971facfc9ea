"""Parked calls: how work that must ask in the middle is served to clients that can only be asked in a result.

A modern client learns of a question from an `input_required` result and answers by calling again. Work that can
be resumed from its arguments returns such a result itself; an agent, a workflow or a legacy server cannot, so
its call runs in a task of its own, is left waiting at `ask`, and goes on when the retry comes. Handles are
random, bound to the principal, sealed by the request-state boundary, and worth nothing after the TTL.

Placed in `server` and not in `upstream`, because agents and workflows ask the same way as legacy servers do.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Mapping
from typing import cast

import anyio
import anyio.abc

from gateway.errors import AskUnavailable
from gateway.json_types import JsonObject
from gateway.server.caller import DetachedCaller, WireCaller
from gateway.tools.base import Complete, InputRequired, Tool, ToolOutcome
from gateway.tools.context import CallContext, ClientProfile, capability_of

logger = logging.getLogger(__name__)

MAX_PARKED_PER_PRINCIPAL = 32
"""Calls of one principal that may wait at once; the longest waiting one gives way."""

HANDLE_PREFIX = "parked:"
"""Tells a handle of ours from a remote server's own request state, inside the sealed state."""

STATE_PREFIX = "state:"
"""Before a remote server's own request state."""


class _ParkedCaller(DetachedCaller):
    """A caller whose asks wait for the next leg."""

    def __init__(self, client: ClientProfile, ttl_seconds: float) -> None:
        super().__init__()
        self._client = client
        self._ttl_seconds = ttl_seconds
        self._asked = 0
        self.open: dict[str, JsonObject] = {}
        self.answers: dict[str, JsonObject] = {}
        self.moved = anyio.Event()
        self._answered = anyio.Event()

    async def ask(self, request: JsonObject) -> JsonObject:
        """Show the request with the next result of the call and wait for a retry that answers it."""
        capability = capability_of(request)
        if not self._client.can(capability):
            raise AskUnavailable(f"The connected client cannot answer this: it does not declare {capability!r}.", capability=capability)
        self._asked += 1
        key = f"ask-{self._asked}"
        self.open[key] = request
        self.moved.set()
        try:
            with anyio.move_on_after(self._ttl_seconds):
                while key not in self.answers:
                    await self._answered.wait()
                return self.answers.pop(key)
        finally:
            self.open.pop(key, None)
        raise AskUnavailable(f"Nobody answered within {self._ttl_seconds:g} s.", capability=capability)

    def answer(self, responses: Mapping[str, JsonObject]) -> None:
        """Hand over answers to open asks; keys that are not open are ignored (SEP-2322)."""
        for key, response in responses.items():
            if key in self.open:
                del self.open[key]
                self.answers[key] = response
        answered, self._answered = self._answered, anyio.Event()
        answered.set()


class _Parked:
    """One call that outlives its request."""

    def __init__(self, principal: str, client: ClientProfile, ttl_seconds: float) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.principal = principal
        self.caller = _ParkedCaller(client, ttl_seconds)
        self.scope = anyio.CancelScope()
        self.outcome: ToolOutcome | None = None
        self.error: Exception | None = None
        self.attended = False


class ParkedCalls:
    """Runs calls that may ask. `tasks` is the server's task group; the calls die with it."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, ttl_seconds: float) -> None:
        self._tasks = tasks
        self._ttl_seconds = ttl_seconds
        self._calls: dict[str, _Parked] = {}

    async def call(self, tool: Tool, arguments: JsonObject, ctx: CallContext, caller: WireCaller) -> ToolOutcome:
        """One leg of a call: starts it, or resumes the one named by the request state."""
        state = ctx.request_state
        if state is not None and state.startswith(HANDLE_PREFIX):
            return await self._resume(state.removeprefix(HANDLE_PREFIX), ctx, caller)
        parked = _Parked(ctx.principal.id, ctx.client, self._ttl_seconds)
        self._make_room(parked.principal)
        self._calls[parked.handle] = parked
        inner = dataclasses.replace(ctx, caller=parked.caller, request_state=open_upstream_state(state))
        self._tasks.start_soon(self._work, parked, tool, arguments, inner)
        return await self._leg(parked, caller)

    async def _resume(self, handle: str, ctx: CallContext, caller: WireCaller) -> ToolOutcome:
        parked = self._calls.get(handle)
        if parked is None or parked.principal != ctx.principal.id or parked.attended:
            return Complete.text("This call is no longer waiting for input; call the tool again.", is_error=True)
        parked.caller.moved = anyio.Event()
        parked.caller.answer(cast("Mapping[str, JsonObject]", ctx.input_responses or {}))
        if parked.caller.open:
            return self._input_required(parked)
        return await self._leg(parked, caller)

    async def _leg(self, parked: _Parked, caller: WireCaller) -> ToolOutcome:
        """Wait until the call ends or asks; a client that leaves meanwhile cancels it."""
        parked.attended = True
        parked.caller.current = caller
        try:
            await parked.caller.moved.wait()
        except anyio.get_cancelled_exc_class():
            parked.scope.cancel()
            raise
        finally:
            parked.caller.current = None
            parked.attended = False
        if parked.outcome is None and parked.error is None:
            return self._input_required(parked)
        self._calls.pop(parked.handle, None)
        if parked.error is not None:
            raise parked.error
        outcome = cast("ToolOutcome", parked.outcome)
        return seal_upstream_state(outcome) if isinstance(outcome, InputRequired) else outcome

    def _input_required(self, parked: _Parked) -> InputRequired:
        return InputRequired(dict(parked.caller.open), HANDLE_PREFIX + parked.handle)

    async def _work(self, parked: _Parked, tool: Tool, arguments: JsonObject, ctx: CallContext) -> None:
        try:
            with parked.scope:
                parked.outcome = await tool.call(arguments, ctx)
        except Exception as error:  # the call-handler boundary, moved into the task that runs the call
            parked.error = error
        finally:
            if parked.outcome is None and parked.error is None:
                parked.outcome = Complete.text("The call was cancelled.", is_error=True)
            parked.caller.moved.set()
            if not parked.attended:
                self._calls.pop(parked.handle, None)

    def _make_room(self, principal: str) -> None:
        waiting = [p for p in self._calls.values() if p.principal == principal]
        if len(waiting) >= MAX_PARKED_PER_PRINCIPAL:
            oldest = next((p for p in waiting if not p.attended), waiting[0])
            logger.info("a parked call of %s gave way to a newer one", principal)
            self._calls.pop(oldest.handle, None)
            oldest.scope.cancel()


def seal_upstream_state(outcome: InputRequired) -> InputRequired:
    """Mark a remote server's own request state, so that it can never be taken for a handle of ours."""
    return dataclasses.replace(outcome, state=STATE_PREFIX + outcome.state) if outcome.state is not None else outcome


def open_upstream_state(state: str | None) -> str | None:
    """The remote server's own state again, byte for byte."""
    return state.removeprefix(STATE_PREFIX) if state is not None else None
