"""`ParkedCalls`: keeps calls, reads and prompts of 2026 clients waiting for input ("parked") between two requests of the client.

A 2026 client receives a request for input in an `input_required` result, and answers by retrying its request with the answers. Remote 2026
servers support this themselves. Agents, workflows and 2025 servers do not: their work runs in a separate task, which waits in `ask`, and
continues when the client's retried request arrives. As request state, the client gets a handle of the parked call. The handle is random,
bound to the principal, and encrypted by the SDK's `RequestStateBoundary`. If the client does not retry its request in time, the work is
cancelled.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.abc

from gateway.errors import NotFound
from gateway.gate.rpc_errors import PARKED_CALL
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
"""Maximum number of parked calls per principal: calls that wait for input between two requests of the client.

Beyond it, the call that has been parked longest is cancelled."""

GATHER_SECONDS = 0.1
"""Maximum seconds between two requests for input that are sent to the client in one result. 2025 servers send their requests one by one."""

MAX_GATHER_SECONDS = 2.0
"""Maximum seconds for which a call's first request for input waits for further requests for input, to be sent in the same result."""

HANDLE_PREFIX = "parked:"
"""Prefix of a `requestState` (before encryption) that names a parked call, which is a call that waits for the client's answers."""

STATE_PREFIX = "state:"
"""Prefix of a `requestState` (before encryption) that contains the request state of a remote server."""

OVER = "This call no longer waits for input. Send it again without `requestState`."

OutcomeT = TypeVar("OutcomeT")


class ParkedCaller(DetachedCaller):
    """The `Caller` (sends a call's messages to its client) of a call that may be parked: kept waiting between two requests of its client.

    A request for input of the call is sent to the client in the call's next result.
    """

    def __init__(self, ctx: CallContext) -> None:
        super().__init__()
        self.moved = anyio.Event()
        self.asks = OpenInputRequests(ctx.facts.client, lambda: self.moved.set())
        self.asks.expect(ctx)

    async def ask(self, request: JsonObject, key: str = "") -> JsonObject:
        """Add a request for input to the call's next result, wait until the client retries its request, and return the client's answer."""
        return await self.asks.ask(request)


class _Parked(Generic[OutcomeT]):
    """A call that may wait for the client's input between two requests of the client. Stores the outcome when the call has ended."""

    def __init__(self, ctx: CallContext, caller: ParkedCaller) -> None:
        self.handle = secrets.token_urlsafe(24)
        self.principal = ctx.facts.principal.id
        self.meta: JsonObject = {HELD_KEY: True} if VIA_KEY in ctx.facts.meta else {}
        """`_meta` of the call's `input_required` results. If the client is another gateway, this `_meta` asks it to report when its own
        client is lost."""
        self.caller = caller
        self.scope = anyio.CancelScope()
        """Cancel scope of the call's work. It has a deadline while the call is parked: no request of the client waits for it."""
        self.outcome: OutcomeT | InputRequired | None = None
        self.error: Exception | None = None
        self.done = anyio.Event()
        self.collected = anyio.Event()
        self.attended = False

    async def moved(self) -> None:
        """Wait until the call's work has ended, or has open requests for input.

        After the first request for input, wait a little for further requests for input, which often follow at once.
        """
        while True:
            await self.caller.moved.wait()
            with anyio.move_on_after(MAX_GATHER_SECONDS):
                await self._quiet()
            if self.done.is_set() or self.caller.asks.open:
                return
            self.caller.moved = anyio.Event()  # the request for input was withdrawn

    async def _quiet(self) -> None:
        """Wait until the call's work has ended, or no further request for input has arrived for `GATHER_SECONDS`."""
        while self.caller.moved.is_set() and not self.done.is_set():
            self.caller.moved = anyio.Event()
            with anyio.move_on_after(GATHER_SECONDS):
                await self.caller.moved.wait()


class ParkedCalls:
    """Runs calls that may request input from a 2026 client, and parks them: keeps them waiting until the client's next request.

    The next request brings the input. A handle in its request state identifies the parked call.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup, *, ttl_seconds: float) -> None:
        """The calls run in the task group `tasks`. A parked call is cancelled if the client does not answer within `ttl_seconds`."""
        self._tasks = tasks
        self._ttl_seconds = ttl_seconds
        self._calls: dict[str, _Parked[Any]] = {}
        self._remote_parked: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        """For calls of a stdio client that a remote gateway keeps waiting for input: request state → function that ends the call there."""

    def __len__(self) -> int:
        """Return the number of calls that run or wait for the client's input."""
        return len(self._calls)

    def callers(self) -> set[str]:
        """Return the ids of the principals that have calls which run or wait for input."""
        return {parked.principal for parked in self._calls.values()}

    def end(self, principals: Collection[str]) -> None:
        """Cancel all calls, running or waiting for input, of the principals with these ids. Requests for these calls get an error."""
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
        """Start a call, or resume the parked call (it waits for input) that the request state in `ctx` names.

        Return the outcome of the call, or its requests for input.

        `work` is the function that runs a new call; it is not used to resume a call. `caller` sends messages to the client during this
        request only. The call itself uses one object of the class `parked_as` during all requests.

        Raises:
            NotFound: The request state names a call that is not parked, no longer parked, or belongs to another principal (`kind` is
                `PARKED_CALL`).
        """
        state = ctx.facts.request_state
        if state is not None and state.startswith(HANDLE_PREFIX):
            return await self._resume(state.removeprefix(HANDLE_PREFIX), ctx, caller)
        parked: _Parked[OutcomeT] = _Parked(ctx, parked_as(ctx))
        self._calls[parked.handle] = parked
        inner = ctx.with_caller(parked.caller).with_state(open_upstream_state(state))
        self._tasks.start_soon(self._work, parked, work, inner)
        return await self._round(parked, caller)

    def note_remote_parked(self, outcome: object, work: Callable[[CallContext], Awaitable[object]], ctx: CallContext) -> None:
        """Remember a call that a remote gateway keeps waiting for input of the stdio client. `end_remote_parked` ends the call there.

        `outcome` is the result of the last request of the call. The call is remembered only if `outcome` requests input and says that the
        remote gateway keeps the call (`HELD_KEY`). `work` sends the next request of the call to the remote gateway, with a context derived
        from `ctx`.
        """
        self._remote_parked.pop(ctx.facts.request_state or "", None)
        if not isinstance(outcome, InputRequired) or outcome.state is None or not outcome.state.startswith(STATE_PREFIX):
            return
        if HELD_KEY in outcome.meta:
            asked = dataclasses.replace(outcome, state=open_upstream_state(outcome.state))
            self._remote_parked[outcome.state] = partial(withdraw, asked, work, ctx)
            if len(self._remote_parked) > MAX_PARKED_PER_PRINCIPAL:
                del self._remote_parked[next(iter(self._remote_parked))]

    async def end_remote_parked(self) -> None:
        """End the calls that remote gateways keep waiting for input of the stdio client, because the client closed its pipe."""
        async with anyio.create_task_group() as tasks:
            while self._remote_parked:
                tasks.start_soon(self._remote_parked.popitem()[1])

    async def _resume(self, handle: str, ctx: CallContext, caller: Caller) -> Any:
        parked = self._calls.get(handle)
        if parked is None or parked.principal != ctx.facts.principal.id or parked.attended:
            raise NotFound(PARKED_CALL, "", OVER)
        if not parked.done.is_set():
            parked.caller.moved = anyio.Event()
            if WITHDRAWN_KEY in ctx.facts.meta:
                parked.scope.cancel()
            else:
                parked.caller.asks.answer(ctx.facts.input_responses or {})
            if parked.caller.asks.open and not parked.scope.cancel_called:
                return self._park(parked)
        return await self._round(parked, caller)

    async def _round(self, parked: _Parked[OutcomeT], caller: Caller) -> OutcomeT | InputRequired:
        """Serve one request of the client: wait until its call ends or requests input, and return the outcome or the requests for input.

        If the client's request is cancelled, the call is cancelled.
        """
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
        return seal_upstream_state(parked.outcome) if isinstance(parked.outcome, InputRequired) else cast("OutcomeT", parked.outcome)

    def _park(self, parked: _Parked[Any]) -> InputRequired:
        self._make_room(parked.principal)
        parked.scope.deadline = anyio.current_time() + self._ttl_seconds
        return InputRequired(dict(parked.caller.asks.open), HANDLE_PREFIX + parked.handle, parked.meta)

    async def _work(
        self, parked: _Parked[OutcomeT], work: Callable[[CallContext], Awaitable[OutcomeT | InputRequired]], ctx: CallContext
    ) -> None:
        """Run `work`, and store its outcome in `parked`.

        If the client has no request open when the work ends, the outcome is kept for the client's next request, until the parked call
        expires (`ttl_seconds` after the result of the last request).
        """
        try:
            with parked.scope:
                try:
                    parked.outcome = await work(ctx)
                except Exception as error:  # the request that waits for the call raises it, not the task that runs the call
                    parked.error = error
                self._settle(parked)
                if not parked.attended:
                    await parked.collected.wait()
        finally:
            if not parked.done.is_set():
                parked.error = NotFound(PARKED_CALL, "", "This call was cancelled before it ended. Send it again.")
                self._settle(parked)
            if not parked.attended:
                self._forget(parked)

    def _settle(self, parked: _Parked[Any]) -> None:
        parked.done.set()
        parked.caller.moved.set()

    def _forget(self, parked: _Parked[Any]) -> None:
        self._calls.pop(parked.handle, None)
        parked.collected.set()

    def _make_room(self, principal: str) -> None:
        """Make room for a further parked call: if `principal` has `MAX_PARKED_PER_PRINCIPAL` of them, cancel the one that was parked first.

        A call is not parked, and does not count, while the client has a request for it open.
        """
        waiting = [p for p in self._calls.values() if p.principal == principal and p.scope.deadline < float("inf")]
        if len(waiting) >= MAX_PARKED_PER_PRINCIPAL:
            oldest = min(waiting, key=lambda p: p.scope.deadline)
            logger.info("parked call cancelled reason=too-many caller=%s", principal)
            self._calls.pop(oldest.handle, None)
            oldest.scope.cancel()


def seal_upstream_state(outcome: InputRequired) -> InputRequired:
    """Return the outcome of a remote server with `STATE_PREFIX` added to its request state.

    The handles of parked calls have another prefix, so a server cannot forge such a handle.
    """
    return dataclasses.replace(outcome, state=STATE_PREFIX + outcome.state) if outcome.state is not None else outcome


def open_upstream_state(state: str | None) -> str | None:
    """Remove `STATE_PREFIX` from the request state that a client sent, and return the request state of the remote server.

    Raises:
        NotFound: `state` is the handle of a call that was parked here, although the tool's server now handles request states itself, so
            that its calls are no longer parked (`kind` is `PARKED_CALL`). With such a state, the server would start a new call.
    """
    if state is not None and state.startswith(HANDLE_PREFIX):
        raise NotFound(PARKED_CALL, "", OVER)
    return state.removeprefix(STATE_PREFIX) if state is not None else None
