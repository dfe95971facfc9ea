"""`pass_gate`: the steps of the gate, in order. Every tool call and every read passes them; no other code runs a tool or reads a source.

`gate.tools` binds the steps to tools, `gate.reads` to resources, prompts, completion and skills, `gate.own_tools` to the tools and
functions that agents and workflows bring along. Other parts judge two limits earlier: `server.usage` the requests in progress of one
caller, and `policy.task_scheduling` the tasks that may start per minute.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gateway.errors import GatewayError, mask_secrets
from gateway.gate.approvals import Approvals
from gateway.gate.concurrency import ActiveCalls, Limiter, run_within
from gateway.policy.decision import Reject
from gateway.storage.result_store import ResultStore
from gateway.telemetry.gateway_events import EventStream
from gateway.tools.context import CallContext

OutcomeT = TypeVar("OutcomeT")


@dataclass(frozen=True, slots=True)
class GateServices:
    """The parts of the gateway that all gates share."""

    events: EventStream
    approvals: Approvals | None = None
    """Asks people. Without it, calls that need an approval are refused."""
    store: ResultStore | None = None
    """Keeps the whole of shortened results. Without it, results over the limit are refused."""
    mask: Callable[[str], str] | None = None
    """Removes secrets from the texts of errors."""


@dataclass(frozen=True, slots=True)
class SourceGate:
    """The parts of the gate that all calls and reads of one source share."""

    source: str
    """Id of the source."""
    services: GateServices
    limiter: Limiter | None = None
    """Limits the calls and reads of the source that run at once; `None` without a limit."""
    active: ActiveCalls | None = None
    """Counts the running calls and reads; the source is closed when all have ended."""


class GatedCall(ABC, Generic[OutcomeT]):
    """One call or read on its way through the gate, together with what its audit event will contain."""

    __slots__ = ("ctx", "gate", "name", "needs_approval", "outcome", "rule", "seconds", "started")

    def __init__(self, gate: SourceGate, name: str, ctx: CallContext, seconds: float) -> None:
        """`seconds` is the limit of working time. Waiting for a slot or for a person does not count."""
        self.gate = gate
        self.name = name
        """Exposed name of the tool or prompt, or the exposed URI."""
        self.ctx = ctx
        self.outcome = "cancelled"
        """How the call ended, as the audit event says."""
        self.rule = ""
        """Id of the rule that refused the call; empty if no rule did."""
        self.seconds = seconds
        self.needs_approval = False
        """Whether a person must approve the call."""
        self.started = time.perf_counter()

    @abstractmethod
    def begin(self) -> None:
        """Emit the event that the call begins, if such calls have one."""

    @abstractmethod
    def authorize(self) -> Reject | None:
        """Judge the scopes of the caller's key; `None` means allowed. Then `ctx` loses the scopes, which apply only before the gate."""

    def judge_arguments(self) -> Reject | None:
        """Judge the arguments, and remove those that the tool may not get. `None` means allowed."""
        return None

    async def approve(self) -> Reject | None:
        """Have a person approve the call; `None` means approved."""
        return None

    @abstractmethod
    def run(self, ctx: CallContext) -> Awaitable[OutcomeT]:
        """Do the work of the call, within the deadline and the concurrency slot that `ctx` contains."""

    @abstractmethod
    def is_plain(self, outcome: OutcomeT) -> bool:
        """Whether it is known, without calling `judge_outcome`, that this method would not change the outcome."""

    @abstractmethod
    async def judge_outcome(self, outcome: OutcomeT) -> OutcomeT:
        """Return the outcome without hidden text and within the limit of size, or a refusal of the outcome."""

    @abstractmethod
    def refuse(self, verdict: Reject) -> OutcomeT:
        """Record for the audit event that policy refused the call. Return the refusal as an outcome, or raise it."""

    @abstractmethod
    def fail(self, error: GatewayError) -> OutcomeT:
        """Record for the audit event that the work raised `error`. Return the error as an outcome, or raise it."""

    @abstractmethod
    def time_out(self) -> OutcomeT:
        """Record for the audit event that the call timed out. Return the timeout as an outcome, or raise it."""

    def complete(self, outcome: OutcomeT) -> OutcomeT:
        """Return the outcome with the gate's additions, such as the names of removed arguments."""
        return outcome

    @abstractmethod
    def end(self) -> None:
        """Emit the event that the call ended."""

    def mask(self, error: Exception) -> None:
        """Remove secrets from the text of a `GatewayError`; other errors stay as they are."""
        if self.gate.services.mask is not None and isinstance(error, GatewayError):
            mask_secrets(error, self.gate.services.mask)

    @property
    def milliseconds(self) -> float:
        """Milliseconds since the call came to the gate, with three decimals."""
        return int((time.perf_counter() - self.started) * 1e6) / 1000


def audit_refusal(gate: SourceGate, name: str, principal: str, rule: str) -> None:
    """Emit the audit event `call.refused` for a call that does not reach `pass_gate`, because its tool is not served."""
    gate.services.events.emit(
        "call.refused", source=gate.source, name=name, principal=principal, fields={"outcome": "refused", "rule": rule}
    )


async def pass_gate(call: GatedCall[OutcomeT]) -> OutcomeT:
    """Take a call or read through every step of the gate, and return its outcome.

    A refused call never reaches `run`. The audit event is emitted however the call ends: with a result, a refusal, an error, at its
    deadline, or cancelled.
    """
    active = call.gate.active
    call.begin()
    if active is not None:
        active.begin()
    try:
        refused = call.authorize() or call.judge_arguments()
        if refused is None and call.needs_approval:
            refused = await call.approve()
        if refused is not None:
            return call.refuse(refused)
        try:
            outcome = await run_within(call.gate.limiter, call.seconds, call.ctx, call.run)  # concurrency, deadline, run
        except GatewayError as error:
            outcome = call.fail(error)
        if outcome is None:
            outcome = call.time_out()
        if not call.is_plain(outcome):
            outcome = await call.judge_outcome(outcome)  # content, size
        return call.complete(outcome)
    finally:
        if active is not None:
            active.end()
        call.end()
