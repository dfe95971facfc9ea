"""`ParkedCalls`: calls, reads and prompts that request input in the middle, for clients that receive such requests only in results.

A 2026 client receives a request for input in an `input_required` result, and answers by repeating its request with the answers. Remote
2026 servers support this themselves. Agents, workflows and 2025 servers do not: their work runs in a separate task, waits in `ask`, and
continues when the client's retry arrives. The client gets a handle of the call as request state: random, bound to
the principal, and encrypted by the SDK's `RequestStateBoundary`. If no retry comes in time, the work is cancelled.
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
from gateway.server.detached_caller import DetachedCaller
from gateway.tasks.open_input_requests import OpenInputRequests
from gateway.tools.base import InputRequired
from gateway.tools.context import CallContext
from gateway.tools.drive import withdraw
from gateway.tools.ports import Caller

logger = logging.getLogger(__name__)

MAX_PARKED_PER_PRINCIPAL = 32
"""Maximum number of parked calls per principal. Beyond it, the call that was parked longest is cancelled."""

GATHER_SECONDS = 0.1
"""Requests for input that arrive within this time of each other are sent in one round. Servers send them one by one."""

MAX_GATHER_SECONDS = 2.0
"""Maximum time to wait for further requests for input after the first."""

HANDLE_PREFIX = "parked:"
"""Start of a request state, before encryption, that is the handle of a parked call."""

STATE_PREFIX = "state:"
"""Start of a request state, before encryption, that came from a remote server."""

GONE = "parked call"
"""`NotFound.kind` for the handle of a parked call that is unknown, expired, or belongs to another principal."""

OVER = "This call no longer waits for input. Send it again without `requestState`."

OutcomeT = TypeVar("OutcomeT")


class ParkedCaller(DetachedCaller):
    """The `Caller` of a call that may be parked: its requests for input are sent to the client with the next result."""

    def __init__(self, ctx: CallContext) -> None:
        super().__init__()
        self.moved = anyio.Event()
        self.asks = OpenInputRequests(ctx.facts.client, lambda: self.moved.set())
        self.asks.expect(ctx)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Add a request for input to the next result, and wait until the client repeats its request with the answer."""
        return await self.asks.ask(request)


class _Parked:
    """A call that may outlive its request, because it waits for the answer to a request for input."""

    def __init__(self, ctx: CallContext, caller: ParkedCaller) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.principal = ctx.facts.principal.id
        self.meta: JsonObject = {HELD_KEY: True} if VIA_KEY in ctx.facts.meta else {}
        """`_meta` of the call's `input_required` results: asks a gateway that made the call to report when its own client is lost."""
        self.caller = caller
        self.scope = anyio.CancelScope()
        """Cancel scope of the work. It has a deadline while no request of the client waits for the call."""
        self.outcome: object = None
        self.error: Exception | None = None
        self.done = anyio.Event()
        self.collected = anyio.Event()
        self.attended = False

    async def moved(self) -> None:
        """Wait until the work ended or has open requests for input; then wait for further ones, which often follow at once."""
        while True:
            await self.caller.moved.wait()
            with anyio.move_on_after(MAX_GATHER_SECONDS):
                await self._quiet()
            if self.done.is_set() or self.caller.asks.open:
                return
            self.caller.moved = anyio.Event()  # the request for input was withdrawn

    async def _quiet(self) -> None:
        """Wait until the work ended, or no further request for input has arrived for `GATHER_SECONDS`."""
        while self.caller.moved.is_set() and not self.done.is_set():
            self.caller.moved = anyio.Event()
            with anyio.move_on_after(GATHER_SECONDS):
                await self.caller.moved.wait()


class ParkedCalls:
    """Runs work that may request input, in the server's task group `tasks`."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *, ttl_seconds: float) -> None:
        """`ttl_seconds` is how long a parked call waits for the client's retry."""
        self._tasks = tasks
        self._ttl_seconds = ttl_seconds
        self._calls: dict[str, _Parked] = {}
        self._behind: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        """Functions that end a call which a remote gateway keeps running for an answer, by the request state in the result of the call."""

    def __len__(self) -> int:
        """Return the number of running and parked calls."""
        return len(self._calls)

    def callers(self) -> set[str]:
        """Return the ids of principals with running or parked calls."""
        return {parked.principal for parked in self._calls.values()}

    def end(self, principals: Collection[str]) -> None:
        """Cancel all calls of these principals. A request that waits for such a call gets an error."""
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
        """Start `work`, or resume the parked call that the request state names. Return its outcome, or its requests for input.

        `caller` is the caller of this request. The work keeps one caller of the class `parked_as` during all requests.

        Raises:
            NotFound: The request state names a call that is not parked (`kind` is `GONE`).
        """
        state = ctx.facts.request_state
        if state is not None and state.startswith(HANDLE_PREFIX):
            return cast("OutcomeT | InputRequired", await self._resume(state.removeprefix(HANDLE_PREFIX), ctx, caller))
        parked = _Parked(ctx, parked_as(ctx))
        self._calls[parked.handle] = parked
        inner = ctx.with_caller(parked.caller).with_state(open_upstream_state(state))
        self._tasks.start_soon(self._work, parked, work, inner)
        return cast("OutcomeT | InputRequired", await self._round(parked, caller))

    def note_behind(self, outcome: object, work: Callable[[CallContext], Awaitable[object]], ctx: CallContext) -> None:
        """Remember the call of a stdio client if its `outcome` requests input for a remote gateway, so that `end_behind` can end it.

        `work` sends the next request of the call to the remote gateway.
        """
        self._behind.pop(ctx.facts.request_state or "", None)
        if not isinstance(outcome, InputRequired) or outcome.state is None or not outcome.state.startswith(STATE_PREFIX):
            return
        if HELD_KEY in outcome.meta:
            asked = dataclasses.replace(outcome, state=open_upstream_state(outcome.state))
            self._behind[outcome.state] = partial(withdraw, asked, work, ctx)
            if len(self._behind) > MAX_PARKED_PER_PRINCIPAL:
                del self._behind[next(iter(self._behind))]

    async def end_behind(self) -> None:
        """End the calls that remote gateways keep running for the answers of a client over stdio, because it closed its pipe."""
        async with anyio.create_task_group() as tasks:
            while self._behind:
                tasks.start_soon(self._behind.popitem()[1])

    async def _resume(self, handle: str, ctx: CallContext, caller: Caller) -> object:
        parked = self._calls.get(handle)
        if parked is None or parked.principal != ctx.facts.principal.id or parked.attended:
            raise NotFound(GONE, "", OVER)
        if not parked.done.is_set():
            parked.caller.moved = anyio.Event()
            if WITHDRAWN_KEY in ctx.facts.meta:
                parked.scope.cancel()
            else:
                parked.caller.asks.answer(ctx.facts.input_responses or {})
            if parked.caller.asks.open and not parked.scope.cancel_called:
                return self._park(parked)
        return await self._round(parked, caller)

    async def _round(self, parked: _Parked, caller: Caller) -> object:
        """Wait until the work ends or requests input. If the client's request is cancelled, cancel the work."""
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
        """Run the work. If no request waits when the work ends, the outcome is kept for the client's retry until the deadline."""
        try:
            with parked.scope:
                try:
                    parked.outcome = await work(ctx)
                except Exception as error:  # the call-handler boundary, in the task that runs the call
                    parked.error = error
                self._settle(parked)
                if not parked.attended:
                    await parked.collected.wait()
        finally:
            if not parked.done.is_set():
                parked.error = NotFound(GONE, "", "This call was cancelled before it ended. Send it again.")
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
        """If `principal` has too many parked calls, cancel the call parked longest. Calls with a waiting request do not count."""
        waiting = [p for p in self._calls.values() if p.principal == principal and p.scope.deadline < float("inf")]
        if len(waiting) >= MAX_PARKED_PER_PRINCIPAL:
            oldest = min(waiting, key=lambda p: p.scope.deadline)
            logger.info("parked call cancelled reason=too-many caller=%s", principal)
            self._calls.pop(oldest.handle, None)
            oldest.scope.cancel()


def seal_upstream_state(outcome: InputRequired) -> InputRequired:
    """Return the outcome with `STATE_PREFIX` before the server's request state, so that no server can forge a parked call's handle."""
    return dataclasses.replace(outcome, state=STATE_PREFIX + outcome.state) if outcome.state is not None else outcome


def open_upstream_state(state: str | None) -> str | None:
    """Return the remote server's request state from that of the client, by removing `STATE_PREFIX`.

    Raises:
        NotFound: `state` is a handle of a parked call (`kind` is `GONE`). The tool no longer parks calls, and would start a new call.
    """
    if state is not None and state.startswith(HANDLE_PREFIX):
        raise NotFound(GONE, "", OVER)
    return state.removeprefix(STATE_PREFIX) if state is not None else None
