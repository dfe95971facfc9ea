"""`ReadGate`: the gate of resources and prompts, with the same limits and events as `GuardedTool`'s.

Reads have no arguments to judge, so what is left is the slot, the deadline, the size and the record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import anyio

from gateway.config.policies import SourcePolicy
from gateway.errors import GatewayError, PolicyDenied, UpstreamTimeout
from gateway.policy.decision import Reject
from gateway.policy.limits import judge_result
from gateway.telemetry.events import EventStream
from gateway.tools.base import Finished, InputRequired
from gateway.tools.context import CallClock, CallContext
from gateway.tools.slot import slot_for


class ReadGate:
    """The gate of one source."""

    def __init__(self, source: str, policy: SourcePolicy, limiter: anyio.CapacityLimiter, events: EventStream) -> None:
        """`limiter` is the one the source's tools use: reads and calls share its slots."""
        self._source = source
        self._policy = policy
        self._limiter = limiter
        self._events = events

    async def run(
        self, method: str, name: str, ctx: CallContext, work: Callable[[CallContext], Awaitable[Finished | InputRequired]]
    ) -> Finished | InputRequired:
        """Run one read within the source's limits.

        Raises:
            UpstreamTimeout: It took longer than `timeoutSeconds`.
            PolicyDenied: The result is larger than `maxResultBytes`.
        """
        outcome = "error"
        started = anyio.current_time()
        slot = slot_for(self._limiter, ctx)
        if slot is not None:
            await slot.take()
        try:
            clock = CallClock(self._policy.timeout_seconds)
            waits = ctx.waits if slot is None else (*ctx.waits, slot)
            inner = dataclasses.replace(ctx, clocks=(*ctx.clocks, clock), waits=waits)
            with clock.scope:
                result = await work(inner)
                outcome = "complete" if isinstance(result, Finished) else "input_required"
                return self._checked(method, name, result)
            outcome = "timeout"
            raise UpstreamTimeout(f"{method} of {name!r} took longer than {self._policy.timeout_seconds:g} s.", server=self._source)
        except GatewayError as error:
            outcome = type(error).__name__ if outcome == "error" else outcome
            raise
        finally:
            if slot is not None:
                slot.give_back()
            milliseconds = round((anyio.current_time() - started) * 1000, 3)
            self._events.emit(
                "read.finished",
                source=self._source,
                name=name,
                principal=ctx.principal.id,
                fields={"method": method, "outcome": outcome, "milliseconds": milliseconds},
            )

    def _checked(self, method: str, name: str, result: Finished | InputRequired) -> Finished | InputRequired:
        if isinstance(result, Finished):
            verdict = judge_result(result.result, self._policy.max_result_bytes)
            if isinstance(verdict, Reject):
                raise PolicyDenied(f"{method} of {name!r} was refused by {verdict.rule}: {verdict.reason}", rule=verdict.rule, subject=name)
        return result
