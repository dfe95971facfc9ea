"""Parked calls: how work that must ask in the middle is served to clients that can only be asked in a result.

A modern client learns of a question from an `input_required` result and answers by calling again. Work that can
be resumed from its arguments returns such a result itself; an agent, a workflow or a legacy server cannot, so
its call, read or prompt runs in a task of its own, is left waiting at `ask`, and goes on when the retry comes.
Handles are random, bound to the principal, sealed by the request-state boundary, and worth nothing after the TTL:
then the work is cancelled, wherever it stands.

Placed in `server` and not in `upstream`, because agents and workflows ask the same way as legacy servers do.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import anyio.abc

from gateway.errors import NotFound
from gateway.json_types import JsonObject
from gateway.policy.metadata import HELD_KEY, VIA_KEY, WITHDRAWN_KEY
from gateway.server.caller import DetachedCaller
from gateway.tasks.asks import OpenAsks
from gateway.tools.base import InputRequired
from gateway.tools.context import CallContext, Caller
from gateway.tools.drive import withdraw

logger = logging.getLogger(__name__)

MAX_PARKED_PER_PRINCIPAL = 32
"""Calls of one principal that may wait at once; the longest waiting one gives way."""

GATHER_SECONDS = 0.1
"""After an ask, a further one has this long to be shown with it; a server's asks arrive one by one."""

MAX_GATHER_SECONDS = 2.0
"""After the first ask, it is shown with those that have come by then."""

HANDLE_PREFIX = "parked:"
"""Tells a handle of ours from a remote server's own request state, inside the sealed state."""

STATE_PREFIX = "state:"
"""Before a remote server's own request state."""

GONE = "parked call"
"""`NotFound.kind` of a handle that is unknown, over, or somebody else's."""

OVER = "This call is no longer waiting for input; make it again."

OutcomeT = TypeVar("OutcomeT")


class ParkedCaller(DetachedCaller):
    """A caller whose asks wait for the next leg."""

    def __init__(self, ctx: CallContext) -> None:
        super().__init__()
        self.moved = anyio.Event()
        self.asks = OpenAsks(ctx.client, lambda: self.moved.set())
        self.asks.expect(ctx)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Show the request with the next result of the call and wait for a retry that answers it."""
        return await self.asks.ask(request)


class _Parked:
    """One call that outlives its request."""

    def __init__(self, ctx: CallContext, caller: ParkedCaller) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.principal = ctx.principal.id
        self.meta: JsonObject = {HELD_KEY: True} if VIA_KEY in ctx.meta else {}
        """`_meta` of its `input_required` results: a gateway in front tells this one when its client is lost."""
        self.caller = caller
        self.scope = anyio.CancelScope()
        """Has a deadline while no request attends to the call."""
        self.outcome: object = None
        self.error: Exception | None = None
        self.done = anyio.Event()
        self.collected = anyio.Event()
        self.attended = False

    async def moved(self) -> None:
        """Wait until the work is done or has open asks, all that come together."""
        while True:
            await self.caller.moved.wait()
            with anyio.move_on_after(MAX_GATHER_SECONDS):
                await self._quiet()
            if self.done.is_set() or self.caller.asks.open:
                return
            self.caller.moved = anyio.Event()  # whoever asked took it back

    async def _quiet(self) -> None:
        """Wait until the work is done or no further ask comes."""
        while self.caller.moved.is_set() and not self.done.is_set():
            self.caller.moved = anyio.Event()
            with anyio.move_on_after(GATHER_SECONDS):
                await self.caller.moved.wait()


class ParkedCalls:
    """Runs work that may ask. `tasks` is the server's task group; the work dies with it."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, ttl_seconds: float) -> None:
        """`ttl_seconds` is how long a question waits for its answer."""
        self._tasks = tasks
        self._ttl_seconds = ttl_seconds
        self._calls: dict[str, _Parked] = {}
        self._behind: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        """By request state: tells the gateway behind this one, which keeps a call running, that nobody will answer."""

    def __len__(self) -> int:
        """Calls going on or waiting."""
        return len(self._calls)

    def callers(self) -> set[str]:
        """Who has calls going on or waiting."""
        return {parked.principal for parked in self._calls.values()}

    def end(self, principals: Collection[str]) -> None:
        """End all calls of these; who attends to one gets an error."""
        for parked in [parked for parked in self._calls.values() if parked.principal in principals]:
            parked.scope.cancel()

    async def run(
        self,
        work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]],
        ctx: CallContext,
        caller: Caller,
        *,
        parked_as: type[ParkedCaller] = ParkedCaller,
    ) -> OutcomeT | InputRequired:
        """One leg: starts `work`, or resumes the one named by the request state (which is bound to method and arguments).

        `parked_as` is what the work has for its caller, whichever leg attends to it.

        Raises:
            NotFound: The state names a call that no longer waits (`kind` is `GONE`).
        """
        state = ctx.request_state
        if state is not None and state.startswith(HANDLE_PREFIX):
            return cast("OutcomeT | InputRequired", await self._resume(state.removeprefix(HANDLE_PREFIX), ctx, caller))
        parked = _Parked(ctx, parked_as(ctx))
        self._calls[parked.handle] = parked
        inner = dataclasses.replace(ctx, caller=parked.caller, request_state=open_upstream_state(state))
        self._tasks.start_soon(self._work, parked, work, inner)
        return cast("OutcomeT | InputRequired", await self._leg(parked, caller))

    def note_behind(self, outcome: object, work: Callable[[CallContext], Awaitable[object]], ctx: CallContext) -> None:
        """Note the leg of a client over stdio that ended with `outcome`, for `end_behind`. `work` runs the next leg without a retry."""
        self._behind.pop(ctx.request_state or "", None)
        if not isinstance(outcome, InputRequired) or outcome.state is None or not outcome.state.startswith(STATE_PREFIX):
            return
        if HELD_KEY in outcome.meta:
            asked = dataclasses.replace(outcome, state=open_upstream_state(outcome.state))
            self._behind[outcome.state] = partial(withdraw, asked, work, ctx)
            if len(self._behind) > MAX_PARKED_PER_PRINCIPAL:
                del self._behind[next(iter(self._behind))]

    async def end_behind(self) -> None:
        """The client over stdio closed its pipe: end the calls that gateways behind this one keep running for its answers."""
        async with anyio.create_task_group() as tasks:
            while self._behind:
                tasks.start_soon(self._behind.popitem()[1])

    async def _resume(self, handle: str, ctx: CallContext, caller: Caller) -> object:
        parked = self._calls.get(handle)
        if parked is None or parked.principal != ctx.principal.id or parked.attended:
            raise NotFound(GONE, "", OVER)
        if not parked.done.is_set():
            parked.caller.moved = anyio.Event()
            if WITHDRAWN_KEY in ctx.meta:
                parked.scope.cancel()
            else:
                parked.caller.asks.answer(ctx.input_responses or {})
            if parked.caller.asks.open and not parked.scope.cancel_called:
                return self._park(parked)
        return await self._leg(parked, caller)

    async def _leg(self, parked: _Parked, caller: Caller) -> object:
        """Wait until the work ends or asks; a client that leaves meanwhile cancels it."""
        parked.attended = True
        parked.scope.deadline = float("inf")
        parked.caller.current = caller
        try:
            await parked.moved()
        except anyio.get_cancelled_exc_class():
            parked.scope.cancel()
            if parked.done.is_set():
                self._forget(parked)
            raise
        finally:
            parked.caller.current = None
            parked.attended = False
        if not parked.done.is_set():
            return self._park(parked)
        self._forget(parked)
        if parked.error is not None:
            raise parked.error
        return seal_upstream_state(parked.outcome) if isinstance(parked.outcome, InputRequired) else parked.outcome

    def _park(self, parked: _Parked) -> InputRequired:
        self._make_room(parked.principal)
        parked.scope.deadline = anyio.current_time() + self._ttl_seconds
        return InputRequired(dict(parked.caller.asks.open), HANDLE_PREFIX + parked.handle, parked.meta)

    async def _work(
        self, parked: _Parked, work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]], ctx: CallContext
    ) -> None:
        """The task of one call. An outcome that nobody attends to is kept for the retry, until the deadline."""
        try:
            with parked.scope:
                try:
                    parked.outcome = await work(ctx)
                except Exception as error:  # the call-handler boundary, moved into the task that runs the call
                    parked.error = error
                self._settle(parked)
                if not parked.attended:
                    await parked.collected.wait()
        finally:
            if not parked.done.is_set():
                parked.error = NotFound(GONE, "", "This call was ended before it was done; make it again.")
                self._settle(parked)
            if not parked.attended:
                self._forget(parked)

    def _settle(self, parked: _Parked) -> None:
        parked.done.set()
        parked.caller.moved.set()

    def _forget(self, parked: _Parked) -> None:
        self._calls.pop(parked.handle, None)
        parked.collected.set()

    def _make_room(self, principal: str) -> None:
        """End the call of `principal` that waits longest, if there are too many; calls being attended to do not count."""
        waiting = [p for p in self._calls.values() if p.principal == principal and p.scope.deadline < float("inf")]
        if len(waiting) >= MAX_PARKED_PER_PRINCIPAL:
            oldest = min(waiting, key=lambda p: p.scope.deadline)
            logger.info("a parked call of %s gave way to a newer one", principal)
            self._calls.pop(oldest.handle, None)
            oldest.scope.cancel()


def seal_upstream_state(outcome: InputRequired) -> InputRequired:
    """Mark a remote server's own request state, so that it can never be taken for a handle of ours."""
    return dataclasses.replace(outcome, state=STATE_PREFIX + outcome.state) if outcome.state is not None else outcome


def open_upstream_state(state: str | None) -> str | None:
    """The remote server's own state again, byte for byte.

    Raises:
        NotFound: `state` is the handle of a parked call whose tool has ended (`kind` is `GONE`). It would start the call anew.
    """
    if state is not None and state.startswith(HANDLE_PREFIX):
        raise NotFound(GONE, "", OVER)
    return state.removeprefix(STATE_PREFIX) if state is not None else None
